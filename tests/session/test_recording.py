"""Lines that TensorFlow users write around a model, against plain TensorFlow running the same lines in a session."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from helpers.large import first

import tensoropt
from tensoropt.report.pages.page import ASKED

from .models import BATCH, begin, built, losses, network

V1 = tf.compat.v1
INPUT = np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32)
WEIGHTS = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32)
N_STEPS = 4


def base(api: Any) -> tuple[Any, Any, Any]:
    """A placeholder, a variable and a loss."""
    x = api.placeholder(tf.float32, [8, 6], name="x")
    w = api.get_variable("w", initializer=WEIGHTS)
    return x, w, api.reduce_mean(api.square(api.matmul(x, w)))


def sgd(api: Any, rate: Any = 0.1) -> Any:
    return api.train.GradientDescentOptimizer(rate)


def decayed_rate(api):
    x, w, loss = base(api)
    count = api.train.get_or_create_global_step()
    rate = api.train.exponential_decay(0.1, count, 2, 0.5, staircase=True)
    return sgd(api, rate).minimize(loss, global_step=count), [loss, rate, w], {x: INPUT}


def piecewise_rate(api):
    x, w, loss = base(api)
    count = api.train.create_global_step()
    rate = api.train.cosine_decay(0.1, count, 5)
    step = api.train.MomentumOptimizer(rate, 0.5, use_nesterov=True).minimize(loss, global_step=count)
    return step, [loss, rate, w, count], {x: INPUT}


def fed_rate(api):
    x, w, loss = base(api)
    rate = api.placeholder(tf.float32, [])
    return api.train.MomentumOptimizer(rate, 0.9).minimize(loss), [loss, w], {x: INPUT, rate: 0.05}


def folded_shapes(api):
    x, w, loss = base(api)
    shape = api.shape(x)
    y = api.reshape(x, [shape[0] * 2, -1])
    y = api.tile(y, [1, 2]) * api.cast(api.size(x), tf.float32) / api.cast(api.rank(x), tf.float32)
    total = loss + api.reduce_mean(api.stop_gradient(y) * api.reduce_sum(api.identity(w)))
    total = api.identity(total, name="total")
    return sgd(api).minimize(total), [total, y, w], {x: INPUT}


def variables_of_all_kinds(api):
    x, w, loss = base(api)
    doubled = api.Variable(w.initial_value * 2, name="doubled")
    numbers = api.get_variable("numbers", initializer=np.arange(4, dtype=np.float32))
    fixed = api.Variable(np.full(4, 2, np.float32), trainable=False)
    total = loss + api.reduce_sum(doubled * doubled) + api.reduce_sum(numbers * fixed)
    rate = api.get_variable("rate", initializer=0.1, trainable=False)
    return sgd(api, rate).minimize(total), [total, doubled, numbers, fixed, rate], {x: INPUT}


def an_update_through_a_group(api):
    x, w, loss = base(api)
    count = api.get_variable("count", [], initializer=api.zeros_initializer(), trainable=False)
    with api.control_dependencies([api.group(api.group(count.assign_add(2.0)), api.no_op())]):
        step = sgd(api).minimize(loss)
    return step, [loss, w], {x: INPUT}


def a_step_in_a_group(api):
    x, w, loss = base(api)
    count = api.get_variable("count", [], initializer=api.zeros_initializer(), trainable=False)
    return api.group(sgd(api).minimize(loss), count.assign_add(1.0)), [w], {x: INPUT}


def moving_average(api):
    x, w, loss = base(api)
    mean, _ = api.nn.moments(api.matmul(x, w), [0])
    average, optimizer = api.train.ExponentialMovingAverage(0.9), sgd(api)
    update = average.apply([mean])
    with api.control_dependencies([update]):
        step = optimizer.apply_gradients(optimizer.compute_gradients(loss))
    return step, [loss, w], {x: INPUT}


def gradients_as_tensors(api):
    x, w, loss = base(api)
    (gradient,) = api.gradients(loss, [w])
    penalised = loss + 0.1 * api.reduce_sum(gradient * gradient)
    return sgd(api).minimize(penalised), [loss, api.norm(gradient), w], {x: INPUT}


def plain(make) -> tuple[list[Any], list[Any]]:
    """TensorFlow's numbers: the fetches after each step, and all variables at the end."""
    with tf.Graph().as_default(), V1.Session() as session:
        step, fetches, feeds = make(V1)
        session.run(V1.global_variables_initializer())
        made = []
        for _ in range(N_STEPS):
            session.run(step, feeds)
            made.append(session.run(fetches, feeds))
        return made, session.run({variable.name: variable for variable in V1.global_variables()}, feeds)


