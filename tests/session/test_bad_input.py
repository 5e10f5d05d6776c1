"""Wrong use gets one sentence: what, got, expected, where in the user's model, what to do. And the next session works."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tensoropt

from .models import IMAGES, LABELS, begin, built, losses, network

HELD: set[str] = set()
"""The tests after whose first case the next session has worked."""


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request, everything):
    """The next session works: after each case by ``--all``, else after the first of those of a test."""
    yield
    test = request.function.__name__
    if everything or test not in HELD:
        HELD.add(test)
        model = built(parallelism=1)
        assert tf.executing_eagerly() and losses(model, 1)[0] > 0


def refuses(said: str):
    return pytest.raises(tensoropt.InputError, match=said)


# Before and after their time


@pytest.fixture
def no_session(monkeypatch):
    begin()._recording.close()
    monkeypatch.setattr("tensoropt.session.session._current", None)


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize(
    "use",
    [
        lambda: tensoropt.matmul, lambda: tensoropt.nn.relu, lambda: tensoropt.train.exponential_decay,
        lambda: tensoropt.find_strategy(), lambda: tensoropt.build_execution_graph(), lambda: tensoropt.run("x"),
        lambda: tensoropt.GradientDescentOptimizer().minimize(1.0),
    ],
)  # fmt: skip
def test_before_init(use):
    with refuses(r"^call tensoropt\.init\(\) first$"):
        use()
    assert tensoropt.float32 is tf.float32


def test_find_strategy_before_minimize():
    begin()
    network(trained=False)
    with refuses(r"no training step was recorded; call minimize\(loss\) of an optimizer"):
        tensoropt.find_strategy()


def test_run_before_build():
    begin()
    model = network()
    with refuses("run comes after build_execution_graph"):
        tensoropt.run(model.step)


def test_recording_after_build():
    model = built()
    for use in (
        lambda: tensoropt.matmul(model.x, model.x),
        lambda: tensoropt.nn.relu(model.x),
        lambda: tensoropt.GradientDescentOptimizer().minimize(model.loss),
    ):
        with refuses(r"comes before build_execution_graph; call tensoropt.init\(\) to record another model"):
            use()
    with refuses("the execution graph has been built already"):
        tensoropt.build_execution_graph(plan=model.plan)


def test_init_where_tensorflow_is_not_eager():
    built()
    with tf.Graph().as_default(), refuses(r"tensoropt.init\(\) needs TensorFlow in eager mode"):
        begin()


def test_init_inside_of_a_graph_entered_since():
    begin()
    with tf.Graph().as_default(), refuses(r"recording can't end inside of another tf.Graph"):
        begin()


def test_init_twice_starts_over():
    begin()
    network()
    begin()
    assert network().w.name == "w:0"


# The model


def test_a_model_without_parameters():
    begin()
    x = tensoropt.placeholder(tensoropt.float32, [4])
    tensoropt.get_variable("fixed", [4], trainable=False)
    with refuses(r"there is no trainable variable to minimize 'Mean' \(test_bad_input.py:\d+\) by; make parameters with"):
        tensoropt.GradientDescentOptimizer().minimize(tensoropt.reduce_mean(x))


def test_a_loss_that_depends_on_no_parameter():
    begin()
    w = tensoropt.get_variable("w", [4])
    x = tensoropt.placeholder(tensoropt.float32, [4])
    tensoropt.GradientDescentOptimizer().minimize(tensoropt.reduce_mean(x + tensoropt.stop_gradient(w)))
    with refuses(r"loss of training step 'GradientDescent', Mean 'Mean' \(.*\), depends on none of the variables .* \(w\)"):
        tensoropt.find_strategy()


def test_losses_that_are_none():
    begin()
    model = network(trained=False)
    minimize = tensoropt.GradientDescentOptimizer().minimize
    with refuses(r"takes a scalar loss, got 'add' \(models.py:\d+\) of shape \(8, 5\); take its mean"):
        minimize(model.logits)
    with refuses(r"takes a floating-point loss, got 'Sum' \(test_bad_input.py:\d+\) of type int64"):
        minimize(tensoropt.reduce_sum(model.y))
    with tf.Graph().as_default():
        foreign = tf.reduce_sum(tf.zeros([3]))
    for other in (3.0, foreign, np.zeros(1000)):
        with refuses(r"takes a loss that was recorded after tensoropt.init\(\), got") as error:
            minimize(other)
        assert len(str(error.value)) < 250


def test_variables_and_hyperparameters_that_are_none():
    begin()
    model = network(trained=False)
    sgd = tensoropt.GradientDescentOptimizer()
    for bad in ("w", model.logits, np.zeros(3)):
        with refuses("var_list of minimize takes variables that were recorded"):
            sgd.minimize(model.loss, var_list=[bad])
    with refuses("global_step of minimize takes variables .*, got 3"):
        sgd.minimize(model.loss, global_step=3)
    with refuses("GradientDescent: learning_rate must be a number or a recorded scalar, got 'fast'"):
        tensoropt.GradientDescentOptimizer("fast")
    with refuses("Adam: beta1 must be a number, got"):
        tensoropt.AdamOptimizer(beta1=tensoropt.constant(0.5))
    with refuses("learning_rate of GradientDescent must be a scalar that was recorded"):
        tensoropt.GradientDescentOptimizer(tensoropt.constant([0.1, 0.2])).minimize(model.loss)
    with refuses("GradientDescent: compute_gradients takes no grad_loss; multiply the loss by it"):
        sgd.compute_gradients(model.loss, grad_loss=model.loss)
    with refuses(r"apply_gradients \(test_bad_input.py:\d+\) of GradientDescent has no gradient: no loss depends"):
        sgd.apply_gradients([(None, model.w)])
    slope = sgd.compute_gradients(model.loss, [model.w])[0][0]
    with refuses(r"'.*' \(test_bad_input.py:\d+\) is made of gradients, .* take those by tensoropt.gradients"):
        tensoropt.gradients(tensoropt.reduce_sum(slope), [model.w])


def test_optimizers_and_sessions_that_are_not_there():
    begin()
    with refuses(r"tensoropt.train.RMSPropOptimizer isn't there; call .* tensoropt.train.MomentumOptimizer"):
        tensoropt.train.RMSPropOptimizer(0.1)
    with refuses("tensoropt.Session isn't there: .* tensoropt.run"):
        tensoropt.Session()
    with refuses("tensoropt.train.Saver isn't there"):
        tensoropt.train.Saver()
    with pytest.raises(AttributeError, match="neither tensoropt nor TensorFlow has a name 'nonsense'"):
        tensoropt.nonsense  # noqa: B018
    with pytest.raises(AttributeError, match="has a name 'nonsense'"):
        tensoropt.train.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda loss: tensoropt.while_loop(lambda value: value < 1.0, lambda value: value * 2, [loss]),
            r"loop 'while' \(test_bad_input.py:\d+\) runs as often as a computed value says",
        ),
        (
            lambda loss: tensoropt.function(lambda value: value * 2)(loss),
            r"PartitionedCall '.*' \(test_bad_input.py:\d+\) calls a function, which can't be recorded; expected plain",
        ),
        (
            lambda loss: tf.ensure_shape(tf.py_function(lambda value: value, [loss], tf.float32), []),
            r"EagerPyFunc 'EagerPyFunc' \(test_bad_input.py:\d+\) can't be recorded: it calls Python",
        ),
    ],
)
def test_operators_that_cannot_be_recorded(change, said):
    begin()
    tensoropt.GradientDescentOptimizer().minimize(change(network(trained=False).loss))
    with refuses(said):
        tensoropt.find_strategy()


def test_effects_on_the_world():
    begin()
    loss = network(trained=False).loss
    with tensoropt.control_dependencies([tensoropt.print("loss", loss)]):
        tensoropt.GradientDescentOptimizer().minimize(loss * 1.0)
    with refuses(r"PrintV2 '.*' \(test_bad_input.py:\d+\) can't be recorded: it has an effect on the world in a recorded"):
        tensoropt.find_strategy()


def test_a_batch_that_is_open():
    begin()
    x = tensoropt.placeholder(tensoropt.float32, [None, 6], name="images")
    w = tensoropt.get_variable("w", [6, 2])
    tensoropt.GradientDescentOptimizer().minimize(tensoropt.reduce_sum(tensoropt.matmul(x, w)))
    with refuses(r"placeholder 'images' \(test_bad_input.py:\d+\) has shape \(None, 6\); .*: say the batch size by "
                 r"tensoropt.init\(batch_size=...\), or write it where the shape says None"):
        tensoropt.find_strategy()
    tensoropt.init("v100-1x4", seed=1, batch_size=8)
    x = tensoropt.placeholder(tensoropt.float32, [8, None], name="images")
    tensoropt.GradientDescentOptimizer().minimize(tensoropt.reduce_sum(x * tensoropt.get_variable("w", [])))
    with refuses(r"placeholder 'images' .* has shape \(8, None\); .*: write the extent where the shape says None"):
        tensoropt.find_strategy()
    with refuses("batch_size takes the number of samples in a step over all devices, .* got '8'"):
        tensoropt.init("v100-1x4", batch_size="8")


def test_a_first_value_that_needs_a_fed_value():
    begin()
    model = network(trained=False)
    late = tensoropt.Variable(tensoropt.reduce_sum(model.x), name="late", trainable=False)
    tensoropt.GradientDescentOptimizer().minimize(model.loss * late)
    plan = tensoropt.find_strategy()
    with refuses("the initial value of variable 'late' .* can't be computed before the model runs"):
        tensoropt.build_execution_graph(plan=plan, collectives="emulated")
    # Recording goes on where building failed.
    tensoropt.matmul(model.w, model.v)


# find_strategy and build_execution_graph


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"option": "fast"}, "unknown option 'fast'; expected one of 'mini_time', 'mini_parallelism', 'profiling'"),
        ({"memory": "abc"}, "memory limit 'abc' isn't an amount of memory; expected a number with one of"),
        ({"memory": "16"}, "isn't an amount of memory"),
        ({"memory": b"16GB"}, "isn't an amount of memory"),
        ({"memory": True}, "isn't an amount of memory"),
        ({"memory": 0}, "must be at least one byte"),
        ({"memory": float("nan")}, "must be at least one byte"),
        ({"parallelism": 0}, "parallelism must be a positive number of devices, or a list of such, got 0"),
        ({"parallelism": 4.0}, "parallelism must be a positive number"),
        ({"parallelism": True}, "parallelism must be a positive number"),
        ({"parallelism": [1, "a"], "option": "profiling"}, "parallelism is a number of devices such as 8, or machines x"),
        ({"parallelism": [], "option": "profiling"}, "parallelism is an empty list"),
        ({"parallelism": []}, "parallelism is an empty list"),
        ({"parallelism": [1, 2]}, "option 'mini_time' takes one parallelism, got .1, 2.; option 'profiling' compares"),
        ({"parallelism": 5}, "parallelism 5 is not possible on v100-1x4: expected 1 to 4"),
        ({"parallelism": [1, 6], "option": "profiling"}, "parallelism 6 is not possible"),
        ({"cluster": "nope"}, "no hardware is called 'nope'; expected DEVICE-MxD"),
        ({"cluster": 3}, "hardware is a name such as 'v100-2x8', a file, or a Hardware, got 3"),
        ({"cluster": "/no/such.json"}, "/no/such.json: cannot be read"),
        ({"force": {"MatMul": {"n": 3}}}, r"MatMul 'MatMul' \(models.py:\d+\) on 4 devices .*: degree 3 of factor 'n'"),
        ({"force": {"b": {"d0": 4}, "Relu": {"q": 2}}}, "it has no factor 'q'; its factors are d0, d1"),
        ({"force": {"v": {"d1": 8}}, "cluster": "v100-1x8"}, "factor 'd1' has only 5 elements, 8 blocks are too many"),
        ({"force": {"nope": {"m": 2}}}, "force names 'nope', which is neither an operator's name nor a type"),
        ({"force": {"MatMul": {"n": 4, "m": 2}}}, "don't fit 4 devices together"),
        ({"force": {"MatMul": 3}}, "force takes degrees by factor by operator, such as"),
        ({"force": {"MatMul": {"m": "2"}}}, "force takes a positive number of blocks for MatMul's factor 'm', got '2'"),
    ],
)
def test_what_find_strategy_refuses(options, said):
    begin()
    network()
    with refuses(said):
        tensoropt.find_strategy(**options)


def test_what_build_refuses():
    begin()
    network()
    plan = tensoropt.find_strategy(parallelism=1)
    build = tensoropt.build_execution_graph
    with refuses("unknown engine 'torch'; expected 'tensorflow'"):
        build(engine="torch", plan=plan)
    with refuses("unknown collectives 'nccl'; expected 'mpi', 'tensorflow', 'horovod' or 'emulated'"):
        build(plan=plan, collectives="nccl")
    for bad in (None, tensoropt.find_strategy("profiling", parallelism=1)):
        with refuses("takes plan=, the result of find_strategy or load_plan, got") as error:
            build(plan=bad)
        assert "\n" not in str(error.value)
    with refuses("plan '/no/plan.json' can't be read: No such file or directory"):
        build(plan="/no/plan.json")
    build(plan=plan)


@pytest.mark.parametrize(
    ("hardware", "said"),
    [("nope", "no hardware is called 'nope'"), (7, "hardware is a name"), ("/no/x.json", "cannot be read")],
)
def test_what_init_refuses(hardware, said):
    with refuses(said):
        begin(hardware)


# Feeding and fetching


def test_what_run_refuses_to_feed():
    model = built()
    with tf.Graph().as_default():
        foreign = tf.compat.v1.placeholder(tf.float32, [8, 6], name="x")
    cases = [
        ({model.x: IMAGES[:4], model.y: LABELS}, r"\(models.py:\d+\) has shape \[4, 6\], expected \[8, 6\]: the full batch"),
        ({model.x: IMAGES.astype(str), model.y: LABELS}, r"fed for x:0 \(.*\) has type <U32, expected float32; convert it"),
        ({model.x: IMAGES, model.y: LABELS / 2}, r"fed for y:0 \(.*\) has type float64, expected int64"),
        ({model.x: IMAGES + 1j, model.y: LABELS}, "has type complex64, expected float32"),
        ({model.x: None, model.y: LABELS}, "has type object, expected float32"),
        ({model.x: [[1.0], [1.0, 2.0]], model.y: LABELS}, r"x:0 \(.*\) is not an array"),
        ({model.x: model.x, model.y: LABELS}, r"x:0 \(.*\) is not an array"),
        ({model.x: IMAGES}, r"placeholder 'y' \(models.py:\d+\) isn't fed, but GradientDescent needs it; feed it"),
        (None, r"placeholder 'x' \(models.py:\d+\) isn't fed"),
        ([IMAGES], "feed_dict takes a dictionary from placeholders to arrays"),
        ({"nope:0": IMAGES}, "feed_dict names 'nope:0', which isn't a tensor of the recorded model; name a .* of it$"),
        ({"x": IMAGES}, "another tensor of it, as 'x:0' is$"),
        ({foreign: IMAGES, model.y: LABELS}, "which isn't a tensor of the recorded model"),
        ({(model.x, model.y): (IMAGES, LABELS)}, "which isn't a tensor of the recorded model"),
    ]
    for feeds, said in cases:
        with refuses(said) as error:
            tensoropt.run(model.step, feeds)
        assert len(str(error.value)) < 300
    losses(model)


def test_what_run_refuses_to_fetch():
    model = built()
    with tf.Graph().as_default():
        foreign = tf.compat.v1.placeholder(tf.float32, [8, 6], name="x")
    for fetch in (None, 3, "nope", np.zeros(500), foreign, tf.constant(1.0), {"a": [model.loss, "no"]}):
        with refuses("isn't part of the recorded model; fetch a tensor or operation that was recorded between") as error:
            tensoropt.run(fetch, model.feeds)
        assert len(str(error.value)) < 300
    begin()
    other = network()
    with refuses("isn't computed when the model runs"):
        shape = tensoropt.shape(other.x)
        other.more = tensoropt.reshape(other.x, shape)
        tensoropt.build_execution_graph(plan=tensoropt.find_strategy(), collectives="emulated")
        tensoropt.run(shape, other.feeds)


def test_feeds_that_are_fine():
    model = built()
    expected = tensoropt.run(model.loss, model.feeds)
    for x, y in (
        (IMAGES.tolist(), LABELS.tolist()), (IMAGES.astype(np.float64), LABELS.astype(np.int32)),
        (tf.constant(IMAGES), tf.constant(LABELS)), (tensoropt.local(IMAGES), LABELS),
    ):  # fmt: skip
        assert tensoropt.run(model.loss, {"x:0": x, model.y: y}) == expected
    ones = np.ones_like(IMAGES)
    assert tensoropt.run(model.loss, {"x:0": ones.astype(int).tolist(), model.y: LABELS}) == tensoropt.run(
        model.loss, {"x:0": ones, model.y: LABELS}
    )
    # Any tensor can be fed, as in TensorFlow.
    assert tensoropt.run(model.loss, {model.logits: np.zeros((8, 5)), model.y: LABELS}) == pytest.approx(np.log(5))
