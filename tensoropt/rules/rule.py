"""Sharding rules, configs, and the layouts that a config gives to an operator's operands and results.

A rule describes an operator by named *factors* in an einsum-like pattern: ``m k, k n -> m n``. A config assigns each mesh
axis to one factor or to none. Everything else follows for each axis by itself:

- an operand or result that has the factor in a dimension is split by the axis along that dimension;
- an operand that lacks the factor is replicated along the axis;
- a result that lacks the factor although an operand has it is a sum: it is *partial* along the axis;
- an axis may also be assigned to a group of operands in which the operator is linear (``+0`` is the first such group). These
  operands are then partial along the axis, and so are the results.

In a pattern, ``1`` is a dimension that isn't split, and ``(a b)`` is one in which two factors are merged, a before b.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any

from ..ir.graph import Operator
from ..reschedule.halo import Window, Windows
from ..reschedule.layout import Axes, Layout, axes_text, parse_axes
from ..reschedule.mesh import Mesh

Dims = tuple[tuple[str, ...], ...]
NONE = ""


@dataclass(frozen=True, eq=False)
class Rule:
    """The sharding rule of one operator.

    Attributes:
        operands: per input the factors of each dimension; None for a static input, a constant that steers the operator.
        results: per result the factors of each dimension.
        extents: the extent of each factor. Their order decides which axis is major.
        fixed: factors that can't be split.
        even: factors whose number of blocks must divide their extent.
        inner: factors that need collectives inside the operator when they are split.
        completed: factors over which these collectives complete the sum, so that a result without them isn't partial.
        positional: factors of which a block must know its place, as of rows that are looked up; micro-batches don't.
        linear: groups of operand positions that may be partial together, as the operator is linear in them.
        halos: factors that windows slide along. The first operand's dimension has an extent of its own, the result's has the
            number of windows. When such a factor is split, the elements under the windows of each block are exchanged first.
        spread: the factor that every axis must be assigned to, if it has enough elements: the batch of an input of which
            each rank loads its share. Empty if there is none. Where no axis is used, each rank loads the global batch.
        flops_per_point: floating-point operations of the forward pass per point of the product of all factors.
        points: returns how many points a device computes, from the extents of its largest blocks of all factors. It is their
            product, unless the operator computes more than its block.
        without: the reason why the operator has no better rule, if it runs replicated; else empty.
    """

    operands: tuple[Dims | None, ...]
    results: tuple[Dims, ...]
    extents: Mapping[str, int]
    fixed: frozenset[str] = frozenset()
    even: frozenset[str] = frozenset()
    inner: frozenset[str] = frozenset()
    completed: frozenset[str] = frozenset()
    positional: frozenset[str] = frozenset()
    linear: tuple[tuple[int, ...], ...] = ()
    halos: Mapping[str, Window] = field(default_factory=dict)
    spread: str = ""
    flops_per_point: float = 1.0
    points: Callable[[tuple[int, ...]], int] = math.prod
    without: str = ""

    @cached_property
    def content(self) -> tuple[object, ...]:
        """All attributes: equal, and hashable, for rules that say the same."""
        parts = (getattr(self, part.name) for part in fields(self))
        return tuple(tuple(part.items()) if isinstance(part, Mapping) else part for part in parts)

    @cached_property
    def splittable(self) -> tuple[str, ...]:
        """The factors that an axis may be assigned to, in factor order."""
        return tuple(name for name in self.extents if self.most_blocks(name) > 1 and name not in self.fixed)

    def most_blocks(self, name: str) -> int:
        """Return the most blocks into which a factor can be split so that no block of any tensor is empty."""
        return self.halos[name].most_blocks if name in self.halos else self.extents[name]

    def divides(self, name: str, degree: int) -> bool:
        """Return whether a factor can be split into ``degree`` blocks."""
        return degree <= self.most_blocks(name) and not (name in self.even and self.extents[name] % degree)

    def exchanged(self, config: Config) -> Windows:
        """Return the windows along the first operand's dimensions if a config needs a halo exchange, else an empty tuple.

        The entry of a dimension without windows is None.
        """
        if all(window.tiles(config.degree(name)) for name, window in self.halos.items() if config.degree(name) > 1):
            return ()
        assert self.operands[0] is not None
        return tuple(self.halos.get(names[0]) if names else None for names in self.operands[0])

    @cached_property
    def summed(self) -> tuple[frozenset[str], ...]:
        """The factors whose split makes a result partial, per result."""
        in_operands = {name for dims in self.operands if dims for names in dims for name in names}
        return tuple(
            frozenset(in_operands - {name for names in dims for name in names} - self.completed) for dims in self.results
        )

    @cached_property
    def minor_to(self) -> dict[str, set[str]]:
        """The factors before a factor in a merged dimension, by factor.

        The factor can be split only if these are split into single elements.
        """
        majors: dict[str, set[str]] = {}
        for dims in [*(d for d in self.operands if d is not None), *self.results]:
            for names in dims:
                for index, name in enumerate(names):
                    majors.setdefault(name, set()).update(names[:index])
        return majors

    def __str__(self) -> str:
        def side(tensors: Iterable[Dims | None]) -> str:
            return ", ".join("static" if dims is None else _dims_text(dims) for dims in tensors)

        return f"{side(self.operands)} -> {side(self.results)}"


def own_dims(rank: int, unsplit: Collection[int] = ()) -> Dims:
    """Return a factor for each of a tensor's dimensions, d0, d1, ..., but none for those that can't be split."""
    return tuple(() if i in unsplit else (f"d{i}",) for i in range(rank))


def _dims_text(dims: Dims) -> str:
    """Return the dimensions of one tensor as a pattern's text."""
    return " ".join("1" if not names else names[0] if len(names) == 1 else f"({' '.join(names)})" for names in dims)


