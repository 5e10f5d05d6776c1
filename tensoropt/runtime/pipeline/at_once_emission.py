"""Emit a training step in stages that takes its batch at once: the stages run one after the other, there and back.

So statistics over the batch, as in batch normalisation, are those of one device. A stage in which branches begin runs these
at the same time as the stages before it run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from ...lowering.model import LocalModel
from ...lowering.operators import Values
from ...lowering.order import put_in_order
from ...optimizers.running_optimizer import PendingUpdate
from ...program.tasks import RESULT, Site
from ...sharding.stages import Crossing
from ..engine import Engine
from .emission import PipelineEmission, summed
from .rows_ahead import gradients_of_variables


@dataclass(eq=False)
class _Passes:
    """The passes of a stage.

    Attributes:
        model: emits them.
        n_forward: the number of TensorFlow's operators when the forward pass ended.
        gradients: those of parameters and of what lookups found, by tensor name.
        urgent: the operators that compute what an earlier stage waits for.
    """

    model: LocalModel
    n_forward: int
    gradients: dict[str, Values] = field(default_factory=dict)
    urgent: list[tf.Operation] = field(default_factory=list)


class AtOnceEmission(PipelineEmission):
    """The emission of one function that trains on its batch at once."""

    def train(self) -> dict[int, list[Values]]:
        """Emit a training step; return what each stage fetches."""
        engines = self._engine.engines
        first = {stage: found for stage in sorted(engines) if (found := self._sent_first(stage)) is not None}
        for model, crossings in first.values():
            for crossing in crossings:
                self._send(crossing, model)
        results, passes, updates = {}, {}, {}
        for stage, engine in sorted(engines.items()):
            passes[stage] = own = self._forward_pass(stage, engine)
            results[stage] = [own.model.fetched(tensor) for tensor, _ in self._parts[stage].fetch.tensors]
            for crossing in self._awaited(self._from(stage, once=True)):
                self._send(crossing, own.model)
        for stage, own in reversed(passes.items()):
            self._backward_pass(stage, engines[stage], own)
        for stage, own in reversed(passes.items()):
            if stage in first:
                model, crossings = first[stage]
                given = self._receive_back([each for each in crossings if each.has_gradient])
                own.gradients = summed(own.gradients, gradients_of_variables(model, given))
            updates[stage] = self._begin_update(engines[stage], own)
        self._update(updates)
        return results

    def _awaited(self, crossings: Sequence[Crossing]) -> list[Crossing]:
        """Return those crossings that passes wait for."""
        return [each for each in crossings if each in self._engine.stages.awaited]

    def _sent_first(self, stage: int) -> tuple[LocalModel, list[Crossing]] | None:
        """Emit what a stage sends before its passes: rows that it looks up for others, and what follows from its variables.

        Returns:
            Their model and what is sent; None where there is nothing.
        """
        awaited = self._engine.stages.awaited
        crossings = [each for each in self._crossings if each.source == stage and each not in awaited]
        if not crossings:
            return None
        engine, graph = self._engine.engines[stage], self._engine.views[stage].whole.graph
        sources = self._variables[stage] | {feed.tensor.name: values for feed, values in self._fed[stage].items()}
        model = LocalModel(
            engine.view, engine.path_finder, self._resharders[stage], sources, engine._update, is_training=True
        )
        model.emit(graph.ancestors([graph.tensors[each.tensor] for each in crossings], (), sources))
        return model, crossings

    def _forward_pass(self, stage: int, engine: Engine) -> _Passes:
        """Emit the forward pass of a stage, with what it receives."""
        (name,) = self._fetch.train_steps
        (received, arriving), resharder = self._received(stage, self._to(stage, once=True)), self._resharders[stage]
        sources = self._sources(stage) | received
        model = LocalModel(engine.view, engine.path_finder, resharder, sources, engine._update, is_training=True)
        model.emit(set(self._parts[stage].needed), arriving)
        loss = self._loss(stage)
        if loss is not None:
            model.loss(name, loss)
        return _Passes(model, tf.compat.v1.get_default_graph().version)

    def _backward_pass(self, stage: int, engine: Engine, passes: _Passes) -> None:
        """Emit the backward pass of a stage, with what it receives and sends; branches come after what is sent."""
        (name,), graph, model = self._fetch.train_steps, engine.graph, passes.model
        variables = graph.train_steps[name].variables
        lookups = [lookup for variable in variables for lookup in graph.lookups.get(variable, ())]
        starts = {graph.operators[each].result.name for each in (*variables, *lookups)}
        back = self._to(stage, once=True, trained=True)
        urgent = self._awaited(back)
        given = self._receive_back(self._awaited(self._from(stage, once=True, trained=True)))
        ends = [Site(RESULT, each.tensor) for each in urgent] if self._branches(stage) else None
        wanted = {*starts, *(each.tensor for each in back)}
        found = _of_tensors(model.gradients_of(wanted, given, ends))
        passes.urgent = [value.op for each in urgent for value in found[each.tensor]]
        for crossing in urgent:
            self._send_back(crossing, found[crossing.tensor])
        if ends is not None:
            with tf.control_dependencies(passes.urgent):
                found |= _of_tensors(model.run_deferred())
        for crossing in back:
            if crossing not in urgent:
                self._send_back(crossing, found[crossing.tensor])
        passes.gradients = {name: values for name, values in found.items() if name in starts}

    def _begin_update(self, engine: Engine, passes: _Passes) -> PendingUpdate:
        """Return the update of a stage's parameters."""
        (name,), model = self._fetch.train_steps, passes.model
        step = engine.graph.train_steps[name]
        graph = engine.graph
        lookups = [[model.lookup(each) for each in graph.lookups.get(variable, ())] for variable in step.variables]
        places = [graph.lookups.get(variable, ()) or (variable,) for variable in step.variables]
        gradients = [[passes.gradients.get(graph.operators[each].result.name) for each in of_one] for of_one in places]
        pending = engine.begin_update(step, model, lookups, gradients)

        def apply(sums: Values | None) -> None:
            pending.apply(sums)
            # Passes of several stages on one rank would each be put in order with those of the others among them.
            is_alone = len(self._engine.engines) == 1
            if engine.in_order and is_alone and not engine.graph.is_sequential:
                operators = tf.compat.v1.get_default_graph().get_operations()
                put_in_order(operators, passes.n_forward, model.record, engine.lag, urgent=passes.urgent)

        return PendingUpdate(pending.sums, apply)


def _of_tensors(gradients: Mapping[Site, Values]) -> dict[str, Values]:
    """Return the gradients of tensors, by name."""
    return {site.name: values for site, values in gradients.items() if site.kind == RESULT}
