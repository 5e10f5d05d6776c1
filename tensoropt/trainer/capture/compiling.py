"""Check the losses and metrics that a model is compiled with, and explain in a sentence why one can't be computed."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from ...common.errors import InputError, cut, short
from ...common.source_lines import is_users, running_line
from .signature import Signature

# What TensorFlow and Keras raise for tensors that they can't compute with, and Python for those that aren't there.
_UNCOMPUTABLE = (ValueError, TypeError, tf.errors.OpError)
_MISSING = (*_UNCOMPUTABLE, LookupError, AttributeError)
# Keras's methods that compute a loss or metrics, with the word for it in an error message.
_COMPUTED_IN = {"compute_loss": "loss", "compute_metrics": "metrics"}
_STEPS = ("train_step", "test_step")
_EXAMPLES = {"loss": "keras.losses.SparseCategoricalCrossentropy(from_logits=True)", "metrics": "'accuracy'"}


def check_compilation(loss: Any, metrics: Any, weighted_metrics: Any) -> None:
    """Check that Keras knows losses and metrics; raise InputError with the nearest that it has if not."""
    _check_names("loss", loss, keras.losses.get, keras.losses)
    for kind, value in (("metrics", metrics), ("weighted_metrics", weighted_metrics)):
        _check_names(kind, value, _metric, keras.metrics)


def _metric(name: Any) -> Any:
    # Keras chooses the metric for these names by the shapes of labels and results.
    return name if name in ("accuracy", "acc", "crossentropy", "ce") else keras.metrics.get(name)


def _check_names(kind: str, value: Any, get: Callable[[Any], Any], names: Any) -> None:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for element in value:
            _check_names(kind, element, get, names)
        return
    try:
        get(value)
    except (ValueError, TypeError) as error:
        matches = difflib.get_close_matches(value, dir(names), 1) if isinstance(value, str) else []
        example = f"{matches[0]!r}" if matches else _EXAMPLES[kind.removeprefix("weighted_")]
        raise InputError(
            f"parallelize ({running_line()}) has {kind}={short(value)}, which Keras doesn't know; give one of "
            f"keras.{'losses' if kind == 'loss' else 'metrics'} or its name, such as {example}, or a function of labels and "
            "results"
        ) from error


def in_a_sentence(error: Exception, signature: Signature) -> Exception:
    """Return the exception to raise for one that occurred while a step was traced.

    It is an InputError with an explanation if a loss or a metric can't be computed, else the given exception.

    Args:
        signature: the signature for which the step was traced.
    """
    metadata = getattr(error, "ag_error_metadata", None)
    # Outermost first. Only AutoGraph knows the frames of the functions that it converted.
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    if metadata is not None:
        frames += [(frame.filename, frame.lineno, frame.function_name) for frame in reversed(metadata.translated_stack)]
    stage = next((_COMPUTED_IN[name] for _, _, name in reversed(frames) if name in _COMPUTED_IN), None)
    step = next((name for file, _, name in reversed(frames) if name in _STEPS and is_users(file)), None)
    takes_labels = stage is None and step is not None and signature.labels is None
    lacks_labels = takes_labels or (stage == "loss" and signature.labels is None)
    is_explained = isinstance(error, _MISSING if lacks_labels else _UNCOMPUTABLE) and not isinstance(error, InputError)
    if (stage is None and not takes_labels) or not is_explained:
        return error
    message = str(error) if metadata is None else str(metadata.cause_message)
    reason = " ".join(message.split()).removeprefix(f"{type(error).__name__}: ")
    reason = reason.partition(" for '{{node")[0].rstrip(".")
    last = max(i for i, (_, _, name) in enumerate(frames) if name in _COMPUTED_IN or name in _STEPS)
    user_lines = [(file, line) for file, line, _ in frames[last:] if is_users(file)]
    place = f"{user_lines[-1][0].rpartition('/')[2]}:{user_lines[-1][1]}" if user_lines else running_line()
    if takes_labels:
        return InputError(
            f"{step} ({place}) can't be called on batches of x alone, as the first batch or data= has them: {cut(reason)}. "
            "If it takes labels, show a batch that has some, by data=(x, y) of parallelize"
        )
    if reason.startswith("No loss to compute"):
        return InputError(
            f"parallelize ({place}) has no loss=, and the model adds none by add_loss; give one of keras.losses, such as "
            f"{_EXAMPLES['loss']}, or model.compile(optimizer, loss) ahead of parallelize(model, batch_size=...)"
        )
    if signature.labels is None and stage == "loss":
        return InputError(
            f"the loss ({place}) can't be computed without labels: {cut(reason)}. Batches have inputs alone, as data= "
            "says; give a tuple (x, y), or a dataset of such"
        )
    return InputError(
        f"the {stage} ({place}) can't be computed for {_labels_text(signature)}: {cut(reason)}. Where your labels are "
        "others, say so: parallelize(..., labels=tf.TensorSpec(shape, dtype)), or data= with a dataset or arrays (x, y)"
    )


def _labels_text(signature: Signature) -> str:
    specs = tf.nest.flatten(signature.labels) if signature.labels is not None else []
    text = ", ".join(f"{list(spec.shape)} of {spec.dtype.name}" for spec in specs[:4])
    return f"labels of shape {text}{', ...' if len(specs) > 4 else ''}" if text else "batches without labels"
