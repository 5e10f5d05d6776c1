"""Compute the costs of reshardings: the part of Equations (1) and (2) of the TensorOpt paper that is charged to edges.

    m(e), t(e)    :class:`ReshardingCosting`    copies that are saved; resharding forward and backward

The synchronisation of a parameter's gradient, *ts* in the paper's cost of an operator, is the backward resharding between
the parameter and its consumer here. Costs are integers: bytes and nanoseconds, of the device that has the largest shards.
The costs of operators are in :mod:`.operator_costs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from ..common.pickling import ByArguments
from ..ft.problem import INFEASIBLE
from ..ir.graph import Tensor
from ..reschedule.cheapest.layout_numbers import LayoutNumbers
from ..reschedule.layout import Layout, Shape
from ..reschedule.mesh import Mesh
from ..reschedule.orders import Ints, Mask
from ..reschedule.path import StepCosts, all_pairs, size_class
from ..rules.shardings import NO_GRADIENT, Shardings
from ..sharding.resharding import PathFinder, Resharding, bucket_share_ns, resharding_of


class ResidualCharge(Enum):
    """The memory that a resharding is charged for residuals: what it saves for the backward pass, if that reads the copy.

    A copy that is the source itself, or a view of it, saves the source. That costs nothing in the members ``..._OF_SAVED``:
    something else is charged for the source already.
    """

    NOTHING = "no gradient reads the copy"
    COPY = "the copy"
    COPY_OF_SAVED = "the copy; the source is saved anyway"
    REGATHERED = "the source, of which the copy is regathered"
    REGATHERED_OF_SAVED = "nothing: the copy is regathered from a source that is saved anyway"
    FROM_REMATERIALIZED = "the copy, if it takes communication to make it of a regathered or rematerialized source"
    VIEW_OF_REMATERIALIZED = "the same; without communication it is part of the rematerialization, and takes no extra time"
    COPY_OF_REMATERIALIZED = "the copy, of a rematerialized source; forbidden where it takes no communication to make it"
    UNREAD_OF_REMATERIALIZED = "nothing, of a rematerialized source; forbidden where the copy takes no communication"
    LOCAL_OF_REMATERIALIZED = "nothing, of a rematerialized source; forbidden where the copy takes communication"
    FROM_SHARED_UNREAD = "the copy, of a shared copy that isn't saved; forbidden where the copy is that, or a view of it"
    FORBIDDEN = "nothing: there is no such resharding"


@dataclass(frozen=True, eq=False)
class TimeTable:
    """The times of the cheapest paths between some layouts of tensors of one size class.

    Attributes:
        row: the row and column of each layout's number, int64[numbers]; -1 for those that aren't there.
        time_ns: int64[layouts, layouts], from row to column.
    """

    row: Ints
    time_ns: Ints

    def between(self, sources: Ints, targets: Ints) -> Ints:
        """Return the times from each source to each target, given by their layouts' numbers, int64[sources, targets]."""
        rows, columns = self.row[sources], self.row[targets]
        assert (rows >= 0).all() and (columns >= 0).all(), "every layout was announced"
        times: Ints = self.time_ns[np.ix_(rows, columns)]
        return times