def pattern_rule(op: Operator, pattern: str, **options: Any) -> Rule:
    """Return the rule of an operator from a pattern such as ``m k, k n -> m n``; ``1`` is a dimension that isn't split.

    The pattern's operands are the inputs that aren't static, in order. The operator's tensors give the extents.

    Args:
        options: passed on to :func:`make_rule`.
    """
    dims_of, results = (
        [tuple(() if name == "1" else (name,) for name in text.split()) for text in side.split(",")]
        for side in pattern.split("->")
    )
    remaining = iter(dims_of)
    operands = tuple(None if tensor is None else next(remaining) for tensor in op.inputs)
    return make_rule(op, operands, tuple(results), **options)


def make_rule(
    op: Operator,
    operands: tuple[Dims | None, ...],
    results: tuple[Dims, ...],
    extents: Mapping[str, int] | None = None,
    linear: tuple[tuple[int, ...], ...] = (),
    halos: Mapping[str, Window] | None = None,
    spread: str = "",
    flops_per_point: float = 1.0,
    **factors: Iterable[str],
) -> Rule:
    """Build a rule: take extents from the operator's tensors, and rule out uneven splits where blocks wouldn't match.

    A factor without a halo is ``even`` if a dimension that it is in has another extent, as a merged dimension has.
    ``linear`` is ignored unless all results are floating-point. For the arguments see :class:`Rule`.

    Args:
        factors: the ``fixed``, ``inner``, ``completed`` and ``positional`` ones.

    Raises:
        ValueError: the pattern doesn't fit the operator's tensors.
    """
    tensors = [(op.inputs[i], dims) for i, dims in enumerate(operands) if dims is not None]
    tensors += list(zip(op.outputs, results, strict=False))
    sizes = dict(extents or {})
    for tensor, dims in tensors:
        assert tensor is not None
        if len(dims) != len(tensor.shape):
            raise ValueError(f"rule of {op.where()}: {_dims_text(dims)} doesn't have the dimensions of {tensor}")
        for names, extent in zip(dims, tensor.shape, strict=True):
            if len(names) == 1:
                sizes.setdefault(names[0], extent)
    even = {
        name
        for tensor, dims in tensors
        if tensor is not None
        for names, extent in zip(dims, tensor.shape, strict=True)
        for name in names
        if sizes[name] != extent and name not in (halos or {})
    }
    is_float = all(tensor.is_float for tensor in op.outputs)
    return Rule(
        operands=operands,
        results=results,
        extents=sizes,
        even=frozenset(even),
        **{kind: frozenset(names) for kind, names in factors.items()},  # type: ignore[arg-type]
        linear=linear if is_float else (),
        halos=halos or {},
        spread=spread,
        flops_per_point=flops_per_point,
    )


