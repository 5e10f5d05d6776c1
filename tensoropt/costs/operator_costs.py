"""Say what the operators of a graph are charged for, whatever their configs; :mod:`.config_costs` has the costs of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from ..common.pickling import ByArguments
from ..ir.body import BODY, FORM, viewed_operand
from ..ir.gradient_info import NO_BACKWARD, Backward
from ..ir.graph import PLACEHOLDER, Graph, Operator, Tensor
from ..profiling.hardware import Hardware
from ..profiling.hardware_costs import OperatorCosts, collective_costs
from ..profiling.work import NOTHING_KNOWN, MeasuredOperators, WorkItem
from ..reschedule.layout import Layout
from ..reschedule.mesh import Mesh
from ..rules.composition import Composition
from ..rules.rule import Config, Rule, interface_of
from ..sharding.consumers import Consumer, consumers_of
from ..sharding.model import Model
from ..sharding.resharding import Resharding, row_reshardings, update_reshardings
from .resharding_costs import ReshardingCosting
from .work_items import attributes_key


class ComputeCosts(Protocol):
    """The costs of computing: the interface at which models of operators' time plug in."""

    @property
    def needs_keys(self) -> bool:
        """Return whether times depend on a work's key, and not on its type and amounts alone."""

    def time_ns(self, work: WorkItem) -> int: ...

    def backward_ns(self, work: WorkItem) -> int: ...


