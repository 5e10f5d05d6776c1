"""Time single operators as a plan would run them: each in the graph that lowering emits, forward and backward, by itself.

A function runs some copies of the operator, each on arguments of its own (TensorFlow merges equal operators on equal
operands) and each after the one before. TensorFlow's graph optimizer is off meanwhile, since it removes operators whose
results nobody reads. The time of calling a function is measured once and subtracted. The backward time is the additional
time of the function with gradients. Of the repeats the lower quartile counts, as everywhere: other work on a machine only
ever adds time.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from ...common.gradient_types import carries_gradient
from ...costs.work_items import largest_operand_shapes
from ...ir.gradient_info import Backward
from ...ir.graph import Graph, Operator, Tensor
from ...lowering.operators import Job, emit
from ...profiling.cpu_caches import spin
from ...profiling.tensorflow_engine import unoptimized
from ...rules.registry import rule_of
from ...rules.rule import Config, Interface, Rule, interface_of

logger = logging.getLogger("tensoropt")
AIMED_S = 2e-3
"""A function runs as many copies as take about this long."""
MOST_COPIES = 32
REPEATS = (5, 12)
"""The fewest and the most repeats."""
SHARE_S = 0.1
"""The seconds that the repeats of one function may take, beyond the fewest."""
_PREPARING = 2
PAUSE_S = 0.008
"""The pause before each repeat.

VGG16's convolutions and products took 105.6 ms without a pause, 115.4 after 10 ms and 121.5 after 30. In a step, which finds
activations in the caches but not weights, they took 114.
"""


@dataclass(frozen=True, slots=True)
class OperatorTrial:
    """An operator in a config, to be timed.

    Attributes:
        indices: the indices of the operands that get a gradient.
        given: the indices of the results whose gradient is given. A result that nobody differentiates gets none: a loss by
            labels has a second result, of which TensorFlow would derive a second derivative.
        predicted_us: the predicted time, roughly.
        by_rows: whether the gradient of the first operand has only the rows that are read.
    """

    op: Operator
    rule: Rule
    config: Config
    interface: Interface
    indices: tuple[int, ...]
    given: tuple[int, ...]
    predicted_us: float
    by_rows: bool = False

    @classmethod
    def of(cls, op: Operator, config: Config, graph: Graph, backward: Backward, predicted_us: float) -> OperatorTrial:
        """Return the trial of an operator as a graph's training steps run it."""
        rule = rule_of(op)
        indices = tuple(i for i, (position, _) in enumerate(op.operands) if (op.name, position) in backward.gradients)
        names = backward.reached(graph)
        result_indices = tuple(i for i, tensor in enumerate(op.outputs) if tensor.name in names)
        is_by_rows = op.name in graph.lookup_operators
        return cls(op, rule, config, interface_of(rule, config), indices, result_indices, predicted_us, is_by_rows)


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of an operator, as lower quartiles.

    ``spread`` is the distance between the quartiles relative to the lower one; the larger of both functions' spreads.
    """

    forward_us: float
    backward_us: float
    spread: float


@dataclass
class OperatorTimer:
    """A timer of operators on this process's device. TensorFlow must be in eager mode.

    Attributes:
        clock, busy_clock: return the time, and this process's CPU time, in seconds.
        ranks_per_core: how many ranks share each core and measure at once, on CPUs; see
            :func:`...profiling.compute.time_s`.
    """

    device: str = field(default_factory=lambda: "/GPU:0" if tf.config.list_logical_devices("GPU") else "/CPU:0")
    clock: Callable[[], float] = time.perf_counter
    busy_clock: Callable[[], float] = time.process_time
    ranks_per_core: float = 1.0
    _call_s: float | None = None

    def time(self, trial: OperatorTrial) -> Timed | None:
        """Return the times of an operator, or None if it can't run by itself on synthetic operands."""
        copies = max(1, min(MOST_COPIES, int(AIMED_S * 1e6 / max(trial.predicted_us, 1e-3))))
        try:
            with unoptimized(), tf.device(self.device), warnings.catch_warnings():
                # Sparse gradients are made dense, as in a plan.
                warnings.filterwarnings("ignore", "Converting sparse IndexedSlices")
                if self._call_s is None:
                    nothing, argument = tf.function(tf.identity, autograph=False), tf.constant(0.0)
                    self._call_s = float(self._times(lambda: nothing(argument))[0])
                arguments = [value for _ in range(copies) for value in _operands(trial)]
                forward = self._per_copy(_function(trial, copies, False), arguments, copies)
                if not trial.indices:
                    return Timed(float(forward[0]), 0.0, _spread(forward))
                arguments = [v for _ in range(copies) for v in (*_operands(trial), *_gradients(trial))]
                combined = self._per_copy(_function(trial, copies, True), arguments, copies)
        except (tf.errors.OpError, ValueError, TypeError, LookupError, AssertionError, NotImplementedError) as error:
            # The operator needs certain values, or something that only a complete model has: its time is predicted.
            logger.info("%s isn't timed by itself, but predicted: %s: %s", trial.op.where(), type(error).__name__, error)
            return None
        backward_us = max(0.0, float(combined[0] - forward[0]))
        return Timed(float(forward[0]), backward_us, max(_spread(forward), _spread(combined)))

    def _per_copy(self, function: Callable[..., tf.Tensor], arguments: list[tf.Tensor], copies: int) -> np.ndarray:
        """Return the quartiles of the time of one copy, in microseconds."""
        assert self._call_s is not None
        times = self._times(lambda: function(*arguments))
        return np.maximum((times - self._call_s) / copies, 0.0) * 1e6

    def _times(self, call: Callable[[], tf.Tensor]) -> np.ndarray:
        """Return the quartiles of the time of a call, in seconds."""
        for _ in range(_PREPARING):
            once_s = self._time(call)
        fewest, most = REPEATS
        repeats = max(fewest, min(most, int(SHARE_S / (once_s + PAUSE_S))))
        return np.percentile([self._time(call) for _ in range(repeats)], [25, 75])

    def _time(self, call: Callable[[], tf.Tensor]) -> float:
        spin(PAUSE_S)
        start_s, busy_s = self.clock(), self.busy_clock()
        call().numpy()  # a number that depends on all that was computed
        taken_s = self.clock() - start_s
        if self.ranks_per_core == 1 or "CPU" not in self.device:
            return taken_s
        return max(taken_s, self.ranks_per_core * (self.busy_clock() - busy_s))


