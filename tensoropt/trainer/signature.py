"""Find the shapes and types of a batch: the inputs, labels and sample weights that a model and its loss take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from ..common.errors import InputError, short
from ..common.source_lines import running_line

Structure = Any
PARTS = ("x", "y", "sample_weight")


@dataclass(frozen=True)
class Signature:
    """The shapes and types of a batch, as structures of ``tf.TensorSpec``; a part that a batch doesn't have is None.

    Attributes:
        inputs: the model's inputs; for a captured function, all its arguments.
        labels: the labels that the loss takes.
        weights: the sample weights.
    """

    inputs: Structure
    labels: Structure = None
    weights: Structure = None

    @property
    def leaves(self) -> list[tf.TensorSpec]:
        """The specs of all tensors, in the order in which a training step takes them."""
        return tf.nest.flatten([self.inputs, *(part for part in (self.labels, self.weights) if part is not None)])

    @property
    def batch_size(self) -> int:
        """The leading extent of the first input that has a dimension; 0 if none has."""
        shapes = [spec.shape for spec in tf.nest.flatten(self.inputs) if spec.shape.rank]
        return int(shapes[0][0]) if shapes else 0

    def resized(self, batch_size: int) -> Signature:
        """Return the signature for batches of another size."""

        def sized(structure: Structure) -> Structure:
            return tf.nest.map_structure(
                lambda spec: tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype, spec.name), structure
            )

        return Signature(*(None if part is None else sized(part) for part in (self.inputs, self.labels, self.weights)))

    def of(self, batch_size: int, weights: Structure) -> Signature:
        """Return the signature for another batch size, with sample weights like the given tensors, or without for None."""
        if weights is not None:
            specs = tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape, each.dtype), weights)
            weights = _named(specs, "sample_weight")
        return replace(self, weights=weights).resized(batch_size)


def signature_of(
    model: keras.Model, loss: Any, batch_size: int, labels: Structure, has_weights: bool, data: Any
) -> Signature:
    """Return the signature of a model's batches: from a dataset or arrays if given, else from the model and its loss.

    Raises:
        InputError: the batch size or ``data`` is invalid, input shapes aren't known, or losses don't fit the results.
    """
    checked_batch_size(batch_size)
    if data is not None:
        return _from_data(data).resized(batch_size)
    inputs = _inputs(model, batch_size)
    if labels is None and loss is not None:
        results = model.compute_output_spec(keras.tree.map_structure(_symbolic, inputs))
        labels = _labels(loss, results, getattr(model, "output_names", None))
    else:
        labels = None if labels is None else tf.nest.map_structure(_spec_of_labels, labels)
    if labels is not None:
        labels = _named(labels, "labels")
    weights = tf.TensorSpec([batch_size], keras.backend.floatx(), "sample_weight") if has_weights else None
    return Signature(inputs, labels, weights).resized(batch_size)


def checked_batch_size(batch_size: object) -> None:
    """Check a batch size that a user gave.

    Raises:
        InputError: it isn't a whole number from 1 up.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size is the number of samples in a step over all devices, got {short(batch_size)}")


def _from_data(data: Any) -> Signature:
    """Return the signature of a dataset's elements, or of a batch of arrays.

    Either is ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.
    """
    parts = getattr(data, "element_spec", data)
    parts = parts if isinstance(parts, tuple) else (parts,)
    if not 1 <= len(parts) <= 3:
        raise InputError(f"a dataset gives (x, y) or (x, y, sample_weight), got elements of {len(parts)} parts")
    return Signature(*(_part(part, name) for part, name in zip(parts, PARTS, strict=False) if part is not None))


def _part(part: Structure, name: str) -> Structure:
    return _named(tf.nest.map_structure(lambda leaf: _spec_of(leaf, name), part, expand_composites=False), name)


