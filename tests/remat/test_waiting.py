"""Rematerialization waits until the backward pass needs it, and nothing that is freed is read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tensorflow as tf
from helpers import zoo
from helpers.large import first
from helpers.strategies import engine_of, feeds_of, random_router, random_strategy, training_fetch

from tensoropt.lowering import pass_chain
from tensoropt.lowering.order import BackwardRecord
from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.reschedule.mesh import Mesh


@pytest.mark.parametrize("seed", first(1, range(3100, 3104)))
@pytest.mark.parametrize("function", [zoo.cnn, zoo.attention])
def test_rematerialization_waits_for_the_loss_and_for_its_reader(
    function, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[Sequence[tf.Operation], BackwardRecord]] = []
    monkeypatch.setattr(pass_chain, "put_in_order", lambda operators, _, record, *__: built.append((operators, record)))
    model, mesh = zoo.record(function, "sgd"), Mesh.of(4)
    view = random_strategy(model, mesh, seed, share_regathered=0.5, share_rematerialized=0.7)
    engine = engine_of(model, view, random_router(seed), EmulatedBackend(mesh), in_order=True)
    engine.run(training_fetch(model), feeds_of(model.graph, model.batches[0]))
    ((operators, record),) = built
    again = [op for each in record.rematerialized for op in operators[each.start : each.end]]
    assert again
    own = {op.name for op in again}
    for op in again:
        # Copies of operators that follow each other wait for the first of them.
        assert op.control_inputs or any(tensor.op.name in own for tensor in op.inputs), op.name
