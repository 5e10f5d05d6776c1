"""Compute the costs of operators and reshardings: Equations (1) and (2) of the TensorOpt paper.

    m(o, s) = mp + mt    :func:`OperatorCosting.mem_bytes`   parameters with gradients and slots; tensors saved for backward
    t(o, s) = tc + ts    :func:`OperatorCosting.time_ns`     compute forward and backward, collectives inside
    m(e), t(e)           :class:`ReshardingCosting`            copies that are saved; resharding forward and backward

*ts*, the synchronisation of a parameter's gradient, is the backward resharding between the parameter and its consumer here.
Costs are integers: bytes and nanoseconds, of the device that has the largest shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import Protocol

import numpy as np

from ..ft.problem import INFEASIBLE
from ..ir.body import COMPOSITES
from ..ir.gradient_info import NO_BACKWARD, Backward
from ..ir.graph import CONSTANT, PLACEHOLDER, VARIABLE, Graph, Operator, Tensor
from ..ir.views import ALIASES, viewed_operand
from ..profiling.work import Work
from ..reschedule.cost_model import StepCosts
from ..reschedule.layout import Layout, Shape, is_view, needs_communication
from ..reschedule.mesh import Mesh
from ..reschedule.path import AllPairs, all_pairs, cheapest_path, size_class
from ..rules.composition import Composition
from ..rules.rule import Config, Demand, Interface, Rule, interface, local_points
from ..sharding.consumers import Consumer, consumers_of
from ..sharding.resharding import (
    Resharding,
    bucket_share_ns,
    differentiated_operands,
    halo_resharding,
    inner_reshardings,
    resharding_of,
)
from ..sharding.update_resharding import row_reshardings, update_reshardings
from .loop_costs import BodyCosting
from .work_items import work_of


class ComputeCosts(Protocol):
    """The costs of computing: the interface at which models of operators' time plug in."""

    def time_ns(self, work: Work) -> int: ...

    def backward_ns(self, work: Work) -> int: ...


