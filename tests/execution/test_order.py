"""The backward pass in order: a schedule that TensorFlow accepts, fewer gradients at once, no parameter copied."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf
from helpers import zoo
from helpers.strategies import engine_of, feeds_of, random_router, random_strategy, train_and_check, training_fetch

from tensoropt.common.settings import LAG
from tensoropt.ir.graph import Operator, Tensor
from tensoropt.lowering import order
from tensoropt.lowering.gradient_overrides import lean_gradient
from tensoropt.lowering.order import BackwardRecord, in_order, put_in_order
from tensoropt.lowering.pull_back import BACKWARD, Created, Emitted, Pullback
from tensoropt.lowering.resharding.backends import CommunicatingBackend, EmulatedBackend
from tensoropt.profiling.trace import StepTrace, traced_step
from tensoropt.program.fetch import Fetch
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.configs import configs
from tensoropt.rules.registry import rule_of
from tensoropt.runtime.collectives.single import SingleCommunicator
from tensoropt.runtime.engine import Engine
from tensoropt.runtime.step.functions import Feed
from tensoropt.sharding.resharding import PathFinder, PlainCosts
from tensoropt.sharding.strategy import Strategy

DEPTH, WIDTH, BATCH = 8, 512, 512


def operators_of(engine: Engine, model: zoo.Recorded) -> list[tf.Operation]:
    built = engine.function(training_fetch(model), tuple(feeds_of(model.graph, model.batches[0])))
    return built.call.graph.get_operations()


@pytest.mark.parametrize("function", [zoo.mlp, zoo.cnn, zoo.attention])
def test_a_schedule_has_each_operator_after_all_that_it_waits_for(
    function: Callable[..., zoo.Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at while the graph is built: later TensorFlow adds what orders the work on each variable."""
    seen: list[list[tf.Operation]] = []

    def watched(
        operators: Sequence[tf.Operation], n_forward: int, backward: set[str], urgent: set[str]
    ) -> list[tf.Operation]:
        seen[:] = [list(operators[n_forward:]), in_order(operators, n_forward, backward, urgent)]
        for op in seen[1]:
            sources = {tensor.op.name for tensor in op.inputs} | {source.name for source in op.control_inputs}
            waited = sources & {each.name for each in seen[0]}
            assert waited <= {each.name for each in seen[1][: seen[1].index(op)]}
        return seen[1]

    monkeypatch.setattr(order, "in_order", watched)
    model = zoo.record(function, "adam")
    view = random_strategy(model, Mesh.of(2), 0)
    engine = engine_of(model, view, random_router(0), EmulatedBackend(Mesh.of(2)), in_order=True)
    train_and_check(engine, model)
    made, found = seen
    assert sorted(op.name for op in found) == sorted(op.name for op in made)
    updates = [i for i, op in enumerate(found) if op.type.startswith("ResourceApply")]
    backward = [i for i, op in enumerate(found) if op.name.startswith(BACKWARD)]
    assert min(updates) < max(backward), "updates come while the backward pass goes on"
    place = {op.name: i for i, op in enumerate(found)}
    for i in updates:
        reads = [op for op in found[i].inputs[0].consumers() if op.type == "ReadVariableOp" and op.name not in place]
        readers = [op.name for read in reads for op in read.outputs[0].consumers() if op.name in place]
        assert all(place[name] < i for name in readers), "no update comes while its variable's old value is read"


def backward_since(graph: tf.Graph, start: int) -> BackwardRecord:
    """The record of a backward pass that has all operators from a number on."""
    return BackwardRecord(passes=[Created(start, graph.version)])


