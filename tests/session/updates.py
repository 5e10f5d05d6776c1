"""Scripts that compute with gradients, written once: they run by TensorFlow's own sessions, and under a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

import tensoropt

N_SAMPLES, N_STEPS = 8, 3
WEIGHTS = {"w": (6, 10), "v": (10, 4), "b": (4,)}


def variables(api: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    first = {name: rng.normal(size=shape) for name, shape in WEIGHTS.items()}
    return [api.get_variable(n, dtype=api.float64, initializer=api.constant_initializer(first[n]), shape=WEIGHTS[n])
            for n in WEIGHTS]


def loss_of(api: Any, x: Any, y: Any, w: Any, v: Any, b: Any) -> Any:
    logits = api.matmul(api.nn.relu(api.matmul(x, w)), v) + b
    return api.reduce_mean(api.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def as_they_are(api: Any, x: Any, y: Any) -> tuple[Any, list[Any]]:
    loss, optimizer = loss_of(api, x, y, *variables(api)), api.train.AdamOptimizer(0.01)
    return optimizer.apply_gradients(optimizer.compute_gradients(loss)), [loss]


def clipped(api: Any, x: Any, y: Any) -> tuple[Any, list[Any]]:
    """Clip by the global norm, count steps, and hold moving averages of the weights after the update."""
    weights = variables(api)
    loss, count = loss_of(api, x, y, *weights), api.Variable(0, trainable=False, dtype=api.int64, use_resource=True)
    averages = [api.Variable(api.zeros(each.shape, api.float64), trainable=False, use_resource=True) for each in weights]
    optimizer = api.train.MomentumOptimizer(0.1, 0.9)
    gradients, updated = zip(*optimizer.compute_gradients(loss), strict=True)
    gradients, norm = api.clip_by_global_norm(gradients, 0.5)
    step = optimizer.apply_gradients(zip(gradients, updated, strict=True), global_step=count)
    with api.control_dependencies([step]):
        held = [one.assign(0.9 * one + 0.1 * weight) for one, weight in zip(averages, weights, strict=True)]
    return api.group(*held), [loss, norm]


def by_hand(api: Any, x: Any, y: Any) -> tuple[Any, list[Any]]:
    weights = variables(api)
    loss = loss_of(api, x, y, *weights)
    gradients = api.gradients(loss, weights)
    return api.group(*[w.assign_sub(0.1 * g) for w, g in zip(weights, gradients, strict=True)]), [loss]


def queue(api: Any, x: Any, y: Any) -> tuple[Any, list[Any]]:
    """Keep some results in rows of a variable, by scatters and by slices."""
    weights, optimizer = variables(api), api.train.GradientDescentOptimizer(0.2)
    kept = api.Variable(api.zeros([5, 10], api.float64), trainable=False, use_resource=True)
    loss, hidden = loss_of(api, x, y, *weights), api.matmul(x, weights[0])
    with api.control_dependencies([kept.scatter_nd_update([[0], [2]], hidden[:2])]):
        sliced = kept[3:4].assign(hidden[2:3])
    with api.control_dependencies([sliced]):
        total = api.reduce_sum(kept * 2.0) + loss
    with api.control_dependencies([total]):  # else both may read the weights that the step updates
        return optimizer.minimize(loss), [loss, total]


def towers(api: Any, x: Any, y: Any) -> tuple[Any, list[Any]]:
    """Two towers with the same weights on half of the batch each, whose gradients are averaged."""
    weights, optimizer, half = variables(api), api.train.GradientDescentOptimizer(0.2), N_SAMPLES // 2
    losses = [loss_of(api, x[:half], y[:half], *weights), loss_of(api, x[half:], y[half:], *weights)]
    pairs = zip(*[optimizer.compute_gradients(loss, weights) for loss in losses], strict=True)
    averaged = [(api.reduce_mean(api.stack([g for g, _ in each]), 0), each[0][1]) for each in pairs]
    return optimizer.apply_gradients(averaged), losses


def second_order(api: Any, x: Any, y: Any) -> tuple[Any, list[Any]]:
    """A penalty on the gradient with respect to the inputs."""
    weights = variables(api)
    loss = loss_of(api, x, y, *weights)
    (slope,) = api.gradients(loss, [x])
    loss = loss + api.reduce_mean(api.square(slope))
    return api.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=weights), [loss]


SCRIPTS: Mapping[str, Callable[[Any, Any, Any], tuple[Any, list[Any]]]] = {
    each.__name__: each for each in (as_they_are, clipped, by_hand, queue, towers, second_order)
}


def fed() -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(2).normal(size=(N_SAMPLES, 6)), np.arange(N_SAMPLES) % 4


def plain(name: str) -> list[list[np.ndarray]]:
    """The results of each step of a script in a session of TensorFlow's own, and at last the weights."""
    api, (images, labels) = tf.compat.v1, fed()
    with tf.Graph().as_default(), api.Session() as session, api.variable_scope("", use_resource=True):
        x, y = api.placeholder(api.float64, [N_SAMPLES, 6]), api.placeholder(api.int64, [N_SAMPLES])
        step, results = SCRIPTS[name](api, x, y)
        session.run(api.global_variables_initializer())
        found = [session.run([step, *results], {x: images, y: labels})[1:] for _ in range(N_STEPS)]
        return [*found, session.run(api.global_variables()[: len(WEIGHTS)])]


def planned(name: str, hardware: str | None = None, parallelism: int = 2, collectives: str | None = None) -> list[Any]:
    """The same under a plan whose first products are split."""
    images, labels = fed()
    tensoropt.init(hardware=hardware, seed=1)
    x = tensoropt.placeholder(tensoropt.float64, [N_SAMPLES, 6])
    y = tensoropt.placeholder(tensoropt.int64, [N_SAMPLES])
    step, results = SCRIPTS[name](tensoropt, x, y)
    weights = tensoropt.trainable_variables()[: len(WEIGHTS)]
    plan = tensoropt.find_strategy(parallelism=parallelism, force={"MatMul": {"n": 2}})
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan, collectives=collectives)
    assert plan.n_collectives
    found = [tensoropt.run([step, *results], {x: images, y: labels})[1:] for _ in range(N_STEPS)]
    return [*found, tensoropt.run(weights)]


def check(name: str, **where: Any) -> None:
    """Check that a script does under a plan what it does in a session."""
    for got, expected in zip(planned(name, **where), plain(name), strict=True):
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)
