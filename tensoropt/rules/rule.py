"""Rules, configs and what a config makes of an operator.

A rule describes an operator by named *factors* in an einsum-like pattern: ``m k, k n -> m n``. One mesh axis at a time may
be given to a factor; the infrastructure derives everything else:

- an operand or result dimension that has the factor is split by the axis; one that lacks it has replicas along the axis;
- a result that lacks a factor which an operand has is a sum, *partial* along the axis;
- an axis may also be given to a group of operands in which the operator is linear: those are partial then, and so is the
  result (``+0`` is the first such group).

In a pattern, ``1`` is a dimension that isn't split, ``(a b)`` one in which two factors are merged, a before b.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from ..ir.graph import Operator
from ..reschedule.halo import Window, Windows
from ..reschedule.layout import Axes, Layout, axes_text, parse_axes
from ..reschedule.mesh import Mesh

Dims = tuple[tuple[str, ...], ...]
NONE = ""
_TOKEN = re.compile(r"\([^)]*\)|\S+")
EXHAUSTIVE_AXES = 4


@dataclass(frozen=True, eq=False)
class Rule:
    """What an operator is.

    Attributes:
        operands: per input the factors of each dimension, or None where the input is static.
        results: per result the factors of each dimension.
        extents: each factor's extent, in the factor order that decides which axis is major.
        fixed: factors that can't be split.
        even: factors whose number of blocks must divide their extent.
        inner: factors that, when split, need collectives inside of the operator.
        completed: factors whose sum those collectives complete, so that a result without them isn't partial.
        linear: groups of operand positions that may be partial together.
        halos: factors that windows slide along: in the first operand a dimension of its own extent, in the result that of
            the windows. Where such a factor is split, what the windows of a block cover is exchanged first.
        spread: the factor to which every axis is given, as far as it has elements: the batch of an input of which each rank
            loads its share.
        flops_per_point: floating-point operations of the forward pass per point of the factors' product.
        without: why there is no better rule, for an operator that runs replicated.
    """

    operands: tuple[Dims | None, ...]
    results: tuple[Dims, ...]
    extents: Mapping[str, int]
    fixed: frozenset[str] = frozenset()
    even: frozenset[str] = frozenset()
    inner: frozenset[str] = frozenset()
    completed: frozenset[str] = frozenset()
    linear: tuple[tuple[int, ...], ...] = ()
    halos: Mapping[str, Window] = field(default_factory=dict)
    spread: str = ""
    flops_per_point: float = 1.0
    without: str = field(default="")

    @cached_property
    def splittable(self) -> tuple[str, ...]:
        """The factors that an axis may be given to, in factor order."""
        return tuple(name for name in self.extents if self.most_blocks(name) > 1 and name not in self.fixed)

    def most_blocks(self, name: str) -> int:
        """Into how many blocks a factor can be split, so that no block of any tensor is empty."""
        return self.halos[name].most_blocks if name in self.halos else self.extents[name]

    def divides(self, name: str, degree: int) -> bool:
        """Whether a factor can be split into so many blocks."""
        return degree <= self.most_blocks(name) and not (name in self.even and self.extents[name] % degree)

    def exchanged(self, config: Config) -> Windows:
        """The windows along the first operand's dimensions, where a config makes a halo necessary; else none."""
        if all(window.tiles(config.degree(name)) for name, window in self.halos.items() if config.degree(name) > 1):
            return ()
        assert self.operands[0] is not None
        return tuple(self.halos.get(names[0]) if names else None for names in self.operands[0])

    @cached_property
    def summed(self) -> tuple[frozenset[str], ...]:
        """Per result, the factors whose split makes it partial."""
        in_operands = {name for dims in self.operands if dims for names in dims for name in names}
        return tuple(
            frozenset(in_operands - {name for names in dims for name in names} - self.completed)
            for dims in self.results
        )

    @cached_property
    def minor_to(self) -> dict[str, set[str]]:
        """Per factor, those that stand before it in a merged dimension: they must be split down to single elements."""
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


def _dims_text(dims: Dims) -> str:
    return " ".join("1" if not names else names[0] if len(names) == 1 else f"({' '.join(names)})" for names in dims)


