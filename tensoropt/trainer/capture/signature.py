"""Find the shapes and types of a batch: the inputs, labels and sample weights that a model and its loss take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from tensorflow.python.framework.none_tensor import NoneTensorSpec  # TensorFlow 2.21 is the first to have it as tf's

from ...common.errors import InputError, short
from ...common.source_lines import running_line
from ...frontend.recording import checked_batch_size

Structure = Any
PARTS = ("x", "y", "sample_weight")
# Keras's losses whose labels are neither shaped like the results nor classes of their last dimension.
_OTHER_LABELS = frozenset({"CTC", "ctc", "Circle", "circle"})


@dataclass(frozen=True)
class Signature:
    """The shapes and types of a batch, as structures of ``tf.TensorSpec``; a part that a batch doesn't have is None.

    Attributes:
        inputs: the model's inputs; for a captured function, all its arguments.
        labels: the labels that the loss takes. A result without a loss may have None for its labels.
        weights: the sample weights.
        waits_for: what the model and its loss leave open, as a clause of a sentence; "" if they tell everything. Open
            extents are None; so are parts that only a batch shows.
        as_seen: the parts whose types are those of a batch that was seen, where the model would take others too.
    """

    inputs: Structure
    labels: Structure = None
    weights: Structure = None
    waits_for: str = ""
    as_seen: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def arguments(self) -> list[Structure]:
        """The specs of a step's arguments, part by part, without what a batch doesn't have."""
        labels = [] if self.labels is None else [[leaf for leaf in tf.nest.flatten(self.labels) if leaf is not None]]
        return [self.inputs, *labels, *([] if self.weights is None else [self.weights])]

    def labels_of(self, tensors: Sequence[Any]) -> Structure:
        """Return a batch's labels in the structure that the loss takes, given those that there are."""
        leaves = iter(tensors)
        return tf.nest.map_structure(lambda leaf: None if leaf is None else next(leaves), self.labels)

    @property
    def has_open_inputs(self) -> bool:
        """Return whether an extent of an input other than the batch isn't known."""
        return self.inputs is None or any(None in spec.shape[1:] for spec in tf.nest.flatten(self.inputs))

    @property
    def batch_size(self) -> int:
        """The leading extent of the first input that has a dimension; 0 if none has, or if it is open."""
        shapes = [spec.shape for spec in tf.nest.flatten(self.inputs) if spec.shape.rank]
        return int(shapes[0][0] or 0) if shapes else 0

    def resized(self, batch_size: int | None) -> Signature:
        """Return the signature for batches of another size, or of any size for None."""

        def sized(structure: Structure) -> Structure:
            return tf.nest.map_structure(lambda spec: spec and _led_by(batch_size, spec, spec), structure)

        parts = (self.inputs, self.labels, self.weights)
        inputs, labels, weights = (None if part is None else sized(part) for part in parts)
        return replace(self, inputs=inputs, labels=labels, weights=weights)

    @property
    def extents(self) -> tuple[tuple[int | None, ...], ...]:
        """The extents of inputs and labels other than the batch."""
        leaves = tf.nest.flatten([self.inputs, self.labels])
        return tuple(tuple(leaf.shape[1:]) for leaf in leaves if leaf is not None)

    def of(self, batch_size: int, inputs: Sequence[Any], labels: Sequence[Any], weights: Structure) -> Signature:
        """Return the signature of a batch, given its tensors: without labels with those known, without weights for None."""

        def like(spec: tf.TensorSpec, tensor: Any) -> tf.TensorSpec:
            return _led_by(None, tensor, spec)

        flat = [like(*pair) for pair in zip(tf.nest.flatten(self.inputs), inputs, strict=True)]
        label_specs = self.labels
        if labels:
            specs_of_labels = [leaf for leaf in tf.nest.flatten(self.labels) if leaf is not None]
            label_specs = self.labels_of([like(*pair) for pair in zip(specs_of_labels, labels, strict=True)])
        if weights is not None:
            specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), weights)
            weights = with_names(specs, "sample_weight")
        return Signature(tf.nest.pack_sequence_as(self.inputs, flat), label_specs, weights).resized(batch_size)


def _led_by(n_samples: int | None, tensor: Any, template: tf.TensorSpec) -> tf.TensorSpec:
    """Return the spec of so many samples of a tensor, in another spec's type and name; a scalar has no samples."""
    shape = [n_samples, *tensor.shape[1:]] if len(tensor.shape) else []
    return tf.TensorSpec(shape, template.dtype, template.name)


def signature_of(
    model: keras.Model, loss: Any, batch_size: int, labels: Structure, has_weights: bool, data: Any
) -> Signature:
    """Return the signature of a model's batches: from a dataset or arrays if given, else from the model and its loss.

    What these leave open is said in :attr:`Signature.waits_for`.

    Raises:
        InputError: the batch size or ``data`` is invalid, input shapes aren't known, or losses don't fit the results.
    """
    checked_batch_size(batch_size)
    if data is not None:
        return _from_data(data).resized(batch_size)
    inputs, waits_for = inputs_of(model, batch_size)
    if labels is not None:
        labels = with_names(tf.nest.map_structure(_spec_of_labels, labels), "labels")
        if any(None in spec.shape[1:] for spec in tf.nest.flatten(labels)):
            waits_for = waits_for or f"labels= ({running_line()}) leaves extents open"
    elif loss is not None:
        waits_for = waits_for or left_open_by(loss)
        labels = None if inputs is None else labels_for(model, loss, inputs, waits_for)
    weights = tf.TensorSpec([batch_size], keras.backend.floatx(), "sample_weight") if has_weights else None
    return replace(Signature(inputs, labels, weights).resized(batch_size), waits_for=waits_for)


