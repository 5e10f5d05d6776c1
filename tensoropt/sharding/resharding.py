"""Define reshardings, which bring a tensor from its produced layout to a consumer's operand sharding, and find their paths.

The forward path goes from the produced layout to the operand layout; the backward path from the operand's gradient layout to
the produced tensor's. A resharding's costs and its execution both come from the two paths that :class:`PathFinder` finds.
There are reshardings inside of operators (:func:`inner_reshardings`) and in updates (:func:`update_reshardings`) too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ..ir.graph import Operator, Tensor
from ..ir.optimizer import ParameterUpdate
from ..reschedule.halo import HALO, LOWEST, ZERO, HaloStep
from ..reschedule.layout import Axes, Layout, Shape
from ..reschedule.mesh import Mesh
from ..reschedule.path import Path, StepCosts, cheapest_path
from ..reschedule.steps import Move, State, make_step
from ..rules.rule import Config, OperandSharding, Rule, interface_of

SMALL_BYTES, BUCKET_BYTES = 1 << 15, 1 << 17
"""A variable's gradient of at most SMALL_BYTES is summed in one bucket with others, of about BUCKET_BYTES in all."""


@dataclass(frozen=True, slots=True)
class Resharding:
    """The resharding of one tensor from a layout to an operand sharding (OperandSharding).

    Attributes:
        shape: the tensor's global shape.
        sharding: the operand sharding that the consumer asks for.
        reduction: ``sum``, or ``max`` where a special lowering takes a maximum over the partial axes.
        returning: the axes over which the gradient may come back to the source partial: those of a shared copy.
        halo: the exchange that is made inside of an operator whose windows overlap blocks, instead of a path.
        is_variable: whether a variable's own value is resharded; only the variable's update waits for its gradient.
        n_passes: the number of backward passes that send a gradient back, each by itself; 1 where none does.
    """

    shape: Shape
    item_bytes: int
    source: Layout
    sharding: OperandSharding
    reduction: str = "sum"
    returning: Axes = ()
    halo: HaloStep | None = None
    is_variable: bool = False
    n_passes: int = 1

    @property
    def shares_bucket(self) -> bool:
        """Return whether the gradient is summed in one bucket with those of other variables."""
        is_sum = (
            self.is_variable and self.source == self.sharding.layout and bool(self.sharding.unreduced) and not self.returning
        )
        return is_sum and math.prod(self.source.largest_local_shape(self.shape)) * self.item_bytes <= SMALL_BYTES


@dataclass(frozen=True, slots=True)
class ReshardingPaths:
    """The forward and backward path of a resharding.

    Attributes:
        backward: the gradient's path; None where no gradient comes back.
        shares_bucket: whether the backward path is one all-reduce that is executed together with others.
    """

    forward: Path
    backward: Path | None
    shares_bucket: bool = False

    @property
    def n_collectives(self) -> int:
        return self.forward.n_collectives + (self.backward.n_collectives if self.backward else 0)

    @property
    def is_free(self) -> bool:
        """Return whether both paths have no steps."""
        return not self.forward.steps and (self.backward is None or not self.backward.steps)


