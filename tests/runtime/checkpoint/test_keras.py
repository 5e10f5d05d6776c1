"""A sharded checkpoint in a plain Keras model and optimizer: by TensorFlow's own Checkpoint, and by ours."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from runtime.checkpoint.states import ALONE, Logical, entry, layout_by_seed

from tensoropt.common.errors import InputError
from tensoropt.lowering.variables import StateEntry
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.checkpoint import Objects, entry_name, load_checkpoint, read_metadata, restore, save

MESH = Mesh.of(4)
RANKS = range(4)


def built(units: int = 5) -> keras.Model:
    """A model with moving averages, a seed, a nested model and a variable in a list."""
    inner = keras.Sequential([keras.Input((units,)), keras.layers.Dense(3)])
    inputs = keras.Input((4,))
    x = keras.layers.Dense(units)(inputs)
    x = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(x))
    return keras.Model(inputs, inner(x))


def trained(units: int = 5) -> tuple[keras.Model, keras.Optimizer]:
    model = built(units)
    optimizer = keras.optimizers.Adam(1e-2, use_ema=True)
    model.compile(optimizer, "mse")
    rng = np.random.default_rng(1)
    model.fit(rng.normal(size=(8, 4)), rng.normal(size=(8, 3)), verbose=0, epochs=2)
    return model, optimizer


def sharded(model: keras.Model, optimizer: keras.Optimizer) -> tuple[list[StateEntry], Objects]:
    """The shards of the model's and the optimizer's variables, as an engine holds them."""
    state, names = [], []
    for i, (variable, step) in enumerate([(v, None) for v in model.variables] + [(v, "train") for v in optimizer.variables]):
        key = variable.path if step is None else f"{step}/{variable.path}"
        logical = Logical(key, tuple(variable.shape), variable.value.dtype.name, step)
        state.append(entry(logical, layout_by_seed(MESH, len(logical.shape), i), RANKS, variable.numpy()))
        names.append((variable, entry_name(state[-1])))
    return state, Objects({"model": model, "optimizer": optimizer}, names)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, keras.Model, keras.Optimizer]:
    model, optimizer = trained()
    state, objects = sharded(model, optimizer)
    folder = tmp_path_factory.mktemp("keras")
    return save(folder / "ckpt", state, ALONE, objects=objects, number=7), model, optimizer


def assert_equal(got: list[keras.Variable], expected: list[keras.Variable]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert np.array_equal(one.numpy(), other.numpy()), one.path


def fresh() -> tuple[keras.Model, keras.Optimizer]:
    model = built()
    optimizer = keras.optimizers.Adam(1e-3, use_ema=True)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def test_tensorflows_checkpoint_restores_it(saved) -> None:
    prefix, model, optimizer = saved
    other, other_optimizer = fresh()
    checkpoint = tf.train.Checkpoint(model=other, optimizer=other_optimizer)
    checkpoint.restore(prefix).assert_consumed()
    # TensorFlow's own checkpoints don't have the states of seed generators either.
    assert_equal([v for v in other.variables if "seed" not in v.path], [v for v in model.variables if "seed" not in v.path])
    assert_equal(other_optimizer.variables, optimizer.variables)
    assert checkpoint.save_counter.numpy() == 7


def test_tensorflows_checkpoint_restores_variables_that_are_made_later(saved) -> None:
    prefix, _, optimizer = saved
    model, later = built(), keras.optimizers.Adam(use_ema=True)
    tf.train.Checkpoint(model=model, optimizer=later).restore(prefix)
    later.build(model.trainable_variables)
    assert_equal(later.variables[:2], optimizer.variables[:2])


def test_a_manager_of_tensorflow_goes_on_in_the_same_folder(saved) -> None:
    prefix, *_ = saved
    model, optimizer = fresh()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, prefix.rpartition("/")[0], max_to_keep=3)
    assert manager.latest_checkpoint == prefix and manager.restore_or_initialize() == prefix


def test_load_checkpoint_gives_the_plain_model_all_values(saved) -> None:
    """Seeds too, and whatever names Keras gives to the layers of a model that is built again."""
    prefix, model, optimizer = saved
    other, other_optimizer = built(), keras.optimizers.Adam(use_ema=True)
    load_checkpoint(prefix, other, other_optimizer)
    assert [v.path for v in other.variables] != [v.path for v in model.variables]
    assert_equal(other.variables, model.variables)
    assert_equal(other_optimizer.variables, optimizer.variables)


def test_a_model_that_is_built_again_restores_by_position(saved) -> None:
    prefix, model, _ = saved
    other, other_optimizer = fresh()
    state, objects = sharded(other, other_optimizer)
    restore(prefix, state, ALONE, objects)
    for held, expected in zip(state, model.variables, strict=False):
        for rank, shard in zip(RANKS, held.variables, strict=True):
            cut = tuple(slice(start, end) for start, end in held.layout.bounds(held.shape, rank))
            assert np.array_equal(shard.numpy(), expected.numpy()[cut]), held.key


def test_another_model_is_refused_with_both_shapes(saved) -> None:
    prefix, model, _ = saved
    before = built(6)
    values = [v.numpy() for v in before.variables]
    path = model.variables[0].path
    with pytest.raises(InputError) as refused:
        load_checkpoint(prefix, before)
    assert f"variable 'model/{path}' as float32[4, 5], expected 'model/{path}' as float32[4, 6]" in str(refused.value)
    assert all(np.array_equal(v.numpy(), value) for v, value in zip(before.variables, values, strict=True))


def test_other_optimizers_and_missing_objects_are_refused(saved, tmp_path) -> None:
    prefix, *_ = saved
    with pytest.raises(InputError, match="is of another optimizer: got 20 variables, expected 8"):
        load_checkpoint(prefix, built(), keras.optimizers.SGD(momentum=0.9))
    state, _ = sharded(*fresh())
    without = save(tmp_path / "plain", state, ALONE)
    assert not read_metadata(without).objects
    with pytest.raises(InputError, match="has no Keras model"):
        load_checkpoint(without, built())
