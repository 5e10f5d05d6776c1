"""Models with steps of their own train, on emulated ranks, to plain Keras's numbers."""

from __future__ import annotations

import pytest

from tests.trainer.own_steps import CASES, check

EMULATED = {"collectives": "emulated", "parallelism": 2, "cluster": "v100-1x2"}


@pytest.mark.parametrize("name", CASES)
def test_steps_of_their_own_give_plain_keras_numbers(name):
    trainer = check(name, **EMULATED)
    assert trainer.plan.n_collectives