@dataclass(frozen=True)
class PathFinder:
    """The cheapest paths of reshardings under a cost model, each found only once.

    ``choose`` picks a path: by default the cheapest; in tests any legal one that communicates only if it must. With
    ``uses_buckets`` False (in tests) every gradient is summed by itself.
    """

    costs: StepCosts
    choose: Callable[[Layout, Layout, Shape, int, StepCosts], Path] = cheapest_path
    uses_buckets: bool = True
    _known: dict[Resharding, ReshardingPaths] = field(default_factory=dict, init=False, repr=False)
    _paths: dict[tuple[Layout, Layout, Shape, int], Path] = field(default_factory=dict, init=False, repr=False)

    def paths(self, resharding: Resharding) -> ReshardingPaths:
        """Return the cheapest forward path, and the cheapest backward path where a gradient comes back."""
        paths = self._known.get(resharding)
        if paths is None:
            shares_bucket = self.uses_buckets and resharding.shares_bucket
            backward = _one_sum(resharding) if shares_bucket else self._backward(resharding)
            paths = self._known[resharding] = ReshardingPaths(self._forward(resharding), backward, shares_bucket)
        return paths

    def time_ns(self, resharding: Resharding) -> int:
        """Return the time of a resharding: forward and, in each pass in which a gradient comes back, backward."""
        paths, back_ns = self.paths(resharding), 0
        if paths.shares_bucket:
            back_ns = bucket_share_ns(resharding, self.costs)
        elif paths.backward is not None:
            back_ns = paths.backward.time_ns(self.costs, resharding.item_bytes)
        return paths.forward.time_ns(self.costs, resharding.item_bytes) + resharding.n_passes * back_ns

    def forward_ns(self, resharding: Resharding) -> int:
        return self.paths(resharding).forward.time_ns(self.costs, resharding.item_bytes)

    def _path(self, source: Layout, target: Layout, resharding: Resharding) -> Path:
        key = (source, target, resharding.shape, resharding.item_bytes)
        if key not in self._paths:
            self._paths[key] = self.choose(*key, self.costs)
        return self._paths[key]

    def _forward(self, resharding: Resharding) -> Path:
        source, target = resharding.source, resharding.sharding.layout
        if resharding.halo is not None:
            return Path(source, target, (resharding.halo,), resharding.shape)
        if resharding.reduction == "sum":
            return self._path(source, target, resharding)
        # A cheapest path's steps reduce by sums, so a maximum can't be a reduce-scatter and an all-gather: one all-reduce.
        move = Move("all_reduce", source.partial, None, None, State.of(target))
        return Path(source, target, (make_step(source, move),), resharding.shape)

    def _backward(self, resharding: Resharding) -> Path | None:
        sharding, source = resharding.sharding, resharding.source
        if sharding.unreduced is None:
            return None
        if resharding.halo is not None:
            return Path(sharding.layout, source, (resharding.halo.backward(),), resharding.shape)
        return self._path(
            sharding.layout.with_partial(sharding.unreduced), source.with_partial(resharding.returning), resharding
        )


def resharding_of(
    tensor: Tensor, source: Layout, sharding: OperandSharding, returning: Axes | None = (), is_variable: bool = False
) -> Resharding:
    return Resharding(tensor.shape, tensor.item_bytes, source, sharding, returning=returning or (), is_variable=is_variable)


def _one_sum(resharding: Resharding) -> Path:
    """Return the backward path of a gradient that only has to be summed: one all-reduce."""
    source = resharding.source
    before = source.with_partial(resharding.sharding.unreduced or ())
    step = make_step(before, Move("all_reduce", before.partial, None, None, State.of(source)))
    return Path(before, source, (step,), resharding.shape)


def bucket_share_ns(resharding: Resharding, costs: StepCosts) -> int:
    """Return the time of a gradient's sum in a bucket: its share, by bytes, of a full bucket's all-reduce."""
    n_bytes = math.prod(resharding.source.largest_local_shape(resharding.shape)) * resharding.item_bytes
    axes = resharding.source.with_partial(resharding.sharding.unreduced or ()).partial
    return costs.time_ns("all_reduce", resharding.source.mesh, axes, BUCKET_BYTES) * n_bytes // BUCKET_BYTES


@dataclass(frozen=True, slots=True)
class Statistic:
    """An intermediate value that an operator reduces over split factors while it runs, as batch normalisation does its sums.

    Attributes:
        kept: the factors of the value's dimensions; None stands for a dimension of extent 1.
        reduction: ``sum`` or ``max``.
        has_gradient: whether the gradient of the value is needed (not for a maximum that only shifts).
    """

    kept: tuple[str | None, ...]
    reduction: str
    has_gradient: bool


def inner_reshardings(
    op: Operator, rule: Rule, config: Config, differentiated: Sequence[Collection[int]]
) -> tuple[Resharding, ...]:
    """Return the reshardings inside of an operator, in order of execution.

    There are some only if the config splits factors that need them.

    Args:
        differentiated: for each backward pass the positions of the operands to which a gradient comes back.
    """
    if rule.exchanged(config):
        n_passes = sum(0 in positions for positions in differentiated)
        return (halo_resharding(op, rule, config, n_passes > 0, n_passes or 1),)
    axes = tuple(sorted(axis for name in rule.inner for axis in config.axes_of(name)))
    if not axes:
        return ()
    item_bytes = 4 if op.type.startswith("FusedBatchNorm") else op.result.item_bytes
    result, n_passes = [], sum(map(bool, differentiated))
    for statistic in statistics_of(op, rule):
        splits = tuple(config.axes_of(name) if name else () for name in statistic.kept)
        shape = tuple(rule.extents[name] if name else 1 for name in statistic.kept)
        unreduced = axes if statistic.has_gradient and n_passes else None
        sharding, source = OperandSharding(Layout(config.mesh, splits), unreduced), Layout(config.mesh, splits, axes)
        result.append(Resharding(shape, item_bytes, source, sharding, statistic.reduction, n_passes=n_passes or 1))
    return tuple(result)


