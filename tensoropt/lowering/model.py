"""Emit a model on this process's ranks, operator by operator: in micro-batches and in stages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

import tensorflow as tf

from ..ir.graph import CONSTANT, SOURCES, Operator, Tensor, TrainStep
from ..ir.micro_batching import MicroBatch
from ..program.deferral import divided
from ..program.forward import ForwardPass, results_of
from ..program.tasks import BACKWARD, FEED, GLOBAL, GRADIENT, LOCAL, OPERAND, OPERATOR, RESULT, Site, Task, Value
from ..rules.rule import OperandSharding
from ..sharding.consumers import HYPERPARAMETER, LOSS
from ..sharding.resharding import PathFinder
from ..sharding.strategy import StrategyView
from .emission import Assign, TaskEmission
from .operators import Values
from .resharding.reshard import Resharder
from .table_lookups import Lookup


class Arriving(NamedTuple):
    """The tensors that other stages send to a stage for one of its passes, and how they are received.

    Attributes:
        tensors: the names of the tensors.
        receive: emits their reception, behind some values that have been computed; returns their local values by name.
    """

    tensors: frozenset[str]
    receive: Callable[[Values], Mapping[str, Values]]


class LocalModel(TaskEmission):
    """The model on this process's ranks: it emits what is asked for, each operator once.

    Attributes:
        forward: writes what is emitted, as tasks.
    """

    forward: ForwardPass

    def __init__(
        self,
        view: StrategyView,
        path_finder: PathFinder,
        resharder: Resharder,
        sources: Mapping[str, Values],
        assign: Assign,
        is_training: bool,
        outside: LocalModel | None = None,
        micro_batch: MicroBatch | None = None,
    ) -> None:
        """Begin with what is given.

        Args:
            sources: local values that are given, by tensor name: those of fed tensors and of variables.
            assign: emits, on local operands, an operator that updates a variable or reads it after an update.
            is_training: whether gradients are taken of what is emitted.
            outside: for a micro-batch, the model that emits what is computed once for all of them.
            micro_batch: which micro-batch is emitted, where the step has several.
        """
        aliases: dict[Value, Value] = {} if outside is None else outside.forward.aliases
        once = None if outside is None else outside.forward
        forward = ForwardPass(view, path_finder, [], aliases, once, micro_batch, is_training, in_buckets=resharder.joins)
        super().__init__(view, path_finder, resharder, aliases, forward.flow, {}, assign, is_training, micro_batch)
        self.forward = forward
        self._outside = outside
        if outside is not None:
            self.values = outside.values
        self.give({Site(RESULT, name): values for name, values in sources.items()})
        self._loss: Site | None = None
        self._deferred: list[Task] = []
        self._arrived: dict[Site, Value] = {}

    def emit(self, names: set[str], arriving: Arriving | None = None) -> None:
        """Emit the operators with these names, in program order; what they depend on must be named too, or given.

        Args:
            arriving: what is received before the first operator that reads any of it, behind all that was emitted before.
        """
        for op in self.view.graph.operators.values():
            is_given = op.outputs and all(self.forward.own(value) in self.values for value in results_of(op))
            if op.name in names and not is_given:
                if arriving is not None and any(tensor.name in arriving.tensors for _, tensor in op.operands):
                    self._receive(arriving)
                    arriving = None
                self._emit_one(op)
        if arriving is not None:
            self._receive(arriving)

    def _emit_one(self, op: Operator) -> None:
        """Write the tasks of an operator, and emit them."""
        if op.updates is not None:
            self.forward.write(op)
        elif op.type == CONSTANT:
            self.forward.add(FEED, Site(OPERATOR, op.name), (), results_of(op))
        else:
            assert op.type not in SOURCES, f"{op.where()} was not given"
            self.forward.compute(op)
        self._emit_written()

    def _emit_written(self) -> None:
        """Emit the tasks that were written; what is done once mustn't wait for the micro-batch before."""
        if self._outside is not None and self._outside.forward.tasks:
            with tf.control_dependencies(None):
                self._outside._emit_written()
        tasks = list(self.forward.tasks)
        self.forward.tasks.clear()
        self.run(tasks)

    def _receive(self, arriving: Arriving) -> None:
        """Take what arrives, behind the results of the operators emitted so far."""
        emitted = [self.view.graph.operators[name] for name in self._emitted]
        read = {tensor.name for op in emitted for _, tensor in op.operands}
        last = [self.local(tensor) for op in emitted for tensor in op.outputs if tensor.name not in read]
        found = arriving.receive([value for values in last if values[0].dtype.is_floating for value in values])
        self.give({Site(RESULT, name): values for name, values in found.items()})

    def give(self, values: Mapping[Site, Values], version: str = "") -> None:
        """Take the local values of tensors and operands, or their gradients."""
        for site, each in values.items():
            value = self.forward.own(Value(site, version))
            self.values[value] = each
            if site.kind == OPERAND and not version:
                self.forward.made.add(value)

    def at(self, site: Site) -> Values:
        """Return the local values at a site."""
        return self.value(self.forward.own(Value(site)))

    def resharded(self, tensor: Tensor, sharding: OperandSharding, consumer: str) -> Values:
        """Return a tensor in an operand sharding, resharded from the copy that its consumers share if there is one."""
        source, resharding = self.forward.own(self.forward.source(tensor)), self.view.resharding(tensor, sharding)
        self._emit_written()
        return self.resharder.reshard(resharding, self.path_finder.paths(resharding), self.value(source), consumer)

    def _resharded_at(self, site: Site, tensor: Tensor) -> Values:
        """Return a tensor resharded to a site."""
        self.forward.operand(site, tensor)
        self._emit_written()
        return self.at(site)

    def fetched(self, tensor: Tensor, is_local: bool = False) -> Values:
        """Return a tensor's global value on every rank, or its shards split as produced, with partial sums completed."""
        return self._resharded_at(Site(LOCAL if is_local else GLOBAL, tensor.name), tensor)

    def loss(self, step: str, tensor: Tensor) -> Values:
        """Return the loss of a training step on every rank; gradients are taken of it."""
        self._loss = Site(OPERAND, step, LOSS)
        self.flow.losses[step] = tensor
        return self._resharded_at(self._loss, tensor)

    def lookup(self, name: str) -> Lookup:
        """Return the results of a lookup in a table that is updated by rows."""
        op = self.view.graph.operators[name]
        return Lookup(op, self.local(op.result), self.looked_up_indices(op))

    def hyperparameter(self, step: TrainStep, tensor: Tensor) -> Values:
        """Return a value that the optimizer of a training step reads, on every rank."""
        return self._resharded_at(Site(OPERAND, step.name, HYPERPARAMETER - step.optimizer.tensors.index(tensor)), tensor)

    # Gradients

    def gradients_of(
        self,
        starts: Collection[str],
        given: Mapping[str, Values],
        ends: Collection[Site] | None = None,
        copies: Mapping[Site, Values] = MappingProxyType({}),
    ) -> dict[Site, Values]:
        """Emit a backward pass from the loss, if the model has computed it, and from given gradients.

        Args:
            starts: the names of the tensors with respect to which gradients are taken.
            given: the gradients of tensors that other stages use, by name.
            ends: where gradients are needed; all else is deferred, until :meth:`run_deferred`. None: nothing is.
            copies: the gradients of copies that micro-batches use.

        Returns:
            The gradients that nothing passes on, by their place.
        """
        forward, losses, site = self.forward, dict[str, Tensor](), self._loss
        gradients = {**copies, **{Site(RESULT, name): values for name, values in given.items()}}
        self.give(gradients, GRADIENT)
        starting = {each: Value(each, GRADIENT) for each in gradients}
        self._gates = [value.op for values in given.values() for value in values]
        if site is not None:
            seed, losses = Value(site, GRADIENT), {site.name: self.flow.losses[site.name]}
            starting = {site: seed, **starting}
            forward.append(Task(FEED, BACKWARD, site, (Value(site),), (seed,)))
            self._emit_written()
        self._arrived = forward.back(starting, starts, losses)
        if ends is not None:
            needed = [value for place, value in self._arrived.items() if place in ends]
            first, self._deferred = divided(forward.tasks, needed, self.aliases, self.view.graph.operators)
            forward.tasks[:] = first
        self._emit_written()
        return self._take_arrived()

    def run_deferred(self) -> dict[Site, Values]:
        """Emit what the last backward pass has deferred; return its gradients that nothing passes on."""
        tasks, self._deferred = self._deferred, []
        self.run(tasks)
        return self._take_arrived()

    def _take_arrived(self) -> dict[Site, Values]:
        """Return the gradients that have arrived and that weren't returned before."""
        here = {site: self.values[value] for site, value in self._arrived.items() if value in self.values}
        self._arrived = {site: value for site, value in self._arrived.items() if site not in here}
        return {site: values for site, values in here.items() if values is not None}
