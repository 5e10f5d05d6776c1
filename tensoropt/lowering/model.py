"""Emit the model on this process's ranks: operators in program order, reshardings between them, losses and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import tensorflow as tf

from ..common.gradient_types import carries_gradient
from ..ir.graph import CONSTANT, SOURCES, Operator, Tensor
from ..ir.slicing import Slice
from ..ir.views import viewed_operand
from ..reschedule.layout import Layout
from ..rules.rule import Demand
from ..sharding.resharding import Resharding, Router, differentiated_operands, inner_reshardings
from ..sharding.strategy import Copy, StrategyView
from .operators import Job, Values, emit
from .regather import RemadeCopy, Remaking
from .rematerialize import Recomputing
from .resharding.reshard import Resharder, send_buckets


@dataclass
class LocalModel:
    """The model on this process's ranks: it emits what is asked for and what that depends on, each operator once.

    Attributes:
        view: the strategy on its graph.
        router: finds the path of each resharding.
        resharder: emits the reshardings.
        sources: local values that are given, by tensor name: those of fed tensors and of variables.
        update: emits, on local operands, an operator that updates a variable or reads it after an update.
        training: whether gradients are taken of what is emitted.
        slice: which micro-batch is emitted, where the step has several.
        elsewhere: returns a tensor that another model emits, resharded for an operator's operand sharding (Demand); None for
            a tensor that this model emits itself.
    """

    view: StrategyView
    router: Router
    resharder: Resharder
    sources: Mapping[str, Values]
    update: Callable[[Operator, list[Values]], list[Values]]
    training: bool
    slice: Slice | None = None
    elsewhere: Callable[[Tensor, Demand, str], Values | None] | None = None
    _values: dict[str, Values] = field(default_factory=dict)
    _resharded: dict[tuple[str, Demand], Values] = field(default_factory=dict)
    _shared: dict[str, Values] = field(default_factory=dict)
    _whole: dict[str, Values] = field(default_factory=dict)
    _indices: dict[str, Values] = field(default_factory=dict)
    _remade: dict[Copy | tuple[str, int], RemadeCopy] = field(default_factory=dict)
    _needed_again: dict[str, list[RemadeCopy]] = field(default_factory=dict)
    _remaking: Remaking = field(init=False)
    _recomputing: Recomputing = field(default_factory=Recomputing)

    def __post_init__(self) -> None:
        self._remaking = Remaking(self.resharder)

    def emit(self, names: set[str]) -> None:
        """Emit the operators with these names, in program order; what they depend on must be named too, or given."""
        for op in self.view.graph.operators.values():
            is_given = op.outputs and all(tensor.name in self.sources for tensor in op.outputs)
            if op.name in names and not is_given:
                self._emit_operator(op)

    def value(self, tensor: Tensor) -> Values:
        """Return a tensor's local values in its produced layout."""
        return self.sources[tensor.name] if tensor.name in self.sources else self._values[tensor.name]

    def resharded(self, tensor: Tensor, demand: Demand, operator: str) -> Values:
        """Return a tensor in an operand sharding, resharded from the copy that its consumers share if there is one.

        Args:
            operator: the consumer, or what the tensor is used for; names the collectives in the log.
        """
        if not self.training:
            demand = Demand(demand.layout, None)
        key = (tensor.name, demand)
        if key in self._resharded:
            return self._resharded[key]
        if self.elsewhere is not None and (given := self.elsewhere(tensor, demand, operator)) is not None:
            return given
        values = self._reshard(self.view.resharding(tensor, demand), self._taken(tensor, operator), operator, tensor)
        if not self.training:
            self._resharded[key] = values
        return values

    def _taken(self, tensor: Tensor, operator: str) -> Values:
        """Return the values that consumers reshard a tensor from: the produced ones, or the shared copy.

        The first consumer has the shared copy emitted.
        """
        shared = self.view.strategy.shared.get(tensor.name)
        if shared is None:
            return self.value(tensor)
        if tensor.name not in self._shared:
            demand = shared if self.training else Demand(shared.layout, None)
            resharding = self.view.shared_resharding(tensor, demand)
            source = self.value(tensor)
            values = self._shared[tensor.name] = self._reshard(resharding, source, operator, tensor)
            forward = self.router.route(resharding).forward
            if self.training and Copy(tensor.name) in self.view.strategy.remade and forward.steps:
                self._remade[Copy(tensor.name)] = RemadeCopy(forward, source, None, values, operator)
        return self._shared[tensor.name]

    def _reshard(self, resharding: Resharding, values: Values, operator: str, tensor: Tensor) -> Values:
        """Emit a resharding of a tensor: to an operand sharding, or inside of the operator that produces it."""
        is_trailing = resharding.demand.varying is not None and tensor.name in self.view.graph.made_of_variables
        route = self.router.route(resharding)
        is_again = self.view.graph.producers[tensor.name].name in self._again and not route.forward.communicates
        with self._computed_again(is_again):
            return self.resharder.reshard(resharding, route, values, operator, is_trailing)

    @contextmanager
    def _computed_again(self, is_again: bool) -> Iterator[None]:
        """Return a context that marks what is emitted in it as rematerializable, if ``is_again``."""
        graph = tf.compat.v1.get_default_graph()
        start = len(graph.get_operations()) if is_again else 0
        yield
        if is_again:
            self._recomputing.mark(graph.get_operations()[start:])

    def replicated(self, tensor: Tensor, operator: str, with_gradient: bool = False) -> Values:
        """Return a tensor's global value on every rank; it is resharded once, however often it is asked for."""
        if tensor.name not in self._whole:
            whole = Layout.replicated(self.view.strategy.mesh, len(tensor.shape))
            demand = Demand(whole, () if with_gradient else None)
            self._whole[tensor.name] = self.resharded(tensor, demand, operator)
        return self._whole[tensor.name]

    def looked_up(self, lookup: str) -> tuple[Values, Values]:
        """Return the rows that a lookup found in a table that is updated by rows, and the local indices that it used."""
        return self.value(self.view.graph.operators[lookup].result), self._indices[lookup]

    def without_sums(self, tensor: Tensor, operator: str) -> Values:
        """Return a tensor's shards split as produced, with partial sums completed."""
        return self.resharded(tensor, Demand(self.view.layout(tensor).with_partial(()), None), operator)

    def _emit_operator(self, op: Operator) -> None:
        """Emit an operator on every rank of this process, with its operands resharded, and note its results."""
        if op.updates is not None:
            self._emit_update(op, op.updates)
            return
        rule, config = self.view.rules[op.name], self.view.strategy.configs[op.name]
        operands = [self._operand(op, position, tensor) for position, tensor in op.operands]
        if self.training and op.name in self.view.graph.lookup_operators:
            self._indices[op.name] = operands[1]
        # Whether the reshardings inside of the operator carry gradients follows from which operands get one.
        differentiated = differentiated_operands(op, self.view.gradients) if self.training else frozenset()
        inner = inner_reshardings(op, rule, config, differentiated)

        def complete(k: int, values: Values) -> Values:
            return self._reshard(inner[k], values, op.name, op.result)

        seen, ranks = self.view.interfaces[op.name], self.resharder.backend.ranks
        def following(position: int) -> AbstractContextManager[None]:
            return self._computed_again(self._is_made_again(op, position))

        job = Job(
            op, rule, config, seen, ranks, complete,
            differentiated=differentiated, slice=self.slice, following=following, reads_table=self._reads_table(op),
        )  # fmt: skip
        assert op.type not in SOURCES or op.type == CONSTANT, f"{op.where()} was not given"
        remade = self._remade_for(op)
        with self._computed_again(op.name in self._again):
            results = emit(job, operands)
        for tensor, values in zip(op.outputs, results, strict=True):
            is_passed = bool(remade) and carries_gradient(tensor.dtype)
            self._values[tensor.name] = self._remaking.before_gradient(remade, values) if is_passed else values

    def _reads_table(self, op: Operator) -> bool:
        """Return whether a lookup may read its variable directly: nothing assigns that, and no gradient passes its value."""
        table = op.inputs[0] if op.inputs else None
        if table is None or (self.training and op.name not in self.view.graph.lookup_operators):
            return False
        if op.name in self._again:  # in the backward pass it would find the variable updated
            return False
        return self.view.graph.producers[table.name].name not in self._assigned

    @cached_property
    def _assigned(self) -> frozenset[str]:
        """The names of the variables that operators of the graph update."""
        return frozenset(op.updates for op in self.view.graph.operators.values() if op.updates is not None)

    def _is_made_again(self, op: Operator, position: int) -> bool:
        """Return whether an operand is regathered or rematerialized in the backward pass, instead of saved for it."""
        tensor, view = op.inputs[position], self.view
        assert tensor is not None
        producer = view.graph.producers[tensor.name].name
        return self.training and (
            view.is_remade(op, position)
            or view.reads_remade(op, position)
            or (producer in self._needed_again and view.takes_regathered(op, position))
        )

    @property
    def _again(self) -> frozenset[str]:
        """Return the names of the operators that are rematerialized."""
        return self.view.recomputed if self.training else frozenset()

    def _remade_for(self, op: Operator) -> list[RemadeCopy]:
        """Return the regathered copies that the backward pass reads at an operator.

        Either the operator's own gradient reads such a copy, or a rematerialized operator does, whose result the gradient
        reads.
        """
        before: list[RemadeCopy] = []
        own: list[RemadeCopy | None] = []
        is_view = any(viewed_operand(op, tensor.name) is not None for tensor in op.outputs)
        for position, tensor in op.operands if self.training else ():
            producer = self.view.graph.producers[tensor.name].name
            reads = is_view or self.view.reads(op, position)
            if producer in self._needed_again and reads and self.view.takes_regathered(op, position):
                before += self._needed_again[producer]
            if self.view.reads_remade(op, position):
                own.append(self._remade.get(Copy(tensor.name)))
            if self.view.is_remade(op, position):
                own.append(self._remade.get((op.name, position)))
        copies = [copy for copy in dict.fromkeys([*before, *own]) if copy is not None]
        if op.name in self._again or is_view:
            self._needed_again[op.name] = copies
        return copies

    def read_remade(self, operators: Sequence[tf.Operation], n_forward: int) -> None:
        """Have the backward pass, which must have been emitted, read the regathered copies; see :meth:`.Remaking.rewire`."""
        self._remaking.rewire(operators, n_forward)

    def read_again(self, operators: Sequence[tf.Operation], n_forward: int, losses: Values) -> list[tf.Operation]:
        """Have the backward pass, which must have been emitted, read regathered copies and rematerialized operators.

        Args:
            operators: all operators of the graph, in the order in which they were created; the backward pass begins at index
                ``n_forward``.
            losses: the local losses. Rematerialized operators wait for them.

        Returns:
            All operators in order, with those that were added where they belong.
        """
        self.read_remade(operators, n_forward)
        self._recomputing.losses = [loss.op for loss in losses]
        return self._recomputing.rewire(operators, n_forward, self._remaking.replaced)

    def _emit_update(self, op: Operator, variable: str) -> None:
        """Emit an operator that updates a variable, on operands split as the variable."""
        layout = self.view.layout(self.view.graph.operators[variable].result)
        operands = [self.resharded(tensor, Demand(layout, None), op.name) for _, tensor in op.operands]
        for tensor, values in zip(op.outputs, self.update(op, operands), strict=True):
            self._values[tensor.name] = values

    def _operand(self, op: Operator, position: int, tensor: Tensor) -> Values:
        """Return an operator's operand, resharded; zeros if another micro-batch counts the operand."""
        demand = self.view.demand(op, position)
        values = self.resharded(tensor, demand, op.name)
        if self.slice is not None and not self.slice.takes(op.name, position):
            return [tf.zeros_like(value) for value in values]
        if self.training and self.view.is_remade(op, position):
            forward = self.router.route(self.view.resharding(tensor, demand)).forward
            if forward.steps:
                source, source_copy = self._taken(tensor, op.name), self._remade.get(Copy(tensor.name))
                self._remade[op.name, position] = RemadeCopy(forward, source, source_copy, values, op.name)
        return values