def test_the_backward_pass_begins_when_the_loss_is_known_and_not_with_a_constant() -> None:
    """TensorFlow computes what depends on no input when it makes the graph, and drops what that was to run after."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4, 3])
        loss = tf.reduce_mean(tf.square(x))
        n_forward = len(graph.get_operations())
        tf.gradients(loss, x)
        backward = graph.get_operations()[n_forward:]
        before = {op.name: len(op.control_inputs) for op in backward}
        put_in_order(graph.get_operations(), n_forward, backward_since(graph, n_forward))
    ordered = [op for op in backward if len(op.control_inputs) > before[op.name]]
    assert loss.op in ordered[0].control_inputs and all(x.op in _ancestors(op) for op in ordered)
    assert {"RealDiv", "Tile"} <= {op.type for op in backward} - {op.type for op in ordered}


def test_a_loss_that_is_summed_over_ranks_is_ready_before_the_backward_pass() -> None:
    """All other collectives come after it: the gradients' take their turns from it, but not its value."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4, 3])
        squares = tf.square(x)
        local = tf.reduce_mean(tf.tanh(squares))
        turn, _ = tf.numpy_function(lambda turn, value: (turn, value), [np.int32(0), local], [tf.int32, tf.float32])
        n_forward = len(graph.get_operations())
        (gradient,) = tf.gradients(squares, x)
        record = backward_since(graph, n_forward)
        tf.numpy_function(lambda turn, value: (turn, value), [turn, gradient], [tf.int32, tf.float32])
        put_in_order(graph.get_operations(), n_forward, record)
    backward = [op for op in graph.get_operations() if op.name.startswith(BACKWARD) and op.control_inputs]
    assert local.op in {before for op in backward for before in op.control_inputs}


def test_parameters_are_not_gathered_long_before_their_use() -> None:
    """But a bias doesn't wait for its own product: TensorFlow may make one operator of that and the addition."""

    def gathered(turn: tf.Tensor, value: tf.Tensor) -> list[tf.Tensor]:
        return tf.numpy_function(lambda turn, value: (turn, value), [turn, value], [tf.int32, tf.float32])

    with tf.Graph().as_default() as graph:
        value, turn = tf.compat.v1.placeholder(tf.float32, [4, 3]), tf.constant(0)
        layers = []
        for _ in range(6):
            turn, weights = gathered(turn, tf.compat.v1.placeholder(tf.float32, [3, 3]))
            product = tf.matmul(value, tf.ensure_shape(weights, [3, 3]))
            turn, bias = gathered(turn, tf.compat.v1.placeholder(tf.float32, [3]))
            value = tf.nn.relu(tf.nn.bias_add(product, tf.ensure_shape(bias, [3])))
            layers.append((weights.op, product.op, bias.op, value.op))
        loss = tf.reduce_mean(value)
        n_forward = len(graph.get_operations())
        put_in_order(graph.get_operations(), n_forward, BackwardRecord())
    for number, (weights, product, bias, _) in enumerate(layers):
        assert not {product, layers[number][3]} & set(bias.control_inputs)
        if number >= 4:
            assert weights.control_inputs and bias.control_inputs
            assert set(bias.control_inputs) <= {each for layer in layers[:number] for each in _ancestors(layer[3])}
    assert loss.op not in layers[0][0].control_inputs


@pytest.mark.parametrize("lag", [LAG, math.inf])
def test_an_update_comes_before_the_next_collective_of_its_chain(lag: float) -> None:
    """Else its gradient would stay for as long as TensorFlow likes. Over a link, no collective waits for an update."""
    api = tf.compat.v1
    with tf.Graph().as_default() as graph:
        variables = [api.get_variable(f"w{layer}", [3, 3], use_resource=True) for layer in range(3)]
        value = api.placeholder(tf.float32, [4, 3])
        for variable in variables:
            value = tf.tanh(tf.matmul(value, variable))
        loss = tf.reduce_mean(value)
        n_forward = len(graph.get_operations())
        gradients = tf.gradients(loss, variables)
        record = backward_since(graph, n_forward)
        turn, collectives, updates = tf.constant(0), [], []
        for variable, gradient in zip(reversed(variables), reversed(gradients), strict=True):
            given = [turn, gradient]
            turn, total = tf.numpy_function(lambda turn, value: (turn, value), given, [tf.int32, tf.float32])
            collectives.append(total.op)
            total.set_shape([3, 3])
            updates.append(tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=0.1, delta=total))
        put_in_order(graph.get_operations(), n_forward, record, lag)
    waited = [set(op.control_inputs) & set(updates) for op in collectives]
    assert waited == [set(), *({each} if lag == LAG else set() for each in updates[:-1])]


