"""Run the script's own training steps on all ranks: what it calls as a ``tf.function`` that takes gradients of a model.

| the script | what happens |
|---|---|
| calls a ``tf.function`` that applies an optimizer, or takes gradients of Keras's variables and assigns | a training step |
| calls one that takes gradients and assigns to nothing, to look at them | it runs as it is, on each rank |
| gives a step an iterator, of which it takes one batch | a training step, whose batch is read before it |
| applies an optimizer outside of a ``tf.function`` | it is refused: every rank would train on the whole batch |

A step is found while TensorFlow traces it, which is given up then; TensorOpt captures the function instead.
"""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from ..common.errors import InputError
from ..common.source_lines import running_line
from ..frontend.stateful import Treatment, treatment_of
from ..runtime.ranks import current_processes
from ..trainer.capture.objective import KerasObjective
from ..trainer.data.batch_shares import ONE_READS
from ..trainer.functions.step_function import StepFunction, StepObjective
from ..trainer.parallelize import TrainingOptions, started_step
from ..trainer.variables.live import Live, held_state
from .effects import say_unsaved

logger = logging.getLogger(__name__)
IS_HANDED: ContextVar[bool] = ContextVar("tensoropt_is_handed", default=False)
"""Whether a trainer runs: Keras's methods, functions and optimizers do what they do without us."""
_is_traced: ContextVar[bool] = ContextVar("tensoropt_is_traced", default=False)
_is_asked: ContextVar[bool] = ContextVar("tensoropt_is_asked", default=False)
_STEPS = "_tensoropt_steps"


class _OneBatch:
    """What a step has in place of an iterator: one batch, read before the step. It is a structure of ``tf.nest``."""

    def __init__(self, batch: Any) -> None:
        self._batches, self._graph = [batch], tf.compat.v1.get_default_graph()

    def __next__(self) -> Any:
        if not self._batches or tf.compat.v1.get_default_graph() is not self._graph:
            raise _reads_dataset()
        return self._batches.pop()

    get_next = __next__

    def __iter__(self) -> Any:
        raise _reads_dataset()

    def __tf_flatten__(self) -> tuple[Any, Any]:
        return (), tuple(self._batches)

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, components: Any) -> Any:
        return cls(*components)


def _reads_dataset() -> InputError:
    return InputError(
        f"a training step reads a dataset itself ({running_line()}), so that every rank would train on the whole batch; "
        "take one batch of an iterator in it, or write for x, y in dataset: step(x, y) outside of it"
    )


@contextmanager
def is_set(flag: ContextVar[bool]) -> Iterator[None]:
    """Set a flag within this context."""
    token = flag.set(True)
    try:
        yield
    finally:
        flag.reset(token)


class _IsStepError(BaseException):
    """A function that is being traced is a training step. It isn't an Exception, which AutoGraph would explain."""


class _MayBeStepError(_IsStepError):
    """A function that is being traced is a training step if it assigns to variables."""


class _AloneError(BaseException):
    """Rank 0 has gone on alone, and nothing that it trains is in shards: TensorFlow runs its steps from now on."""


