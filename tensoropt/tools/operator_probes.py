"""Measure the rates of operators on this device: time probes of every class at several sizes, and fit them.

A probe is an operator of a recorded model. So it is timed as a plan would run it, and its result is stored under the same
key, as any model's operator. The sizes of a class span those of usual layers, from where the overhead dominates to where
only the rate matters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, zip_longest
from typing import Any

import numpy as np
import tensorflow as tf

from ..costs.config_costs import costs_of_config
from ..costs.operator_costs import OperatorCosting
from ..costs.resharding_costs import ReshardingCosting
from ..ir.graph import SOURCES
from ..profiling.compute import time_s
from ..profiling.cpu_caches import Evicting
from ..profiling.hardware import Hardware
from ..profiling.hardware_costs import CollectiveCosts, OperatorCosts
from ..profiling.operator_model import fit_all
from ..profiling.store import Store
from ..profiling.work import Measured, WorkItem
from ..rules.registry import rule_of
from ..rules.rule import Config
from ..runtime.measuring.operator_timer import OperatorTimer, OperatorTrial
from ..runtime.ranks import Processes
from ..tuning.profile_guided import slowest_of
from .offline import record

DTYPES = ("float32", "float64")
SIDES = (8, 16, 32, 64, 128, 256, 512, 1024)
_IMAGES = (
    (2, 8, 8, 8), (4, 8, 8, 32), (8, 16, 16, 16), (8, 16, 16, 64), (8, 32, 32, 32), (8, 14, 14, 128), (16, 32, 32, 64)
)
QUICK_SIDES = (32, 64, 128, 256, 384, 512)
KEPT_EACH = 10
"""The number of probes that are timed between two intermediate results."""
_UPDATES = 8
"""The number of variables that are updated in one timed function. Called by itself an update of 256 numbers took 300 us,
nearly all of it the overhead of calling TensorFlow from Python, which a step doesn't have.
"""
LEAST_US = 0.1
"""The least time that a probe may have: on a busy machine a function of small operators may be measured to be as fast as an
empty one.
"""
_UPDATE_REPEATS = 20
_LOSS = "loss"

Variable = Callable[..., Any]
Update = Callable[[tf.Tensor], tf.Operation]
Probes = Callable[[Variable, tuple[int, ...]], Iterator[Any]]


def _products(variable: Variable, sides: tuple[int, ...]) -> Iterator[Any]:
    for side in sides:
        yield tf.matmul(variable(side, side), variable(side, side))
    for side in sides[:-1]:
        yield tf.matmul(variable(32, side), variable(side, 4 * side))
        yield tf.matmul(variable(8, 32, side), variable(8, side, 32))


def _convolutions(variable: Variable, sides: tuple[int, ...]) -> Iterator[Any]:
    for image in _IMAGES[: len(sides)]:
        for extent in (1, 3):
            yield tf.nn.conv2d(variable(*image), variable(extent, extent, image[-1], image[-1]), 1, "SAME")


def _poolings(variable: Variable, sides: tuple[int, ...]) -> Iterator[Any]:
    for image in _IMAGES[: len(sides)]:
        yield tf.nn.max_pool2d(variable(*image), 2, 2, "VALID")
        yield tf.nn.avg_pool2d(variable(*image), 2, 2, "VALID")


def _by_rows(variable: Variable, sides: tuple[int, ...]) -> Iterator[Any]:
    for side in sides:
        yield tf.reduce_sum(variable(side, side), axis=0)
        yield tf.reduce_mean(variable(side, side), axis=1)
        yield tf.nn.softmax(variable(side, side))
        yield tf.transpose(variable(side, side))
        yield tf.concat([variable(side, side), variable(side, side)], axis=1)


def _elementwise(variable: Variable, sides: tuple[int, ...]) -> Iterator[Any]:
    for side in sides:
        yield tf.nn.relu(variable(side, side))
        yield variable(side, side) + variable(side, side)
        yield variable(side, side) * variable(side, side)
        yield tf.tanh(variable(side, side))
        yield tf.exp(variable(side, side))


PROBES = (_products, _convolutions, _poolings, _by_rows, _elementwise)


@dataclass
class Calibration:
    """A calibration of this device's operators.

    Attributes:
        hardware: this device, without rates of operators.
        store: the measurements that probes are added to.
        deadline: the time of ``clock`` on rank 0 after which no further probe begins.
        is_quick: whether to time fewer sizes, and only one dtype.
        progress: called with (probes done, probes).
    """

    processes: Processes
    hardware: Hardware
    store: Store
    deadline: float
    is_quick: bool
    progress: Callable[[int, int], None] = lambda done, total: None
    clock: Callable[[], float] = time.monotonic
    timer: OperatorTimer = field(default_factory=OperatorTimer)

    def rated(self) -> Iterator[Hardware]:
        """Yield the hardware with the rates fitted to the probes so far, better and better.

        Every rank must take all of them: the probes run in between.
        """
        dtypes = DTYPES[:1] if self.is_quick else DTYPES
        timed = [update for dtype in dtypes for update in self._updates(dtype)]
        # Interleaved, so that a deadline leaves every class some of its sizes.
        turns = zip_longest(*(self._probes(dtype) for dtype in dtypes))
        probes = [probe for turn in turns for probe in turn if probe is not None]
        for done, (trial, work) in enumerate(probes, start=1):
            if self.processes.broadcast(self.clock() > self.deadline):
                break
            timed += self._timed(trial, work)
            self.progress(done, len(probes))
            if done % KEPT_EACH == 0:
                yield replace(self.hardware, operators=fit_all(timed))
        yield replace(self.hardware, operators=fit_all(timed))

    def _timed(self, trial: OperatorTrial, work: WorkItem) -> list[Measured]:
        of_ranks = self.processes.gather(self.timer.time(trial))
        whole = [of_rank for of_rank in of_ranks if of_rank is not None]
        if len(whole) < len(of_ranks):
            return []
        measured = slowest_of(work, whole)
        self.store.add([measured])
        return [measured]

    def _probes(self, dtype: str) -> list[tuple[OperatorTrial, WorkItem]]:
        """Return the probes of all functions, interleaved; the largest of each come first, which determine the rates."""
        sides = QUICK_SIDES if self.is_quick else SIDES
        by_function = [reversed(list(self._probes_of(function, dtype, sides))) for function in PROBES]
        return [probe for turn in zip_longest(*by_function) for probe in turn if probe is not None]

    def _probes_of(self, function: Probes, dtype: str, sides: tuple[int, ...]) -> Iterator[tuple[OperatorTrial, WorkItem]]:
        model = record(lambda: _loss(function, dtype, sides), f"probes of {function.__name__}").model
        mesh = self.hardware.mesh(1)
        reshardings = ReshardingCosting(mesh, CollectiveCosts(self.hardware, mesh))
        costing = OperatorCosting(model.graph, model.backward, OperatorCosts(self.hardware), reshardings)
        for op in model.graph.step_operators:
            if op.type in SOURCES or op.name.startswith(_LOSS):
                continue
            config = Config(mesh, ())
            work = costs_of_config(costing, op, rule_of(op), config).work()
            if work is not None and work.key:
                yield OperatorTrial.of(op, config, model.graph, model.backward, costing.compute.time_ns(work) / 1e3), work

    def _updates(self, dtype: str) -> list[Measured]:
        """Measure updates of variables by momentum, which has one slot."""
        evict, rows = Evicting(), []
        for side in SIDES[2:]:
            updates = [_update(side, dtype) for _ in range(_UPDATES)]
            # Five accesses, as the costs of a plan count: gradient and slot, each read and written, and the value.
            n_bytes = 5 * side * side * tf.as_dtype(dtype).size
            device = self.hardware.device
            least_us = max(LEAST_US, device.operator_overhead_us, n_bytes / device.memory_bytes_per_s * 1e6)
            without, with_updates = (_gradients(side, dtype, variant) for variant in ([None] * _UPDATES, updates))
            time_us = max(least_us, self._longer_s(evict, without, with_updates) / _UPDATES * 1e6)
            rows.append(Measured(WorkItem("Variable", dtype, 0, n_bytes), time_us, 0.0, 0.0))
        return rows

    def _longer_s(self, before: Callable[[], None], one: Callable[[], object], other: Callable[[], object]) -> float:
        """Return the seconds by which ``other`` takes longer than ``one``, on the slowest rank.

        ``before`` is called before each of them.
        """
        self.processes.barrier()
        times_s = np.empty((_UPDATE_REPEATS, 2))
        for repeat, index in np.ndindex(*times_s.shape):
            before()
            times_s[repeat, index] = time_s((one, other)[index])
        return self.processes.gather_max(float(np.median(np.diff(times_s[1:], axis=1))))


def _gradients(side: int, dtype: str, updates: Sequence[Update | None]) -> Callable[[], object]:
    """Return a function that makes a gradient for each update, in sequence, and applies the update unless it is None."""

    def body(value: tf.Tensor) -> tf.Tensor:
        done: list[tf.Operation] = []
        for update in updates:
            with tf.control_dependencies(done):
                gradient = tf.fill((side, side), value)
            done = [gradient.op if update is None else update(gradient)]
        with tf.control_dependencies(done):
            return tf.identity(value)

    value = tf.constant(1.0, dtype)
    function = tf.function(body, autograph=False).get_concrete_function(value)
    return lambda: function(value).numpy()


def _update(side: int, dtype: str) -> Update:
    """Return a momentum update of a new variable, as a function of the gradient."""
    value, slot = (tf.Variable(tf.ones((side, side), dtype)) for _ in range(2))
    rate = tf.constant(1e-3, dtype)
    return lambda gradient: tf.raw_ops.ResourceApplyMomentum(
        var=value.handle, accum=slot.handle, lr=rate, grad=gradient, momentum=rate
    )


def _loss(function: Probes, dtype: str, sides: tuple[int, ...]) -> Any:
    """Record all probes of a function; return a loss that depends on all, so that every operand gets a gradient."""

    def variable(*shape: int) -> Any:
        return tf.compat.v1.get_variable(f"operand{next(numbers)}", shape, dtype)

    numbers = count()
    with tf.compat.v1.variable_scope(tf.compat.v1.get_variable_scope(), use_resource=True):
        results = list(function(variable, sides))
    with tf.name_scope(_LOSS):
        return tf.add_n([tf.reduce_sum(result) for result in results])