def _spread(quartiles: np.ndarray) -> float:
    return float(quartiles[1] / quartiles[0] - 1) if quartiles[0] > 0 else 0.0


def _function(trial: OperatorTrial, copies: int, has_gradients: bool) -> Callable[..., tf.Tensor]:
    """Return a function that runs the copies one after the other and returns a number when all are done."""
    rank = trial.config.mesh.n_devices - 1  # among uneven blocks, the last is one of the largest
    first_run = [tf.zeros([], tf.int64)]
    as_they_are = lambda k, values: values  # noqa: E731  # reshardings inside of an operator are timed separately
    job = Job(trial.op, trial.rule, trial.config, trial.interface, (rank,), as_they_are, runs=lambda: first_run)
    n_operands = len(trial.op.operands)

    def body(*arguments: tf.Tensor) -> tf.Tensor:
        n_values = len(arguments) // copies
        previous: list[tf.Tensor] = []
        for start in range(0, len(arguments), n_values):
            operands, gradients = (arguments[start : start + n_operands], arguments[start + n_operands : start + n_values])
            with tf.control_dependencies(previous):
                results = [values[0] for values in emit(job, [[operand] for operand in operands])]
                previous = list(results)
                if has_gradients:
                    ends = [results[index] for index in trial.given]
                    grads = tf.gradients(ends, [operands[index] for index in trial.indices], list(gradients))
                    grads = grads if trial.by_rows else [g if g is None else tf.convert_to_tensor(g) for g in grads]
                    previous += [part for part in tf.nest.flatten(grads, expand_composites=True) if part is not None]
        with tf.control_dependencies(previous):
            return tf.constant(0.0)

    inputs = [*_operands(trial), *(_gradients(trial) if has_gradients else [])] * copies
    signature = [tf.TensorSpec(value.shape, value.dtype) for value in inputs]
    concrete: Callable[..., tf.Tensor] = tf.function(
        body, input_signature=signature, autograph=False
    ).get_concrete_function()
    return concrete


def _operands(trial: OperatorTrial) -> list[tf.Tensor]:
    shapes = largest_operand_shapes(trial.op, trial.rule, trial.config, trial.interface)
    return [_synthetic(tensor, shape) for (_, tensor), shape in zip(trial.op.operands, shapes, strict=True)]


def _gradients(trial: OperatorTrial) -> list[tf.Tensor]:
    results = [(trial.op.outputs[index], trial.interface.results[index]) for index in trial.given]
    return [_synthetic(tensor, layout.largest_local_shape(tensor.shape)) for tensor, layout in results]


def _synthetic(tensor: Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Return numbers between 0.25 and 1, or zeros for a type without gradients.

    These numbers are neither slow nor undefined in any kernel. Zeros are valid as indices.
    """
    kind = tf.as_dtype(tensor.dtype)
    if not carries_gradient(kind):
        return tf.zeros(shape, kind)
    values = np.random.default_rng(0).uniform(0.25, 1.0, shape)
    return tf.cast(tf.constant(values), kind)
