"""Record a model in a private ``tf.Graph``, at its full shapes and by TensorFlow's own names.

Nothing is allocated or computed. Only training differs from TensorFlow: the optimizers here record a training step instead
of gradients.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from ..common.errors import InputError, short
from ..common.source_lines import running_line, source_line
from ..optimizers.classic import Classic
from .connected import differentiated
from .gradient_placeholders import Gradient, LossGradients, assign_gradients, pending_on, placeholders
from .recorded_graph import RecordedGradients, RecordedStep
from .recorded_updates import computed_with, minimised
from .writes import ASSIGNMENTS, RecordingGraph


class _OfBatchSize(RecordingGraph):
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


def checked_batch_size(batch_size: object) -> None:
    """Check a batch size that a user gave; raise InputError if it isn't a whole number from 1 up."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(
            "batch_size takes the number of samples in a step over all devices, a whole number of at least 1, got "
            f"{short(batch_size)}"
        )


class Recording:
    """The graph that is being recorded, and its training steps. It is the default graph until :meth:`close`."""

    def __init__(self, seed: int, batch_size: int | None = None) -> None:
        self.graph = RecordingGraph() if batch_size is None else _OfBatchSize(batch_size)
        self.is_open = False
        self.steps: list[RecordedStep] = []
        self.taken: list[LossGradients] = []
        self._by_hand: tf.Operation | None = None
        self._replaced: list[LossGradients] = []
        self._placed: dict[str, tuple[int, ...]] = {}
        self._entered = ExitStack()
        self.reopen()
        # Every rank draws the same random numbers, so that all have shards of the same values.
        tf.compat.v1.set_random_seed(seed)

    def close(self) -> None:
        """Make eager mode the default again, if recording is open; raise InputError inside of a graph entered since."""
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

    @contextmanager
    def place(self, devices: tuple[int, ...]) -> Iterator[None]:
        """Place the operators that are recorded for as long as the context lasts, but for those of an inner context."""
        first = len(self.graph.get_operations())
        yield
        for op in self.graph.get_operations()[first:]:
            self._placed.setdefault(op.name, devices)

    def placed_in(self, operators: Container[str]) -> dict[str, tuple[int, ...]]:
        """Return the devices of those operators that are placed, by name."""
        return {name: devices for name, devices in self._placed.items() if name in operators}

    def has(self, value: object) -> bool:
        """Return whether a tensor or operation was recorded here."""
        try:
            return getattr(value, "graph", None) is self.graph
        except RuntimeError:  # eager variables
            return False

    def use_own_gradients(self, loss: tf.Tensor) -> None:
        """Put TensorFlow's own gradients in the place of placeholders behind a loss; raise InputError if there are none."""
        while (pending := pending_on(loss.op)) is not None:
            gradients = next(gradients for gradients in self.taken if gradients.has(pending))
            if gradients.own is None:
                raise InputError(
                    f"'{loss.op.name}' ({source_line(loss.op)}) is made of gradients, and gradients are taken "
                    "of it, which those of compute_gradients can't have; take those by tensoropt.gradients(loss, variables)"
                )
            gradients.use_own()
            self.taken.remove(gradients)
            self._replaced.append(gradients)

    def updates(self) -> tuple[tuple[RecordedStep, ...], tuple[RecordedGradients, ...]]:
        """Return the training steps, and the gradients that the model computes with.

        Assignments of what is made of gradients, without an optimizer, are a step that trains no variable.
        """
        for replaced in self._replaced:
            replaced.use_own()  # also where they were used later
        gradients = []
        for k, recorded in enumerate(self.taken):
            recorded.check_rows()
            names = tuple(variable.handle.op.name for variable in recorded.variables)
            gradients.append(RecordedGradients(f"gradients_{k}", recorded.loss, names, recorded.dense))
        steps = tuple(minimised(step, gradients) if step.assigns else step for step in self.steps)
        if gradients and not steps:
            steps = (self._step_by_hand(),)
        minimising = {step.loss for step in steps if step.assigns}
        return steps, tuple(one for one in gradients if one.loss not in minimising or one in computed_with(gradients, steps))

    def _step_by_hand(self) -> RecordedStep:
        assigns = [op for op in self.graph.get_operations() if op.type in ASSIGNMENTS and pending_on(op) is not None]
        if self._by_hand is None or set(self._by_hand.control_inputs) != set(assigns):
            with self.graph.as_default(), tf.control_dependencies(assigns):
                self._by_hand = tf.no_op(name="updates_by_hand")
        return RecordedStep(self._by_hand, None, (), Classic("sgd"))