MODELS = [
    decayed_rate, fed_rate, folded_shapes, variables_of_all_kinds, an_update_through_a_group, moving_average,
    gradients_as_tensors, piecewise_rate, a_step_in_a_group,
]  # fmt: skip


@pytest.mark.parametrize("make", first(7, MODELS), ids=lambda make: make.__name__)
def test_recorded_models_train_as_tensorflow(make):
    expected, variables = plain(make)
    begin()
    step, fetches, feeds = make(tensoropt)
    recorded = {variable.name: variable for variable in tensoropt.global_variables()}
    plan = tensoropt.find_strategy(force={"MatMul": {"k": 2}})
    tensoropt.build_execution_graph(plan=plan, collectives="emulated")
    assert tf.executing_eagerly()
    for values in expected:
        assert tensoropt.run(step, feeds) is None
        for got, wanted in zip(tensoropt.run(fetches, feeds), values, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    ours = tensoropt.run(recorded, feeds)
    for name in recorded:
        np.testing.assert_allclose(ours[name], variables[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_placeholders_that_leave_the_batch_open_take_its_size_from_init():
    expected = losses(built(parallelism=2))
    tensoropt.init("v100-1x4", seed=1, batch_size=BATCH)
    model = network(batch=None)
    kept = tf.compat.v1.placeholder_with_default(tf.ones([BATCH]), [None])
    assert model.logits.shape == [BATCH, 5] and kept.shape == [BATCH]
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy(parallelism=2), collectives="emulated")
    assert losses(model) == expected


def test_two_optimizers_train_their_own_variables():
    begin()
    x, w, _ = base(tensoropt)
    scale = tensoropt.get_variable("scale", initializer=np.ones(4, np.float32))
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.matmul(x, w) * scale))
    steps = [
        sgd(tensoropt).minimize(loss, var_list=[w]),
        tensoropt.train.AdamOptimizer(0.1).minimize(1.0 - loss, var_list=[scale]),
    ]
    feeds = {x: INPUT}
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy(), collectives="emulated")
    before = tensoropt.run([w, scale, loss], feeds)
    tensoropt.run(steps[0], feeds)
    middle = tensoropt.run([w, scale, loss], feeds)
    tensoropt.run(steps[1], feeds)
    after = tensoropt.run([w, scale, loss], feeds)
    assert (before[0] != middle[0]).all() and (before[1] == middle[1]).all() and middle[2] < before[2]
    assert (middle[0] == after[0]).all() and (middle[1] != after[1]).all() and after[2] > middle[2]


def test_random_first_values_are_drawn_once_and_given_again():
    begin()
    _, w, loss = base(tensoropt)
    drawn = tensoropt.get_variable("drawn", [3, 4])
    doubled = tensoropt.Variable(drawn.initial_value * 2, name="doubled")
    total = loss + tensoropt.reduce_sum(drawn) + tensoropt.reduce_sum(doubled)
    step = sgd(tensoropt).minimize(total)
    initialize = tensoropt.global_variables_initializer()
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy(), collectives="emulated")
    first = tensoropt.run([drawn, doubled, w])
    np.testing.assert_allclose(first[1], 2 * first[0])
    assert np.std(first[0]) > 0.1
    tensoropt.run(step, {"x:0": INPUT})
    assert (tensoropt.run(w) != first[2]).all()
    tensoropt.run(initialize)
    for value, wanted in zip(tensoropt.run([drawn, doubled, w]), first, strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_keras_layers_are_recorded():
    begin()
    x, _, loss = base(tensoropt)
    tensoropt.keras.utils.set_random_seed(3)
    hidden = tensoropt.keras.layers.Dense(4, activation="relu")(x)
    hidden = tensoropt.keras.layers.LayerNormalization()(hidden)
    step = sgd(tensoropt).minimize(loss + tensoropt.reduce_mean(hidden * hidden))
    plan = tensoropt.find_strategy(force={"Relu": {"d1": 2}})
    assert sum(op.type == "Variable" for op in plan.operators) == 5
    tensoropt.build_execution_graph(plan=plan, collectives="emulated")
    first = tensoropt.run(loss, {x: INPUT})
    tensoropt.run(step, {x: INPUT})
    assert tensoropt.run(loss, {x: INPUT}) < first


def test_numpy_functions_run_on_every_device():
    begin()
    x, _, loss = base(tensoropt)
    doubled = tensoropt.numpy_function(lambda value: np.float32(2 * value), [loss], tf.float32)
    doubled.set_shape([])
    step = sgd(tensoropt).minimize(loss)
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy(), collectives="emulated")
    value, twice, _ = tensoropt.run([loss, doubled, step], {x: INPUT})
    assert twice == pytest.approx(2 * value)


