"""What a batch looks like: the inputs, labels and weights that a model and its loss take, for one batch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from ..errors import InputError, short

Structure = Any


@dataclass(frozen=True)
class Signature:
    """Structures of ``tf.TensorSpec``, as the model and its loss take them; None where there is nothing.

    Attributes:
        inputs: the model's; of a captured function all its arguments.
        labels: the loss's.
        weights: of the samples.
    """

    inputs: Structure
    labels: Structure = None
    weights: Structure = None

    @property
    def leaves(self) -> list[tf.TensorSpec]:
        """In the order in which a training step takes them."""
        return tf.nest.flatten([self.inputs, *(part for part in (self.labels, self.weights) if part is not None)])

    @property
    def batch_size(self) -> int:
        """The leading extent of the inputs; 0 where they have none."""
        shapes = [spec.shape for spec in tf.nest.flatten(self.inputs) if spec.shape.rank]
        return int(shapes[0][0]) if shapes else 0

    def resized(self, batch_size: int) -> Signature:
        """The same for batches of another size."""

        def sized(structure: Structure) -> Structure:
            return tf.nest.map_structure(
                lambda spec: tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype, spec.name), structure
            )

        return Signature(*(None if part is None else sized(part) for part in (self.inputs, self.labels, self.weights)))

    def of(self, batch_size: int, weights: Structure) -> Signature:
        """The same for batches of a size whose samples have such weights (tensors), or none."""
        if weights is not None:
            specs = tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape, each.dtype), weights)
            weights = _named(specs, "sample_weight")
        return replace(self, weights=weights).resized(batch_size)


def signature_of(
    model: keras.Model, loss: Any, batch_size: int, labels: Structure, has_weights: bool, data: tf.data.Dataset | None
) -> Signature:
    """What a model's batches look like: as a dataset says, else as the model's inputs and its loss say.

    Raises:
        InputError: the model isn't built, or the labels can't be told from the loss.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size is the number of samples in a step over all devices, got {short(batch_size)}")
    if data is not None:
        return _from_dataset(data).resized(batch_size)
    inputs = _inputs(model, batch_size)
    if labels is None and loss is not None:
        results = model.compute_output_spec(keras.tree.map_structure(_symbolic, inputs))
        labels = _labels(loss, results, getattr(model, "output_names", None))
    if labels is not None:
        labels = _named(labels, "labels")
    weights = tf.TensorSpec([batch_size], keras.backend.floatx(), "sample_weight") if has_weights else None
    return Signature(inputs, labels, weights).resized(batch_size)


def _from_dataset(data: tf.data.Dataset) -> Signature:
    parts = data.element_spec
    parts = parts if isinstance(parts, tuple) else (parts,)
    if not 1 <= len(parts) <= 3:
        raise InputError(f"a dataset gives (x, y) or (x, y, sample_weight), got elements of {len(parts)} parts")
    names = ("x", "y", "sample_weight")
    return Signature(*(_named(part, name) for part, name in zip(parts, names, strict=False)))


def _inputs(model: keras.Model, batch_size: int) -> Structure:
    structure = _symbolic_inputs(model)
    if structure is None:
        raise InputError(
            f"model '{model.name}' ({type(model).__name__}) doesn't tell the shapes of its inputs: expected a model of the "
            "functional API, or keras.Sequential with a keras.Input; else say what a batch is by a dataset that has them: "
            "parallelize(..., data=dataset)"
        )

    def spec(tensor: Any) -> tf.TensorSpec:
        if None in tensor.shape[1:]:
            raise InputError(
                f"input '{tensor.name}' of model '{model.name}' has shape {tensor.shape}; expected every extent but the "
                "batch to be known, since a plan is made for one shape: build the model with keras.Input of a known shape"
            )
        # Keras numbers the names that it gives itself by what was made before.
        name = None if tensor.name.startswith("keras_tensor") else tensor.name
        return tf.TensorSpec([batch_size, *tensor.shape[1:]], tensor.dtype, name)

    return _named(keras.tree.map_structure(spec, structure), "x")


def _symbolic_inputs(model: keras.Model) -> Structure:
    """The model's inputs in the structure in which it takes them; None where only a call would tell."""
    try:
        return model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    except (AttributeError, ValueError):
        return None


def _symbolic(spec: tf.TensorSpec) -> keras.KerasTensor:
    return keras.KerasTensor(spec.shape.as_list(), spec.dtype.name)


def _labels(loss: Any, results: Structure, names: list[str] | None) -> Structure:
    """The labels that losses take for a model's results: classes where a loss is sparse, else what the results are."""
    if isinstance(loss, Mapping):
        of = results if isinstance(results, Mapping) else dict(zip(names or loss, tf.nest.flatten(results), strict=True))
        return {key: _labels(each, of[key], None) for key, each in loss.items()}
    if isinstance(loss, (list, tuple)):
        return [_labels(each, result, None) for each, result in zip(loss, tf.nest.flatten(results), strict=True)]
    if not isinstance(results, keras.KerasTensor):
        return keras.tree.map_structure(lambda result: _labels(loss, result, None), results)
    found = keras.losses.get(loss)
    name = getattr(found, "name", None) or getattr(found, "__name__", type(found).__name__)
    if "sparse" in str(name):
        return tf.TensorSpec(results.shape[:-1], tf.int64)
    return tf.TensorSpec(results.shape, results.dtype)


def _named(structure: Structure, name: str) -> Structure:
    """Specs with names: a placeholder is called by it in messages and plans."""
    leaves = tf.nest.flatten(structure)
    named = [
        tf.TensorSpec(spec.shape, spec.dtype, spec.name or (name if len(leaves) == 1 else f"{name}_{i}"))
        for i, spec in enumerate(leaves)
    ]
    return tf.nest.pack_sequence_as(structure, named)
