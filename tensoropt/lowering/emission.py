"""Emit the tasks of a step (:mod:`..program.step`) on this process's ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby

import tensorflow as tf

from ..ir.graph import Operator, Tensor
from ..ir.micro_batching import MicroBatch
from ..program.gradient_flow import GradientFlow
from ..program.tasks import ACCUMULATED, AGAIN, FEED, FORWARD, JOIN, OPERAND, RESULT, SEND, SUM, UPDATE, Site, Task, Value
from ..rules.random import FROM_SEED
from ..sharding.resharding import Resharding, inner_reshardings, row_reshardings
from . import pull_back
from .joined import joined
from .operators import Job, Values, emit
from .order import BackwardRecord
from .pull_back import Created, Emitted, Inner, Key, Pullback, key_of
from .resharding.reshard import Resharder

Sources = Mapping[str, Callable[[int], Values]]
Assign = Callable[[Operator, list[Values]], list[Values]]


class TaskEmission:
    """The emission of tasks; each reads values that earlier ones have written.

    Attributes:
        aliases: values that are another value itself, since no task has to make them of it.
        flow: says what is resharded to a site.
        values: what was written so far: a value's local values, or None for a gradient that isn't there.
        record: what was created for backward passes.
        assign: emits an operator that updates a variable.
    """

    def __init__(
        self,
        flow: GradientFlow,
        resharder: Resharder,
        aliases: Mapping[Value, Value],
        sources: Sources,
        assign: Assign,
        is_training: bool,
        micro_batches: Sequence[MicroBatch] = (),
    ) -> None:
        """Begin without values.

        Args:
            sources: by tensor name, functions that return the local values of variables and of what is fed, given the
                micro-batch's index, or -1 once a step.
            assign: emits, on local operands, an operator that updates a variable or reads it after an update; of a random
                operator with a seed, how often it has drawn.
            micro_batches: all micro-batches, where the step has several.
        """
        self.flow, self.view, self.path_finder, self.resharder = flow, flow.view, flow.path_finder, resharder
        self.aliases, self.micro_batches, self.is_training = aliases, micro_batches, is_training
        self.values: dict[Value, Values | None] = {}
        self.record = BackwardRecord()
        self._sources, self.assign = sources, assign
        self._emitted: dict[tuple[str, int], Emitted] = {}
        self._again: dict[tuple[str, int], Emitted] = {}
        self._operators: list[tf.Operation] = []
        # What waits for the beginning of a micro-batch's backward pass waits for these.
        self._gates: dict[int, list[tf.Operation]] = {}

    def run(self, tasks: Sequence[Task]) -> None:
        """Emit tasks, in order."""
        graph = tf.compat.v1.get_default_graph()
        for is_in_pass, group in groupby(tasks, _is_in_backward_pass):
            if not is_in_pass:
                for task in group:
                    self._emit(task)
                continue
            start = graph.version
            with tf.name_scope(self.record.scope) as self.record.scope:
                for task in group:
                    self._emit(task)
            self.record.passes.append(Created(start, graph.version))

    def value(self, value: Value) -> Values:
        values = self.values_or_none(value)
        assert values is not None, f"{value} is read, and has no values"
        return values

    def at(self, site: Site, micro_batch: int = -1) -> Values:
        """Return the local values at a site, in a micro-batch or, if it is made once a step, in all."""
        value = Value(site, micro_batch=micro_batch)
        return self.value(value if self.has(value) else Value(site))

    def local(self, tensor: Tensor) -> Values:
        """Return a tensor's local values in its produced layout."""
        return self.at(Site(RESULT, tensor.name))

    def has(self, value: Value) -> bool:
        """Return whether a value, or what it is another name of, has been written."""
        while value not in self.values and value in self.aliases:
            value = self.aliases[value]
        return value in self.values

    def values_or_none(self, value: Value) -> Values | None:
        """Return the local values of a value; None for a gradient that isn't there.

        Raises:
            KeyError: no task has written it.
        """
        while value not in self.values and value in self.aliases:
            value = self.aliases[value]
        return self.values[value]

    def _emit(self, task: Task) -> None:
        match task.work, task.direction:
            case "feed", "forward":
                self._feed(task)
            case "feed", _:
                self._begin_backward(task)
            case "write", _:
                _, *operands = map(self.value, task.reads)
                op = self.view.graph.operators[task.site.name]
                self.values.update(zip(task.writes, self._write(op, operands), strict=True))
            case "compute", "forward":
                self._write_results(task, self._operator(task))
            case "compute", "backward":
                self._compute_gradients(task)
            case "compute", _:
                self._compute_again(task)
            case "reshard", "forward":
                _, resharding = self.flow.at(task.site, task.micro_batch).resharded(task.site)
                paths, read = self.path_finder.paths(resharding), self.value(task.reads[0])
                self.values[task.writes[0]] = self.resharder.reshard(resharding, paths, read, self._consumer(task.site))
            case "reshard", "backward":
                self._send_back(task)
            case "reshard", _:
                _, resharding = self.flow.at(task.site, task.micro_batch).resharded(task.site)
                path = self.path_finder.paths(resharding).forward
                read, consumer = self.value(task.reads[0]), self._consumer(task.site)
                self.values[task.writes[0]] = self.resharder.run(path, read, consumer, after=self._after(task))
            case "sum", _:
                self._sum(task)
            case "join", _:
                parts, ranks = [self.value(value) for value in task.reads], self.resharder.backend.ranks
                self.values[task.writes[0]] = joined(task, parts, self.micro_batches, self.view, ranks)
            case "cut", _:
                dimension = self.micro_batches[0].micro_batching.forms[task.site.name]
                parts = [tf.split(value, len(self.micro_batches), dimension) for value in self.value(task.reads[0])]
                self.values.update(zip(task.writes, map(list, zip(*parts, strict=True)), strict=True))
            case _:
                raise AssertionError(f"nothing here emits {task}")

    def _consumer(self, site: Site) -> str:
        """Return the name of the operator that a resharding is for: the producer, where it is for several."""
        return site.name if site.kind == OPERAND else self.view.graph.producers[site.name].name

    # The forward pass

    def _feed(self, task: Task) -> None:
        """Emit the value of a variable, a constant, or what is fed."""
        for value in task.writes:
            source = self._sources.get(value.site.name)
            if source is not None:
                self.values[value] = source(task.micro_batch)
            else:
                self._write_results(task, self._operator(task))

    def _write_results(self, task: Task, emitted: Emitted) -> None:
        """Note the results of an operator that was emitted."""
        outputs = self.view.graph.operators[task.site.name].outputs
        results = dict(zip((tensor.name for tensor in outputs), emitted.results, strict=True))
        self.values.update((value, results[value.site.name]) for value in task.writes)
        self._emitted[task.site.name, task.micro_batch] = emitted

    def _operands(self, op: Operator, operands: list[Values], micro_batch: MicroBatch | None) -> list[Values]:
        """Return the operands of an operator; zeros for what another micro-batch counts.

        An operand that is the same tensor as another one has a gradient of its own.
        """
        copies: list[Values] = []
        for (position, _), values in zip(op.operands, operands if self.is_training else (), strict=self.is_training):
            if micro_batch is not None and not micro_batch.takes(op.name, position):
                copies.append([tf.zeros_like(value) for value in values])
            elif any(values[0] is copy[0] for copy in copies):
                copies.append([tf.identity(value) for value in values])
            else:
                copies.append(values)
        return copies if self.is_training else operands

    def _operator(self, task: Task) -> Emitted:
        """Emit an operator, the first time or once more; return what was emitted."""
        view = self.flow.at(task.site, task.micro_batch).view
        op = view.graph.operators[task.site.name]
        micro_batch = self.micro_batches[task.micro_batch] if task.micro_batch >= 0 else None
        operands = self._operands(op, [self.value(value) for value in task.reads], micro_batch)
        rule, config = view.rules[op.name], view.strategy.configs[op.name]
        # Whether the reshardings inside of the operator carry gradients follows from which operands get one.
        differentiated = self.view.backward.positions(op) if self.is_training else ()
        reshardings = inner_reshardings(op, rule, config, differentiated)
        graph = tf.compat.v1.get_default_graph()
        emitted = Emitted({position: values for (position, _), values in zip(op.operands, operands, strict=True)})
        start = graph.version

        def complete(k: int, values: Values) -> Values:
            """Emit the k-th resharding inside of the operator."""
            nonlocal start
            emitted.parts.append(Created(start, graph.version))
            results = self.resharder.reshard(reshardings[k], self.path_finder.paths(reshardings[k]), values, op.name)
            path = self.path_finder.paths(reshardings[k]).backward
            is_overlappable = op.result.name in self.view.graph.made_of_variables

            def back(gradients: Values) -> Values:
                assert path is not None
                return self.resharder.run(path, gradients, op.name, is_overlappable)

            emitted.parts.append(Inner(values, results, None if path is None else back))
            start = graph.version
            return results

        @contextmanager
        def rematerialized_with(position: int) -> Iterator[None]:
            n_before = graph.version
            yield
            emitted.cheap.append(Created(n_before, graph.version))

        job = Job(
            op, rule, config, view.interfaces[op.name], self.resharder.backend.ranks, complete,
            differentiated=frozenset().union(*differentiated), micro_batch=micro_batch,
            rematerialized_with=rematerialized_with, reads_table=self._reads_table(op),
            runs=(lambda: self.assign(op, [])[0]) if op.type in FROM_SEED else None,
        )  # fmt: skip
        emitted.results = emit(job, operands)
        emitted.parts.append(Created(start, graph.version))
        return emitted

    def _reads_table(self, op: Operator) -> bool:
        """Return whether a lookup may read its variable directly: nothing assigns that, and no gradient passes its value."""
        table = op.inputs[0] if op.inputs else None
        if table is None or (self.is_training and op.name not in self.view.graph.lookup_operators):
            return False
        if self.is_training and op.name in self.view.rematerialized:
            return False  # in the backward pass it would find the variable updated
        return self.view.graph.producers[table.name].name not in self._assigned

    @cached_property
    def _assigned(self) -> frozenset[str]:
        """The names of the variables that operators of the graph update."""
        return frozenset(op.updates for op in self.view.graph.operators.values() if op.updates is not None)

    def _write(self, op: Operator, operands: list[Values]) -> list[Values]:
        """Emit an operator that updates a variable, or reads it after an update; return what it reads."""
        return self.assign(op, operands)

    # The backward pass

    def _begin_backward(self, task: Task) -> None:
        """Emit the gradient of a loss: 1 on every rank, or what the loss is scaled by.

        The backward paths of the reshardings do the rest, no scaling is needed anywhere.
        """
        losses_before, loss = self.value(task.reads[0]), self.flow.resharded_tensor(task.site)
        losses = self._scaled(task.site.name, losses_before)
        ones = [tf.ones_like(value) for value in losses]
        self.values[task.writes[0]] = ones
        if any(new is not old for new, old in zip(losses, losses_before, strict=True)):
            graph = tf.compat.v1.get_default_graph()
            scaled = Emitted({0: losses_before}, [losses], [Created(0, graph.version)])
            (self.values[task.writes[0]],) = Pullback(scaled, graph.get_operations(), {}).run([(0, ones)], [0])
        results = self.value(Value(Site(RESULT, loss.name), micro_batch=task.micro_batch))
        self._gates[task.micro_batch] = [value.op for value in results]

    def _scaled(self, gradients: str, losses: Values) -> Values:
        """Return the losses that are differentiated, given the gradients' name."""
        return losses

    def _sum(self, task: Task) -> None:
        """Emit the sum of two gradients; one that isn't there counts nothing."""
        summands = [values for value in task.reads if (values := self.values[value]) is not None]
        if len(summands) == 2:
            total: Values | None = [tf.add_n(list(pair)) for pair in zip(*summands, strict=True)]
        else:
            total = summands[0] if summands else None
        self.values[task.writes[0]] = total

    def _after(self, task: Task) -> Values:
        """Return the gradients that a task waits for which makes something again."""
        return [gradient for value in task.after for gradient in self.values[value] or ()]

    def _compute_again(self, task: Task) -> None:
        """Emit an operator of the forward pass once more, when the gradients that it waits for are there."""
        waits_for = [*self._gates.get(task.micro_batch, ()), *(gradient.op for gradient in self._after(task))]
        start = tf.compat.v1.get_default_graph().version
        with tf.control_dependencies(waits_for), tf.name_scope(pull_back.REMATERIALIZED):
            emitted = self._operator(task)
        spans = [part for part in emitted.parts if isinstance(part, Created)]
        self.record.rematerialized += [Created(start, spans[0].start), *spans]
        self._again[task.site.name, task.micro_batch] = emitted
        self.values.update(zip(task.writes, emitted.results, strict=True))

    def _compute_gradients(self, task: Task) -> None:
        """Emit the gradient of an operator: that of the rematerialized operator, if there is one."""
        key = task.site.name, task.micro_batch
        replacements: dict[Key, tf.Tensor] = {}
        emitted = self._again.get(key)
        if emitted is None:
            emitted = self._emitted[key]
            for value in task.reads:
                if value.version == AGAIN:
                    read = self.value(value)
                    first = self._first(value.site, emitted)
                    replacements.update((key_of(old), new) for old, new in zip(first, read, strict=True))
        result_gradients = [(index, values) for index, value in task.gradients if (values := self.values[value]) is not None]
        pullback = Pullback(emitted, self._all_operators(emitted), replacements)
        start = tf.compat.v1.get_default_graph().version
        operand_gradients = pullback.run(result_gradients, [value.site.position for value in task.writes])
        created = Created(start, tf.compat.v1.get_default_graph().version)
        self.record.gradients.append((created, [gradient for values in operand_gradients for gradient in values or ()]))
        self.record.forward_needs += pullback.forward_needs
        self.values.update(zip(task.writes, operand_gradients, strict=True))

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
        if task.site.kind == RESULT:
            lookup, gradients = self.view.graph.producers[task.site.name], self.values[task.reads[0]]
            _, resharding = self.flow.resharded(task.site)
            self.values[task.writes[0]] = gradients and self.on_every_rank(lookup.name, resharding, gradients)
            return
        present = [
            (read, write, values)
            for read, write in zip(task.reads, task.writes, strict=True)
            if (values := self.values[read]) is not None
        ]
        self.values.update(dict.fromkeys(task.writes))
        resharded = [self.flow.at(write.site, task.micro_batch).resharded(write.site) for _, write, _ in present]
        paths = [path for _, resharding in resharded if (path := self.path_finder.paths(resharding).backward) is not None]
        consumers = [self._consumer(write.site) for _, write, _ in present]
        if len(present) > 1:
            sums = self.resharder.send_back_together(paths, [values for _, _, values in present], consumers)
        else:
            sums = [
                self.resharder.run(path, values, consumer, tensor.name in self.view.graph.made_of_variables)
                for path, (_, _, values), consumer, (tensor, _) in zip(paths, present, consumers, resharded, strict=True)
            ]
        self.values.update((write, values) for (_, write, _), values in zip(present, sums, strict=True))

    # Lookups in tables that are updated by rows

    def looked_up_indices(self, lookup: Operator, micro_batch: int = -1) -> Values:
        """Return the indices that a lookup used, all of them on every rank."""
        resharding, _ = row_reshardings(lookup, self.view.rules[lookup.name], self.view.strategy.configs[lookup.name])
        return self.on_every_rank(lookup.name, resharding, self.at(Site(OPERAND, lookup.name, 1), micro_batch))

    def on_every_rank(self, name: str, resharding: Resharding, values: Values) -> Values:
        paths = self.path_finder.paths(resharding)
        return self.resharder.reshard(resharding, paths, values, name, is_overlappable=True)


def _is_in_backward_pass(task: Task) -> bool:
    """Return whether a task is one of a backward pass, and not what that begins with or what its gradients are for."""
    if task.direction == FORWARD or task.work in (FEED, UPDATE, SEND, JOIN) or task.is_of_rows:
        return False
    return task.work != SUM or task.writes[0].version != ACCUMULATED
