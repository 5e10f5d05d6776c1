"""Emit the backward pass of a model task by task, as the step program has it (:mod:`..program.backward`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from ..ir.graph import Operator, Tensor
from ..ir.micro_batching import MicroBatch
from ..program.backward import BackwardPass
from ..program.deferral import divided
from ..program.tasks import (
    AGAIN,
    COMPUTE,
    GRADIENT,
    OPERAND,
    REMATERIALIZED,
    RESULT,
    SUM,
    Site,
    Task,
    Value,
)
from ..sharding.resharding import PathFinder
from ..sharding.strategy import StrategyView
from . import pull_back
from .operators import Values
from .order import BackwardRecord
from .pull_back import Created, Emitted, Key, Pullback, key_of
from .resharding.reshard import Resharder


@dataclass(eq=False)
class ForwardRecord:
    """The forward pass of a model, as emitted so far.

    Attributes:
        sites: the operators, operands and shared copies, in order.
        values: the local values of operands and shared copies.
        operators: each operator's TensorFlow operators, by name.
        consumers: by the place of a shared copy, the operator that it was made for.
    """

    sites: list[Site] = field(default_factory=list)
    values: dict[Site, Values] = field(default_factory=dict)
    operators: dict[str, Emitted] = field(default_factory=dict)
    consumers: dict[Site, str] = field(default_factory=dict)

    def add(self, site: Site, values: Values) -> None:
        """Add the resharding to an operand or a shared copy."""
        self.sites.append(site)
        self.values[site] = values


class BackwardEmission:
    """The emission of a model's backward passes.

    Attributes:
        program: the backward passes as tasks.
        record: what was created for them.
    """

    def __init__(
        self,
        view: StrategyView,
        path_finder: PathFinder,
        resharder: Resharder,
        forward: ForwardRecord,
        results: Callable[[Tensor], Values],
        emit_again: Callable[[Operator, Sequence[Values]], Emitted],
        micro_batch: MicroBatch | None = None,
    ) -> None:
        """Take what the model emitted; ``results`` returns its tensors, ``emit_again`` emits an operator once more."""
        self.view, self.path_finder, self.resharder, self.forward = view, path_finder, resharder, forward
        self.program = BackwardPass(view, path_finder, micro_batch, resharder.joins)
        self.record = BackwardRecord()
        self._results, self._emit_again = results, emit_again
        self._values: dict[Value, Values | None] = {}
        self._again: dict[str, Emitted] = {}
        self._operators: list[tf.Operation] = []
        self._deferred: list[Task] = []
        self._gates: list[tf.Operation] = []

    def run(
        self,
        starts: Collection[str],
        given: Mapping[Site, Values],
        losses: Mapping[str, Tensor],
        gates: Sequence[tf.Operation],
        ends: Collection[Site] | None = None,
    ) -> dict[Site, Values]:
        """Emit a backward pass; return the gradients that nothing passes on.

        Args:
            starts: names of the tensors with respect to which gradients are taken.
            given: the gradients that the pass begins with.
            losses: the loss of each training step, by the name that its operand has.
            gates: operators that rematerialized ones wait for.
            ends: where gradients are needed; all else is deferred, until :meth:`run_deferred`. None: nothing is.
        """
        self._gates = list(gates)
        self._values.update((Value(site, GRADIENT), values) for site, values in given.items())
        given_values = {site: Value(site, GRADIENT) for site in given}
        tasks = self.program.run(self.forward.sites, starts, given_values, losses)
        if ends is not None:
            needed = [value for site, value in self.program.arrived.items() if site in ends]
            tasks, self._deferred = divided(tasks, needed, self.program.aliases, self.view.graph.operators)
        return self._run(tasks)

    def run_deferred(self) -> dict[Site, Values]:
        """Emit what the last pass has deferred; return its gradients that nothing passes on."""
        tasks, self._deferred = self._deferred, []
        return self._run(tasks)

    def _run(self, tasks: Sequence[Task]) -> dict[Site, Values]:
        """Emit tasks; return the gradients that have arrived."""
        graph = tf.compat.v1.get_default_graph()
        start = graph.version
        with tf.name_scope(pull_back.BACKWARD):
            for task in tasks:
                self._emit(task)
        self.record.passes.append(Created(start, graph.version))
        arrived = {site: self._values[value] for site, value in self.program.arrived.items() if value in self._values}
        for site in arrived:
            del self.program.arrived[site]
        return {site: values for site, values in arrived.items() if values is not None}

    def _emit(self, task: Task) -> None:
        """Emit a task."""
        if task.work == SUM:
            self._sum(task)
        elif task.direction == REMATERIALIZED:
            self._make_again(task)
        elif task.work == COMPUTE:
            self._compute(task)
        else:
            self._send_back(task)

    def _value(self, value: Value) -> Values:
        """Return the local values of a value; one that the program aliases is the other."""
        value = self.program.aliases.get(value, value)
        if value in self._values:
            values = self._values[value]
        elif value.site.kind == RESULT:
            values = self._results(self.view.graph.tensors[value.site.name])
        else:
            values = self.forward.values[value.site]
        assert values is not None, f"{value} is read, and has no values"
        return values

    def _sum(self, task: Task) -> None:
        """Emit the sum of two gradients; one that isn't there counts nothing."""
        summands = [values for value in task.reads if (values := self._values[value]) is not None]
        if len(summands) == 2:
            total: Values | None = [tf.add_n(list(pair)) for pair in zip(*summands, strict=True)]
        else:
            total = summands[0] if summands else None
        self._values[task.writes[0]] = total

    def _make_again(self, task: Task) -> None:
        """Emit a resharding or an operator of the forward pass once more, when the gradients it waits for are there."""
        after = [each for value in task.after for each in self._values[value] or ()]
        reads = [self._value(value) for value in task.reads]
        if task.work == COMPUTE:
            waits_for = [*self._gates, *(each.op for each in after)]
            with tf.control_dependencies(waits_for), tf.name_scope(pull_back.REMATERIALIZED):
                emitted = self._emit_again(self.view.graph.operators[task.site.name], reads)
            self.record.rematerialized += [each for each in emitted.parts if isinstance(each, Created)]
            self._again[task.site.name] = emitted
            self._values.update(zip(task.writes, emitted.results, strict=True))
            return
        _, resharding = self.program.flow.resharded(task.site)
        path = self.path_finder.paths(resharding).forward
        self._values[task.writes[0]] = self.resharder.regather(path, reads[0], self._consumer(task.site), after)

    def _consumer(self, site: Site) -> str:
        """Return the name of the operator that a resharding is for."""
        return site.name if site.kind == OPERAND else self.forward.consumers[site]

    def _compute(self, task: Task) -> None:
        """Emit the gradient of an operator: that of the rematerialized operator, if there is one."""
        name = task.site.name
        again: dict[Key, tf.Tensor] = {}
        emitted = self._again.get(name)
        if emitted is None:
            emitted = self.forward.operators[name]
            for value in task.reads:
                if value.version == AGAIN:
                    read = self._value(value)
                    first = self._first(value.site, emitted)
                    again.update((key_of(old), new) for old, new in zip(first, read, strict=True))
        given = [(index, values) for index, value in task.gradients if (values := self._values[value]) is not None]
        pullback = Pullback(emitted, self._all_operators(emitted), again)
        start = tf.compat.v1.get_default_graph().version
        found = pullback.run(given, [value.site.position for value in task.writes])
        created = Created(start, tf.compat.v1.get_default_graph().version)
        self.record.gradients.append((created, [each for values in found for each in values or ()]))
        self.record.forward_needs += pullback.forward_needs
        self._values.update(zip(task.writes, found, strict=True))

    def _first(self, site: Site, emitted: Emitted) -> Values:
        """Return the values of the forward pass of an operator's operand or result."""
        if site.kind == OPERAND:
            return emitted.operands[site.position]
        outputs = self.view.graph.producers[site.name].outputs
        return emitted.results[[tensor.name for tensor in outputs].index(site.name)]

    def _all_operators(self, emitted: Emitted) -> list[tf.Operation]:
        """Return the operators of the graph, those of ``emitted`` at least, in the order of their creation."""
        last = emitted.parts[-1]
        if isinstance(last, Created) and last.end > len(self._operators):
            self._operators = tf.compat.v1.get_default_graph().get_operations()
        return self._operators

    def _send_back(self, task: Task) -> None:
        """Emit the way back of gradients through reshardings: of one, or of several whose sums share a collective."""
        present = [
            (read, write, values)
            for read, write in zip(task.reads, task.writes, strict=True)
            if (values := self._values[read]) is not None
        ]
        self._values.update(dict.fromkeys(task.writes))
        resharded = [self.program.flow.resharded(write.site) for _, write, _ in present]
        paths = [path for _, resharding in resharded if (path := self.path_finder.paths(resharding).backward) is not None]
        consumers = [self._consumer(write.site) for _, write, _ in present]
        if len(task.reads) > 1 and len(present) > 1:
            sums = self.resharder.send_back_together(paths, [values for _, _, values in present], consumers)
        else:
            sums = [
                self.resharder.send_back(path, values, consumer, tensor.name in self.view.graph.made_of_variables)
                for path, (_, _, values), consumer, (tensor, _) in zip(paths, present, consumers, resharded, strict=True)
            ]
        self._values.update((write, values) for (_, write, _), values in zip(present, sums, strict=True))
