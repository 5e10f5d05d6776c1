"""Every model of the zoo: parameters of the papers' sizes, rules for all operators, a search, and what it computes."""

import math
import subprocess
import sys
from types import MappingProxyType

import numpy as np
import pytest
import tensorflow as tf
from helpers.large import first
from helpers.searches import find_frontier
from zoo.small import SMALL

from tensoropt import zoo
from tensoropt.common.errors import InputError
from tensoropt.profiling.hardware import named
from tensoropt.rules.registry import rule_of
from tensoropt.tools.offline import record
from tensoropt.zoo.language import _attend_grouped, _rotated, _rotations
from tensoropt.zoo.layers import attend, causal_mask
from tensoropt.zoo.recurrent import _lstm, _plain

# Table 1 of TensorOpt, in GB; for the others parameters as they are known of these networks.
TABLE_1 = MappingProxyType({"rnn": 108, "wide_resnet": 7.3, "transformer": 9.7, "transformer_s": 4.8})
PARAMETERS = MappingProxyType(
    {"vgg16": 138_357_544,
     "lenet5": 61_706,
     "alexnet": 62_378_344,
     "inception_v3": 23_834_568,
     "resnet101": 44_549_160,
     "rnntc": 20000 * 1024 + 4 * (8 * 1024**2 + 4 * 1024) + 2 * 1024 + 2,
     "rnnlm": 10000 * 2048 + 2 * (8 * 2048**2 + 4 * 2048) + 2048 * 10000 + 10000,
     "nmt": 2 * 32000 * 1024 + 4 * (8 * 1024**2 + 4 * 1024) + 2 * 1024**2 + 1024 + 1024 * 32000 + 32000,
     "llama3_8b": 8_030_261_248}
)  # fmt: skip


def _n_parameters(name, **sizes):
    with tf.Graph().as_default():
        zoo.find(name)(**sizes)
        return sum(math.prod(variable.shape) for variable in tf.compat.v1.trainable_variables())


def test_all_models_have_small_sizes():
    assert set(SMALL) == set(zoo.NAMES)


@pytest.mark.parametrize("name", TABLE_1)
def test_parameters_have_the_bytes_of_table_1(name):
    expected = TABLE_1[name]
    assert round(4 * _n_parameters(name) / 1e9, 0 if expected > 100 else 1) == expected


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_known_network(name):
    assert _n_parameters(name) == PARAMETERS[name]


def test_bert_large_has_336_million_parameters():
    assert round(_n_parameters("bert_large") / 1e6) == 336


def test_gpt3_has_175_billion_parameters():
    # All layers are alike.
    one, two = (_n_parameters("gpt3", layers=layers) for layers in (1, 2))
    assert round((one + 95 * (two - one)) / 1e9) == 175


UNLIKE = ("lenet5", "wide_resnet", "rnn", "transformer")
"""Models whose rules, searches and values ``make test`` holds; ``--all`` those of all."""


@pytest.mark.parametrize("name", first(len(UNLIKE), [*UNLIKE, *sorted({*zoo.NAMES} - {*UNLIKE})]))
def test_a_small_model_has_all_rules_and_a_search_splits_it(name):
    model = record(lambda: zoo.find(name)(**SMALL[name]), name).model
    operators = model.graph.operators.values()
    assert not {op.where(): why for op in operators if (why := rule_of(op).without)}
    assert all(op.source for op in operators)
    one, two = (find_frontier(model, named("v100-1x2"), n, without=("remat",)).found for n in (1, 2))
    assert len(one) == 1
    # Split in two, some strategy keeps little more than half of everything on each device.
    assert two.mem_bytes[0] < 0.75 * one.mem_bytes[0]
    assert two.mem_bytes[0] >= one.mem_bytes[0] // 2


@pytest.mark.parametrize("name", first(len(UNLIKE), [*UNLIKE, *sorted({*zoo.NAMES} - {*UNLIKE, "transformer_s"})]))
def test_a_small_model_computes_a_loss_that_depends_on_all_parameters(name):
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(1)
        loss = zoo.find(name)(**SMALL[name])
        variables = tf.compat.v1.trainable_variables()
        gradients = tf.gradients(loss, variables)
        assert not [variable.name for variable, gradient in zip(variables, gradients, strict=True) if gradient is None]
        session.run(tf.compat.v1.global_variables_initializer())
        rng = np.random.default_rng(1)
        feeds = {}
        for op in graph.get_operations():
            if op.type == "Placeholder":
                shape = op.outputs[0].shape.as_list()
                is_whole = op.outputs[0].dtype.is_integer
                feeds[op.outputs[0]] = rng.integers(0, 2, shape) if is_whole else rng.normal(size=shape)
        value, norms = session.run([loss, [tf.norm(tf.convert_to_tensor(g)) for g in gradients]], feeds)
    assert 0 < value < 20
    assert np.isfinite(norms).all()


def test_an_unknown_name_is_offered_the_nearest():
    with pytest.raises(InputError, match="no model 'vgg-19': did you mean vgg16"):
        zoo.find("vgg-19")
    with pytest.raises(InputError, match="expected one of rnn, "):
        zoo.find("xxxxxxxxxxxx")
    with pytest.raises(AttributeError, match="has no attribute 'vgg19'"):
        _ = zoo.vgg19