def replicated_rule(op: Operator, reason: str) -> Rule:
    """Return the rule of an operator that runs replicated on every device; ``reason`` says why."""
    operands = tuple(None if tensor is None else ((),) * len(tensor.shape) for tensor in op.inputs)
    return Rule(operands, tuple(((),) * len(tensor.shape) for tensor in op.outputs), {}, without=reason)


@dataclass(frozen=True, slots=True)
class Config:
    """A rule's factors assigned to the axes of a mesh.

    Attributes:
        assignment: per mesh axis a factor, a linear group (``+0``), or none (``""``).
    """

    mesh: Mesh
    assignment: tuple[str, ...]

    def __hash__(self) -> int:
        # Configs are looked up in their thousands, hardly ever those of several meshes together: the mesh isn't hashed.
        return hash(self.assignment)

    def axes_of(self, name: str) -> Axes:
        """Return the axes that are assigned to a factor or a linear group, outermost first."""
        return tuple(axis for axis, factor in enumerate(self.assignment) if factor == name)

    def degree(self, name: str) -> int:
        """Return the number of blocks into which a factor is split."""
        sizes, blocks = self.mesh.sizes, 1
        for axis, factor in enumerate(self.assignment):
            if factor == name:
                blocks *= sizes[axis]
        return blocks

    @property
    def used_axes(self) -> Axes:
        return tuple(axis for axis, factor in enumerate(self.assignment) if factor != NONE)

    @classmethod
    def unsplit(cls, mesh: Mesh) -> Config:
        return cls(mesh, (NONE,) * len(mesh.sizes))

    @classmethod
    def parse(cls, mesh: Mesh, text: str) -> Config:
        """Parse the text of ``str(config)``: ``n:a o:bc``, or ``-`` if no axis is used."""
        assignment = [NONE] * len(mesh.sizes)
        for part in text.split() if text != "-" else ():
            name, _, axes = part.partition(":")
            for letter in axes:
                assignment[ord(letter) - ord("a")] = name
        return cls(mesh, tuple(assignment))

    def __str__(self) -> str:
        names = dict.fromkeys(name for name in self.assignment if name != NONE)
        return " ".join(f"{name}:{axes_text(self.axes_of(name))}" for name in names) or "-"


@dataclass(frozen=True, slots=True)
class OperandSharding:
    """An operand sharding: the layout that a consumer asks of a tensor, and the layout of the gradient that it sends back.

    The text is ``[a, -] ~b``, where b is ``unreduced``; ``[a, -] !`` has no gradient.

    Attributes:
        unreduced: the axes over which the gradient comes back partial; None if no gradient comes back.
    """

    layout: Layout
    unreduced: Axes | None

    def __str__(self) -> str:
        if self.unreduced is None:
            return f"{self.layout} !"
        return f"{self.layout}" + (f" ~{axes_text(self.unreduced)}" if self.unreduced else "")

    @classmethod
    def parse(cls, mesh: Mesh, text: str) -> OperandSharding:
        """Parse the text of ``str(sharding)``."""
        if text.endswith(" !"):
            return cls(Layout.parse(mesh, text[:-2]), None)
        layout, _, unreduced = text.partition(" ~")
        return cls(Layout.parse(mesh, layout), parse_axes(unreduced))