@dataclass
class ReshardingCosting(ByArguments):
    """The times of reshardings: shortest paths between the layouts that occur, found once per size class of tensors.

    Attributes:
        numbers: the layouts that occur, numbered.
        path_finder: the paths of reshardings that no table has.
        exposed_share: the share of a resharding's time that isn't hidden behind the compute beside it; 1 where nothing
            overlaps.
        in_graph: whether collectives are TensorFlow's operators, for their memory.
        nccl_bytes_per_s: the rate of the links between a machine's GPUs, if collectives run by NCCL; else None.
    """

    mesh: Mesh
    steps: StepCosts
    exposed_share: float = 1.0
    in_graph: bool = False
    nccl_bytes_per_s: float | None = None
    _expected: dict[tuple[object, ...], dict[int, None]] = field(default_factory=dict)
    _tables: dict[tuple[object, ...], TimeTable] = field(default_factory=dict)
    _classes: dict[tuple[Shape, int], tuple[object, ...]] = field(default_factory=dict)
    # Sequences of shardings are keys by their identity.
    _pairs: dict[tuple[str, Shardings, Shardings], Mask] = field(default_factory=dict)
    _times: dict[tuple[object, ...], tuple[Ints, Ints, Mask]] = field(default_factory=dict)
    _bytes: dict[tuple[Shape, int, Shardings], Ints] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers, self.path_finder = LayoutNumbers(self.mesh), PathFinder(self.steps)

    @property
    def overlaps(self) -> bool:
        """Return whether the device computes during a resharding that nobody waits for."""
        return self.exposed_share < 1

    def overlappable_ns(self, time_ns: np.ndarray) -> np.ndarray:
        """Return the part of each time that compute may overlap."""
        overlappable: np.ndarray = np.floor(time_ns * (1 - self.exposed_share)).astype(np.int64)
        return overlappable

    def expect(self, shape: Shape, item_bytes: int, layouts: Ints) -> None:
        """Announce layouts of tensors of this shape, by their numbers, whose reshardings will be asked for.

        A size class's table holds the layouts that were announced, and is built when it is first needed.
        """
        self._expected.setdefault(self._class(shape, item_bytes), {}).update(dict.fromkeys(layouts.tolist()))

    def table(self, shape: Shape, item_bytes: int) -> TimeTable:
        """Return the times between all layouts that were announced for tensors of this size class."""
        key = self._class(shape, item_bytes)
        expected = self._expected[key]
        if key not in self._tables or len(self._tables[key].time_ns) < len(expected):
            layouts = tuple(self.numbers.layout(number) for number in expected)
            row = np.full(len(self.numbers), -1)
            row[list(expected)] = np.arange(len(expected))
            self._tables[key] = TimeTable(row, all_pairs(self.mesh, shape, item_bytes, self.steps, layouts))
        return self._tables[key]

    def expect_resharding(self, resharding: Resharding) -> None:
        """Announce that ``time_ns`` of this resharding, and probably of others like it, will be asked for."""
        if resharding.reduction == "sum" and resharding.halo is None:
            ends = _ends(resharding)
            self.expect(resharding.shape, resharding.item_bytes, self.numbers.of(layout for pair in ends for layout in pair))

    def time_ns(self, resharding: Resharding) -> int:
        """Return the time of a resharding; see :meth:`.PathFinder.time_ns`."""
        size = resharding.shape, resharding.item_bytes
        if resharding.reduction == "sum" and resharding.halo is None and not resharding.shares_bucket:
            expected = self._expected.get(self._class(*size), {})
            sources, targets = (self.numbers.of(ends) for ends in zip(*_ends(resharding), strict=True))
            if all(number in expected for number in (*sources.tolist(), *targets.tolist())):
                forward_ns, *back_ns = np.diag(self.table(*size).between(sources, targets)).tolist()
                return int(forward_ns + resharding.n_passes * sum(back_ns))
        return self.path_finder.time_ns(resharding)

    def _class(self, shape: Shape, item_bytes: int) -> tuple[object, ...]:
        key = shape, item_bytes
        if key not in self._classes:
            self._classes[key] = size_class(self.mesh, shape, item_bytes)
        return self._classes[key]

    def matrix(
        self, tensor: Tensor, sources: Shardings, shardings: Shardings, charge: ResidualCharge, is_variable: bool = False,
        n_passes: int = 1,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Return memory and time of the reshardings from each source to each operand sharding (OperandSharding).

        Both are int64[sources, shardings]. A source is a layout, and the axes over which the gradient may come back to it
        partial.

        Args:
            is_variable: whether the source is the variable itself, and not a copy.
            n_passes: the number of backward passes in which gradients come back.
        """
        forward_ns, time_ns, equal = self._forward_and_all(tensor, sources, shardings, is_variable, n_passes)
        if charge == ResidualCharge.NOTHING:
            return np.zeros_like(time_ns), time_ns.copy()
        copies = np.broadcast_to(self.shards(tensor, shardings), time_ns.shape)
        shards = np.broadcast_to(self.shards(tensor, sources)[:, None], time_ns.shape)
        is_source_charged = charge in (ResidualCharge.COPY, ResidualCharge.REGATHERED)
        of_source_bytes = shards if is_source_charged else np.zeros_like(shards)

        def local() -> np.ndarray:
            return self.are_local(sources, shardings)

        def is_source_or_view() -> np.ndarray:
            return equal | self.are_views(sources, shardings)

        forbidden = np.zeros_like(equal)
        match charge:
            case ResidualCharge.REGATHERED | ResidualCharge.REGATHERED_OF_SAVED:
                mem, time_ns = of_source_bytes, time_ns + forward_ns
            case ResidualCharge.FROM_REMATERIALIZED:
                mem, time_ns = np.where(local(), 0, copies), time_ns + np.where(local(), forward_ns, 0)
            case ResidualCharge.VIEW_OF_REMATERIALIZED:
                mem = np.where(local(), 0, copies)
            case ResidualCharge.COPY_OF_REMATERIALIZED:
                mem, forbidden = copies, local()
            case ResidualCharge.UNREAD_OF_REMATERIALIZED:
                mem, forbidden = np.zeros_like(copies), local()
            case ResidualCharge.LOCAL_OF_REMATERIALIZED:
                mem, forbidden = np.zeros_like(copies), ~local()
            case ResidualCharge.FROM_SHARED_UNREAD:
                mem, forbidden = copies, is_source_or_view()
            case ResidualCharge.FORBIDDEN:
                mem, forbidden = np.zeros_like(copies), np.ones_like(equal)
            case _:
                mem = np.where(is_source_or_view(), of_source_bytes, copies)
        return np.where(forbidden, INFEASIBLE, mem), np.where(forbidden, INFEASIBLE, time_ns)

    def _forward_and_all(
        self, tensor: Tensor, sources: Shardings, shardings: Shardings, is_variable: bool, n_passes: int
    ) -> tuple[Ints, Ints, Mask]:
        """Return the forward times of the reshardings, all of their times, and whether both ends have one layout.

        They are computed once for the same sequences and tensors of one shape.
        """
        key = tensor.shape, tensor.item_bytes, sources, shardings, is_variable, n_passes
        if key not in self._times:
            forward_ns = self.table(tensor.shape, tensor.item_bytes).between(sources.layouts, shardings.layouts)
            time_ns = forward_ns + n_passes * self.returning_ns(tensor, sources, shardings, is_variable)
            self._times[key] = forward_ns, time_ns, sources.layouts[:, None] == shardings.layouts
        return self._times[key]

    def shards(self, tensor: Tensor, shardings: Shardings) -> Ints:
        """Return the bytes of the largest shard of a tensor in each layout, int64[shardings]: once for the same sequence."""
        key = tensor.shape, tensor.item_bytes, shardings
        if key not in self._bytes:
            self._bytes[key] = self.numbers.largest_elements(shardings.layouts, tensor.shape) * tensor.item_bytes
        return self._bytes[key]

    def _of_pairs(self, of_layouts: Callable[[Ints, Ints], Mask], sources: Shardings, shardings: Shardings) -> Mask:
        """Return what holds from each source to each sharding, whatever the tensor: computed once for the same sequences."""
        key = of_layouts.__name__, sources, shardings
        if key not in self._pairs:
            self._pairs[key] = of_layouts(sources.layouts, shardings.layouts)
        return self._pairs[key]

    def are_local(self, sources: Shardings, shardings: Shardings) -> Mask:
        """Return whether no communication is needed from each source to each operand sharding, bool[sources, shardings]."""
        return self._of_pairs(self.numbers.are_local, sources, shardings)

    def are_views(self, sources: Shardings, shardings: Shardings) -> Mask:
        """Return whether each operand sharding's layout is a view of each source, bool[sources, shardings]."""
        return self._of_pairs(self.numbers.are_views, sources, shardings)

    def returning_ns(self, tensor: Tensor, sources: Shardings, shardings: Shardings, is_variable: bool = False) -> Ints:
        """Return the part of :meth:`matrix`'s times that one pass's gradients take back, int64[sources, shardings]."""
        time_ns = np.zeros((len(sources), len(shardings)), np.int64)
        returning = shardings.unreduced != NO_GRADIENT
        if returning.any():
            back = self.numbers.with_partial(shardings.layouts[returning], shardings.unreduced[returning])
            to_source = self.numbers.with_partial(sources.layouts, np.maximum(sources.unreduced, 0))
            time_ns[:, returning] = self.table(tensor.shape, tensor.item_bytes).between(back, to_source).T
        if is_variable and returning.any():
            is_equal = (sources.layouts[:, None] == shardings.layouts) & (shardings.unreduced > 0)
            for i, j in np.argwhere(is_equal).tolist():
                resharding = resharding_of(tensor, sources[i].layout, shardings[j], sources[i].unreduced, is_variable=True)
                if resharding.shares_bucket:
                    time_ns[i, j] = bucket_share_ns(resharding, self.steps)
        return time_ns


def accumulator_bytes(tensor: Tensor, resharding: Resharding) -> int:
    """Return the bytes of the sums, over micro-batches, of each pass's gradients of a copy of a tensor computed once a step.

    A sum costs nothing where the copy has the layout of its source: a parameter's gradient is counted with its update.
    """
    source, sharding = resharding.source, resharding.sharding
    if sharding.unreduced is None or source == sharding.layout:
        return 0
    return resharding.n_passes * shard_bytes(tensor, sharding.layout)


def _ends(resharding: Resharding) -> list[tuple[Layout, Layout]]:
    """Return the (from, to) layouts of a resharding: forward and, where a gradient comes back, backward."""
    source, sharding = resharding.source, resharding.sharding
    if sharding.unreduced is None:
        return [(source, sharding.layout)]
    back = sharding.layout.with_partial(sharding.unreduced), source.with_partial(resharding.returning)
    return [(source, sharding.layout), back]


def shard_bytes(tensor: Tensor, layout: Layout) -> int:
    """Return the bytes of the largest shard that any device has."""
    return math.prod(layout.largest_local_shape(tensor.shape)) * tensor.item_bytes