@dataclass(frozen=True)
class OperatorCosting:
    """Costs of the single operators of a graph, by config.

    ``is_body`` marks the graph of a loop's trips: every tensor that the backward pass reads there is saved in its produced
    layout.
    """

    graph: Graph
    backward: Backward
    compute: ComputeCosts
    reshardings: ReshardingCosting
    is_body: bool = False
    _bodies: dict[str, BodyCosting] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def kept(self) -> frozenset[str]:
        """The names of the tensors that some gradient reads; in place of a view, the tensor that it views."""
        return frozenset(self.viewed(name) for name in self.backward.kept_results | self._taken)

    @cached_property
    def left(self) -> frozenset[str]:
        """The names of the tensors that are saved in their produced layout, however they are resharded.

        These are the tensors that their producers' own gradients read, those that are read by way of a view, and batches,
        which are held all the time. Whether another tensor is saved depends on its reshardings, which are charged for it.
        """
        viewed = {name for name in self._taken if self.viewed(name) != name}
        fed = {name for name in self.kept if self.graph.producers[name].type == PLACEHOLDER}
        return frozenset(self.viewed(name) for name in self.backward.kept_results | viewed) | fed

    @property
    def charged(self) -> frozenset[str]:
        """The names of the tensors that :meth:`mem_bytes` of their producers counts.

        Variables and constants are counted as well, and aren't named here.
        """
        return self.kept if self.is_body else self.left

    @cached_property
    def _taken(self) -> frozenset[str]:
        operands = ((self.graph.operators[name].inputs[position]) for name, position in self.backward.kept_operands)
        return frozenset(tensor.name for tensor in operands if tensor is not None)

    def reads(self, consumer: Consumer) -> bool:
        """Return whether the backward pass reads a consumer's copy of its operand, directly or by way of views."""
        if consumer.is_step or consumer.is_update:
            return False
        if (consumer.name, consumer.position) in self.backward.kept_operands:
            return True
        op = self.graph.operators[consumer.name]
        operand = op.inputs[consumer.position]
        return any(
            viewed_operand(op, tensor.name) is operand and self._is_read(tensor.name) for tensor in op.outputs
        )

    def _is_read(self, name: str) -> bool:
        return name in self.backward.kept_results or any(self.reads(consumer) for consumer in self._consumers.get(name, ()))

    @cached_property
    def _consumers(self) -> dict[str, list[Consumer]]:
        return consumers_of(self.graph)

    def viewed(self, name: str) -> str:
        """Return the tensor that a view views, directly or by way of other views; any other tensor is returned itself."""
        producer = self.graph.producers[name]
        while (viewed := viewed_operand(producer, name)) is not None:
            name = viewed.name
            producer = self.graph.producers[name]
        return name

    def _body(self, op: Operator) -> BodyCosting:
        """Return the costs of the body of a composite operator."""
        if op.name not in self._bodies:
            is_differentiated = any((op.name, position) in self.backward.gradients for position, _ in op.operands)
            composition = Composition(op)
            backward = self.backward.bodies.get(op.name, NO_BACKWARD)
            parts = OperatorCosting(composition.body.graph, backward, self.compute, self.reshardings, is_body=True)
            self._bodies[op.name] = BodyCosting(composition, parts, is_differentiated)
        return self._bodies[op.name]

    def mem_bytes(self, op: Operator, rule: Rule, config: Config, seen: Interface) -> int:
        """Return the bytes of an operator's parameters with gradients and slots, and of its saved results (:attr:`charged`).

        Where windows overlap blocks, the backward pass reads all that a block's windows cover: a copy that is saved as well.
        """
        total = 0
        for tensor, layout in zip(op.outputs, seen.results, strict=True):
            piece = piece_bytes(tensor, layout)
            if op.type == VARIABLE:
                total += piece + self._update_bytes(op, layout)
            elif op.type == PLACEHOLDER and tensor.name in self.charged:
                # The full batch is held all the time, and not one micro-batch of it.
                total += piece * self.graph.n_runs(tensor.name)
            elif op.type == CONSTANT or tensor.name in self.charged:
                total += piece
        if op.name in self.graph.lookup_operators:
            # The indices and the gradient of the rows that were found, global on every device.
            found = op.result.mem_bytes + sum(tensor.mem_bytes for position, tensor in op.operands if position == 1)
            total += found * self.graph.n_runs(op.result.name)
        if op.type in COMPOSITES:
            total += self._body(op).kept_bytes(config)
        if (op.name, 0) in self.backward.kept_operands and rule.exchanged(config):
            exchanged = halo_resharding(op, rule, config, True)
            assert exchanged.halo is not None
            total += math.prod(exchanged.halo.largest_local_shape(exchanged.shape)) * exchanged.item_bytes
        return total

    def left_bytes(self, op: Operator, seen: Interface) -> int:
        """Return the part of :meth:`mem_bytes` that is the operator's results.

        These bytes aren't saved where the operator is rematerialized.
        """
        pieces = zip(op.outputs, seen.results, strict=True)
        return sum(piece_bytes(tensor, layout) for tensor, layout in pieces if tensor.name in self.charged)

    def again_ns(self, op: Operator, rule: Rule, config: Config, seen: Interface) -> int:
        """Return the time of rematerializing an operator in the backward pass.

        It is the time that the operator's forward pass takes.
        """
        return self.compute_time_ns(op, rule, config, seen) - self.backward_time_ns(op, rule, config, seen)

    def kept_inside_bytes(self, op: Operator, config: Config) -> int:
        """Return the bytes that a composite operator saves inside of its body for its backward pass."""
        return self._body(op).kept_bytes(config)

    def compute_time_ns(self, op: Operator, rule: Rule, config: Config, seen: Interface) -> int:
        """Return the compute time of forward and backward pass, over all micro-batches.

        For a variable it is the time of the optimizer's update.
        """
        if op.type in COMPOSITES:
            return self._body(op).time_ns(config)
        work = self.work(op, rule, config, seen)
        return 0 if work is None else self.compute.time_ns(work) * self.graph.n_runs(op.result.name)

    def backward_time_ns(self, op: Operator, rule: Rule, config: Config, seen: Interface) -> int:
        """Return the part of :meth:`compute_time_ns` that is the backward pass.

        It is 0 for a variable, whose update isn't part of the backward pass.
        """
        if op.type in COMPOSITES:
            return self._body(op).backward_ns(config)
        work = self.work(op, rule, config, seen)
        if work is None or op.type == VARIABLE:
            return 0
        return self.compute.backward_ns(work) * self.graph.n_runs(op.result.name)

    def work(self, op: Operator, rule: Rule, config: Config, seen: Interface) -> Work | None:
        """Return the work of one operator, forward and backward, or of a variable's update; None if there is none.

        A composite operator has no work of its own either: the operators of its body have.
        """
        if op.type in (PLACEHOLDER, CONSTANT) or op.type in COMPOSITES or op.updates is not None:
            return None
        moved = 0 if op.type in ALIASES else self._bytes_moved(op, seen)
        if op.type == VARIABLE:
            n_bytes = self._updated_bytes(op, seen.results[0], moved)
            return Work(op.type, op.result.dtype, 0, n_bytes) if n_bytes else None
        flops = round(rule.flops_per_point * local_points(rule, config))
        return work_of(op, rule, config, seen, (flops, moved), self.backward.gradients)

    def _update_bytes(self, op: Operator, layout: Layout) -> int:
        """Return the bytes of a trained variable's gradients and slots, and of global copies where its update needs them."""
        piece, by_rows = piece_bytes(op.result, layout), op.name in self.graph.lookups
        return sum(update.copies(op.result, layout, piece, by_rows) for update in self.graph.updates.get(op.name, ()))

    def _updated_bytes(self, op: Operator, layout: Layout, piece: int) -> int:
        """Return the bytes that an update reads and writes.

        It reads the gradient, and reads and writes the value and each slot.
        """
        updates = self.graph.updates.get(op.name, ())
        if op.name in self.graph.lookups and all(update.leaves_rows for update in updates):
            rows = min(piece, self.found_bytes(op) * piece // max(1, op.result.mem_bytes))
            return sum(rows * (3 + 2 * update.slots) for update in updates)
        written = self._update_bytes(op, layout)
        return 2 * written + piece if written else 0

    def found_bytes(self, op: Operator) -> int:
        """Return the bytes of all rows that lookups in a variable find, if it is updated by rows; else 0."""
        return sum(self.graph.operators[name].result.mem_bytes for name in self.graph.lookups.get(op.name, ()))

    def _updating(self, op: Operator, rule: Rule, config: Config) -> Iterable[Resharding]:
        """Return the reshardings of a variable's update.

        For a lookup they are the reshardings that the update of its table needs.
        """
        if op.name in self.graph.lookup_operators:
            return row_reshardings(op, rule, config)
        updates, by_rows = self.graph.updates.get(op.name), op.name in self.graph.lookups
        return update_reshardings(updates, op.result, interface(rule, config).results[0], by_rows) if updates else ()

    def _bytes_moved(self, op: Operator, seen: Interface) -> int:
        pieces: list[tuple[Tensor, Layout]] = list(zip(op.outputs, seen.results, strict=True))
        for position, tensor in op.operands:
            demand = seen.operands[position]
            if demand is not None:
                pieces.append((tensor, demand.layout))
        return sum(piece_bytes(each, layout) for each, layout in pieces)

    def inner_times_ns(self, op: Operator, rule: Rule, configs: Iterable[Config]) -> list[tuple[int, int]]:
        """Return, for each config, the times of two groups of collectives.

        The first group are the collectives inside of the operator, the second those that only updates of variables wait for.
        """
        differentiated = differentiated_operands(op, self.backward.gradients)
        inner = [
            (tuple(inner_reshardings(op, rule, config, differentiated)), tuple(self._updating(op, rule, config)))
            for config in configs
        ]
        for resharding in chain.from_iterable(chain.from_iterable(inner)):
            self.reshardings.expect_resharding(resharding)

        n_runs = self.graph.n_runs(op.result.name)

        def time_ns(reshardings: Sequence[Resharding]) -> int:
            return sum(self.reshardings.time_ns(resharding) for resharding in reshardings) * n_runs

        return [(time_ns(within), time_ns(updating)) for within, updating in inner]


class Keeping(Enum):
    """The memory that a resharding is charged for residuals: what it saves for the backward pass, if that reads the copy.

    A copy that is the source itself, or a view of it, saves the source. That costs nothing in the members ``..._OF_KEPT``:
    something else is charged for the source already. In the members' texts "made again" means regathered, "computed again"
    rematerialized, and "kept" saved.
    """

    NOTHING = "no gradient reads the copy"
    COPY = "the copy"
    COPY_OF_KEPT = "the copy; the source is kept anyway"
    AGAIN = "the source, of which the copy is made again"
    AGAIN_OF_KEPT = "nothing: the copy is made again of a source that is kept anyway"
    FROM_AGAIN = "the copy, if it takes communication to make it of a source that is made again or computed again"
    VIEW_OF_AGAIN = "the same; without communication it is part of what is computed again, and takes no time of its own"
    KEPT_OF_AGAIN = "the copy, of a source that is computed again; forbidden where it takes no communication to make it"
    UNREAD_OF_AGAIN = "nothing, of a source that is computed again; forbidden where the copy takes no communication"
    LOCAL_OF_AGAIN = "nothing, of a source that is computed again; forbidden where it takes communication to make the copy"
    FROM_SHARED_UNREAD = "the copy, of a shared copy that isn't kept; forbidden where the copy lies in that"
    FORBIDDEN = "nothing: there is no such resharding"

    @property
    def of_source(self) -> bool:
        """Return whether the resharding is charged for the source where that is saved."""
        return self in (Keeping.COPY, Keeping.AGAIN)


@dataclass
class ReshardingCosting:
    """The times of reshardings: shortest paths between the layouts that occur, found once per size class of tensors.

    Attributes:
        exposed_share: the share of a resharding's time that isn't hidden behind the compute beside it; 1 where nothing
            overlaps.
    """

    mesh: Mesh
    steps: StepCosts
    exposed_share: float = 1.0
    _expected: dict[tuple[object, ...], dict[Layout, None]] = field(default_factory=dict)
    _tables: dict[tuple[object, ...], AllPairs] = field(default_factory=dict)
    _classes: dict[tuple[Shape, int], tuple[object, ...]] = field(default_factory=dict)
    _paths: dict[tuple[Layout, Layout, Shape, int], int] = field(default_factory=dict)
    # The lists are held with the result, so that no other list can get their ids.
    _local: dict[tuple[int, int], tuple[np.ndarray, object, object]] = field(default_factory=dict)

    @property
    def overlaps(self) -> bool:
        """Return whether the device computes during a resharding that nobody waits for."""
        return self.exposed_share < 1

    def hideable_ns(self, time_ns: np.ndarray) -> np.ndarray:
        """Return the part of each time that compute may overlap."""
        hideable: np.ndarray = np.floor(time_ns * (1 - self.exposed_share)).astype(np.int64)
        return hideable

    def expect(self, shape: Shape, item_bytes: int, layouts: Iterable[Layout]) -> None:
        """Announce layouts of tensors of this shape, whose reshardings will be asked for.

        A size class's table holds the layouts that were announced, and is built when it is first needed.
        """
        self._expected.setdefault(self._class(shape, item_bytes), {}).update(dict.fromkeys(layouts))

    def table(self, shape: Shape, item_bytes: int) -> AllPairs:
        """Return the times between all layouts that were announced for tensors of this size class."""
        key = self._class(shape, item_bytes)
        expected = self._expected[key]
        if key not in self._tables or len(self._tables[key].layouts) < len(expected):
            self._tables[key] = all_pairs(self.mesh, shape, item_bytes, self.steps, tuple(expected))
        return self._tables[key]

    def expect_resharding(self, resharding: Resharding) -> None:
        """Announce that ``time_ns`` of this resharding, and probably of others like it, will be asked for."""
        if resharding.reduction == "sum" and resharding.halo is None:
            ends = _ends(resharding)
            self.expect(resharding.shape, resharding.item_bytes, [layout for pair in ends for layout in pair])

    def time_ns(self, resharding: Resharding) -> int:
        """Return the time of a resharding: forward and, where a gradient comes back, backward."""
        source = resharding.source
        if resharding.halo is not None:
            ways = (resharding.halo, resharding.halo.backward())[: 1 if resharding.demand.varying is None else 2]
            return sum(way.time_ns(resharding.shape, resharding.item_bytes, self.steps) for way in ways)
        if resharding.reduction == "max":
            n_bytes = math.prod(source.largest_local_shape(resharding.shape)) * resharding.item_bytes
            return self.steps.time_ns("all_reduce", self.mesh, source.partial, n_bytes)
        if resharding.in_bucket:
            forward = self._path_ns(source, resharding.demand.layout, resharding.shape, resharding.item_bytes)
            return forward + bucket_share_ns(resharding, self.steps)
        return sum(self._path_ns(*ends, resharding.shape, resharding.item_bytes) for ends in _ends(resharding))

    def _class(self, shape: Shape, item_bytes: int) -> tuple[object, ...]:
        key = shape, item_bytes
        if key not in self._classes:
            self._classes[key] = size_class(self.mesh, shape, item_bytes)
        return self._classes[key]

    def _path_ns(self, source: Layout, target: Layout, shape: Shape, item_bytes: int) -> int:
        expected = self._expected.get(self._class(shape, item_bytes), {})
        if source in expected and target in expected:
            table = self.table(shape, item_bytes)
            return int(table.time_ns[table.index[source], table.index[target]])
        key = (source, target, shape, item_bytes)
        if key not in self._paths:
            self._paths[key] = cheapest_path(*key, self.steps).time_ns(self.steps, item_bytes)
        return self._paths[key]

    def matrix(
        self,
        tensor: Tensor,
        sources: Sequence[Demand],
        demands: Sequence[Demand],
        keeping: Keeping,
        of_variable: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return memory and time of the reshardings from each source to each operand sharding (Demand).

        Both are int64[sources, demands]. A source is a layout, and the axes over which the gradient may come back to it
        partial.

        Args:
            of_variable: whether the source is the variable itself, and not a copy.
        """
        table = self.table(tensor.shape, tensor.item_bytes)
        index = table.index
        of_source = np.array([index[source.layout] for source in sources], np.intp)
        of_demand = np.array([index[demand.layout] for demand in demands], np.intp)
        time_ns = table.time_ns[np.ix_(of_source, of_demand)].copy()
        time_ns += self.returning_ns(tensor, sources, demands, of_variable)
        if keeping == Keeping.NOTHING:
            return np.zeros_like(time_ns), time_ns
        forward_ns = table.time_ns[np.ix_(of_source, of_demand)]
        copies = np.broadcast_to([piece_bytes(tensor, demand.layout) for demand in demands], time_ns.shape)
        pieces = np.broadcast_to([[piece_bytes(tensor, source.layout)] for source in sources], time_ns.shape)
        of_source_bytes = pieces if keeping.of_source else np.zeros_like(pieces)
        equal = of_source[:, None] == of_demand[None, :]

        def local() -> np.ndarray:
            key = id(sources), id(demands)
            if key not in self._local:
                layouts = [source.layout for source in sources], [demand.layout for demand in demands]
                self._local[key] = _local(*layouts), sources, demands
            return self._local[key][0]

        def lies_there() -> np.ndarray:
            return equal | np.array([[is_view(s.layout, d.layout) for d in demands] for s in sources], bool)

        forbidden = np.zeros_like(equal)
        match keeping:
            case Keeping.AGAIN | Keeping.AGAIN_OF_KEPT:
                mem, time_ns = of_source_bytes, time_ns + forward_ns
            case Keeping.FROM_AGAIN:
                mem, time_ns = np.where(local(), 0, copies), time_ns + np.where(local(), forward_ns, 0)
            case Keeping.VIEW_OF_AGAIN:
                mem = np.where(local(), 0, copies)
            case Keeping.KEPT_OF_AGAIN:
                mem, forbidden = copies, local()
            case Keeping.UNREAD_OF_AGAIN:
                mem, forbidden = np.zeros_like(copies), local()
            case Keeping.LOCAL_OF_AGAIN:
                mem, forbidden = np.zeros_like(copies), ~local()
            case Keeping.FROM_SHARED_UNREAD:
                mem, forbidden = copies, lies_there()
            case Keeping.FORBIDDEN:
                mem, forbidden = np.zeros_like(copies), np.ones_like(equal)
            case _:
                mem = np.where(lies_there(), of_source_bytes, copies)
        return np.where(forbidden, INFEASIBLE, mem), np.where(forbidden, INFEASIBLE, time_ns)

    def returning_ns(
        self, tensor: Tensor, sources: Sequence[Demand], demands: Sequence[Demand], of_variable: bool = False
    ) -> np.ndarray:
        """Return the part of :meth:`matrix`'s times that reshards the gradients back, int64[sources, demands]."""
        table = self.table(tensor.shape, tensor.item_bytes)
        time_ns = np.zeros((len(sources), len(demands)), np.int64)
        returning = np.array([demand.varying is not None for demand in demands], bool)
        if returning.any():
            of_back = [table.index[d.layout.with_partial(d.varying)] for d in demands if d.varying is not None]
            to_source = [table.index[source.layout.with_partial(source.varying or ())] for source in sources]
            time_ns[:, returning] = table.time_ns[np.ix_(of_back, to_source)].T
        for i, source in enumerate(sources if of_variable else ()):
            for j, demand in enumerate(demands):
                if demand.varying is not None and demand.layout == source.layout:
                    resharding = resharding_of(tensor, source.layout, demand, source.varying, of_variable=True)
                    if resharding.in_bucket:
                        time_ns[i, j] = bucket_share_ns(resharding, self.steps)
        return time_ns


def accumulator_bytes(tensor: Tensor, source: Layout, demand: Demand) -> int:
    """Return the bytes of the sum, over micro-batches, of the gradients of a copy of a tensor that is computed once a step.

    The sum costs nothing where the copy has the layout of its source: a parameter's gradient is counted with its update.
    """
    return 0 if demand.varying is None or source == demand.layout else piece_bytes(tensor, demand.layout)


def _local(sources: Sequence[Layout], targets: Sequence[Layout]) -> np.ndarray:
    """Return whether no communication is needed from each source to each target, bool[sources, targets].

    A cheap test comes first and decides most pairs: the target must keep partial all axes over which the source is partial,
    and must use all axes that the source uses.
    """
    (partial, used), (allowed, known) = (
        np.array([(_bits(layout.partial), _bits(layout.used_axes)) for layout in layouts], np.int64).T
        for layouts in (sources, targets)
    )
    found: np.ndarray = (partial[:, None] & ~allowed == 0) & (used[:, None] & ~known == 0)
    for i, j in np.argwhere(found):
        found[i, j] = not needs_communication(sources[i], targets[j])
    return found


def _bits(axes: Iterable[int]) -> int:
    return sum(1 << axis for axis in axes)


def _ends(resharding: Resharding) -> list[tuple[Layout, Layout]]:
    """Return the (from, to) layouts of a resharding: forward and, where a gradient comes back, backward."""
    source, demand = resharding.source, resharding.demand
    if demand.varying is None:
        return [(source, demand.layout)]
    back = demand.layout.with_partial(demand.varying), source.with_partial(resharding.returning)
    return [(source, demand.layout), back]


def piece_bytes(tensor: Tensor, layout: Layout) -> int:
    """Return the bytes of the largest shard that any device has."""
    return math.prod(layout.largest_local_shape(tensor.shape)) * tensor.item_bytes
