"""Wrap a Keras model with its loss and metrics as functions that can be captured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf

from ...common.errors import InputError, short
from ...frontend.tracing.capture import own_name
from ...optimizers.copies import inner_of
from ...optimizers.keras_running import without_data
from .by_sample_layers import BY_SAMPLE
from .own_step import without_updates
from .programs import EVALUATE, PREDICT, TRAIN, inner
from .signature import Signature


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

    def with_copies(self, model: keras.Model, copies: Mapping[int, Any]) -> None:
        """Compile the user's model with the copy of its optimizer, the only one in ``copies``."""
        (optimizer,) = copies.values()
        self.apply(model, optimizer)


@dataclass(frozen=True, eq=False)
class OwnCompilation:
    """The user's own compilation of the model: its own loss, metrics, trackers and optimizers serve."""

    model: keras.Model

    def with_copies(self, model: keras.Model, copies: Mapping[int, Any]) -> None:
        """Have the user's model use copies of its optimizers, given by their ids."""
        vars(model).update({name: copies[id(value)] for name, value in vars(model).items() if id(value) in copies})


OF_STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")
"""The methods of Keras's steps that a model may override."""


def own_methods(model: keras.Model) -> list[str]:
    """Return which of the methods of Keras's steps a model overrides."""
    return [name for name in OF_STEPS if getattr(type(model), name) is not getattr(keras.Model, name)]


def has_own_step(model: keras.Model) -> bool:
    """Return whether a model has a training step of its own, which takes gradients and applies optimizers."""
    return "train_step" in own_methods(model)


def that_takes_labels(model: keras.Model, loss: Any) -> str:
    """Return a method of the model's own that may take labels of any shape, or none; "" if the loss tells the labels."""
    methods = [name for name in own_methods(model) if name != "predict_step"]
    return methods[0] if methods and (loss is None or has_own_step(model)) else ""


