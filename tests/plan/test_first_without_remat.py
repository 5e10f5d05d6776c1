"""Where only a plan is wanted, strategies that rematerialize are searched only if the fastest of the others doesn't fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import zoo as small
from helpers.large import first
from helpers.searches import fastest_that_fits

from tensoropt import zoo
from tensoropt.profiling.hardware import named
from tensoropt.search.request import ONCE, Request
from tensoropt.tools.offline import record

MODELS = {"cnn": lambda: small.cnn().loss, "vgg16": lambda: zoo.vgg16(batch=64, image=32)}


@pytest.mark.parametrize("name", first(1, MODELS))
def test_the_plan_is_that_of_a_search_of_everything(name: str) -> None:
    model = record(MODELS[name], name).model
    everything = Request(model, named("v100-1x2"), None, micro_batches=1, budget=ONCE)
    a_plan = replace(everything, wants_frontier=False)
    whole, few = (fastest_that_fits(asked, 2)[0] for asked in (everything, a_plan))
    assert whole[0].built.transient is not None and few[0].built.transient is None
    assert whole[0].costs.time_ns[whole[1]] == few[0].costs.time_ns[few[1]]

    less = few[0].peak_bytes(few[1]) - 1
    whole, few = (fastest_that_fits(replace(asked, limit_bytes=less), 2)[0] for asked in (everything, a_plan))
    assert few[0].built.transient is not None
    assert few[0].points == whole[0].points and few[1] == whole[1]
