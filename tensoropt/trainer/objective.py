"""Wrap a Keras model with its loss and metrics as functions that can be captured."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ..frontend.tracing.capture import own_name
from .programs import EVALUATE, PREDICT, TRAIN, inner
from .signature import Signature

# Layers that work on text or with tables, and compute each sample by itself, also where they take text apart.
BY_SAMPLE = (
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


@dataclass(frozen=True, eq=False)
class Compilation:
    """The arguments of ``keras.Model.compile`` other than the optimizer."""

    loss: Any
    loss_weights: Any
    metrics: Any
    weighted_metrics: Any

    def apply(self, model: keras.Model, optimizer: Any) -> None:
        """Compile a model with these arguments and an optimizer."""
        model.compile(optimizer, self.loss, self.loss_weights, self.metrics, self.weighted_metrics, jit_compile=False)


class KerasObjective(keras.Model):
    """A wrapper of the user's model, which stays as it is: the loss and the metrics are compiled into the wrapper.

    Attributes:
        inner: the user's model.
        compilation: the loss and the metrics.
    """

    def __init__(self, model: keras.Model, compilation: Compilation) -> None:
        super().__init__(name=f"{model.name}_trainer")
        self.inner, self.compilation = model, compilation
        if hasattr(model, "output_names"):
            self.output_names = list(model.output_names)
        compilation.apply(self, None)
        self.built = True

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the user's model."""
        return self.inner(*args, **kwargs)

    @property
    def trained(self) -> list[keras.Variable]:
        """The trainable variables of the user's model."""
        return list(self.inner.trainable_variables)

    def names_of(self, variables: Sequence[tf.Variable]) -> list[str]:
        """Return the variables' Keras paths, since their own names don't say to which layer they belong."""
        known = {
            id(inner(each)): f"metrics/{metric.name}/{each.path.rpartition('/')[2]}"
            for metric in self.metrics
            for each in metric.variables
        }
        known.update((id(inner(each)), str(each.path)) for each in self.inner.variables)
        return [known.get(id(variable)) or own_name(variable) for variable in variables]

    def layer_of(self, name: str) -> str | None:
        """Return a description of the innermost layer whose scope is in an operator's name; None if there is none."""
        layer, _ = next(reversed(self._layers_of(name)), (None, ""))
        return None if layer is None else f"layer '{layer.name}' ({type(layer).__name__}) of model '{self.inner.name}'"

    def by_sample(self, name: str) -> str | None:
        """Return the scope of the outermost layer of :data:`BY_SAMPLE` in an operator's name; None if there is none."""
        return next((scope for layer, scope in self._layers_of(name) if type(layer) in BY_SAMPLE), None)

    def _layers_of(self, name: str) -> list[tuple[keras.layers.Layer, str]]:
        """Return the layers whose scopes are in an operator's name, each with its scope, outermost first.

        A scope that is entered again has a number appended, which is ignored.
        """
        layers, parts = {layer.name: layer for layer in self.inner._flatten_layers()}, name.split("/")
        found = [layers.get(part) or layers.get(re.sub(r"_\d+$", "", part)) for part in parts]
        return [(layer, "/".join(parts[: i + 1])) for i, layer in enumerate(found) if layer is not None]

    def functions(self, signature: Signature) -> dict[str, tuple[Callable[..., Any], Sequence[Any]]]:
        """Return the functions and arguments of the training step, of a batch's evaluation and of a prediction."""
        parts = [part for part in (signature.inputs, signature.labels, signature.weights) if part is not None]
        return {
            TRAIN: (self._step(signature, training=True), parts),
            EVALUATE: (self._step(signature, training=False), parts),
            PREDICT: (lambda x: self.inner(x, training=False), [signature.inputs]),
        }

    def _step(self, signature: Signature, training: bool) -> Callable[..., Any]:
        """Return a function that computes the loss, and the metrics' results after a batch, as Keras's own steps do."""

        def step(x: Any, *rest: Any) -> tuple[tf.Tensor, dict[str, Any]]:
            labels = rest[0] if signature.labels is not None else None
            weights = rest[-1] if signature.weights is not None else None
            predicted = self.inner(x, training=training)
            loss = self.compute_loss(x, labels, predicted, weights, training=training)
            self.loss_tracker.update_state(loss, sample_weight=signature.batch_size)
            return loss, self.compute_metrics(x, labels, predicted, weights)

        return step

    @property
    def loss_tracker(self) -> keras.metrics.Metric:
        """The mean of the losses since the metrics were reset."""
        return next(metric for metric in self.metrics if metric.name == "loss")