def gradients_of(losses: Values, variables: list[Values], stops: list[Values] | None = None) -> list[Values | None]:
    """Return the gradients of the losses, which are replicated, with respect to variables.

    The gradient of the loss is 1 on every rank; the backward paths of the reshardings do the rest, no scaling is needed
    anywhere.

    Args:
        variables: for each variable its local values.
        stops: values through which no gradient passes on.

    Returns:
        For each variable the gradients of its local values, or None where the losses don't depend on it.
    """
    return back_from(losses, [tf.ones_like(loss) for loss in losses], variables, stops)


def back_from(
    ends: Values, gradients: Values, variables: list[Values], stops: list[Values] | None = None
) -> list[Values | None]:
    """Return the gradients with respect to variables, given the gradients that arrive at ``ends``.

    Returns:
        For each variable the gradients of its local values, or None where no end depends on it.
    """
    flat = [value for values in variables for value in values]
    stop = [value for values in stops or () for value in values]
    # Sum gradients two at a time: AddN adds more than two in an order that isn't the same on each rank.
    by_pairs = tf.AggregationMethod.EXPERIMENTAL_TREE
    found = iter(tf.gradients(ends, flat, grad_ys=gradients, aggregation_method=by_pairs, stop_gradients=stop or None))
    send_buckets()
    grouped = [[next(found) for _ in values] for values in variables]
    return [None if any(g is None for g in group) else [tf.convert_to_tensor(g) for g in group] for group in grouped]