@dataclass(frozen=True, slots=True)
class Interface:
    """The operand shardings (OperandSharding) and produced layouts that an operator has under a config.

    Attributes:
        operands: per input its operand sharding; None for a static input.
        results: per result its produced layout.
    """

    operands: tuple[OperandSharding | None, ...]
    results: tuple[Layout, ...]

    def operand(self, position: int) -> OperandSharding:
        """Return the operand sharding at the position of an input that isn't static."""
        sharding = self.operands[position]
        assert sharding is not None
        return sharding


def interface_of(rule: Rule, config: Config) -> Interface:
    """Return the operand shardings and produced layouts that a config gives an operator; the module docstring says how."""
    mesh, used = config.mesh, config.used_axes
    axes: dict[str, Axes] = dict.fromkeys(rule.extents, ())
    for axis in used:
        axes[config.assignment[axis]] = (*axes.get(config.assignment[axis], ()), axis)
    groups = [axes.get(f"+{i}", ()) for i in range(len(rule.linear))]

    def splits(dims: Dims) -> tuple[Axes, ...]:
        return tuple(tuple(axis for name in names for axis in axes[name]) for names in dims)

    def operand(position: int, dims: Dims) -> OperandSharding:
        partial = tuple(axis for i, group in enumerate(rule.linear) if position in group for axis in groups[i])
        layout = Layout(mesh, splits(dims), partial)
        layout_axes = layout.used_axes
        return OperandSharding(layout, tuple(axis for axis in used if axis not in layout_axes))

    linear_axes = tuple(axis for group in groups for axis in group)
    return Interface(
        tuple(None if dims is None else operand(i, dims) for i, dims in enumerate(rule.operands)),
        tuple(
            Layout(mesh, splits(dims), linear_axes + tuple(a for name in sorted(summed) for a in axes[name]))
            for dims, summed in zip(rule.results, rule.summed, strict=True)
        ),
    )


known_interface_of = lru_cache(maxsize=1 << 14)(interface_of)
"""The same, for what asks again and again: equal layers have the same rules."""
_SPREAD = "every rank loads its share of factor '{}', so all axes must be given to it"


def why_invalid(rule: Rule, config: Config) -> str:
    """Return the reason why a config is invalid under a rule, or an empty string if it is valid."""
    n_devices = config.mesh.n_devices
    if config.used_axes and rule.spread and config.degree(rule.spread) < n_devices <= rule.extents[rule.spread]:
        return _SPREAD.format(rule.spread)
    for name in dict.fromkeys(config.assignment):
        if name == NONE or (name.startswith("+") and int(name[1:]) < len(rule.linear)):
            continue
        if name not in rule.extents:
            return f"it has no factor '{name}'; its factors are {', '.join(rule.extents) or 'none'} in {rule}"
        extent, degree, limit = rule.extents[name], config.degree(name), rule.most_blocks(name)
        if name in rule.fixed:
            return f"factor '{name}' in {rule} can't be split"
        if degree > limit:
            return f"factor '{name}' has only {limit} elements, {degree} blocks are too many"
        if name in rule.even and extent % degree:
            return f"factor '{name}' has {extent} elements and must divide evenly, which {degree} blocks don't"
        majors = rule.minor_to.get(name, set())
        if any(config.degree(major) != rule.extents[major] for major in majors):
            return f"factor '{name}' stands behind {sorted(majors)} in one dimension, which must be split up wholly first"
    return ""


def why_unsearched(rule: Rule, config: Config) -> str:
    """Return the reason why no search considers a config, or an empty string if searches do.

    It is invalid, or all ranks load the global batch, as only in a plan that splits nothing.
    """
    if rule.spread and not config.used_axes and 1 < config.mesh.n_devices <= rule.extents[rule.spread]:
        return _SPREAD.format(rule.spread)
    return why_invalid(rule, config)