def test_names_that_hold_none_or_modules():
    begin()
    assert tensoropt.newaxis is None and tensoropt.nn.relu is tf.compat.v1.nn.relu
    assert tensoropt.train.AdamOptimizer is tensoropt.AdamOptimizer


def test_phases_are_dumped_and_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSOROPT_DUMP", str(tmp_path / "stages"))
    monkeypatch.setenv("TENSOROPT_CHECK", "1")
    checked = []
    monkeypatch.setattr("tensoropt.runtime.context.check_graph", checked.append)
    begin()
    x, _, loss = base(tensoropt)
    step = sgd(tensoropt).minimize(loss)
    plan = tensoropt.find_strategy(force={"MatMul": {"k": 2}})
    tensoropt.find_strategy(parallelism=1)
    tensoropt.build_execution_graph(plan=plan, collectives="emulated")
    tensoropt.run(step, {x: INPUT})
    stages = {file.name: file.read_text() for file in (tmp_path / "stages").iterdir()}
    names = {"model", "frontier", "frontier-2", "plan", "plan-2", "program", "collectives"}
    assert set(stages) == {f"{name}.txt" for name in names}
    assert "MatMul:0 float32[8, 4] = MatMul(x:0, w:0)  # test_recording.py:" in stages["model.txt"]
    assert "4 devices" in stages["frontier.txt"] and "1 device" in stages["plan-2.txt"]
    assert " of float32[8, 4] for Square" in stages["collectives.txt"] and len(checked) == 1


def test_the_report_that_is_asked_for_is_of_the_plan_that_is_built(tmp_path, monkeypatch):
    begin()
    _, _, loss = base(tensoropt)
    sgd(tensoropt).minimize(loss)
    found = tensoropt.find_strategy(verbose=0)
    found.save(tmp_path / "plan.json")
    monkeypatch.setenv(ASKED, str(tmp_path / "out.html"))
    tensoropt.find_strategy(parallelism=1, verbose=0)
    assert '"devices":1,' in (tmp_path / "out.html").read_text()
    tensoropt.build_execution_graph(plan=str(tmp_path / "plan.json"), collectives="emulated")
    page = (tmp_path / "out.html").read_text()
    assert f'"devices":{found.parallelism},' in page and f'"time_us":[{found.time_us}]' in page and found.parallelism > 1


def test_running_alone_is_said_once(capfd, monkeypatch):
    from tensoropt.runtime.context import _say_alone

    monkeypatch.delenv("TENSOROPT_QUIET")
    _say_alone.cache_clear()
    for _ in range(2):
        tensoropt.init()
    assert capfd.readouterr().err.count("tensoropt: started alone, on one device; mpirun -n N python SCRIPT starts N") == 1


class Pair(NamedTuple):
    loss: Any
    weights: Any


def test_fetches_come_back_in_their_structure_whatever_was_fetched_before():
    """Plans of fetches are kept: neither a list that grows nor another structure of the same tensors gets another one's."""
    begin()
    step, (loss, w), feeds = fed_rate(tensoropt)
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy(), collectives="emulated")
    fetches = [loss, w]
    for _ in range(2):
        first = tensoropt.run(fetches, feeds)
        assert [np.shape(each) for each in first] == [(), (6, 4)] and type(first) is list
        assert type(tensoropt.run((loss, w), feeds)) is tuple and type(tensoropt.run(Pair(loss, w), feeds)) is Pair
        assert tensoropt.run(loss, feeds).shape == () and tensoropt.run(loss.name, feeds) == tensoropt.run(loss, feeds)
        named = tensoropt.run({"w": w, "both": [loss, [w]]}, feeds)
        assert named["w"].shape == named["both"][1][0].shape == (6, 4)
        nested = tensoropt.run([[loss, w]], feeds)
        assert len(nested) == 1 and nested[0][1].shape == (6, 4)
        fetches.insert(0, w)
        assert [np.shape(each) for each in tensoropt.run(fetches, feeds)] == [(6, 4), (), (6, 4)]
        del fetches[0]
    before = tensoropt.run([w], feeds)[0]
    assert tensoropt.run([step, w, (loss, "MatMul"), []], feeds)[::3] == [None, []]
    assert not np.array_equal(tensoropt.run([w], feeds)[0], before)
