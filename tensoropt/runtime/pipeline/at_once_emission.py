"""Emit a training step in stages that takes its batch at once: the stages run one after the other, there and back.

So statistics over the batch, as in batch normalisation, are those of one device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import tensorflow as tf

from ...ir.graph import Tensor
from ...lowering.gradient_accumulation import refuse_scaled
from ...lowering.model import LocalModel
from ...lowering.operators import Values
from ...lowering.order import put_in_order
from ...optimizers.running_optimizer import PendingUpdate
from ...program.tasks import RESULT
from ..engine import Engine
from .emission import PipelineEmission, summed
from .rows_ahead import gradients_of_tables


@dataclass(eq=False)
class _Passes:
    """The passes of a stage.

    Attributes:
        model: emits them.
        loss: the loss, in the stage that computes it.
        losses: its local values; zeros in other stages.
        n_forward: the number of TensorFlow's operators when the forward pass ended.
        gradients: those of parameters and of what lookups found, by tensor name.
        urgent: the operators that compute what an earlier stage waits for.
    """

    model: LocalModel
    loss: Tensor | None
    losses: Values
    n_forward: int
    gradients: dict[str, Values] = field(default_factory=dict)
    urgent: list[tf.Operation] = field(default_factory=list)


class AtOnceEmission(PipelineEmission):
    """The emission of one function that trains on its batch at once."""

    def train(self) -> dict[int, list[Values]]:
        """Emit a training step; return what each stage fetches."""
        engines = self._engine.engines
        ahead = {stage: found for stage in sorted(engines) if (found := self._ahead(stage)) is not None}
        for model, crossings in ahead.values():
            for crossing in crossings:
                self._send(crossing, model)
        results, passes, updates = {}, {}, {}
        for stage, engine in sorted(engines.items()):
            passes[stage] = own = self._forward_pass(stage, engine)
            results[stage] = [own.model.replicated(tensor, "fetch") for tensor, _ in self._parts[stage].fetch.tensors]
            for crossing in self._from(stage, once=True):
                self._send(crossing, own.model)
        for stage, own in reversed(passes.items()):
            self._backward_pass(stage, engines[stage], own)
        for stage, own in reversed(passes.items()):
            if stage in ahead:
                model, crossings = ahead[stage]
                rows = self._receive_back([each for each in crossings if each.has_gradient])
                own.gradients = summed(own.gradients, gradients_of_tables(model, rows))
            updates[stage] = self._begin_update(engines[stage], own)
        self._update(updates)
        return results

    def _forward_pass(self, stage: int, engine: Engine) -> _Passes:
        """Emit the forward pass of a stage, with what it receives."""
        (name,) = self._fetch.train_steps
        sources, resharder = self._sources(stage), self._resharders[stage]
        model = LocalModel(engine.view, engine.path_finder, resharder, sources, engine._update, training=True)
        model.emit(set(self._parts[stage].needed))
        loss = self._loss(stage)
        no_losses = [tf.zeros([]) for _ in resharder.backend.ranks]
        losses = no_losses if loss is None else model.replicated(loss, name, with_gradient=True)
        return _Passes(model, loss, losses, tf.compat.v1.get_default_graph().version)

    def _backward_pass(self, stage: int, engine: Engine, passes: _Passes) -> None:
        """Emit the backward pass of a stage, with what it receives and sends."""
        (name,), graph = self._fetch.train_steps, engine.graph
        variables = graph.train_steps[name].variables
        lookups = [lookup for variable in variables for lookup in graph.lookups.get(variable, ())]
        starts = {graph.operators[each].result.name for each in (*variables, *lookups)}
        back = {each.tensor: each for each in self._to(stage, once=True, trained=True)}
        given = self._receive_back(self._from(stage, once=True, trained=True))
        arrived = passes.model.gradients_of({*starts, *back}, passes.loss, passes.losses, given)
        found = {site.name: values for site, values in arrived.items() if site.kind == RESULT}
        for received, crossing in back.items():
            passes.urgent += [each.op for each in found[received]]
            self._send_back(crossing, found[received])
        passes.gradients = {name: values for name, values in found.items() if name in starts}

    def _begin_update(self, engine: Engine, passes: _Passes) -> PendingUpdate:
        """Return the update of a stage's parameters."""
        (name,), model = self._fetch.train_steps, passes.model
        step = engine.graph.train_steps[name]
        gradients = partial(_gradients, passes.losses, passes.gradients, model)
        pending = engine.begin_update(step, passes.losses, model, engine._lookups(name, model), gradients)

        def apply(sums: Values | None) -> None:
            pending.apply(sums)
            if engine.in_order and not engine.graph.is_sequential:
                operators = tf.compat.v1.get_default_graph().get_operations()
                put_in_order(operators, passes.n_forward, model.backward.record, engine.lag, urgent=passes.urgent)

        return PendingUpdate(pending.sums, apply)


def _gradients(
    own: Values, found: Mapping[str, Values], model: LocalModel, losses: Values, places: list[Values]
) -> list[Values | None]:
    """Return the gradients of parameters and of what lookups found.

    Args:
        own: the losses of the model.
        found: the gradients by tensor name.
        losses: the losses that the optimizer differentiates.
        places: the local values of parameters and of what lookups found.
    """
    refuse_scaled(losses, own)
    return [found.get(name) for name in model.names_of(places)]