def parse_dims(text: str) -> Dims:
    """``n (h p) 1`` to ``(("n",), ("h", "p"), ())``."""
    return tuple(
        () if token == "1" else tuple(token[1:-1].split()) if token.startswith("(") else (token,)
        for token in _TOKEN.findall(text)
    )


def pattern_rule(op: Operator, pattern: str, **options: Any) -> Rule:
    """A rule from a pattern such as ``m k, k n -> m n``; operands stand for the inputs that aren't static, in order.

    Extents are read off the operator's tensors; ``extents=`` gives those of factors in merged dimensions.
    """
    left, right = pattern.split("->")
    operand_dims = [parse_dims(text) for text in left.split(",")] if left.strip() else []
    result_dims = tuple(parse_dims(text) for text in right.split(","))
    dims_of = iter(operand_dims)
    operands = tuple(None if tensor is None else next(dims_of) for tensor in op.inputs)
    return make_rule(op, operands, result_dims, **options)


def make_rule(
    op: Operator,
    operands: tuple[Dims | None, ...],
    results: tuple[Dims, ...],
    extents: Mapping[str, int] | None = None,
    fixed: Iterable[str] = (),
    inner: Iterable[str] = (),
    completed: Iterable[str] = (),
    linear: tuple[tuple[int, ...], ...] = (),
    halos: Mapping[str, Window] | None = None,
    spread: str = "",
    flops_per_point: float = 1.0,
) -> Rule:
    """Build a rule, with the extents read off the tensors and uneven splits ruled out where they can't be.

    Raises:
        ValueError: the pattern doesn't fit the operator's tensors.
    """
    tensors = [(op.inputs[i], dims) for i, dims in enumerate(operands) if dims is not None]
    tensors += list(zip(op.outputs, results, strict=False))
    known = dict(extents or {})
    for tensor, dims in tensors:
        assert tensor is not None
        if len(dims) != len(tensor.shape):
            raise ValueError(f"rule of {op.where()}: {_dims_text(dims)} doesn't have the dimensions of {tensor}")
        for names, extent in zip(dims, tensor.shape, strict=True):
            if len(names) == 1:
                known.setdefault(names[0], extent)
    even = {
        name
        for tensor, dims in tensors
        if tensor is not None
        for names, extent in zip(dims, tensor.shape, strict=True)
        for name in names
        if known[name] != extent and name not in (halos or {})
    }
    is_float = all(tensor.is_float for tensor in op.outputs)
    return Rule(
        operands,
        results,
        known,
        frozenset(fixed),
        frozenset(even),
        frozenset(inner),
        frozenset(completed),
        linear if is_float else (),
        halos or {},
        spread,
        flops_per_point,
    )


def replicated_rule(op: Operator, why: str) -> Rule:
    """The rule of an operator that runs whole on every device."""
    operands = tuple(None if tensor is None else ((),) * len(tensor.shape) for tensor in op.inputs)
    return Rule(operands, tuple(((),) * len(tensor.shape) for tensor in op.outputs), {}, without=why)


@dataclass(frozen=True, slots=True)
class Config:
    """A rule with each mesh axis assigned to one factor, to a linear group (``+0``), or to none (``""``)."""

    mesh: Mesh
    assignment: tuple[str, ...]

    def axes_of(self, name: str) -> Axes:
        """The axes that are given to a factor or linear group, outermost first."""
        return tuple(axis for axis, given in enumerate(self.assignment) if given == name)

    def degree(self, name: str) -> int:
        """Into how many blocks a factor is split."""
        return self.mesh.size_of(self.axes_of(name))

    @property
    def used_axes(self) -> Axes:
        return tuple(axis for axis, given in enumerate(self.assignment) if given != NONE)

    @classmethod
    def whole(cls, mesh: Mesh) -> Config:
        """The config that splits nothing."""
        return cls(mesh, (NONE,) * len(mesh.sizes))

    @classmethod
    def parse(cls, mesh: Mesh, text: str) -> Config:
        """Read what ``str(config)`` wrote: ``n:a o:bc``, or ``-`` where no axis is used."""
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
class Demand:
    """What a consumer asks of a tensor: the operand layout, and the axes over which its gradient comes partial.

    ``varying`` is None where no gradient comes back. The text is ``[a, -] ~b``; ``!`` stands for no gradient.
    """

    layout: Layout
    varying: Axes | None

    def __str__(self) -> str:
        if self.varying is None:
            return f"{self.layout} !"
        return f"{self.layout}" + (f" ~{axes_text(self.varying)}" if self.varying else "")

    @classmethod
    def parse(cls, mesh: Mesh, text: str) -> Demand:
        """Read what ``str(demand)`` wrote."""
        if text.endswith(" !"):
            return cls(Layout.parse(mesh, text[:-2]), None)
        layout, _, varying = text.partition(" ~")
        return cls(Layout.parse(mesh, layout), parse_axes(varying))


