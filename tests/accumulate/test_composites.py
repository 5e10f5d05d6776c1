"""Loops and custom gradients in micro-batches: what they are charged, and which are refused."""

from __future__ import annotations

import accumulate.models as models
import composite.models
import pytest
import tensorflow as tf
from helpers import zoo

from tensoropt.common.errors import InputError
from tensoropt.costs.config_costs import costs_of_config
from tensoropt.costs.operator_costs import costing_of
from tensoropt.profiling.hardware import Device, Hardware, LinkLevel
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Config

HARDWARE = Hardware("slow", Device("slow", 1 << 30, {"float32": 1e6}, 1e6), (LinkLevel("device", 1, 1.0, 1e6),))
REFUSED = ("normalised_gradient_with_decay", "without_some_by_branch")
SLICED = {each.__name__: each for each in composite.models.MODELS if each.__name__ not in REFUSED}


@pytest.fixture(autouse=True)
def _recorded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in SLICED.items():
        monkeypatch.setitem(models.FUNCTIONS, name, function)


@pytest.mark.parametrize("name", sorted({*SLICED, *models.FUNCTIONS}))
def test_compute_never_falls_with_micro_batches(name: str) -> None:
    """Whatever an operator is, a loop or a custom gradient among them, forward and backward."""
    model, mesh = models.recorded(name, "momentum").model, HARDWARE.mesh(1)
    config, least = Config.unsplit(mesh), {}
    for n in (1, 2, composite.models.BATCH if name in SLICED else models.BATCH):
        costing = costing_of(model.in_micro_batches(n), HARDWARE, mesh)
        for op in costing.graph.step_operators:
            found = costs_of_config(costing, op, rule_of(op), config).times_ns
            assert (found >= least.get(op.name, found)).all(), f"{n} micro-batches: {op.where()}"
            least[op.name] = found


def test_operators_with_a_seed_draw_for_their_micro_batch_alone() -> None:
    def drawing() -> zoo.Built:
        batches = zoo._reals(3, 64, 8)
        x = tf.compat.v1.placeholder(tf.float64, [64, 8], name="x")
        noise = tf.random.normal([64, 8], dtype=tf.float64, seed=4, name="noise")
        loss = tf.reduce_mean(tf.square(x * tf.compat.v1.get_variable("w", [8], tf.float64) + noise))
        return zoo.Built(loss, {x: batches}, (loss,))

    model, mesh, times = zoo.record(drawing, "sgd").model, HARDWARE.mesh(1), []
    for n in (1, 4):
        costing = costing_of(model.in_micro_batches(n), HARDWARE, mesh)
        op = next(op for op in costing.graph.step_operators if op.type == "RandomStandardNormal")
        work = costs_of_config(costing, op, rule_of(op), Config.unsplit(mesh)).work()
        times.append(work.flops)
    assert times[0] == 4 * times[1] > 0


def test_a_gradient_of_the_full_batch_in_each_micro_batch_is_refused() -> None:
    """Weight decay inside of a custom gradient would be added for each slice."""
    (function,) = (each for each in composite.models.MODELS if each.__name__ == REFUSED[0])
    model = zoo.record(function, "sgd").model
    with pytest.raises(InputError, match=r"CustomGradient .* needs the whole batch at once"):
        model.in_micro_batches(2)
