"""Lookups that run in their table's stage, ahead of the stages that use the rows."""

from __future__ import annotations

import accumulate.models as models
import pytest
from helpers import zoo

from tensoropt.sharding.stages import Stages


def crossings(n_rows: int, cut: str) -> dict[str, tuple[int, int, bool]]:
    """Return by trained tensor from where to where it crosses in the tied model, and whether ahead."""
    model = zoo.record(lambda: models.tied(n_rows=n_rows), "sgd").model
    found = Stages(model, (cut,)).crossings
    return {each.tensor: (each.source, each.target, each.is_ahead) for each in found if each.has_gradient}


def test_rows_are_sent_where_they_are_fewer_bytes_than_the_table() -> None:
    rows = {"Gather:0": (1, 0, True), "Gather_1:0": (1, 0, True)}
    assert crossings(37, "Tanh") == {**rows, "Tanh:0": (0, 1, False)}
    # The penalty on the table is made where the table is.
    assert crossings(5, "Tanh") == {"table:0": (0, 1, False), "Tanh:0": (0, 1, False), "mul:0": (0, 1, False)}


@pytest.mark.parametrize("cut", ["Gather", "Gather_1"])
def test_the_table_is_sent_where_its_first_stage_would_train_nothing_else(cut: str) -> None:
    assert crossings(37, cut)["table:0"] == (0, 1, False)