@dataclass(frozen=True, slots=True)
class Interface:
    """What a config means to the operator's context: a demand per operand, a layout per result."""

    operands: tuple[Demand | None, ...]
    results: tuple[Layout, ...]


def interface(rule: Rule, config: Config) -> Interface:
    """The layouts that a config determines; see the module docstring for how."""
    mesh, used = config.mesh, config.used_axes
    axes = {name: config.axes_of(name) for name in rule.extents}
    groups = [config.axes_of(f"+{i}") for i in range(len(rule.linear))]

    def splits(dims: Dims) -> tuple[Axes, ...]:
        return tuple(tuple(axis for name in names for axis in axes[name]) for names in dims)

    def operand(position: int, dims: Dims) -> Demand:
        partial = tuple(axis for i, group in enumerate(rule.linear) if position in group for axis in groups[i])
        layout = Layout(mesh, splits(dims), partial)
        held = layout.used_axes
        return Demand(layout, tuple(axis for axis in used if axis not in held))

    linear_axes = tuple(axis for group in groups for axis in group)
    return Interface(
        tuple(None if dims is None else operand(i, dims) for i, dims in enumerate(rule.operands)),
        tuple(
            Layout(mesh, splits(dims), linear_axes + tuple(a for name in sorted(summed) for a in axes[name]))
            for dims, summed in zip(rule.results, rule.summed, strict=True)
        ),
    )


def why_invalid(rule: Rule, config: Config) -> str:
    """Why a config can't be had under a rule, or an empty string if it can."""
    n_devices = config.mesh.n_devices
    if rule.spread and config.degree(rule.spread) < n_devices <= rule.extents[rule.spread]:
        return f"every rank loads its share of factor '{rule.spread}', so all axes must be given to it"
    for name in dict.fromkeys(config.assignment):
        if name == NONE or (name.startswith("+") and int(name[1:]) < len(rule.linear)):
            continue
        if name not in rule.extents:
            return f"it has no factor '{name}'; its factors are {', '.join(rule.extents) or 'none'} in {rule}"
        extent, degree, most = rule.extents[name], config.degree(name), rule.most_blocks(name)
        if name in rule.fixed:
            return f"factor '{name}' in {rule} can't be split"
        if degree > most:
            return f"factor '{name}' has only {most} elements, {degree} blocks are too many"
        if name in rule.even and extent % degree:
            return f"factor '{name}' has {extent} elements and must divide evenly, which {degree} blocks don't"
        majors = rule.minor_to.get(name, set())
        if any(config.degree(major) != rule.extents[major] for major in majors):
            return f"factor '{name}' stands behind {sorted(majors)} in one dimension, which must be split up wholly first"
    return ""


def configs(rule: Rule, mesh: Mesh) -> tuple[Config, ...]:
    """All configs of a rule on a mesh; beyond 16 devices those that give each factor a contiguous group of axes."""
    names = (NONE, *rule.splittable, *(f"+{i}" for i in range(len(rule.linear))))
    n_axes = len(mesh.sizes)
    assignments = product(names, repeat=n_axes) if n_axes <= EXHAUSTIVE_AXES else _contiguous(names, n_axes)
    choices = (Config(mesh, assignment) for assignment in assignments)
    return tuple(config for config in choices if not why_invalid(rule, config))


def _contiguous(names: tuple[str, ...], n_axes: int, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The assignments that give each name one contiguous group of axes, in the order of ``product``."""
    if n_axes == len(before):
        yield before
        return
    for name in names:
        if name not in before or name == before[-1]:
            yield from _contiguous(names, n_axes, (*before, name))


def local_points(rule: Rule, config: Config) -> int:
    """How many points of the factors' product the busiest device computes."""
    return math.prod(-(-extent // config.degree(name)) for name, extent in rule.extents.items())