@dataclass(frozen=True)
class OperatorCosting(ByArguments):
    """The prices of a graph's operators: what is saved, updated and added up of each, what computing costs.

    ``is_body`` marks the graph of a loop's trips: every tensor that the backward pass reads there is saved in its produced
    layout.
    """

    graph: Graph
    backward: Backward
    compute: ComputeCosts
    reshardings: ReshardingCosting
    is_body: bool = False
    of_configs: dict[tuple[int, Config], Any] = field(default_factory=dict, init=False, repr=False)
    _bodies: dict[str, tuple[Composition, OperatorCosting]] = field(default_factory=dict, init=False, repr=False)
    _kinds: dict[tuple[object, ...], int] = field(default_factory=dict, init=False, repr=False)
    _kind_of: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def saved(self) -> frozenset[str]:
        """The names of the tensors that some gradient reads; in place of a view, the tensor that it views."""
        return frozenset(self.viewed(name) for name in self.backward.residual_results | self._residual_operand_names)

    @cached_property
    def saved_as_produced(self) -> frozenset[str]:
        """The names of the tensors that are saved in their produced layout, however they are resharded.

        These are the tensors that their producers' own gradients read, those that are read by way of a view, and batches,
        which are held all the time. Whether another tensor is saved depends on its reshardings, which are charged for it.
        """
        views = {name for name in self._residual_operand_names if self.viewed(name) != name}
        placeholders = {name for name in self.saved if self.graph.producers[name].type == PLACEHOLDER}
        return frozenset(self.viewed(name) for name in self.backward.residual_results | views) | placeholders

    @property
    def charged(self) -> frozenset[str]:
        """The names of the tensors that the memory of their producers counts.

        Variables and constants are counted as well, and aren't named here.
        """
        return self.saved if self.is_body else self.saved_as_produced

    @cached_property
    def _residual_operand_names(self) -> frozenset[str]:
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
        while (operand := viewed_operand(producer, name)) is not None:
            name = operand.name
            producer = self.graph.producers[name]
        return name

    def signature(self, op: Operator, rule: Rule) -> tuple[object, ...]:
        """Return what is equal for two operators of the graph only if all of their costs are, in every config."""
        backward, graph = self.backward, self.graph

        def form(tensor: Tensor | None) -> object:
            return tensor and (tensor.shape, tensor.dtype)

        return (
            op.type, (rule.operands, rule.results, tuple(rule.extents.items()), rule.fixed, rule.even, rule.inner),
            (rule.completed, rule.linear, tuple(rule.halos.items()), rule.flops_per_point),
            tuple(str(op.attrs[key]) for key in (BODY, FORM) if key in op.attrs), attributes_key(op),
            tuple(form(tensor) for tensor in op.inputs),
            tuple((form(tensor), tensor.name in self.charged) for tensor in op.outputs),
            backward.positions(op), tuple((op.name, i) in backward.residual_operands for i, _ in op.operands),
            tuple(self.accumulates(op, i) for i, _ in op.operands), graph.updates.get(op.name),
            op.name in graph.lookup_operators, self.found_bytes(op), self.n_runs(op),
        )  # fmt: skip

    def n_runs(self, op: Operator) -> int:
        """Return how often a step runs an operator: once for each micro-batch, or once."""
        return self.graph.n_runs(op.result.name) if op.outputs else 1

    def kind(self, op: Operator, rule: Rule) -> int:
        """Return a number that is equal for operators of equal :meth:`signature`."""
        if op.name not in self._kind_of:
            self._kind_of[op.name] = self._kinds.setdefault(self.signature(op, rule), len(self._kinds))
        return self._kind_of[op.name]

    def body(self, op: Operator) -> tuple[Composition, OperatorCosting]:
        """Return the rules of the operators in the body of a composite operator, and what these are charged for."""
        if op.name not in self._bodies:
            composition, backward = Composition(op), self.backward.bodies.get(op.name, NO_BACKWARD)
            parts = OperatorCosting(composition.body.graph, backward, self.compute, self.reshardings, is_body=True)
            self._bodies[op.name] = composition, parts
        return self._bodies[op.name]

    def looked_up_bytes(self, op: Operator) -> int:
        """Return the bytes of the indices, and of the gradient of the rows, of a lookup whose table is updated by rows.

        Every device has both globally.
        """
        if op.name not in self.graph.lookup_operators:
            return 0
        n_bytes = op.result.mem_bytes + sum(tensor.mem_bytes for position, tensor in op.operands if position == 1)
        return n_bytes * self.graph.n_runs(op.result.name)

    def accumulates(self, op: Operator, position: int) -> bool:
        """Return whether the gradients of an operator's operand are added up over micro-batches, by the operator."""
        graph, operand = self.graph, (op.name, position)
        if graph.micro_batching is None or self.n_runs(op) == 1:
            return False
        # Rows that were looked up are kept, each micro-batch's by itself.
        is_summed = op.name not in graph.lookup_operators and operand not in graph.micro_batching.once
        return is_summed and operand in self.backward.gradients and graph.accumulates(op.operand(position).name)

    def update_bytes(self, op: Operator, layout: Layout, shard: int) -> tuple[int, int]:
        """Return the bytes that one device has of a trained variable's gradients and slots, and those that updates move.

        Held are global copies as well, where an update needs them. It reads the gradient, and reads and writes the value and
        each slot.
        """
        updates, by_rows = self.graph.updates.get(op.name, ()), op.name in self.graph.lookups
        n_bytes = sum(update.copies(op.result, layout, shard, by_rows) for update in updates)
        if by_rows and all(update.leaves_rows for update in updates):
            rows = min(shard, self.found_bytes(op) * shard // max(1, op.result.mem_bytes))
            return n_bytes, sum(rows * (3 + 2 * update.slots) for update in updates)
        return n_bytes, 2 * n_bytes + shard if n_bytes else 0

    def found_bytes(self, op: Operator) -> int:
        """Return the bytes of all rows that a step's lookups in a variable find, if it is updated by rows; else 0."""
        rows = (self.graph.operators[name].result for name in self.graph.lookups.get(op.name, ()))
        return sum(tensor.mem_bytes * self.graph.n_runs(tensor.name) for tensor in rows)

    def updating(self, op: Operator, rule: Rule, config: Config) -> Iterable[Resharding]:
        """Return the reshardings of a variable's update.

        For a lookup they are the reshardings that the update of its table needs.
        """
        if op.name in self.graph.lookup_operators:
            return row_reshardings(op, rule, config)
        updates, by_rows = self.graph.updates.get(op.name), op.name in self.graph.lookups
        return update_reshardings(updates, op.result, interface_of(rule, config).results[0], by_rows) if updates else ()


def costing_of(model: Model, hardware: Hardware, mesh: Mesh, known: MeasuredOperators = NOTHING_KNOWN) -> OperatorCosting:
    """Return the costs of a model's operators and reshardings on some hardware, given what is known of operators.

    Of unequal devices the slowest one's are returned: a step whose operators are split evenly waits for it.
    """
    origin = hardware.measured
    run_by = hardware.run_by if origin is None else "nccl" if origin.is_by_nccl else origin.collectives
    reshardings = ReshardingCosting(
        *(mesh, collective_costs(hardware, mesh), hardware.exposed_share_on(mesh)),
        in_graph=run_by in ("tensorflow", "nccl"),
        nccl_bytes_per_s=hardware.levels[-1].bytes_per_s if run_by == "nccl" else None,
    )
    speed = 1.0 if hardware.topology is None else hardware.topology.slowest(mesh.n_devices)
    costs = OperatorCosts(hardware, known.measured, known.is_cautious, speed)
    return OperatorCosting(model.graph, model.backward, costs, reshardings)
