"""Defer the capture of a model to its first batch, where the model and its loss don't tell what a batch is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src import backend
from keras.src.trainers.data_adapters import data_adapter_utils

from ..common.errors import InputError, cut
from ..common.source_lines import called_at, code_location, running_line, users_line_of
from ..runtime.same_data import whole_digest
from .capture.objective import has_own_step, that_takes_labels
from .capture.signature import PARTS, Signature, Structure, check_dense, labels_for, left_open_by, part_of, symbolic
from .data.element_parts import matched, planned_weight
from .runs import check_fits


def completed(expected: Signature, specs: Structure, model: keras.Model, loss: Any, batch_size: int | None) -> Signature:
    """Return the signature of batches like one that was seen, and build the model for them.

    Args:
        expected: what the model and the loss tell.
        specs: the specs of a batch: a tuple of ``x``, ``y`` and ``sample_weight``, of which the latter may be left out.
        batch_size: the number of samples per step; None for that of the batch.

    Raises:
        InputError: the batch isn't what is expected, the model can't be called on it, or it has no labels to go by.
    """
    x, y, weights = data_adapter_utils.unpack_x_y_sample_weight(specs)
    inputs = part_of(x, PARTS[0]) if expected.inputs is None else _filled(expected.inputs, x, PARTS[0])
    build_layers(model, inputs)
    takes_labels = loss is not None or that_takes_labels(model, loss)
    if not takes_labels or (y is None and expected.labels is not None):
        labels = expected.labels
    elif y is not None:
        labels = part_of(y, PARTS[1]) if expected.labels is None else _filled(expected.labels, y, PARTS[1])
    elif open_loss := left_open_by(loss, has_data=False):
        raise InputError(
            f"the batch ({running_line()}) has no labels, and {open_loss}; train or evaluate on batches (x, y) first, say "
            "them by parallelize(..., labels=tf.TensorSpec(shape, dtype)), or predict by the model itself, whose values are "
            "those of the trainer until it has trained"
        )
    else:
        labels = None if loss is None else labels_for(model, loss, inputs)
    weights = expected.weights if weights is None else tf.nest.map_structure(planned_weight, part_of(weights, PARTS[2]))
    parts = (expected.inputs, expected.labels)
    as_seen = frozenset(name for name, part in zip(PARTS, parts, strict=False) if part is None)
    n_samples = batch_size or next(leaf.shape[0] for leaf in tf.nest.flatten(x) if leaf is not None)
    return Signature(inputs, labels, weights, as_seen=as_seen).resized(n_samples)


def _filled(expected: Structure, batch_specs: Structure, part: str) -> Structure:
    """Return the expected specs of a part of a batch, open extents filled; raise InputError if other tensors are given."""
    leaves, specs = tf.nest.flatten(batch_specs), tf.nest.flatten(expected)
    filled = []
    for spec, index in zip(specs, matched(batch_specs, expected, part), strict=True):
        leaf = leaves[index]
        check_dense(leaf, f"{part} of a batch")
        shape = [None, *leaf.shape[1:]]
        check_fits(spec.name or part, shape, leaf.dtype.name, [None, *spec.shape[1:]], spec.dtype.name)
        extents = [old or new for old, new in zip_longest(spec.shape, shape[: spec.shape.rank], fillvalue=1)]
        filled.append(tf.TensorSpec(extents, spec.dtype, spec.name))
    return tf.nest.pack_sequence_as(expected, filled)


def is_built(model: keras.Model) -> bool:
    return all(layer.built for layer in model._flatten_layers())


def build_layers(model: keras.Model, inputs: Structure) -> None:
    """Build a model's layers by a call, as Keras does at its first batch; raise InputError if it can't be called."""
    if is_built(model) or has_own_step(model):
        return  # a training step of its own builds what it calls
    try:
        backend.compute_output_spec(model, keras.tree.map_structure(symbolic, inputs), training=False)
    except (ValueError, TypeError, LookupError, AttributeError, tf.errors.OpError) as error:
        if isinstance(error, InputError):
            raise
        shapes = ", ".join(f"{list(spec.shape)} of {spec.dtype.name}" for spec in tf.nest.flatten(inputs))
        raise InputError(
            f"model '{model.name}' can't be called on a batch of x {shapes} ({users_line_of(error)}): {cut(error)}"
        ) from error


@dataclass
class Deferred:
    """The capture of a model that waits for its first batch.

    Attributes:
        expected: what the model and the loss tell of a batch; see :attr:`.capture.signature.Signature.waits_for`.
        batch_size: the number of samples per step, over all ranks; None for that of the first batch.
        start: captures and plans the model for a signature.
        line: the line of the user's code that called ``parallelize``.
        checkpoint: a checkpoint to load once the model is captured; None without.
        is_capturing: whether the capture is under way.
    """

    model: keras.Model
    loss: Any
    expected: Signature
    batch_size: int | None
    start: Callable[[Signature], None]
    line: str
    checkpoint: str | None = None
    is_capturing: bool = False
    _before: dict[int, bytes] = field(default_factory=dict)

    def load(self, checkpoint: str) -> None:
        """Have a checkpoint loaded once the model is captured."""
        self.checkpoint = checkpoint
        self._before = self._contents()

    def assigned(self) -> list[tuple[keras.Variable, np.ndarray]]:
        """Return the variables that were assigned to after a checkpoint was given, with their values."""
        digests = self._contents()
        variables = [var for var in self.model.variables if digests[id(var)] != self._before.get(id(var), digests[id(var)])]
        return [(var, var.numpy()) for var in variables]

    def _contents(self) -> dict[int, bytes]:
        return {id(var): whole_digest(var.numpy()) for var in self.model.variables}

    def capture(self, specs: Structure) -> None:
        """Capture the model for batches like one that was seen.

        Args:
            specs: the specs of ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.

        Raises:
            InputError: the model can't be called on such batches, they don't have what is waited for, or no plan fits.
        """
        signature = completed(self.expected, specs, self.model, self.loss, self.batch_size)
        self.is_capturing = True
        try:
            with called_at(self.line):
                self.start(signature)
        finally:
            self.is_capturing = False

    def check_predicts(self) -> None:
        """Raise InputError if a batch to predict can't show what batches are, since it is open whether these have labels."""
        hook = that_takes_labels(self.model, self.loss)
        if hook and self.expected.labels is None:
            advice = ", or predict by the model itself, whose values are those of the trainer until it has trained"
            raise InputError(
                f"a prediction ({running_line()}) comes before any batch to train on, and {hook} of model "
                f"'{self.model.name}' leaves open whether these have labels: call fit, train_on_batch or evaluate first, or "
                f"show a batch by data= of parallelize ({self.line}){advice if self.checkpoint is None else ''}"
            )

    def own_weights(self) -> list[np.ndarray]:
        """Return the values of the model's weights; raise InputError if it isn't built, or a checkpoint is to be loaded."""
        self.check_readable()
        if not is_built(self.model):
            raise self.refusal()
        return self.model.get_weights()

    def check_readable(self) -> None:
        """Check that training will begin with the model's own values; raise InputError if a checkpoint is to be loaded."""
        if self.checkpoint is not None and not self.is_capturing:
            raise self.refusal(f"; '{self.checkpoint}' is loaded then")

    def refusal(self, advice: str = "") -> InputError:
        """Return the error for a call that needs what there is only once the model is captured."""
        return InputError(
            f"{code_location(sys._getframe()).call} needs a plan, which waits for the first batch, since "
            f"{self.expected.waits_for}: call fit, train_on_batch or evaluate first, or show a batch by data=(x, y) of "
            f"parallelize ({self.line}){advice}"
        )
