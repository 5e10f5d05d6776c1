"""Models of the zoo trained by Keras optimizers: on one device by plain TensorFlow and Keras, and by the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from helpers import zoo
from helpers.strategies import assert_close, charged, executed, feeds_of, random_router, random_strategy, uncut_engine
from oracles.shards import gather

from tensoropt.frontend.importer import import_graph
from tensoropt.frontend.recorded_graph import RecordedStep
from tensoropt.ir.graph import Graph
from tensoropt.lowering.gradient_analysis import analyse
from tensoropt.lowering.resharding.reshard import Backend
from tensoropt.lowering.variables import StateEntry
from tensoropt.optimizers.keras_optimizer import KerasOptimizer
from tensoropt.program.fetch import Fetch
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.rule import Config
from tensoropt.runtime.engine import Engine
from tensoropt.sharding.model import Model

N_STEPS = 4


def lookups(api: Any = tf.compat.v1, vocabulary: int = 11) -> zoo.Built:
    """Two tables that are only looked up, one of them twice; words occur several times in a batch, some of them never."""
    batch, length, width = 3, 5, 6
    words = api.placeholder(api.int64, [batch, length], name="words")
    nexts = api.placeholder(api.int64, [batch, length], name="nexts")
    table = api.get_variable("table", [vocabulary, width], api.float64)
    kinds = api.get_variable("kinds", [4, width], api.float64)
    w = api.get_variable("w", [width, vocabulary], api.float64)
    x = api.gather(table, words) + api.tanh(api.gather(table, nexts)) * api.gather(kinds, api.minimum(words, 3))
    logits = api.matmul(api.reshape(x, [batch * length, width]), w)
    wanted = api.reshape(nexts, [batch * length])
    losses = api.nn.sparse_softmax_cross_entropy_with_logits(labels=wanted, logits=logits)
    loss = api.reduce_mean(losses)
    rng = np.random.default_rng(1)
    drawn = {each: rng.integers(0, vocabulary - 3, (zoo.N_BATCHES, batch, length)) for each in (words, nexts)}
    return zoo.Built(loss, drawn, ())


MODELS = {function.__name__: function for function in (zoo.mlp, zoo.cnn, zoo.attention, lookups)}
Batch = Mapping[str, np.ndarray]
MakeOptimizer = Callable[[list[Any]], Any]
"""Makes an optimizer for trained variables, which it may exclude from weight decay."""


@dataclass(frozen=True)
class Recorded:
    """A model's graph as a user records it, without gradients."""

    graph: tf.Graph
    built: zoo.Built
    variables: Mapping[str, Any]
    trained: tuple[str, ...]
    train: Any


def _recorded(name: str) -> Recorded:
    with tf.Graph().as_default() as graph:
        tf.compat.v1.set_random_seed(1)
        built = MODELS[name]()
        with tf.control_dependencies(built.updates):
            train = tf.no_op(name="train")
        variables = {variable.op.name: variable for variable in tf.compat.v1.global_variables()}
        trained = tuple(variable.op.name for variable in tf.compat.v1.trainable_variables())
    return Recorded(graph, built, variables, trained, train)


@dataclass(frozen=True)
class Plain(Recorded):
    """A model of the zoo in plain TensorFlow, with gradients.

    Attributes:
        first_values: by the variable operator's name.
    """

    session: Any
    gradients: tuple[Any, ...]
    first_values: Mapping[str, np.ndarray]

    def batch(self, step: int) -> Batch:
        return {key.name: values[step % zoo.N_BATCHES] for key, values in self.built.inputs.items()}

    def step(self, values: dict[str, np.ndarray], batch: Batch) -> tuple[np.ndarray, list[Any]]:
        """Loss and gradients (``IndexedSlices`` where TensorFlow has them) for these values of variables.

        ``values`` of moving averages are brought up to date.
        """
        initializers = {name: variable.initializer for name, variable in self.variables.items()}
        self.session.run(initializers, {initializers[name].inputs[1]: values[name] for name in initializers})
        loss, gradients, _ = self.session.run([self.built.loss, self.gradients, self.built.updates], batch)
        gradients = [
            tf.IndexedSlices(*map(tf.constant, gradient)) if isinstance(gradient, tuple) else tf.constant(gradient)
            for gradient in gradients
        ]
        moved = {name: variable for name, variable in self.variables.items() if name not in self.trained}
        values.update(self.session.run(moved))
        return loss, gradients


@cache
def plain(name: str) -> Plain:
    recorded = _recorded(name)
    with recorded.graph.as_default():
        trained = [recorded.variables[name] for name in recorded.trained]
        gradients = tuple(tf.gradients(recorded.built.loss, trained))
    session = tf.compat.v1.Session(graph=recorded.graph)
    session.run([variable.initializer for variable in recorded.variables.values()])
    return Plain(**vars(recorded), session=session, gradients=gradients, first_values=session.run(dict(recorded.variables)))


@dataclass(frozen=True)
class Trained:
    """Attributes:
    variables: the model's, by name.
    optimizer_variables: in the optimizer's order.
    """

    losses: tuple[np.ndarray, ...]
    variables: Mapping[str, np.ndarray]
    optimizer_variables: tuple[tuple[str, np.ndarray], ...]