def labels_for(model: keras.Model, loss: Any, inputs: Structure, waits_for: str = "") -> Structure:
    """Return the specs of the labels that losses take for a model's results; None if something is waited for.

    Raises:
        InputError: there isn't one loss for each result.
    """
    results = backend.compute_output_spec(model, keras.tree.map_structure(symbolic, inputs), training=True)
    names = getattr(model, "output_names", None)
    if isinstance(loss, (Mapping, list, tuple)):
        _check_count(loss, results, names)
    return None if waits_for else with_names(_labels(loss, results, names), "labels")


def opened(signature: Signature, input_specs: Structure, has_open_labels: bool) -> Signature:
    """Return a signature with None for the extents in which later batches may differ.

    Args:
        input_specs: the specs of inputs that the model tells; None if it tells none, so that all extents may differ.
        has_open_labels: whether the loss takes labels of any shape.
    """

    def free(spec: tf.TensorSpec | None, extents: Sequence[int | None] | None = None) -> tf.TensorSpec | None:
        return spec and tf.TensorSpec([None] * spec.shape.rank if extents is None else extents, spec.dtype, spec.name)

    specs, open_inputs = tf.nest.flatten(signature.inputs), signature.inputs
    if input_specs is None:
        open_inputs = tf.nest.map_structure(free, signature.inputs)
    else:
        shapes = [spec.shape for spec in tf.nest.flatten(input_specs)]
        pairs = list(zip(specs, shapes, strict=False))
        if len(specs) == len(shapes) and all(spec.shape[1:].is_compatible_with(shape[1:]) for spec, shape in pairs):
            freed = [free(spec, [None, *shape[1:]]) for spec, shape in pairs]
            open_inputs = tf.nest.pack_sequence_as(signature.inputs, freed)
    open_signature = replace(signature, inputs=open_inputs)
    if signature.labels is None or not (has_open_labels or open_signature.has_open_inputs):
        return open_signature
    return replace(open_signature, labels=tf.nest.map_structure(free, signature.labels))


def assumed(signature: Signature, model: keras.Model, loss: Any) -> Signature:
    """Return the signature with the labels that it leaves open assumed; raise InputError if it leaves inputs open."""
    if signature.has_open_inputs:
        raise InputError(
            f"{signature.waits_for}; expected every extent but the batch to be known where there is no data: build the "
            "model with keras.Input of known shapes"
        )
    if not signature.waits_for:
        return signature
    labels = labels_for(model, loss, signature.inputs)
    return replace(signature, labels=labels, waits_for="").resized(signature.batch_size)


def left_open_by(loss: Any, has_data: bool = True) -> str:
    """Return the clause that says which loss doesn't tell its labels' shapes; "" if all do.

    Keras's own losses take labels like the results, or classes, except those of ``_OTHER_LABELS``.

    Args:
        has_data: whether data will tell; else a result without a loss is taken to have no labels.
    """
    if isinstance(loss, (Mapping, list, tuple)):
        losses = loss.values() if isinstance(loss, Mapping) else loss
        return next(filter(None, (left_open_by(part, has_data) for part in losses)), "")
    if loss is None:
        return "a result without a loss leaves open whether batches have labels for it" if has_data else ""
    loss_fn = keras.losses.get(loss)
    function = getattr(loss_fn, "fn", None) or (type(loss_fn) if isinstance(loss_fn, keras.losses.Loss) else loss_fn)
    if function.__module__.startswith("keras.") and function.__name__ not in _OTHER_LABELS:
        return ""
    return f"the loss {getattr(function, '__name__', short(loss))} doesn't tell the shapes of its labels"


def _from_data(data: Any) -> Signature:
    """Return the signature of a dataset's elements, or of a batch of arrays.

    Either is ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.
    """
    parts = getattr(data, "element_spec", data)
    parts = parts if isinstance(parts, tuple) else (parts,)
    if not 1 <= len(parts) <= 3:
        raise InputError(f"data= takes datasets of x, (x, y) or (x, y, sample_weight), got elements of {len(parts)} parts")
    specs = (part_of(part, name, "data=") for part, name in zip(parts, PARTS, strict=False) if part is not None)
    return replace(Signature(*specs), as_seen=frozenset(PARTS))


def part_of(part: Structure, name: str, owner: str = "a batch") -> Structure:
    """Return the specs of one part of a batch, of which arrays or specs are given."""
    specs = tf.nest.map_structure(lambda leaf: _spec_of(leaf, f"{name} of {owner}"), part, expand_composites=False)
    return with_names(specs, name)