class ScriptStep(StepFunction):
    """A training step of the script's: it takes batches of any size, and returns tensors."""

    _is_read_by_one = False

    def start(self, *arguments: Any, **keywords: Any) -> None:
        """Make the step ready to run on several ranks."""
        if current_processes().size == 1 and not Live.count:
            raise _AloneError
        super().start(*arguments, **keywords)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run one training step, and return what the step returns."""
        with is_set(IS_HANDED):
            results = super().__call__(*arguments, **keywords)
        return tf.nest.map_structure(lambda leaf: leaf if leaf is None else tf.convert_to_tensor(leaf), results)

    def _agreed(self, names: Sequence[str], leaves: list[np.ndarray]) -> list[np.ndarray]:
        """Return the tensors of a batch: rank 0's, if the ranks' first ones differ; raise InputError if later ones do."""
        processes = self._ranks.processes
        if not self._is_read_by_one:
            try:
                return super()._agreed(names, leaves)
            except InputError:
                if self._same.n_calls > 1:
                    raise
            self._is_read_by_one = True
            if processes.rank == 0:
                logger.warning(ONE_READS, "ranks 0 and another")
        return processes.broadcast(leaves, "a batch of rank 0")

    def _check_size(self, size: int | None) -> None:
        """Take batches of any size, and none."""


def hand_over_steps(options: Callable[[], TrainingOptions], leads: Callable[[], bool]) -> None:
    """Have the script's own training steps run on all ranks.

    Args:
        options: returns how they are planned.
        leads: returns whether rank 0 alone runs the script, in a callback.
    """

    def are_several() -> bool:
        return current_processes().size > 1

    def calling(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def __call__(function: Any, *arguments: Any, **keywords: Any) -> Any:
            if IS_HANDED.get() or not tf.executing_eagerly() or not (are_several() or Live.count):
                return call(function, *arguments, **keywords)
            if _STEPS not in vars(function):
                try:
                    with is_set(_is_traced), tf.variable_creator_scope(_made_now):
                        return call(function, *arguments, **keywords)
                except _IsStepError as error:
                    if isinstance(error, _MayBeStepError) and not _trains(function, arguments, keywords):
                        return call(function, *arguments, **keywords)
                    vars(function)[_STEPS] = {}
            if leads():
                raise InputError(
                    f"a training step is called ({running_line()}) in a callback, which rank 0 alone runs; call it outside "
                    "of the callback"
                )
            return _run(function, arguments, keywords, options)

        return __call__

    def taking(gradient: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(gradient)
        def take(tape: Any, target: Any, sources: Any, *rest: Any, **keywords: Any) -> Any:
            has_variables = any(isinstance(source, keras.Variable) for source in tf.nest.flatten(sources))
            is_asked = _is_asked.get() or IS_HANDED.get() or not are_several()
            if has_variables and _is_traced.get() and not is_asked:
                raise _MayBeStepError
            return gradient(tape, target, sources, *rest, **keywords)

        return take

    def applying(apply: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(apply)
        def applied(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            is_elsewhere = not optimizer.built and held_state(optimizer)  # in shards, even if of one rank
            if not IS_HANDED.get() and (are_several() or is_elsewhere):
                if _is_traced.get():
                    raise _IsStepError
                raise InputError(
                    f"the script applies an optimizer outside of a tf.function ({running_line()}), so that every rank would "
                    "train on the whole batch, without what fit has trained; put the tape and the optimizer into a function "
                    "of a batch, as in def step(x, y), write @tf.function above it, and call step(x, y) in the loop"
                )
            return apply(optimizer, *arguments, **keywords)

        return applied

    Function.__call__ = calling(Function.__call__)
    tf.GradientTape.gradient = taking(tf.GradientTape.gradient)
    for kind in (BaseOptimizer, keras.optimizers.LossScaleOptimizer):  # which doesn't call its base's
        kind.apply = applying(kind.apply)


def _made_now(create: Callable[..., Any], **keywords: Any) -> Any:
    """Make a variable of a layer that is built in a trace, which may be given up, with its value."""
    if tf.is_symbolic_tensor(keywords["initial_value"]):
        return create(**keywords)
    with tf.init_scope():
        return create(**{**keywords, "experimental_enable_variable_lifting": False})


def _trains(function: Any, arguments: Any, keywords: Any) -> bool:
    """Return whether a function that takes gradients applies an optimizer, or assigns to a variable."""
    try:
        with is_set(_is_traced), is_set(_is_asked), tf.variable_creator_scope(_made_now):
            graph = function.get_concrete_function(*arguments, **keywords).graph.as_graph_def()
    except _IsStepError:
        return True
    nodes = itertools.chain(graph.node, *(definition.node_def for definition in graph.library.function))
    return any(treatment_of(node.op) is Treatment.WRITE for node in nodes)


def _run(function: Any, arguments: Any, keywords: Any, options: Callable[[], TrainingOptions]) -> Any:
    """Run a training step, with a plan for each of the values that aren't tensors, as TensorFlow has a trace for each."""
    leaves = tf.nest.flatten((arguments, keywords))
    if any(isinstance(leaf, tf.data.Dataset) for leaf in leaves):
        raise _reads_dataset()
    read = {k: leaf.get_next() for k, leaf in enumerate(leaves) if isinstance(leaf, tf.data.Iterator)}
    own_arguments, own_leaves = (arguments, keywords), leaves
    if read:
        batches = [_OneBatch(read[k]) if k in read else leaf for k, leaf in enumerate(leaves)]
        arguments, keywords = tf.nest.pack_sequence_as(own_arguments, batches)
        leaves = tf.nest.flatten((arguments, keywords))
    constants = {k: leaf for k, leaf in enumerate(leaves) if not isinstance(leaf, (tf.Tensor, np.ndarray, np.generic))}
    key = tuple((k, leaf if isinstance(leaf, (int, float, str, bytes)) else id(leaf)) for k, leaf in constants.items())
    steps: dict[Any, StepFunction] = vars(function)[_STEPS]
    if key not in steps:
        say_unsaved("a training step of the script's own")
        step = function.python_function
        if constants or keywords or read:
            step = _with_fixed(step, arguments, keywords, constants)
        models = [model for model in gc.get_objects() if issubclass(type(model), keras.Model)]
        objective = StepObjective(step, [model for model in models if not isinstance(model, KerasObjective)])
        size = next((leaf.shape[0] for leaf in leaves if len(getattr(leaf, "shape", ()))), 1)
        steps[key] = started_step(objective, None, int(size), options(), ScriptStep)
    tensors = [leaf for k, leaf in enumerate(leaves) if k not in constants]
    operands = tensors if constants or keywords or read else arguments
    try:
        return steps[key](*operands)
    except _AloneError:
        del vars(function)[_STEPS]
    function._variable_creation_config = None  # as before its first trace, which may make variables
    own = [_iterator_of(read[k], leaf.element_spec) if k in read else leaf for k, leaf in enumerate(own_leaves)]
    arguments, keywords = tf.nest.pack_sequence_as(own_arguments, own)
    return function(*arguments, **keywords)


def _iterator_of(batch: Any, spec: Any) -> Any:
    """Return an iterator of a batch that was read, for which a function has the trace of the one that it was read from."""
    return iter(tf.data.Dataset.from_generator(lambda: iter([batch]), output_signature=spec))


def _with_fixed(step: Callable[..., Any], arguments: Any, keywords: Any, constants: dict[int, Any]) -> Callable[..., Any]:
    """Return a step that takes only tensors, with the other values of a call."""
    structure, n_leaves = (arguments, keywords), len(tf.nest.flatten((arguments, keywords)))

    def with_fixed(*tensors: Any) -> Any:
        values = iter(tensors)
        leaves = [constants[k] if k in constants else next(values) for k in range(n_leaves)]
        positional, by_name = tf.nest.pack_sequence_as(structure, leaves)
        return step(*positional, **by_name)

    return with_fixed
