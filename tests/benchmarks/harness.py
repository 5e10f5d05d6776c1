"""Parts that benchmarks share: alternating runs, medians with spread, and a plain TensorFlow training step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from models import BenchmarkModel
from scipy.stats import binom


@dataclass(frozen=True)
class Timing:
    """Seconds of single runs."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def divided(self, n_steps: int) -> Timing:
        """Return the seconds per step, of runs of ``n_steps`` steps."""
        return Timing(tuple(seconds / n_steps for seconds in self.seconds))

    def __str__(self) -> str:
        low, high = np.percentile(self.seconds, [25, 75])
        return f"{self.median * 1e3:.2f} ms ({low * 1e3:.2f} to {high * 1e3:.2f})"


def alternate(actions: Sequence[Callable[[], object]], rounds: int, warm: int = 3) -> list[Timing]:
    """Run the actions in turn, ``rounds`` times each; what slows the machine then slows all of them."""
    for _ in range(warm):
        for action in actions:
            action()
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for action, times in zip(actions, seconds, strict=True):
            start = time.perf_counter()
            action()
            times.append(time.perf_counter() - start)
    return [Timing(tuple(times)) for times in seconds]


def ratio(numerator: Timing, denominator: Timing) -> str:
    """Return the median of the ratios round by round, with quartiles."""
    ratios = np.divide(numerator.seconds, denominator.seconds)
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def ratio_interval(numerator: Timing, denominator: Timing) -> str:
    """Return the 95 % confidence interval of the median of the ratios round by round, by their order alone."""
    ratios = np.sort(np.divide(numerator.seconds, denominator.seconds))
    below = max(0, int(binom.ppf(0.025, len(ratios), 0.5)) - 1)
    return f"{ratios[below]:.3f} to {ratios[-1 - below]:.3f}"


def plain_step(model: BenchmarkModel, batch: int) -> Callable[[], float]:
    """A training step in plain TensorFlow: SGD with momentum, one ``tf.function``, fed from NumPy."""
    import tensorflow as tf

    images, labels = model.batch(batch)
    variables: dict[str, tf.Variable] = {}
    slots: dict[str, tf.Variable] = {}
    rng = np.random.default_rng(1)

    def variable(name: str, shape: list[int]) -> tf.Variable:
        if name not in variables:
            with tf.init_scope():
                variables[name] = tf.Variable(rng.normal(size=shape).astype(np.float32) * 0.05)
                slots[name] = tf.Variable(np.zeros(shape, np.float32))
        return variables[name]

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        loss = model.build(tf, variable, x, y)
        names = list(variables)
        gradients = tf.gradients(loss, [variables[name] for name in names])
        for name, gradient in zip(names, gradients, strict=True):
            tf.raw_ops.ResourceApplyMomentum(
                var=variables[name].handle, accum=slots[name].handle, lr=0.01, grad=gradient, momentum=0.9
            )
        return loss

    signature = [tf.TensorSpec(images.shape, tf.float32), tf.TensorSpec(labels.shape, tf.int64)]
    compiled = tf.function(step, input_signature=signature, autograph=False).get_concrete_function()
    return lambda: float(compiled(tf.constant(images), tf.constant(labels)).numpy())


def tensoropt_step(model: BenchmarkModel, batch: int) -> Callable[[], float]:
    """The same training step through TensorOpt's public API, on the ranks at hand."""
    import tensoropt

    images, labels = model.batch(batch)
    tensoropt.init(seed=1)
    x = tensoropt.placeholder(tensoropt.float32, images.shape)
    y = tensoropt.placeholder(tensoropt.int64, labels.shape)
    loss = model.build(tensoropt, lambda name, shape: tensoropt.get_variable(name, shape), x, y)
    train_op = tensoropt.MomentumOptimizer(0.01, 0.9).minimize(loss)
    plan = tensoropt.find_strategy("mini_time")
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan)
    return lambda: float(tensoropt.run([train_op, loss], feed_dict={x: images, y: labels})[1])
