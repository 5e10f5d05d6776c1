"""Record a model in a private ``tf.Graph``, at its full shapes and by TensorFlow's own names.

Nothing is allocated or computed. Only training differs from TensorFlow: the optimizers here record a training step instead
of gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from ..common.errors import InputError, short
from ..common.source_lines import source_line
from ..optimizers.classic import Classic
from .recorded_graph import RecordedStep


class _OfBatchSize(tf.Graph):
    """A graph whose placeholders have the batch size as their leading extent where they leave that open.

    So all shapes that follow are inferred with it.
    """

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self._batch_size = batch_size

    def _create_op_internal(self, op_type: str, *arguments: Any, **named: Any) -> tf.Operation:
        attributes = named.get("attrs") or {}
        if op_type in ("Placeholder", "PlaceholderWithDefault") and attributes["shape"].shape.dim:
            shape = tf.compat.v1.AttrValue()
            shape.CopyFrom(attributes["shape"])
            leading = shape.shape.dim[0]
            leading.size = self._batch_size if leading.size < 0 else leading.size
            named["attrs"] = {**attributes, "shape": shape}
        return super()._create_op_internal(op_type, *arguments, **named)


class Recording:
    """The graph that is being recorded, and its training steps. It is the default graph until :meth:`close`."""

    def __init__(self, seed: int, batch_size: int | None = None) -> None:
        self.graph = tf.Graph() if batch_size is None else _OfBatchSize(batch_size)
        self.is_open = False
        self.steps: list[RecordedStep] = []
        self._entered = ExitStack()
        self.reopen()
        # Every rank draws the same random numbers, so that all have shards of the same values.
        tf.compat.v1.set_random_seed(seed)

    def close(self) -> None:
        """Make eager mode the default again, if recording is open.

        Raises:
            InputError: another graph or function has been entered since.
        """
        if not self.is_open:
            return
        if tf.compat.v1.get_default_graph() is not self.graph:
            raise InputError(
                "recording can't end inside of another tf.Graph().as_default() or tf.function that was entered since "
                "tensoropt.init(); leave it first"
            )
        self._entered.close()
        self.is_open = False

    def reopen(self) -> None:
        """Make the recorded graph the default: at first, and again after the work that :meth:`close` made way for."""
        self._entered.enter_context(self.graph.as_default())
        self.is_open = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Make eager mode the default for as long as the context lasts."""
        was_open = self.is_open
        self.close()
        try:
            yield
        finally:
            if was_open:
                self.reopen()

    def has(self, value: object) -> bool:
        """Return whether a tensor or operation was recorded here."""
        return _graph_of(value) is self.graph

    def add_step(self, step: RecordedStep) -> None:
        self.steps.append(step)


def _graph_of(value: object) -> object:
    try:
        return getattr(value, "graph", None)
    except RuntimeError:  # eager variables
        return None


def record_minimize(
    recording: Recording,
    optimizer: str,
    hyperparameters: dict[str, Any],
    loss: tf.Tensor,
    var_list: Sequence[tf.Variable] | None,
    global_step: tf.Variable | None,
    name: str,
) -> tf.Operation:
    """Record a training step.

    Raises:
        InputError: the loss isn't a scalar of the recorded model, or there is nothing to train.
    """
    if not isinstance(loss, tf.Tensor) or not recording.has(loss):
        raise InputError(f"minimize takes a loss that was recorded after tensoropt.init(), got {short(loss)}")
    where = f"'{loss.op.name}' ({source_line(loss.op)})"
    if loss.shape.rank != 0:
        raise InputError(
            f"minimize takes a scalar loss, got {where} of shape {loss.shape}; take its mean: tensoropt.reduce_mean(loss)"
        )
    if not loss.dtype.is_floating:
        raise InputError(f"minimize takes a floating-point loss, got {where} of type {loss.dtype.name}")
    collected = recording.graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
    variables = tuple(var_list if var_list is not None else collected)
    if not variables:
        raise InputError(
            f"there is no trainable variable to minimize {where} by; make parameters with tensoropt.get_variable(...)"
        )
    _check_variables(recording, variables, global_step)
    for key, value in hyperparameters.items():
        if isinstance(value, tf.Tensor) and not (recording.has(value) and value.shape.rank == 0):
            raise InputError(f"{key} of {name} must be a scalar that was recorded after tensoropt.init(), got {value!r}")
    with recording.graph.as_default():
        op = tf.no_op(name=name)
    names = tuple(variable.handle.op.name for variable in variables)
    counter = global_step.handle.op.name if global_step is not None else None
    recording.add_step(RecordedStep(op, loss, names, Classic(optimizer, tuple(hyperparameters.items())), counter))
    return op


def _check_variables(recording: Recording, variables: Sequence[object], global_step: object) -> None:
    """Refuse variables that can't be trained, and a step counter that can't be incremented."""
    named = [("var_list", variable) for variable in variables]
    if global_step is not None:
        named.append(("global_step", global_step))
    for argument, variable in named:
        handle = getattr(variable, "handle", None) if isinstance(variable, tf.Variable) else None
        if handle is None or not recording.has(handle):
            raise InputError(
                f"{argument} of minimize takes variables that were recorded after tensoropt.init(), such as "
                f"tensoropt.get_variable makes, got {short(variable)}"
            )


def softmax_cross_entropy(labels: Any, logits: Any, name: str | None = None) -> tf.Tensor:
    """Return the batch's mean cross-entropy, a scalar.

    Args:
        labels: integer classes of shape [batch], or their distribution of the logits' shape.
        logits: [batch, classes].
    """
    labels, logits = tf.convert_to_tensor(labels), tf.convert_to_tensor(logits)
    if labels.dtype.is_integer:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    else:
        losses = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses, name=name)
