"""With more choices no point gets worse, and a small model's frontier is within 1 % whichever choices there are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from helpers.large import first
from helpers.searches import find_frontier
from helpers.zoo import cnn
from remat.small import HARDWARE
from zoo.small import SMALL

from tensoropt import zoo
from tensoropt.ft import Budget, Frontier
from tensoropt.search.problem.choices import REMAT, REUSE, ZERO
from tensoropt.tools.offline import record

ALL = frozenset({REUSE, REMAT, ZERO})


def frontiers(make: Callable[[], Any], budget: Budget, n_devices: int = 4) -> dict[frozenset[str], Frontier]:
    """The frontier with each set of choices."""
    model = record(make, "small").model
    sets = [frozenset(each) for each in chain(*(combinations(sorted(ALL), n) for n in range(len(ALL) + 1)))]
    found = {chosen: find_frontier(model, HARDWARE, n_devices, budget=budget, without=ALL - chosen) for chosen in sets}
    return {chosen: frontier.certified for chosen, frontier in found.items()}


def above(one: Frontier, other: Frontier) -> np.ndarray:
    """The points of the one frontier that no point of the other equals or beats."""
    as_good = (other.mem_bytes <= one.mem_bytes[:, None]) & (other.time_ns <= one.time_ns[:, None])
    return np.flatnonzero(~as_good.any(axis=1))


def test_no_point_is_above_one_with_fewer_choices() -> None:
    found = frontiers(zoo.lenet5, Budget(seconds=0.0, gap=0.01), n_devices=2)
    for more, frontier in found.items():
        assert frontier.exact or (REMAT in more and frontier.worst_gap <= 0.01), (sorted(more), frontier.certificate)
        for fewer in found:
            if fewer < more and fewer >= more - {REMAT}:  # it begins with what the search without finds
                assert not len(above(found[fewer], frontier)), (sorted(fewer), sorted(more))


@pytest.mark.large
@pytest.mark.parametrize("name", ["alexnet", "vgg16", "rnn", "transformer", "wide_resnet", "bert_large", "inception_v3"])
@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_a_point_is_above_one_with_fewer_choices_by_the_gap_at_most(name: str, seconds: float) -> None:
    """A search that isn't exact may miss a strategy by its gap, and its bound holds for what fewer choices give."""
    found = frontiers(lambda: zoo.find(name)(**SMALL[name]), Budget(seconds=seconds, gap=0.01))
    for more, frontier in found.items():
        for fewer, other in ((fewer, other) for fewer, other in found.items() if fewer < more):
            factor = (1 + frontier.worst_gap) * (1 + 1e-9)
            as_near = (frontier.mem_bytes <= factor * other.mem_bytes[:, None]) & (
                frontier.time_ns <= factor * other.time_ns[:, None]
            )
            assert as_near.any(axis=1).all(), (sorted(fewer), sorted(more))
            bound = frontier if frontier.bound is None else frontier.bound
            as_low = (bound.mem_bytes <= other.mem_bytes[:, None]) & (bound.time_ns <= other.time_ns[:, None])
            assert as_low.any(axis=1).all(), (sorted(fewer), sorted(more))
            if not seconds and fewer == more - {REMAT}:  # it begins with what the search without finds
                assert not len(above(other, frontier)), (sorted(fewer), sorted(more))


@pytest.mark.parametrize(("name", "n_devices"), first(3, [("lenet5", 2), ("lenet5", 4), ("cnn", 2), ("vgg16", 4)]))
def test_small_models_are_within_a_percent_whatever_the_time(name: str, n_devices: int) -> None:
    makes = {"lenet5": zoo.lenet5, "vgg16": lambda: zoo.vgg16(**SMALL["vgg16"]), "cnn": lambda: cnn().loss}
    model = record(makes[name], "small").model
    budget = Budget(seconds=0.0, gap=0.01)
    found, again = (find_frontier(model, HARDWARE, n_devices, budget=budget).certified for _ in range(2))
    assert found.worst_gap <= 0.01
    np.testing.assert_array_equal(found.mem_bytes, again.mem_bytes)
    np.testing.assert_array_equal(found.time_ns, again.time_ns)