def test_gradients_that_nobody_asked_for_are_not_in_order() -> None:
    """A convolution's gradient function emits that of the images too; in order it would be computed."""
    with tf.Graph().as_default() as graph:
        images, filters = (tf.compat.v1.placeholder(tf.float32, shape) for shape in ([4, 8, 8, 3], [3, 3, 3, 5]))
        convolved = tf.nn.conv2d(images, filters, 1, "SAME")
        loss = tf.reduce_mean(tf.square(convolved))
        n_forward = len(graph.get_operations())
        emitted = Emitted({0: [images], 1: [filters]}, [[loss]], [Created(0, n_forward)])
        (found,) = Pullback(emitted, graph.get_operations(), {}).run([(0, [tf.ones([])])], [1])
        assert found is not None
        record = backward_since(graph, n_forward)
        record.gradients.append((record.passes[0], found))
        put_in_order(graph.get_operations(), n_forward, record)
    (dead,) = [op for op in graph.get_operations() if op.type == "Conv2DBackpropInput"]
    assert found[0].op.control_inputs and not dead.control_inputs
    assert not any(dead in op.control_inputs for op in graph.get_operations())


def _ancestors(op: tf.Operation) -> set[tf.Operation]:
    sources = {tensor.op for tensor in op.inputs}
    return sources.union(*map(_ancestors, sources))


def test_in_order_each_operator_waits_for_few_before_it() -> None:
    model = zoo.record(zoo.mlp, "sgd")
    view = random_strategy(model, Mesh.of(2), 1)
    loose, tight = (
        engine_of(model, view, random_router(1), EmulatedBackend(Mesh.of(2)), in_order=each) for each in (False, True)
    )
    added = [sum(len(op.control_inputs) for op in operators_of(each, model)) for each in (loose, tight)]
    n_backward = sum(op.name.startswith(BACKWARD) for op in operators_of(tight, model))
    assert 0 < added[1] - added[0] <= 2 * n_backward + LAG


def deep() -> zoo.Built:
    """Products one after the other, whose parameters are as large as what goes through them."""
    api = tf.compat.v1
    x = values = api.placeholder(api.float32, [BATCH, WIDTH], name="x")
    for layer in range(DEPTH):
        values = api.nn.relu(api.matmul(values, api.get_variable(f"w{layer}", [WIDTH, WIDTH], api.float32)))
    drawn = np.random.default_rng(0).normal(size=(zoo.N_BATCHES, BATCH, WIDTH)).astype(np.float32)
    return zoo.Built(api.reduce_mean(api.square(values)), {x: tuple(drawn)}, ())


def taken_by_all() -> zoo.Built:
    """The same, where each layer takes what was made first, too, as a decoder's layers take what the encoder made."""
    api = tf.compat.v1
    x = api.placeholder(api.float32, [BATCH, WIDTH], name="x")
    first = values = api.nn.relu(api.matmul(x, api.get_variable("w", [WIDTH, WIDTH], api.float32)))
    for layer in range(DEPTH):
        weights = [api.get_variable(f"{name}{layer}", [WIDTH, WIDTH], api.float32) for name in "uv"]
        values = api.nn.relu(api.matmul(values, weights[0]) + api.matmul(first, weights[1]))
    drawn = np.random.default_rng(0).normal(size=(zoo.N_BATCHES, BATCH, WIDTH)).astype(np.float32)
    return zoo.Built(api.reduce_mean(api.square(values)), {x: tuple(drawn)}, ())


def trace_of(in_order: bool, function: Callable[[], zoo.Built] = deep) -> StepTrace:
    """One rank alone computes unsplit operators, several of which may run at once."""
    model = zoo.record(function, "momentum")
    mesh = Mesh.of(1)
    chosen = {name: configs(rule_of(op), mesh)[0] for name, op in model.graph.operators.items()}
    view = model.model.view(Strategy(mesh, chosen))
    backend = CommunicatingBackend(mesh, 0, SingleCommunicator())
    engine = engine_of(model, view, PathFinder(PlainCosts()), backend, in_order)
    fetch: Fetch = training_fetch(model)
    feeds: dict[Feed, np.ndarray] = feeds_of(model.graph, model.batches[0])
    for _ in range(2):
        engine.run(fetch, feeds)
    gc.collect()
    return traced_step(lambda: engine.run(fetch, feeds))


