"""Emit training steps in program order: the forward pass, gradients, updates, and what reads gradients or updated values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import tensorflow as tf

from ..ir.graph import GRADIENT, Gradients, Graph, Operator, Tensor, TrainStep
from ..lowering.model import Arriving, LocalModel
from ..lowering.operators import Values
from ..lowering.table_lookups import Lookup
from ..rules.rule import OperandSharding
from .functions import Fetch

Train = Callable[
    [TrainStep, Values, LocalModel, list[list[Lookup]], Callable[[Values, list[Values]], list[Values | None]]], None
]


@dataclass(eq=False)
class StepEmission:
    """The emission of one function's training steps.

    Attributes:
        fetch: what the function runs.
        needed: the names of the operators that it runs.
        assign: emits, on local operands, an operator that updates a variable or reads it after an update.
        train: emits the update of a training step, given how to take the gradients.
        lookups: returns, for each variable of a training step, the lookups in it if it is updated by rows.
        n_forward: the number of TensorFlow's operators when the backward pass began.
    """

    graph: Graph
    fetch: Fetch
    needed: set[str]
    assign: Callable[[Operator, list[Values]], list[Values]]
    train: Train
    lookups: Callable[[str, LocalModel], list[list[Lookup]]]
    n_forward: int = 0
    _model: LocalModel | None = None
    _gradients: dict[tuple[str, str], Values | None] = field(default_factory=dict)
    _applied: set[str] = field(default_factory=set)

    def run(self, model: LocalModel, arriving: Arriving | None = None) -> list[Values]:
        """Emit the function's operators and training steps; return the values of the tensors that it returns.

        Args:
            arriving: see :meth:`.LocalModel.emit`.
        """
        self._model, late = model, self.graph.late
        model.emit(self.needed - late, arriving)
        # Losses first: a fetched loss is then available already.
        for taken in self._passes():
            if self.graph.producers[taken.loss.name].name not in late:
                model.replicated(taken.loss, taken.name, with_gradient=True)
        results = {each: self._fetched(each) for each in self.fetch.tensors if self._producer(each) not in late}
        self.n_forward = len(tf.compat.v1.get_default_graph().get_operations())
        model.emit(self.needed & late)
        for name in self.fetch.train_steps:
            self._apply(name)
        return [results[each] if each in results else self._fetched(each) for each in self.fetch.tensors]

    @property
    def losses(self) -> list[tf.Tensor]:
        """The local losses, in their produced layout."""
        assert self._model is not None
        return [value for taken in self._passes() for value in self._model.value(taken.loss)]

    def _passes(self) -> Sequence[Gradients]:
        """Return the backward passes that the function runs."""
        return [
            each
            for each in self.graph.backward_passes
            if each.name in self.fetch.train_steps or self.graph.gradient_operators(each.name) & self.needed
        ]

    def _producer(self, fetched: tuple[Tensor, bool]) -> str:
        return self.graph.producers[fetched[0].name].name

    def _fetched(self, fetched: tuple[Tensor, bool]) -> Values:
        assert self._model is not None
        tensor, is_local = fetched
        return self._model.without_sums(tensor, "fetch") if is_local else self._model.replicated(tensor, "fetch")

    def update(self, op: Operator, operands: list[Values]) -> list[Values]:
        """Emit a gradient, an assignment, or a read after one; first the training steps that it waits for."""
        for name in op.controls:
            if name in self.fetch.train_steps:
                self._apply(name)
        return [self._gradient(op)] if op.type == GRADIENT else self.assign(op, operands)

    def _gradient(self, op: Operator) -> Values:
        """Return a gradient, in the layout of its variable; all that are taken of one loss are taken together."""
        assert self._model is not None
        taken = self.graph.gradients[op.attrs["of"]]
        if (taken.name, op.attrs["at"]) not in self._gradients:
            losses = self._model.replicated(taken.loss, taken.name, with_gradient=True)
            values = [self._model.value(self.graph.operators[name].result) for name in taken.variables]
            found = self._model.gradients(taken.loss, losses, values)
            self._gradients.update(((taken.name, name), g) for name, g in zip(taken.variables, found, strict=True))
        gradient = self._gradients[taken.name, op.attrs["at"]]
        assert gradient is not None, f"{op.where()} has no gradient, as the analysis of gradients has it"
        return gradient

    def _apply(self, name: str) -> None:
        """Emit a training step's update, once."""
        if name in self._applied:
            return
        self._applied.add(name)
        model, step = self._model, self.graph.train_steps[name]
        assert model is not None
        if step.loss is not None:
            losses = model.replicated(step.loss, name, with_gradient=True)
            self.train(step, losses, model, self.lookups(name, model), partial(model.gradients, step.loss))
            return
        layouts = [model.view.layout(self.graph.operators[variable].result) for variable in step.variables]
        given = [
            model.resharded(gradient, OperandSharding(layout, None), name)
            for gradient, layout in zip(step.gradients, layouts, strict=True)
        ]
        no_losses = [tf.zeros([]) for _ in model.resharder.backend.ranks]
        self.train(step, no_losses, model, [[] for _ in given], partial(_given, given))


def _given(gradients: list[Values], losses: Values, places: list[Values]) -> list[Values | None]:
    """Return the gradients that a training step was given."""
    return list(gradients)