def test_sizes_of_a_model_are_set_by_name():
    model = record(zoo.sized("lenet5:batch=6,image=32"), "lenet5").model
    images = [t.shape for op in model.graph.step_operators for t in op.outputs if len(t.shape) == 4]
    assert (6, 32, 32, 1) in images


@pytest.mark.parametrize(
    ("text", "message"),
    [("gpt3:layer=12", "gpt3 has no size 'layer': did you mean layers"),
     ("gpt3:xyz=12", "gpt3 has no size 'xyz': expected one of batch, length, layers, width, heads, vocabulary"),
     ("gpt3:", "gpt3 has no size '': expected one of batch"),
     ("lenet5:widths=3", "lenet5 has no size 'widths': expected one of batch, image, classes"),
     ("gpt3:layers=0", "size 'layers' must be a positive integer, got '0'"),
     ("gpt3:layers=1.5", "size 'layers' must be a positive integer, got '1.5'"),
     ("gpt3:layers", "size 'layers' must be a positive integer, got ''"),
     ("gpt3:layers=2,layers=2", "size 'layers' is given twice"),
     ("gpt4:layers=2", "the zoo has no model 'gpt4': did you mean gpt3")],
)  # fmt: skip
def test_a_size_that_a_model_has_not_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        zoo.sized(text)


def test_the_zoo_is_an_attribute_of_the_package():
    command = [sys.executable, "-c", "import sys, tensoropt; tensoropt.zoo.NAMES; sys.exit('tensorflow' in sys.modules)"]
    assert subprocess.run(command, check=False, timeout=120).returncode == 0


def test_a_model_needs_a_graph():
    with pytest.raises(InputError, match=r"vgg16 of the zoo needs a graph to record into; call tensoropt.init\(\)"):
        zoo.vgg16()


def _values(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def _soft(scores):
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def test_attention():
    q, k, v = _values((2, 3, 2, 4), (2, 3, 2, 4), (2, 3, 2, 4))
    expected = np.zeros((2, 3, 2, 4))
    for b, h, i in np.ndindex(2, 2, 3):
        expected[b, i, h] = _soft(q[b, i, h] @ k[b, : i + 1, h].T / 2) @ v[b, : i + 1, h]
    np.testing.assert_allclose(attend(q, k, v, causal_mask(3)), expected.reshape(6, 8), rtol=1e-4, atol=1e-5)


def test_grouped_attention_is_attention_with_repeated_keys():
    q, k, v = _values((2, 3, 4, 4), (2, 3, 2, 4), (2, 3, 2, 4))
    repeated = attend(q, np.repeat(k, 2, axis=2), np.repeat(v, 2, axis=2), causal_mask(3))
    grouped = _attend_grouped(*map(tf.constant, (q, k, v)), causal_mask(3))
    np.testing.assert_allclose(grouped, repeated, rtol=1e-4, atol=1e-5)


def test_rotary_positions_leave_products_that_depend_on_the_distance_alone():
    (x, y) = _values((1, 1, 1, 8), (1, 1, 1, 8))
    rotation = tuple(table[:, None].astype(np.float32) for table in _rotations(6, 8))
    q, k = (_rotated(tf.tile(each, [1, 6, 1, 1]), rotation).numpy()[0, :, 0] for each in (x, y))
    products = q @ k.T
    for distance in range(-5, 6):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-3, atol=1e-4)
    assert not np.allclose(products[0, 0], products[0, 1])


def _unrolled(layer):
    """A layer's result for rows of 2 samples of 3 steps, and its parameters by name."""
    (x,) = _values((6, 5))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        result = layer(tf.constant(x))
        session.run(tf.compat.v1.global_variables_initializer())
        variables = {v.op.name: v for v in tf.compat.v1.global_variables()}
        result, variables = session.run([result, variables])
    return x.reshape(2, 3, 5), result.reshape(2, 3, -1), variables


def test_a_plain_recurrent_layer():
    x, result, variables = _unrolled(lambda rows: _plain(rows, 3, 4, "layer"))
    h = np.zeros((2, 4))
    for step in range(3):
        h = np.tanh(x[:, step] @ variables["layer/input/weights"] + h @ variables["layer/recurrent"])
        np.testing.assert_allclose(result[:, step], h, rtol=1e-4, atol=1e-5)


def test_an_lstm_layer():
    x, result, variables = _unrolled(lambda rows: _lstm(rows, 3, 4, "layer")[0])
    h, c = np.zeros((2, 4)), np.zeros((2, 4))

    def sigmoid(values):
        return 1 / (1 + np.exp(-values))

    for step in range(3):
        gates = x[:, step] @ variables["layer/input/weights"] + h @ variables["layer/recurrent"]
        into, forget, out, new = np.moveaxis(gates.reshape(2, 4, 4), 2, 0)
        c = sigmoid(forget) * c + sigmoid(into) * np.tanh(new)
        h = sigmoid(out) * np.tanh(c)
        np.testing.assert_allclose(result[:, step], h, rtol=1e-4, atol=1e-5)


def test_a_model_is_found_by_name_though_its_module_has_the_same():
    for _ in range(2):
        assert zoo.transformer is zoo.find("transformer")