def is_none(leaf: Any) -> bool:
    """Return whether there is no tensor: in a batch, or in a dataset's elements."""
    return leaf is None or isinstance(leaf, NoneTensorSpec)


def _spec_of(leaf: Any, part: str) -> tf.TensorSpec | None:
    """Return the spec of one tensor of a batch, given as a spec or as an array; None if there is none."""
    if is_none(leaf):
        return None
    check_dense(leaf, part)
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
            f"{part} ({running_line()}) has shape {leaf.shape}; expected every extent but the first one to be "
            "known, since a plan is made for one shape: pad to a fixed length, as by padded_batch(batch_size, "
            "padded_shapes=...), say the shape by dataset.map with tf.ensure_shape, or leave data= out, so that fit tells"
        )
    return leaf


def check_dense(spec: Any, what: str) -> None:
    """Check that a tensor is dense; raise InputError if the tensor is ragged or sparse."""
    if isinstance(spec, (tf.SparseTensor, tf.SparseTensorSpec)) or hasattr(spec, "tocsr"):
        kind, advice = "sparse", "dataset.map with tf.sparse.to_dense, or array.toarray()"
    elif isinstance(spec, (tf.RaggedTensor, tf.RaggedTensorSpec)):
        kind, advice = "ragged", "dataset.map with x.to_tensor(shape=...)"
    else:
        return
    raise InputError(
        f"{what} ({running_line()}) is {kind}; expected dense tensors, which can be cut into shares of known shape: make it "
        f"dense, as by {advice}"
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


def inputs_of(model: keras.Model, batch_size: int) -> tuple[Structure, str]:
    """Return the specs of a model's inputs, None if only a call of it shows them, and the clause that says what is open."""
    try:
        structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    except (AttributeError, ValueError):
        return None, f"model '{model.name}' ({type(model).__name__}) doesn't tell the shapes of its inputs"

    def spec(tensor: Any) -> tf.TensorSpec:
        # Names that Keras makes up are numbered by what was made before, so they would differ between runs.
        name = None if tensor.name.startswith("keras_tensor") else tensor.name
        return tf.TensorSpec([batch_size, *tensor.shape[1:]], tensor.dtype, name)

    opens = [tensor for tensor in keras.tree.flatten(structure) if None in tensor.shape[1:]]
    waits_for = f"input '{opens[0].name}' of model '{model.name}' has shape {opens[0].shape}" if opens else ""
    return with_names(keras.tree.map_structure(spec, structure), "x"), waits_for


def symbolic(spec: tf.TensorSpec) -> keras.KerasTensor:
    return keras.KerasTensor(spec.shape.as_list(), spec.dtype.name)


def _labels(loss: Any, results: Structure, names: list[str] | None) -> Structure:
    """Return the specs of the labels that Keras's losses take for a model's results; None for a result without a loss.

    A sparse loss takes int64 classes, without the results' last dimension. Other losses take labels like the results.
    """
    if loss is None:
        return None
    if isinstance(loss, Mapping):
        values = results if isinstance(results, Mapping) else dict(zip(names or loss, tf.nest.flatten(results), strict=True))
        labels = {key: _labels(part, values[key], None) for key, part in loss.items()}
        return labels if keras.tree.is_nested(results) else next(iter(labels.values()))
    if isinstance(loss, (list, tuple)):
        return [_labels(part, result, None) for part, result in zip(loss, tf.nest.flatten(results), strict=True)]
    if not isinstance(results, keras.KerasTensor):
        return keras.tree.map_structure(lambda result: _labels(loss, result, None), results)
    loss_fn = keras.losses.get(loss)
    name = getattr(loss_fn, "name", None) or getattr(loss_fn, "__name__", type(loss_fn).__name__)
    if "sparse" in str(name):
        return tf.TensorSpec(results.shape[:-1], tf.int64)
    return tf.TensorSpec(results.shape, results.dtype)


def _check_count(loss: Any, results: Structure, names: list[str] | None) -> None:
    """Check that there is one loss for each of the model's results, named alike; raise InputError if not."""
    n_results = len(tf.nest.flatten(results))
    keys = list(results) if isinstance(results, Mapping) else (names or [])
    unknown_keys = [key for key in loss if key not in keys] if isinstance(loss, Mapping) else []
    if len(loss) != n_results or unknown_keys:
        text = f"one for {unknown_keys[0]!r}" if unknown_keys else f"{len(loss)} losses"
        listing = f" ({', '.join(map(repr, keys))})" if keys else ""
        raise InputError(
            f"loss= ({running_line()}) has {text}, expected one for each of the model's {n_results} results{listing}; None "
            "for those that have no loss"
        )


def with_names(structure: Structure, name: str) -> Structure:
    """Return the specs, with a name for each that has none. Messages and plans name the placeholders by it."""
    leaves = tf.nest.flatten(structure)
    specs = [
        spec and tf.TensorSpec(spec.shape, spec.dtype, spec.name or (name if len(leaves) == 1 else f"{name}_{i}"))
        for i, spec in enumerate(leaves)
    ]
    return tf.nest.pack_sequence_as(structure, specs)
