"""Gradients of tables that are only looked up are rows, as Keras on TensorFlow has them: one device's numbers, charged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from helpers import zoo
from helpers.large import first
from helpers.strategies import assert_variables, engine_of, local_shards, random_router, random_strategy, train_and_check
from keras import optimizers
from optimizers.models import MakeOptimizer, case_of, check, lookups

from tensoropt.costs.config_costs import costs_of_config
from tensoropt.costs.operator_costs import costing_of
from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.profiling.hardware import named
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Config

ADAM = optimizers.Adam
CASES: dict[str, MakeOptimizer] = {
    "sgd": lambda v: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam-clipnorm": lambda v: ADAM(0.01, amsgrad=True, clipnorm=0.05),
    "adam-global": lambda v: ADAM(0.01, global_clipnorm=0.05),
    "adam-clipvalue": lambda v: ADAM(0.01, clipvalue=0.005),
    "adam-accumulated": lambda v: ADAM(0.01, gradient_accumulation_steps=2, clipnorm=0.05),
    "adamw-ema": lambda v: optimizers.AdamW(0.01, weight_decay=0.3, use_ema=True, ema_overwrite_frequency=2),
    "adam-scaled": lambda v: optimizers.LossScaleOptimizer(ADAM(0.01, global_clipnorm=0.05), 64.0, 2),
    "rmsprop": lambda v: optimizers.RMSprop(0.01, momentum=0.9),
    "adagrad": lambda v: optimizers.Adagrad(0.1),
    "ftrl": lambda v: optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "lamb": lambda v: optimizers.Lamb(0.01, weight_decay=0.1),
    "lamb-clipped": lambda v: optimizers.Lamb(0.01, clipnorm=0.05, gradient_accumulation_steps=2),
    "lamb-global": lambda v: optimizers.Lamb(0.01, global_clipnorm=0.05),
    "lion": lambda v: optimizers.Lion(0.01),
    "adafactor": lambda v: optimizers.Adafactor(0.05, clipnorm=0.1),
}


ON_FOUR = ("lamb-clipped", "adafactor")
ALIKE = ("adam-clipnorm", "adam-global", "adagrad", "ftrl", "lion", "lamb", "lamb-global")
"""Optimizers whose options other optimizers have that run by default; they themselves run by ``--all``."""


@pytest.mark.parametrize("name", first(len(CASES) - len(ALIKE), sorted(CASES, key=ALIKE.__contains__)))
def test_rows_give_one_device_numbers(name: str, everything: bool) -> None:
    """Updates that communicate run on four devices, by default these two of them; the others on two."""
    case = case_of("lookups", CASES[name])
    assert {variable: len(names) for variable, names in case.graph.lookups.items()} == {"table": 2, "kinds": 1}
    communicates = case.optimizer.sum_lengths or any(case.optimizer.is_global)
    mesh = Mesh.of(2, 2) if communicates and (everything or name in ON_FOUR) else Mesh.of(2)
    check(case, mesh, len(name), EmulatedBackend(mesh))


@pytest.mark.parametrize("factor", ["rows", "d1", "i0"])
def test_every_kind_of_split(factor: str) -> None:
    """Rows, columns and batch split over three devices, unevenly."""
    mesh = Mesh.of(3)
    case = case_of("lookups", CASES["adam-clipnorm"])
    engine = check(case, mesh, 4, EmulatedBackend(mesh), prefers=lambda config: factor in config.assignment)
    configs = [engine.views[0].whole.strategy.configs[name] for name in case.graph.lookup_operators]
    assert any(factor in config.assignment for config in configs)


def many_words() -> zoo.Built:
    """More words than a batch has; a table is looked up by int32 and by int64."""
    built = lookups(vocabulary=40)
    kinds = tf.compat.v1.trainable_variables("kinds")[0]
    loss = built.loss + tf.reduce_sum(tf.square(tf.gather(kinds, np.array([0, 2], np.int32))))
    return replace(built, loss=loss)


KINDS, MESHES = ("sgd", "momentum", "nesterov", "adam"), (Mesh.of(2), Mesh.of(3), Mesh.of(2, 2))
# By default one mesh for each.
KINDS_ON_MESHES = [
    case for i, kind in enumerate(KINDS) for case in first(1, [(kind, MESHES[(i + k) % 3]) for k in range(3)])
]


@pytest.mark.parametrize(("kind", "mesh"), KINDS_ON_MESHES, ids=str)
def test_tensorflow_s_optimizers_leave_other_rows_alone(kind: str, mesh: Mesh, everything: bool) -> None:
    """Rows of words that a batch doesn't have stay, and so does their momentum, for when they come again; Adam's fade."""
    model = zoo.record(many_words, kind)
    assert {variable: len(names) for variable, names in model.graph.lookups.items()} == {"table": 2, "kinds": 2}
    words = [{int(word) for name in ("words:0", "nexts:0") for word in batch[name].flat} for batch in model.batches]
    assert (words[0] - words[1]) & words[2]
    for seed in range(2 if everything else 1):
        view = random_strategy(model, mesh, seed, prefers=lambda config: bool(config.used_axes))
        engine = engine_of(model, view, random_router(seed), EmulatedBackend(mesh))
        train_and_check(engine, model)
        assert_variables(model, view, local_shards(engine))


def test_a_table_whose_rows_stay_is_charged_for_rows_alone() -> None:
    """Momentum neither makes a whole gradient nor goes through all of the table; Adam does both."""
    hardware = named("v100-1x2")
    of_table = {}
    for kind in ("momentum", "adam"):
        model = zoo.record(many_words, kind).model
        mesh, op = hardware.mesh(1), model.graph.operators["table"]
        costing = costing_of(model, hardware, mesh)
        costs = costs_of_config(costing, op, rule_of(op), Config(mesh, ()))
        work = costs.work()
        assert work is not None
        of_table[kind] = int(costs.mem_bytes[0]), work.n_bytes
    table, found = 40 * 6 * 8, 2 * 15 * 6 * 8
    assert of_table == {"momentum": (2 * table, 5 * found), "adam": (4 * table, 7 * table)}


def test_a_tied_table_has_a_dense_gradient() -> None:
    assert case_of("attention", CASES["sgd"], n_steps=0).graph.lookups == {}