def test_in_order_no_more_gradients_are_alive_than_needed() -> None:
    """Eight layers have their residuals and a few gradients alive; without an order, half the layers' gradients too."""
    megabyte = 4 * BATCH * WIDTH
    peak = trace_of(in_order=True).peak_bytes
    # The batch, the results of the layers, and of one layer the gradient that came, those that it makes, and their sum.
    assert DEPTH * megabyte <= peak <= (DEPTH + 5) * megabyte
    # TensorFlow takes the batch from NumPy without an allocation where it happens to be aligned.
    assert peak <= trace_of(in_order=False).peak_bytes + megabyte


def test_in_order_gradients_of_many_consumers_are_added_two_at_a_time() -> None:
    """Not once all are there: they would be as many as there are layers."""
    megabyte = 4 * BATCH * WIDTH
    peak = trace_of(in_order=True, function=taken_by_all).peak_bytes
    assert peak <= (DEPTH + 8) * megabyte


def step_of(graph: tf.Graph, images: tf.Tensor, filters: tf.Tensor, bias: tf.Tensor) -> tuple[list[tf.Tensor], int]:
    """The gradients of a bias and a filter, as they are emitted, and where the backward pass begins."""
    given = Operator("add", "BiasAdd", (), (Tensor("add:0", (4, 16, 16, 8), "float32"),))
    convolved = tf.nn.conv2d(images, filters, 1, "SAME")
    with lean_gradient(given, (0, 1)):
        result = tf.raw_ops.BiasAdd(value=convolved, bias=bias)
    loss = tf.reduce_sum(tf.square(result))
    n_forward = graph.version
    emitted = Emitted({0: [filters], 1: [bias]}, [[loss]], [Created(0, n_forward)])
    found = Pullback(emitted, graph.get_operations(), {}).run([(0, [tf.ones([])])], [1, 0])
    return [values[0] for values in found if values is not None], n_forward


def run_in_order(images: tf.Tensor, filters: tf.Tensor, bias: tf.Tensor) -> list[tf.Tensor]:
    """The gradient of the bias comes before the filter's, which waits for it."""
    graph = tf.compat.v1.get_default_graph()
    found, n_forward = step_of(graph, tf.slice(images, [0, 0, 0, 0], [4, 16, 16, 3]), filters, bias)
    put_in_order(graph.get_operations(), n_forward, backward_since(graph, n_forward))
    return found


def run_behind_a_collective(images: tf.Tensor, filters: tf.Tensor, bias: tf.Tensor) -> list[tf.Tensor]:
    """The residual of the filter's gradient is regathered by a collective after the bias's."""
    graph = tf.compat.v1.get_default_graph()
    (of_bias, of_filter), _ = step_of(graph, images[:4], filters, bias)
    of_bias = tf.numpy_function(np.copy, [of_bias], tf.float32)
    with tf.control_dependencies([of_bias]):
        again = tf.numpy_function(np.copy, [images[:4]], tf.float32)
    (backward,) = [op for op in graph.get_operations() if op.type == "Conv2DBackpropFilter"]
    backward._update_input(0, tf.ensure_shape(again, [4, 16, 16, 3]))
    return [of_bias, of_filter]


@pytest.mark.parametrize("channels", [8, None])
@pytest.mark.parametrize("step", [run_in_order, run_behind_a_collective])
def test_the_gradients_of_a_filter_and_a_bias_make_no_cycle(
    step: Callable[..., list[tf.Tensor]], channels: int | None
) -> None:
    """TensorFlow would make one operator of the two. Channels in uneven blocks have no extent that all ranks know."""
    rng = np.random.default_rng(0)
    images, filters, bias = (
        tf.constant(rng.standard_normal(shape), tf.float32) for shape in ((8, 16, 16, 3), (3, 3, 3, 8), (8,))
    )

    def run(images: tf.Tensor, filters: tf.Tensor, bias: tf.Tensor) -> list[tf.Tensor]:
        unknown = tf.compat.v1.placeholder_with_default(filters, [3, 3, 3, channels])
        return step(images, unknown, bias)

    with tf.GradientTape() as tape:
        tape.watch((filters, bias))
        loss = tf.reduce_sum(tf.square(tf.nn.bias_add(tf.nn.conv2d(images[:4], filters, 1, "SAME"), bias)))
    found = tf.function(run, autograph=False)(images, filters, bias)
    for value, expected in zip(found, tape.gradient(loss, (bias, filters)), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-3)
