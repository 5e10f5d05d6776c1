"""Compute the costs of operators: the part of Equations (1) and (2) of the TensorOpt paper that is charged to nodes.

    m(o, s) = mp + mt    :meth:`OperatorCosting.mem_bytes`        parameters, gradients, slots; tensors saved for backward
    t(o, s) = tc + ts    :meth:`OperatorCosting.both_times_ns`    tc: compute forward and backward
                         :meth:`OperatorCosting.inner_times_ns`   collectives inside of the operator

*ts*, the synchronisation of a parameter's gradient, is the backward resharding between the parameter and its consumer here:
:mod:`.resharding_costs`. Costs are integers: bytes and nanoseconds, of the device that has the largest shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Protocol, TypeVar

from ..ir.body import BODY, COMPOSITES, FORM, LOOP, VALUE_SHAPED
from ..ir.gradient_info import NO_BACKWARD, Backward
from ..ir.graph import CONSTANT, PLACEHOLDER, VARIABLE, Graph, Operator, Tensor
from ..ir.views import ALIASES, viewed_operand
from ..profiling.work import WorkItem
from ..reschedule.layout import Layout
from ..reschedule.orders import Ints
from ..rules.composition import Composition
from ..rules.rule import Config, Interface, Rule, interface_of, local_points
from ..sharding.consumers import Consumer, consumers_of
from ..sharding.resharding import Resharding, differentiated_operands, halo_resharding, inner_reshardings
from ..sharding.update_resharding import row_reshardings, update_reshardings
from .resharding_costs import ReshardingCosting, shard_bytes
from .work_items import attributes_key, work_of, work_of_amounts

T = TypeVar("T", int, Ints)
READS_PART = frozenset("GatherNd GatherV2 Slice StridedSlice".split())
"""Types of operators that read only the part of their first operand that they return."""


class ComputeCosts(Protocol):
    """The costs of computing: the interface at which models of operators' time plug in."""

    @property
    def needs_keys(self) -> bool:
        """Return whether times depend on a work's key, and not on its type and amounts alone."""
        ...

    def time_ns(self, work: WorkItem) -> int: ...

    def backward_ns(self, work: WorkItem) -> int: ...


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
    def saved(self) -> frozenset[str]:
        """The names of the tensors that some gradient reads; in place of a view, the tensor that it views."""
        return frozenset(self.viewed(name) for name in self.backward.residual_results | self._taken)

    @cached_property
    def saved_as_produced(self) -> frozenset[str]:
        """The names of the tensors that are saved in their produced layout, however they are resharded.

        These are the tensors that their producers' own gradients read, those that are read by way of a view, and batches,
        which are held all the time. Whether another tensor is saved depends on its reshardings, which are charged for it.
        """
        viewed = {name for name in self._taken if self.viewed(name) != name}
        fed = {name for name in self.saved if self.graph.producers[name].type == PLACEHOLDER}
        return frozenset(self.viewed(name) for name in self.backward.residual_results | viewed) | fed

    @property
    def charged(self) -> frozenset[str]:
        """The names of the tensors that :meth:`mem_bytes` of their producers counts.

        Variables and constants are counted as well, and aren't named here.
        """
        return self.saved if self.is_body else self.saved_as_produced

    @cached_property
    def _taken(self) -> frozenset[str]:
        operands = ((self.graph.operators[name].inputs[position]) for name, position in self.backward.residual_operands)
        return frozenset(tensor.name for tensor in operands if tensor is not None)

    def reads(self, consumer: Consumer) -> bool:
        """Return whether the backward pass reads a consumer's copy of its operand, directly or by way of views."""
        if consumer.is_step or consumer.is_update:
            return False
        if (consumer.name, consumer.position) in self.backward.residual_operands:
            return True
        op = self.graph.operators[consumer.name]
        operand = op.inputs[consumer.position]
        return any(viewed_operand(op, tensor.name) is operand and self._is_read(tensor.name) for tensor in op.outputs)

    def _is_read(self, name: str) -> bool:
        return name in self.backward.residual_results or any(
            self.reads(consumer) for consumer in self._consumers.get(name, ())
        )

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

    def signature(self, op: Operator, rule: Rule) -> tuple[object, ...]:
        """Return what is equal for two operators of the graph only if all of their costs are, in every config."""
        backward, graph = self.backward, self.graph

        def form(tensor: Tensor | None) -> object:
            return tensor and (tensor.shape, tensor.dtype)

        return (
            op.type,
            (rule.operands, rule.results, tuple(rule.extents.items()), rule.fixed, rule.even, rule.inner),
            (rule.completed, rule.linear, tuple(rule.halos.items()), rule.flops_per_point),
            tuple(str(op.attrs[key]) for key in (BODY, FORM) if key in op.attrs),
            attributes_key(op),
            tuple(form(tensor) for tensor in op.inputs),
            tuple((form(tensor), tensor.name in self.charged) for tensor in op.outputs),
            tuple((op.name, i) in backward.gradients for i, _ in op.operands),
            tuple((op.name, i) in backward.residual_operands for i, _ in op.operands),
            tuple(position for position, _ in self.accumulated(op)),
            graph.updates.get(op.name),
            op.name in graph.lookup_operators,
            self.found_bytes(op),
            graph.n_runs(op.result.name),
        )

    def _body(self, op: Operator) -> BodyCosting:
        """Return the costs of the body of a composite operator."""
        if op.name not in self._bodies:
            is_differentiated = any((op.name, position) in self.backward.gradients for position, _ in op.operands)
            composition = Composition(op)
            backward = self.backward.bodies.get(op.name, NO_BACKWARD)
            parts = OperatorCosting(composition.body.graph, backward, self.compute, self.reshardings, is_body=True)
            self._bodies[op.name] = BodyCosting(composition, parts, is_differentiated)
        return self._bodies[op.name]

    def mem_bytes(self, op: Operator, rule: Rule, config: Config, interface: Interface) -> int:
        """Return the bytes of an operator's parameters with gradients and slots, and of its saved results (:attr:`charged`).

        Where windows overlap blocks, the backward pass reads all that a block's windows cover: a copy that is saved as well.
        """
        total = 0
        for tensor, layout in zip(op.outputs, interface.results, strict=True):
            shard = shard_bytes(tensor, layout)
            if op.type == VARIABLE:
                total += shard + self._update_bytes(op, layout)
            elif op.type == PLACEHOLDER and tensor.name in self.charged:
                # The full batch is held all the time, and not one micro-batch of it.
                total += shard * self.graph.n_runs(tensor.name)
            elif op.type == CONSTANT or tensor.name in self.charged:
                total += shard
        total += self.looked_up_bytes(op)
        if op.type in (*COMPOSITES, VALUE_SHAPED):
            total += self.saved_inside_bytes(op, config)
        if (op.name, 0) in self.backward.residual_operands and rule.exchanged(config):
            exchanged = halo_resharding(op, rule, config, True)
            assert exchanged.halo is not None
            total += math.prod(exchanged.halo.largest_local_shape(exchanged.shape)) * exchanged.item_bytes
        return total

    def looked_up_bytes(self, op: Operator) -> int:
        """Return the bytes of the indices, and of the gradient of the rows, of a lookup whose table is updated by rows.

        Every device has both globally.
        """
        if op.name not in self.graph.lookup_operators:
            return 0
        found = op.result.mem_bytes + sum(tensor.mem_bytes for position, tensor in op.operands if position == 1)
        return found * self.graph.n_runs(op.result.name)

    def saved_result_bytes(self, op: Operator, interface: Interface) -> int:
        """Return the part of :meth:`mem_bytes` that is the operator's results.

        These bytes aren't saved where the operator is rematerialized.
        """
        shards = zip(op.outputs, interface.results, strict=True)
        return sum(shard_bytes(tensor, layout) for tensor, layout in shards if tensor.name in self.charged)

    def saved_inside_bytes(self, op: Operator, config: Config) -> int:
        """Return the bytes that a composite operator saves inside of its body for its backward pass."""
        if op.type == VALUE_SHAPED:
            is_read = any((op.name, position) in self.backward.gradients for position, _ in op.operands)
            return int(op.attrs[BODY].inside_bytes) if is_read else 0
        return self._body(op).saved_bytes(config)

    def both_times_ns(self, op: Operator, rule: Rule, config: Config, interface: Interface) -> tuple[int, int]:
        """Return the compute time of forward and backward pass, over all micro-batches, and the backward pass's part of it.

        For a variable they are the time of the optimizer's update, and 0.
        """
        if op.type in COMPOSITES:
            n_runs = self.graph.n_runs(op.result.name)
            time_ns, backward_ns = (n_runs * each for each in self._body(op).both_times_ns(config))
        else:
            work = self.work(op, rule, config, interface)
            time_ns, backward_ns = (0, 0) if work is None else self._times_ns(op, work)
        added_ns = self.accumulating_ns(op, interface)
        return time_ns + added_ns, backward_ns + added_ns

    def accumulated(self, op: Operator) -> list[tuple[int, Tensor]]:
        """Return the operands of an operator, with their positions, whose gradients are added up over micro-batches."""
        graph = self.graph
        if graph.micro_batching is None or not op.outputs or graph.n_runs(op.result.name) == 1:
            return []
        if op.name in graph.lookup_operators:
            return []  # rows that were looked up are kept, each micro-batch's by itself
        once, gradients = graph.micro_batching.once, self.backward.gradients
        operands = ((i, tensor) for i, tensor in op.operands if (op.name, i) in gradients and (op.name, i) not in once)
        return [(i, tensor) for i, tensor in operands if graph.accumulates(tensor.name)]

    def accumulating_ns(self, op: Operator, interface: Interface) -> int:
        """Return the part of the backward pass that adds gradients of all micro-batches but the first to their sums."""
        total_ns = 0
        for position, tensor in self.accumulated(op):
            shard = shard_bytes(tensor, interface.operand(position).layout)
            total_ns += self.compute.time_ns(WorkItem("AddV2", tensor.dtype, shard // tensor.item_bytes, 3 * shard))
        return (self.graph.n_micro_batches - 1) * total_ns

    def times_of_amounts_ns(self, op: Operator, amounts: tuple[int, int, int]) -> tuple[int, int]:
        """Return :meth:`both_times_ns` from the amounts of :func:`.work_of`, where times need no keys."""
        return self._times_ns(op, work_of_amounts(op, amounts, self.backward.gradients))

    def _times_ns(self, op: Operator, work: WorkItem) -> tuple[int, int]:
        backward_ns = 0 if op.type == VARIABLE else self.compute.backward_ns(work)
        n_runs = self.graph.n_runs(op.result.name)
        return self.compute.time_ns(work) * n_runs, backward_ns * n_runs

    def has_work(self, op: Operator) -> bool:
        """Return whether an operator computes by itself: sources don't, and of a composite one its body's operators do."""
        return not (op.type in (PLACEHOLDER, CONSTANT) or op.type in COMPOSITES or op.updates is not None)

    def work(self, op: Operator, rule: Rule, config: Config, interface: Interface) -> WorkItem | None:
        """Return the work of one operator, forward and backward, or of a variable's update; None if there is none.

        A composite operator has no work of its own either: the operators of its body have.
        """
        if not self.has_work(op):
            return None
        moved, moved_back = (0, 0) if op.type in ALIASES else self._bytes_moved(op, interface)
        if op.type == VARIABLE:
            n_bytes = self._updated_bytes(op, interface.results[0], moved)
            return WorkItem(op.type, op.result.dtype, 0, n_bytes) if n_bytes else None
        flops = round(rule.flops_per_point * local_points(rule, config))
        if op.type == VALUE_SHAPED:
            n_gradients = sum((op.name, position) in self.backward.gradients for position, _ in op.operands)
            inside = op.attrs[BODY]
            flops, moved = int(inside.inside_flops), moved + 2 * int(inside.inside_bytes)
            moved_back = 2 * moved if n_gradients else 0
        by_rows = op.name in self.graph.lookup_operators
        return work_of(op, rule, config, interface, (flops, moved, moved_back), self.backward.gradients, by_rows)

    def _update_bytes(self, op: Operator, layout: Layout) -> int:
        """Return the bytes of a trained variable's gradients and slots, and of global copies where its update needs them."""
        shard, by_rows = shard_bytes(op.result, layout), op.name in self.graph.lookups
        return sum(update.copies(op.result, layout, shard, by_rows) for update in self.graph.updates.get(op.name, ()))

    def _updated_bytes(self, op: Operator, layout: Layout, shard: int) -> int:
        """Return the bytes that an update reads and writes.

        It reads the gradient, and reads and writes the value and each slot.
        """
        updates = self.graph.updates.get(op.name, ())
        if op.name in self.graph.lookups and all(update.leaves_rows for update in updates):
            rows = min(shard, self.found_bytes(op) * shard // max(1, op.result.mem_bytes))
            return sum(rows * (3 + 2 * update.slots) for update in updates)
        written = self._update_bytes(op, layout)
        return 2 * written + shard if written else 0

    def found_bytes(self, op: Operator) -> int:
        """Return the bytes of all rows that a step's lookups in a variable find, if it is updated by rows; else 0."""
        found = (self.graph.operators[name].result for name in self.graph.lookups.get(op.name, ()))
        return sum(tensor.mem_bytes * self.graph.n_runs(tensor.name) for tensor in found)

    def _updating(self, op: Operator, rule: Rule, config: Config) -> Iterable[Resharding]:
        """Return the reshardings of a variable's update.

        For a lookup they are the reshardings that the update of its table needs.
        """
        if op.name in self.graph.lookup_operators:
            return row_reshardings(op, rule, config)
        updates, by_rows = self.graph.updates.get(op.name), op.name in self.graph.lookups
        return update_reshardings(updates, op.result, interface_of(rule, config).results[0], by_rows) if updates else ()

    def moved(self, op: Operator, total: T, result: T, table: T) -> tuple[T, T]:
        """Return the bytes that the forward and the backward pass of an operator move, of numbers or arrays of them.

        What reads a part moves its result twice, and not all that it reads from. Its gradient has zeros in all other places,
        except where a table is updated by rows.

        Args:
            total: the bytes of all operands and results.
            result: those of the results.
            table: those of the first operand.
        """
        n_gradients = sum((op.name, position) in self.backward.gradients for position, _ in op.operands)
        if op.type not in READS_PART or not op.inputs or op.inputs[0] is None:
            return total, total * n_gradients
        part = total - table + result
        back = part if op.name in self.graph.lookup_operators else part + table
        return part, back * n_gradients

    def _bytes_moved(self, op: Operator, interface: Interface) -> tuple[int, int]:
        shards: list[tuple[Tensor, Layout]] = list(zip(op.outputs, interface.results, strict=True))
        shards += [(tensor, interface.operand(position).layout) for position, tensor in op.operands]
        found = [shard_bytes(each, layout) for each, layout in shards]
        n = len(op.outputs)
        return self.moved(op, sum(found), sum(found[:n]), found[n] if len(found) > n else 0)

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


@dataclass(frozen=True)
class BodyCosting:
    """The costs of a composite operator's body, by the composite operator's config.

    Attributes:
        composition: the composite operator with its body's operators and their rules.
        parts: the costs of the body's operators, by which tensors the body's gradients read.
        is_differentiated: whether a gradient comes back to an operand of the composite operator.
    """

    composition: Composition
    parts: OperatorCosting
    is_differentiated: bool

    def saved_bytes(self, config: Config) -> int:
        """Return the bytes that a loop saves of its trips for its backward pass, and of its constants.

        Tensors that no trip changes are saved outside of the loop, and a custom gradient saves nothing but its operands.
        """
        composition, once, each_trip = self.composition, 0, 0
        if composition.op.type != LOOP:
            return 0
        form = composition.op.attrs[FORM]
        for op in composition.body.operators:
            found = self.parts.mem_bytes(op, composition.rules[op.name], *composition.inner(op, config))
            once, each_trip = (once + found, each_trip) if op.type == CONSTANT else (once, each_trip + found)
        for tensor in composition.body.inputs[: form.first_invariant]:
            if tensor.name in self.parts.saved:
                each_trip += shard_bytes(tensor, composition.input_layout(tensor, config))
        return once + int(form.trips) * each_trip

    def both_times_ns(self, config: Config) -> tuple[int, int]:
        """Return the compute time of both passes, and that of the backward pass; a custom gradient's is all backward."""
        composition, is_loop = self.composition, self.composition.op.type == LOOP
        if not is_loop and not self.is_differentiated:
            return 0, 0
        found = [
            self.parts.both_times_ns(op, composition.rules[op.name], *composition.inner(op, config))
            for op in composition.body.operators
        ]
        time_ns, backward_ns = (sum(times) for times in zip(*found, strict=True)) if found else (0, 0)
        trips = int(composition.op.attrs[FORM].trips) if is_loop else 1
        return trips * time_ns, trips * (backward_ns if is_loop else time_ns)