def halo_resharding(op: Operator, rule: Rule, config: Config, with_gradient: bool, n_passes: int = 1) -> Resharding:
    """Return the exchange of the block borders that the windows of a convolution or a pooling cover."""
    image, sharding = op.operand(0), interface_of(rule, config).operand(0)
    fill = LOWEST if op.type.startswith("MaxPool") else ZERO
    halo = HaloStep(HALO, sharding.layout, rule.exchanged(config), fill)
    back = OperandSharding(sharding.layout, () if with_gradient else None)
    return Resharding(image.shape, image.item_bytes, sharding.layout, back, halo=halo, n_passes=n_passes)


def statistics_of(op: Operator, rule: Rule) -> tuple[Statistic, ...]:
    """Return the statistics that the special lowering of an operator reduces, in order of execution."""
    if op.type.startswith("FusedBatchNorm"):
        per_channel = Statistic(("c",), "sum", True)
        return (per_channel, per_channel)
    if op.type in ("Max", "Min"):
        dims = tuple(names[0] if names and names[0] not in rule.inner else None for names in rule.operands[0] or ())
        return (Statistic(dims, "max", False), Statistic(dims, "sum", False))
    rows = tuple(names[0] if names != ("c",) else None for names in rule.operands[0] or ())
    return (Statistic(rows, "max", False), Statistic(rows, "sum", True))


def sum_resharding(mesh: Mesh, length: int, item_bytes: int) -> Resharding:
    """Return the resharding that sums a vector over all devices."""
    source = Layout(mesh, ((),), mesh.axes)
    return Resharding((length,), item_bytes, source, OperandSharding(Layout.replicated(mesh, 1), None))


def gather_resharding(tensor: Tensor, layout: Layout) -> Resharding:
    """Return the resharding that replicates a tensor, such as a parameter or its gradient, on every device."""
    replicated = Layout.replicated(layout.mesh, len(tensor.shape))
    return Resharding(tensor.shape, tensor.item_bytes, layout, OperandSharding(replicated, None))


def split_resharding(tensor: Tensor, layout: Layout) -> Resharding:
    """Return the resharding that cuts a replicated parameter back into its shards."""
    replicated = Layout.replicated(layout.mesh, len(tensor.shape))
    return Resharding(tensor.shape, tensor.item_bytes, replicated, OperandSharding(layout, None))


def update_reshardings(
    updates: Sequence[ParameterUpdate], tensor: Tensor, layout: Layout, by_rows: bool
) -> Iterator[Resharding]:
    """Yield the reshardings of a parameter's updates; there is one update for each training step that trains it.

    Args:
        by_rows: whether the gradient comes as rows, which every device has.
    """
    mesh = layout.mesh
    for update in updates:
        if mesh.n_devices > 1:
            yield from (sum_resharding(mesh, length, item_bytes) for length, item_bytes in update.sums)
        if update.is_global and not layout.is_replicated:
            # The gradient, the parameter, and the parameter's shard on the way back.
            if not by_rows:
                yield gather_resharding(tensor, layout)
            yield gather_resharding(tensor, layout)
            yield split_resharding(tensor, layout)


def row_reshardings(op: Operator, rule: Rule, config: Config) -> tuple[Resharding, Resharding]:
    """Return the two reshardings of a lookup whose table is updated by rows.

    They replicate the indices, and the gradient of the rows that were found, on every device.
    """
    interface, indices = interface_of(rule, config), op.operand(1)
    return (
        gather_resharding(indices, interface.operand(1).layout),
        gather_resharding(op.result, interface.results[0].with_partial(())),
    )


@dataclass(frozen=True, slots=True)
class PlainCosts:
    """Step costs that depend on no measurement, for reshardings that no plan names: they prefer fewer and smaller
    collectives.
    """

    def time_ns(self, kind: str, mesh: Mesh, axes: Axes, n_bytes: int) -> int:
        return n_bytes // 10 if kind == "local" else 10_000 + n_bytes * (2 if kind == "all_reduce" else 1)