def record_minimize(
    recording: Recording,
    classic: Classic,
    loss: tf.Tensor,
    var_list: Sequence[tf.Variable] | None,
    global_step: tf.Variable | None,
    name: str,
) -> tf.Operation:
    """Record a training step; raise InputError if the loss isn't a scalar of the model, or there is nothing to train."""
    if not isinstance(loss, tf.Tensor) or not recording.has(loss):
        raise InputError(f"minimize takes a loss that was recorded after tensoropt.init(), got {short(loss)}")
    recording.use_own_gradients(loss)
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
    return _record_step(recording, "minimize", name, classic, variables, global_step, loss)


def record_gradients(
    recording: Recording, targets: Any, variables: Sequence[tf.Variable], has_own: bool
) -> list[Gradient] | None:
    """Return the gradients of a loss, as placeholders; None if TensorFlow's own are to be part of the model.

    TensorFlow's own are for gradients with respect to other tensors than variables, and for targets without any.

    Args:
        has_own: whether TensorFlow's own are made, too, to take the placeholders' places if gradients are taken of them.
    """
    ends = tf.nest.flatten(targets)
    if not all(isinstance(end, tf.Tensor) and recording.has(end) and end.dtype.is_floating for end in ends):
        return None
    if any(not isinstance(variable, tf.Variable) or not recording.has(variable.handle) for variable in variables):
        return None
    with recording.graph.as_default(), tf.control_dependencies(None):
        for end in ends:
            recording.use_own_gradients(end)
        loss = ends[0] if len(ends) == 1 and ends[0].shape.rank == 0 else tf.add_n([tf.reduce_sum(e) for e in ends])
        handles = [variable.handle for variable in variables]
        reach = differentiated(loss, [handle.op.name for handle in handles])
        gradients = placeholders(loss, variables, handles, reach, has_own)
    recording.taken.append(gradients)
    return gradients.gradients_of(variables)


def record_application(
    recording: Recording,
    classic: Classic,
    pairs: Sequence[tuple[Any, tf.Variable]],
    global_step: tf.Variable | None,
    name: str,
) -> tf.Operation:
    """Record an optimizer's update by pairs of a gradient and a variable; raise InputError if no gradient is given."""
    pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    if not pairs:
        raise InputError(
            f"apply_gradients ({running_line()}) of {name} has no gradient: no loss depends on its variables; give "
            "gradients with respect to variables of which a loss is computed"
        )
    gradients, variables = zip(*pairs, strict=True)
    return _record_step(recording, "apply_gradients", name, classic, variables, global_step, gradients=gradients)


def _record_step(
    recording: Recording, method: str, name: str, classic: Classic, variables: Sequence[tf.Variable],
    counter: tf.Variable | None, loss: tf.Tensor | None = None, gradients: Sequence[Any] = (),
) -> tf.Operation:  # fmt: skip
    """Record a step that minimises a loss, or that updates by gradients."""
    named = [("var_list", variable) for variable in variables]
    if counter is not None:
        named.append(("global_step", counter))
    for argument, variable in named:
        handle = getattr(variable, "handle", None) if isinstance(variable, tf.Variable) else None
        if handle is None or not recording.has(handle):
            raise InputError(
                f"{argument} of {method} takes variables that were recorded after tensoropt.init(), such as "
                f"tensoropt.get_variable makes, got {short(variable)}"
            )
    for key, value in classic.hyperparameters:
        if isinstance(value, tf.Tensor) and not (recording.has(value) and value.shape.rank == 0):
            raise InputError(f"{key} of {name} must be a scalar that was recorded after tensoropt.init(), got {value!r}")
    pairs = list(zip(gradients, variables, strict=False))
    with recording.graph.as_default():
        with tf.control_dependencies(None):
            number = sum(bool(step.assigns) for step in recording.steps)
            assigns = assign_gradients(pairs, recording.taken, number, running_line())
        op = tf.no_op(name=name)  # it waits for what the script has it wait for
    names = tuple(variable.handle.op.name for variable in variables)
    counter_name = None if counter is None else counter.handle.op.name
    recording.steps.append(RecordedStep(op, loss, names, classic, counter_name, assigns=assigns))
    return op


def softmax_cross_entropy(labels: Any, logits: Any, name: str | None = None) -> tf.Tensor:
    """Return the batch's mean cross-entropy, a scalar.

    >>> import tensoropt
    >>> f"{tensoropt.softmax_cross_entropy([1, 0], [[0.0, 0.0], [0.0, 0.0]]):.3f}"
    '0.693'

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
