"""Small models that tests share: each is one function over TensorFlow's names, recorded by whoever calls it.

``record(mlp, "adam")`` gives the imported model with first values, batches, and what plain TensorFlow makes of it; a test of
the public API calls ``mlp(tensoropt)`` between ``init`` and ``find_strategy`` instead. Extents are odd on purpose: few of
them divide by 2, 3 or 4. No parameter has a gradient that is zero but for rounding (a bias before a normalisation), of
which Adam would make a step of full length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.frontend.importer import import_graph
from tensoropt.frontend.recorded_graph import RecordedStep
from tensoropt.ir.graph import Graph
from tensoropt.ir.invariants import check_graph
from tensoropt.lowering.gradient_analysis import analyse
from tensoropt.optimizers.classic import Classic
from tensoropt.sharding.model import Model

from .kept import kept, name_of

N_BATCHES = 3
HYPERPARAMETERS: dict[str, dict[str, float]] = {
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.1, "momentum": 0.9},
    "nesterov": {"learning_rate": 0.1, "momentum": 0.9},
    "adam": {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8},
}


@dataclass(frozen=True)
class Built:
    """The result of a model function.

    Attributes:
        inputs: a batch (of three) per placeholder.
        metrics: what an evaluation fetches.
        updates: operations that run with each training step.
        inner: tensors inside the model, for tests that feed or fetch one.
        steps: the losses of several training steps, each with what it trains; the first is that of all.
    """

    loss: Any
    inputs: Mapping[Any, tuple[np.ndarray, ...]]
    metrics: tuple[Any, ...]
    updates: tuple[Any, ...] = ()
    inner: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[tuple[Any, tuple[Any, ...]], ...] = ()


def _reals(seed: int, *shape: int) -> tuple[np.ndarray, ...]:
    return tuple(np.random.default_rng([seed, step]).normal(size=shape) for step in range(N_BATCHES))


def _classes(seed: int, n_classes: int, *shape: int) -> tuple[np.ndarray, ...]:
    return tuple(np.random.default_rng([seed, step]).integers(0, n_classes, shape) for step in range(N_BATCHES))


def mlp(api: Any = tf.compat.v1, batch: int = 7) -> Built:
    """Two dense layers with a gate and weight decay; labels are distributions."""
    x = api.placeholder(api.float64, [batch, 9], name="x")
    y = api.placeholder(api.float64, [batch, 5], name="y")
    w1 = api.get_variable("w1", [9, 10], api.float64)
    b1 = api.get_variable("b1", [10], api.float64, initializer=api.constant_initializer(0.1))
    w2 = api.get_variable("w2", [10, 5], api.float64)
    scale = api.get_variable("scale", [1, 5], api.float64, initializer=api.ones_initializer())
    hidden = api.add(api.matmul(x, w1), b1, name="hidden")
    gated = api.tanh(hidden) * api.sigmoid(hidden)
    logits = api.matmul(gated, w2) * scale
    losses = api.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=logits)
    loss = api.reduce_mean(losses) + 0.01 * (api.nn.l2_loss(w1) + api.nn.l2_loss(w2))
    hits = api.equal(api.argmax(logits, -1), api.argmax(y, -1))
    accuracy = api.reduce_mean(api.cast(hits, api.float64), name="accuracy")
    labels = tuple(np.abs(values) / np.abs(values).sum(1, keepdims=True) for values in _reals(2, batch, 5))
    return Built(loss, {x: _reals(1, batch, 9), y: labels}, (accuracy, api.nn.softmax(logits)), inner={"hidden": hidden})


def _moving(api: Any, name: str, value: Any) -> Any:
    """An assignment that moves an average towards a value."""
    average = api.get_variable(name, value.shape, value.dtype, initializer=api.zeros_initializer(), trainable=False)
    return api.assign(average, 0.9 * average + 0.1 * value)


def _normalised(api: Any, x: Any, name: str, updates: list[Any]) -> Any:
    """Batch normalisation in its elementary operators."""
    mean, variance = api.nn.moments(x, [0, 1, 2])
    gamma = api.get_variable(f"{name}_gamma", x.shape[-1:], x.dtype, initializer=api.ones_initializer())
    beta = api.get_variable(f"{name}_beta", x.shape[-1:], x.dtype, initializer=api.zeros_initializer())
    updates += [_moving(api, f"{name}_mean", mean), _moving(api, f"{name}_variance", variance)]
    return api.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)


def _fused(api: Any, x: Any, name: str, updates: list[Any]) -> Any:
    """Batch normalisation in one operator."""
    gamma = api.get_variable(f"{name}_gamma", x.shape[-1:], x.dtype, initializer=api.ones_initializer())
    beta = api.get_variable(f"{name}_beta", x.shape[-1:], x.dtype, initializer=api.zeros_initializer())
    normal, mean, variance = api.nn.fused_batch_norm(x, gamma, beta, epsilon=1e-3)
    updates += [_moving(api, f"{name}_mean", mean), _moving(api, f"{name}_variance", variance)]
    return normal


def _residual_network(api: Any, dtype: Any, normalise: Callable[..., Any]) -> Built:
    updates: list[Any] = []
    x = api.placeholder(dtype, [6, 5, 5, 3], name="x")
    y = api.placeholder(api.int64, [6], name="y")
    k1 = api.get_variable("k1", [3, 3, 3, 4], dtype)
    k2 = api.get_variable("k2", [3, 3, 4, 4], dtype)
    k3 = api.get_variable("k3", [1, 1, 4, 6], dtype)
    w = api.get_variable("w", [6, 7], dtype)
    stem = api.nn.relu(normalise(api, api.nn.conv2d(x, k1, 1, "SAME"), "n1", updates))
    branch = normalise(api, api.nn.conv2d(stem, k2, 1, "SAME"), "n2", updates)
    joined = api.nn.relu(branch + stem, name="joined")
    pooled = api.nn.max_pool2d(api.nn.conv2d(joined, k3, 1, "VALID"), 2, 2, "VALID")
    logits = api.matmul(api.reduce_mean(pooled, [1, 2]), w)
    loss = api.reduce_mean(api.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    accuracy = api.reduce_mean(api.cast(api.equal(api.argmax(logits, -1), y), dtype))
    inputs = {x: tuple(v.astype(x.dtype.as_numpy_dtype) for v in _reals(3, 6, 5, 5, 3)), y: _classes(4, 7, 6)}
    metrics = (accuracy, api.argmax(logits, -1), api.reduce_max(logits))
    return Built(loss, inputs, metrics, tuple(updates), {"joined": joined})


def cnn(api: Any = tf.compat.v1) -> Built:
    """A residual block with batch normalisation, in float64; moving averages by assignment."""
    return _residual_network(api, api.float64, _normalised)


def windows(api: Any = tf.compat.v1, batch: int = 3) -> Built:
    """Windows of all kinds in float64: strides, paddings, overlapping pools, a depthwise convolution; odd extents."""
    x = api.placeholder(api.float64, [batch, 13, 11, 2], name="x")
    first = api.get_variable("first", [7, 7, 2, 4], api.float64)
    depth = api.get_variable("depth", [3, 3, 4, 1], api.float64)
    last = api.get_variable("last", [3, 2, 4, 3], api.float64)
    stem = api.nn.max_pool2d(api.nn.conv2d(x, first, 2, "SAME"), 3, 1, "SAME")
    joined = api.nn.avg_pool2d(api.nn.depthwise_conv2d(stem, depth, [1, 1, 1, 1], "SAME"), 3, 2, "SAME") + 1.0
    y = api.nn.conv2d(joined, last, 1, [[0, 0], [2, 1], [0, 1], [0, 0]])
    loss = api.reduce_mean(api.square(y) * y)
    return Built(loss, {x: _reals(8, batch, 13, 11, 2)}, (api.reduce_max(y),), inner={"joined": joined})


def fused_cnn(api: Any = tf.compat.v1) -> Built:
    """The same with FusedBatchNormV3, which TensorFlow has in float32 only."""
    return _residual_network(api, api.float32, _fused)


def attention(api: Any = tf.compat.v1, batch: int = 3) -> Built:
    """A Transformer block: embedding, heads, layer normalisation, residual edges, tied output weights."""
    length, heads, depth, vocabulary = 5, 2, 3, 11
    width = heads * depth
    words = api.placeholder(api.int64, [batch, length], name="words")
    nexts = api.placeholder(api.int64, [batch, length], name="nexts")
    table = api.get_variable("table", [vocabulary, width], api.float64)
    places = api.get_variable("places", [length, width], api.float64)
    x = api.gather(table, words) + places

    def projected(name: str) -> Any:
        w = api.get_variable(name, [width, width], api.float64)
        flat = api.matmul(api.reshape(x, [batch * length, width]), w)
        return api.transpose(api.reshape(flat, [batch, length, heads, depth]), [0, 2, 1, 3])

    def normalised(values: Any, name: str) -> Any:
        mean, variance = api.nn.moments(values, [-1], keepdims=True)
        gamma = api.get_variable(f"{name}_gamma", [width], api.float64, initializer=api.ones_initializer())
        beta = api.get_variable(f"{name}_beta", [width], api.float64, initializer=api.zeros_initializer())
        return api.nn.batch_normalization(values, mean, variance, beta, gamma, 1e-5)

    scores = api.matmul(projected("query"), projected("key"), transpose_b=True) / np.sqrt(depth)
    mixed = api.matmul(api.nn.softmax(scores), projected("value"))
    w = api.get_variable("output", [heads, depth, width], api.float64)
    x = normalised(x + api.einsum("bhld,hdw->blw", mixed, w), "first")
    up = api.get_variable("up", [width, 7], api.float64)
    down = api.get_variable("down", [7, width], api.float64)
    inner = api.nn.relu(api.tensordot(x, up, 1))
    x = normalised(x + api.tensordot(inner, down, 1), "second")
    logits = api.matmul(api.reshape(x, [batch * length, width]), table, transpose_b=True)
    wanted = api.reshape(nexts, [-1])
    loss = api.reduce_mean(api.nn.sparse_softmax_cross_entropy_with_logits(labels=wanted, logits=logits))
    accuracy = api.reduce_mean(api.cast(api.equal(api.argmax(logits, -1), wanted), api.float64))
    inputs = {words: _classes(5, vocabulary, batch, length), nexts: _classes(6, vocabulary, batch, length)}
    return Built(loss, inputs, (accuracy, api.nn.top_k(logits, 2).values), inner={"scores": scores})


def noise() -> Built:
    """Variables whose gradients are what is drawn, to the bit."""
    api, total, shape = tf.compat.v1, 0.0, [7, 5, 6]
    seed = api.placeholder(tf.int64, [2], name="seed")
    for name, drawn in {
        "uniform": tf.random.stateless_uniform(shape, seed, dtype=tf.float64),
        "normal": tf.cast(tf.random.stateless_normal(shape, seed + 1), tf.float64),
        "truncated": tf.random.stateless_truncated_normal(shape, seed + 2, dtype=tf.float64),
        "whole": tf.cast(tf.random.stateless_uniform(shape, seed + 3, 0, 1000, tf.int32), tf.float64),
        "state": tf.random.normal(shape, dtype=tf.float64, seed=4),
        "dropout": tf.nn.experimental.stateless_dropout(tf.ones(shape, tf.float64), 0.3, seed=seed + 5),
    }.items():
        total += tf.reduce_sum(api.get_variable(name, shape, tf.float64) * drawn)
    return Built(total, {seed: tuple(np.array([1, step]) for step in range(N_BATCHES))}, (seed + 1,))


def fourier(api: Any = tf.compat.v1, batch: int = 5) -> Built:
    """Mixing by Fourier transforms beside a residual edge, complex weights, and all ways from complex to real numbers."""
    length, width = 6, 4
    x = api.placeholder(api.float64, [batch, length, 3], name="x")
    w = api.get_variable("w", [3, width], api.float64)
    real = api.get_variable("real", [length, width], api.float64)
    imaginary = api.get_variable("imaginary", [length, width], api.float64)
    filters = api.get_variable("filters", [batch, 1, width // 2 + 1], api.float64)
    hidden = api.reshape(api.matmul(api.reshape(x, [batch * length, 3]), w), [batch, length, width])
    mixed = hidden + api.math.real(api.signal.fft2d(api.cast(hidden, api.complex128)))
    weight = api.complex(real, imaginary)
    product = api.matmul(api.cast(mixed, api.complex128), weight, adjoint_b=True)
    back = api.signal.ifft(product * api.math.conj(product[:, :1]) / (3.0 + weight[:, 0]))
    spectrum = api.signal.rfft(mixed) * api.cast(filters, api.complex128)
    filtered = api.signal.irfft(spectrum, [width])
    parts = api.abs(back) + api.math.imag(back) * api.math.angle(product + 9.0)
    loss = api.reduce_mean(api.square(filtered)) + api.reduce_mean(api.sqrt(1.0 + api.abs(parts)))
    return Built(loss, {x: _reals(9, batch, length, 3)}, (api.reduce_max(filtered), parts), inner={"mixed": mixed})


def broadcasting(api: Any = tf.compat.v1) -> Built:
    """Dimensions of 3 that meet dimensions of 1 in every way: over two devices, blocks of 1 stand beside blocks of 2."""
    x = api.placeholder(api.float64, [3, 3], name="x")
    row = api.get_variable("row", [1, 3], api.float64)
    column = api.get_variable("column", [3, 1], api.float64)
    vector = api.get_variable("vector", [3], api.float64)
    single = api.get_variable("single", [1, 1], api.float64)
    square = api.get_variable("square", [3, 3], api.float64)
    stack = api.get_variable("stack", [3, 1, 3], api.float64)
    outer = row * column + vector
    mixed = api.tanh(outer * x - column) / (2.0 + api.sin(row) * single)
    mixed = api.matmul(mixed, square) - api.reduce_mean(mixed, 0, keepdims=True)
    stacked = stack * mixed + api.expand_dims(column, 0)
    chosen = api.where(stacked > 0.0, stacked * vector, api.maximum(stacked, row - 0.5))
    peak = api.reduce_max(chosen, 1, keepdims=True)
    squeezed = api.squeeze(peak, 1) * api.nn.softmax(square)
    loss = api.reduce_sum(api.squared_difference(squeezed, vector)) + api.reduce_mean(chosen)
    return Built(loss, {x: _reals(7, 3, 3)}, (api.reduce_max(squeezed), chosen))


@dataclass(frozen=True)
class Reference:
    """The numbers of plain TensorFlow on one device, with its own optimizers.

    Attributes:
        losses: before each of the steps.
        variables: after the steps, by the variable operator's name.
        metrics: after the steps, on the first batch.
    """

    losses: tuple[np.ndarray, ...]
    variables: Mapping[str, np.ndarray]
    metrics: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Recorded:
    """An imported model with all that it takes to run it.

    Attributes:
        batches: per step the arrays by placeholder's tensor name.
        metrics: names of the tensors that an evaluation fetches.
    """

    model: Model
    loss: str
    metrics: tuple[str, ...]
    first_values: Mapping[str, np.ndarray]
    batches: tuple[Mapping[str, np.ndarray], ...]
    reference: Reference

    @property
    def graph(self) -> Graph:
        return self.model.graph


@lru_cache(maxsize=32)
def record(function: Callable[[], Built], optimizer: str, seed: int = 1) -> Recorded:
    """Record a model function with one training step ``train``, import it, and train it in plain TensorFlow.

    The result is immutable, and tests of a process share it. Of a function that has a name it is kept for all processes.
    """
    name = name_of(function)
    return kept(name and f"{name} {optimizer} {seed}", lambda: _record(function, optimizer, seed))


def _record(function: Callable[[], Built], optimizer: str, seed: int) -> Recorded:
    with tf.Graph().as_default() as recorded:
        tf.compat.v1.set_random_seed(seed)
        built = function()
        variables = tf.compat.v1.global_variables()
        trained = built.steps or ((built.loss, tuple(tf.compat.v1.trainable_variables())),)
        with tf.control_dependencies(built.updates):
            trains = [tf.no_op(name="train") for _ in trained]
    hyperparameters = HYPERPARAMETERS[optimizer]
    classic = Classic(optimizer, tuple(hyperparameters.items()))
    graph = import_graph(
        recorded,
        [RecordedStep(train, loss, tuple(variable.handle.op.name for variable in own), classic)
         for train, (loss, own) in zip(trains, trained, strict=True)],
    )  # fmt: skip
    check_graph(graph)
    with recorded.as_default(), tf.compat.v1.Session(config=_unoptimized()) as session:
        # Only now, so that the recorded graph above is that of a user, without gradients.
        optimizers = [_optimizer(optimizer, hyperparameters) for _ in trained]
        pairs = [each.compute_gradients(*of_step) for each, of_step in zip(optimizers, trained, strict=True)]
        with tf.control_dependencies([tf.identity(gradient) for each in pairs for gradient, _ in each]):
            minimize = tf.group(*(each.apply_gradients(own) for each, own in zip(optimizers, pairs, strict=True)))
        session.run(tf.compat.v1.global_variables_initializer())
        first_values = {v.op.name: value for v, value in zip(variables, session.run(variables), strict=True)}
        losses = []
        for i in range(N_BATCHES):
            feed = {key: values[i] for key, values in built.inputs.items()}
            losses.append(session.run([built.loss, minimize, *built.updates], feed)[0])
        after = {v.op.name: value for v, value in zip(variables, session.run(variables), strict=True)}
        metrics = session.run(built.metrics, {key: values[0] for key, values in built.inputs.items()})
    batches = tuple({key.name: values[i] for key, values in built.inputs.items()} for i in range(N_BATCHES))
    return Recorded(
        Model(graph, analyse(graph)), built.loss.name, tuple(metric.name for metric in built.metrics),
        first_values, batches, Reference(tuple(losses), after, tuple(metrics)),
    )  # fmt: skip


def _unoptimized() -> tf.compat.v1.ConfigProto:
    """Return what runs a graph as it was built: looking for a faster one takes longer than a few steps."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def _optimizer(kind: str, hyperparameters: Mapping[str, float]) -> Any:
    train = tf.compat.v1.train
    if kind == "sgd":
        return train.GradientDescentOptimizer(**hyperparameters)
    if kind in ("momentum", "nesterov"):
        return train.MomentumOptimizer(**hyperparameters, use_nesterov=kind == "nesterov")
    return train.AdamOptimizer(**hyperparameters)