def _spec_of(leaf: Any, part: str) -> tf.TensorSpec:
    """Return the spec of one tensor of a batch, given as a spec or as an array."""
    check_dense(leaf, f"{part} of data=")
    if not isinstance(leaf, tf.TensorSpec):
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise InputError(
                f"data= ({running_line()}) takes a tf.data.Dataset of batches, or arrays x, (x, y) or (x, y, "
                f"sample_weight), got {short(leaf)} for {part}; make a dataset of it, as by "
                "tf.data.Dataset.from_generator(..., output_signature=...).batch(batch_size)"
            )
        leaf = tf.TensorSpec(leaf.shape, leaf.dtype)
    if leaf.shape.rank is None or None in leaf.shape[1:]:
        raise InputError(
            f"{part} of data= ({running_line()}) has shape {leaf.shape}; expected every extent but the first one to be "
            "known, since a plan is made for one shape: pad to a fixed length, as by padded_batch(batch_size, "
            "padded_shapes=...), or say the shape by dataset.map with tf.ensure_shape"
        )
    return leaf


def check_dense(spec: Any, what: str) -> None:
    """Check that a tensor is dense.

    Raises:
        InputError: the tensor is ragged or sparse.
    """
    if isinstance(spec, (tf.SparseTensor, tf.SparseTensorSpec)) or hasattr(spec, "tocsr"):
        kind, instead = "sparse", "dataset.map with tf.sparse.to_dense, or array.toarray()"
    elif isinstance(spec, (tf.RaggedTensor, tf.RaggedTensorSpec)):
        kind, instead = "ragged", "dataset.map with x.to_tensor(shape=...)"
    else:
        return
    raise InputError(
        f"{what} ({running_line()}) is {kind}; expected dense tensors, which can be cut into shares of known shape: make it "
        f"dense, as by {instead}"
    )


def _spec_of_labels(leaf: Any) -> tf.TensorSpec:
    """Return the spec of one tensor given in ``labels=``, as a spec or as an array."""
    if isinstance(leaf, tf.TensorSpec):
        return leaf
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)):
        return tf.TensorSpec(leaf.shape, leaf.dtype)
    raise InputError(
        f"labels= ({running_line()}) takes a tf.TensorSpec(shape, dtype) of a batch of labels, or a structure of such, got "
        f"{short(leaf)}"
    )


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
                "batch to be known, since a plan is made for one shape: say it by parallelize(..., data=) with a dataset or "
                "arrays (x, y) of that shape, or build the model with keras.Input of a known shape"
            )
        # Names that Keras makes up are numbered by what was made before, so they would differ between runs.
        name = None if tensor.name.startswith("keras_tensor") else tensor.name
        return tf.TensorSpec([batch_size, *tensor.shape[1:]], tensor.dtype, name)

    return _named(keras.tree.map_structure(spec, structure), "x")


def _symbolic_inputs(model: keras.Model) -> Structure:
    """Return the model's symbolic inputs, in its own structure; None if only a call of the model would show them."""
    try:
        return model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    except (AttributeError, ValueError):
        return None


def _symbolic(spec: tf.TensorSpec) -> keras.KerasTensor:
    return keras.KerasTensor(spec.shape.as_list(), spec.dtype.name)


def _labels(loss: Any, results: Structure, names: list[str] | None) -> Structure:
    """Return the specs of the labels that losses take for a model's results.

    A sparse loss takes int64 classes, without the results' last dimension. Other losses take labels like the results.
    """
    if isinstance(loss, (Mapping, list, tuple)):
        _check_count(loss, results, names)
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


def _check_count(loss: Any, results: Structure, names: list[str] | None) -> None:
    """Check that there is one loss for each of the model's results.

    Raises:
        InputError: the number of losses or a name differs.
    """
    n_results = len(tf.nest.flatten(results))
    known = list(results) if isinstance(results, Mapping) else (names or [])
    others = [key for key in loss if key not in known] if isinstance(loss, Mapping) else []
    if len(loss) != n_results or others:
        got = f"one for {others[0]!r}" if others else f"{len(loss)} losses"
        called = f" ({', '.join(map(repr, known))})" if known else ""
        raise InputError(
            f"loss= ({running_line()}) has {got}, expected one for each of the model's {n_results} results{called}; None "
            "for those that have no loss"
        )


def _named(structure: Structure, name: str) -> Structure:
    """Return the specs, with a name for each that has none. Messages and plans name the placeholders by it."""
    leaves = tf.nest.flatten(structure)
    named = [
        tf.TensorSpec(spec.shape, spec.dtype, spec.name or (name if len(leaves) == 1 else f"{name}_{i}"))
        for i, spec in enumerate(leaves)
    ]
    return tf.nest.pack_sequence_as(structure, named)