def keras_variables(model: Plain, constraints: Mapping[str, Any]) -> list[Any]:
    """The trained variables as a Keras model would have them."""
    made = []
    for name in model.trained:
        made.append(keras.Variable(model.first_values[name], dtype=model.first_values[name].dtype, name=name))
        made[-1].constraint = constraints.get(name)
    return made


def on_one_device(model: Plain, make: MakeOptimizer, batches: list[Batch], constraints: Mapping[str, Any]) -> Trained:
    """Gradients by plain TensorFlow, updates by plain Keras."""
    variables = keras_variables(model, constraints)
    optimizer = make(variables)
    optimizer.build(variables)
    values, losses = dict(model.first_values), []
    for batch in batches:
        loss, gradients = model.step(values, batch)
        scale = optimizer.scale_loss(tf.ones([], tf.float64))
        optimizer.apply([keras.ops.multiply(gradient, scale) for gradient in gradients], variables)
        values.update({name: np.asarray(variable) for name, variable in zip(model.trained, variables, strict=True)})
        losses.append(loss)
    kept = tuple((variable.path, np.asarray(variable)) for variable in optimizer.variables)
    return Trained(tuple(losses), values, kept)


@dataclass(frozen=True)
class Case:
    """A model, an optimizer for it, and what one device makes of both."""

    model: Model
    optimizer: KerasOptimizer
    loss: str
    first_values: Mapping[str, np.ndarray]
    batches: tuple[Batch, ...]
    expected: Trained

    def engine(self, mesh: Mesh, seed: int, backend: Backend, prefers: Callable[[Config], bool] | None = None) -> Engine:
        """An engine for a random strategy over random paths; by every second seed its operators run in order."""
        view = random_strategy(self, mesh, seed, prefers)
        return uncut_engine(view, random_router(seed), backend, lambda name: self.first_values[name], bool(seed % 2))

    @property
    def graph(self) -> Graph:
        return self.model.graph


def case_of(
    name: str,
    make: MakeOptimizer,
    constraints: Mapping[str, Any] | None = None,
    change: Callable[[int, dict[str, np.ndarray]], None] = lambda step, batch: None,
    n_steps: int = N_STEPS,
) -> Case:
    """Record a model with an optimizer, and train it on one device."""
    model, recorded = plain(name), _recorded(name)
    batches = []
    for step in range(n_steps):
        batches.append({key: np.array(value) for key, value in model.batch(step).items()})
        change(step, batches[-1])
    variables = keras_variables(model, constraints or {})
    optimizer = KerasOptimizer.of(make(variables), variables)
    graph = import_graph(recorded.graph, [RecordedStep(recorded.train, recorded.built.loss, recorded.trained, optimizer)])
    expected = on_one_device(model, make, batches, constraints or {})
    loss = recorded.built.loss.name
    return Case(Model(graph, analyse(graph)), optimizer, loss, model.first_values, tuple(batches), expected)


def check(
    case: Case,
    mesh: Mesh,
    seed: int,
    backend: Backend,
    tolerance: float = 1e-10,
    prefers: Callable[[Config], bool] | None = None,
) -> Engine:
    """Train by a random strategy: losses, variables, and all that the optimizer keeps are one device's."""
    engine = case.engine(mesh, seed, backend, prefers)
    fetch = Fetch(((case.graph.tensors[case.loss], False),), ("train",))
    for step, (batch, expected) in enumerate(zip(case.batches, case.expected.losses, strict=True)):
        (losses,) = engine.run(fetch, feeds_of(case.graph, batch))
        for loss in losses:
            assert_same(loss, expected, tolerance, f"the loss of step {step}")
    check_state(engine, case.expected, tolerance)
    done = executed(engine.function(fetch, tuple(feeds_of(case.graph, case.batches[0]))).log)
    paid = charged(engine.views[0].whole, engine.states[0].path_finder)
    assert done == paid, f"executed but not charged: {dict(done - paid)}; charged but not executed: {dict(paid - done)}"
    return engine


def check_state(engine: Engine, expected: Trained, tolerance: float) -> None:
    """All state is one device's; needs all ranks in this process."""
    held = engine.state()
    assert len({entry.key for entry in held}) == len(held)
    for entry in held:
        if entry.step is None:
            assert_same(whole(entry), expected.variables[entry.key], tolerance, entry.key)
    kept = [entry for entry in held if entry.step is not None]
    for entry, (path, value) in zip(kept, expected.optimizer_variables, strict=True):
        assert path.partition("/")[2] in entry.key, f"{entry.key} stands where Keras has {path}"
        assert_same(whole(entry), value, tolerance, entry.key)


def whole(entry: StateEntry) -> np.ndarray:
    return gather([variable.numpy() for variable in entry.variables], entry.layout, entry.shape)


def assert_same(got: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    """Assert as :func:`assert_close` does; values that aren't finite must be equal."""
    if not np.all(np.isfinite(expected)):
        assert np.array_equal(np.isfinite(got), np.isfinite(expected)), f"{what}: {got} is not {expected}"
        return
    assert_close(got, expected, tolerance, what)