class KerasObjective(keras.Model):
    """A wrapper of the user's model, which stays as it is: the loss and the metrics are compiled into the wrapper.

    Attributes:
        compilation: the loss and the metrics; an ``OwnCompilation`` if they are those that the model itself has.
    """

    _optimizer_to_count: Any = None

    def __init__(self, model: keras.Model, compilation: Compilation | OwnCompilation) -> None:
        super().__init__(name=f"{model.name}_trainer")
        self.inner, self.compilation = model, compilation
        if hasattr(model, "output_names"):
            self.output_names = list(model.output_names)
        (compilation if isinstance(compilation, Compilation) else Compilation(None, None, None, None)).apply(self, None)
        self.built = True

    @property
    def _computes(self) -> keras.Model:
        """The model that computes the loss and the metrics."""
        return self if isinstance(self.compilation, Compilation) else self.inner

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The metrics, that of the loss included."""
        return super().metrics if self._computes is self else self.inner.metrics

    @property
    def applies_optimizers(self) -> bool:
        """Return whether the model has a training step of its own."""
        return has_own_step(self.inner)

    @property
    def counter(self) -> tf.Variable | None:
        """The number of updates that the user's optimizer counts; None if it scales the loss, and may leave some out."""
        optimizer = self._optimizer_to_count
        return None if optimizer is None or inner_of(optimizer) is not optimizer else inner(optimizer._iterations)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the user's model."""
        return self.inner(*args, **kwargs)

    @property
    def trained(self) -> list[keras.Variable]:
        """The trainable variables of the user's model."""
        return list(self.inner.trainable_variables)

    def names_of(self, variables: Sequence[tf.Variable]) -> list[str]:
        """Return the variables' Keras paths, since their own names don't say to which layer they belong."""
        names = {
            id(inner(variable)): f"metrics/{metric.name}/{variable.path.rpartition('/')[2]}"
            for metric in self.metrics
            for variable in metric.variables
        }
        names.update((id(inner(variable)), str(variable.path)) for variable in self.inner.variables)
        return [names.get(id(variable)) or own_name(variable) for variable in variables]

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
        named_layers = [layers.get(part) or layers.get(re.sub(r"_\d+$", "", part)) for part in parts]
        return [(layer, "/".join(parts[: i + 1])) for i, layer in enumerate(named_layers) if layer is not None]

    def functions(self, signature: Signature) -> dict[str, tuple[Callable[..., Any], Sequence[Any]]]:
        """Return the functions and arguments of the training step, of a batch's evaluation and of a prediction."""
        own = own_methods(self.inner)
        predict = self.inner.predict_step if "predict_step" in own else lambda x: self._predicted(x, training=False)
        return {
            TRAIN: (self._own(signature, "train_step", own) or self._step(signature, training=True), signature.arguments),
            EVALUATE: (self._own(signature, "test_step", own) or self._step(signature, training=False), signature.arguments),
            PREDICT: (predict, [signature.inputs]),
        }

    def without_data(self, kind: str, signature: Signature) -> Callable[[], Any] | None:
        """Return a function that does what a step does at the end of data, without its optimizers; None if nothing."""
        function, arguments = self.functions(signature)[kind]
        with without_updates():
            return without_data(function, arguments)

    def _own(self, signature: Signature, name: str, methods: Sequence[str]) -> Callable[..., Any] | None:
        """Return a function that calls the model's own step; None if it has none of this name."""
        if name not in methods:
            return None

        def step(x: Any, *extras: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            labels, weights = _labels_and_weights(signature, extras)
            with _weighed_as_by_keras(self.inner):
                logs = getattr(self.inner, name)(keras.utils.pack_x_y_sample_weight(x, labels, weights))
            if logs is not None and not isinstance(logs, Mapping):
                raise InputError(
                    f"{name} of model '{self.inner.name}' returns {short(logs)}; expected a dictionary from names to "
                    "numbers, such as self.get_metrics_result()"
                )
            flat, results = dict(_flat_logs(logs or {})), dict(_flat_logs(self.inner.get_metrics_result()))
            # As in Keras's loops, metrics of the same names count at the end of an epoch, whatever the step returns.
            return results if results.keys() == flat.keys() else flat, flat

        return step

    def _predicted(self, x: Any, training: bool) -> Any:
        """Return the results of the user's model, which is called as Keras calls it."""
        return self.inner(x, training=training) if self.inner._call_has_training_arg else self.inner(x)

    def _step(self, signature: Signature, training: bool) -> Callable[..., Any]:
        """Return a function that computes the loss, and the metrics' results after a batch, as Keras's own steps do."""
        computes = self._computes

        def step(x: Any, *extras: Any) -> tuple[tf.Tensor, dict[str, Any]]:
            labels, weights = _labels_and_weights(signature, extras)
            predicted = self._predicted(x, training)
            with _weighed_as_by_keras(computes):
                loss = computes._compute_loss(x, labels, predicted, weights, training=training)
            n_samples = signature.batch_size or tf.shape(next(leaf for leaf in tf.nest.flatten(x) if leaf is not None))[0]
            computes._loss_tracker.update_state(loss, sample_weight=n_samples)
            if training and self.counter is not None:
                self.counter.assign_add(1)  # ahead of metrics, which may read the optimizer
            return loss, computes.compute_metrics(x, labels, predicted, weights)

        return step


def _weighed_as_by_keras(model: keras.Model) -> AbstractContextManager[Any]:
    """Return a context in which batches weigh in the mean losses of a model's results as they do in Keras's own steps.

    Keras weighs a batch there by its number of samples as far as a trace knows that: in its own it doesn't, so that all
    batches weigh the same, unless the model runs eagerly. Here it is known.
    """
    update = keras.metrics.Mean.update_state

    def update_state(metric: keras.metrics.Mean, values: Any, sample_weight: Any = None) -> Any:
        is_of_result = model._compile_loss is not None and any(metric is part for part in model._compile_loss.metrics)
        return update(metric, values, None if is_of_result else sample_weight)

    return nullcontext() if model.run_eagerly else patch.object(keras.metrics.Mean, "update_state", update_state)


def _flat_logs(logs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a step's results by name; the result of compiled metrics is a dictionary in the dictionary."""
    for name, value in logs.items():
        yield from _flat_logs(value) if isinstance(value, Mapping) else ((name, tf.convert_to_tensor(value)),)


def _labels_and_weights(signature: Signature, extras: Sequence[Any]) -> tuple[Any, Any]:
    """Return the labels and sample weights among a step's arguments after the inputs; None for what it isn't given."""
    labels = None if signature.labels is None else signature.labels_of(extras[0])
    return labels, None if signature.weights is None else extras[-1]
