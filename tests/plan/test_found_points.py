"""Of very many points those that are nearest to others don't have their peaks counted."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from helpers.searches import find_frontier, plans_of
from hypothesis import given
from hypothesis import strategies as st
from remat.small import HARDWARE, SMALL

from tensoropt import zoo
from tensoropt.ft import Budget
from tensoropt.profiling.hardware import named
from tensoropt.program.fast_peak import Peaks, peaks
from tensoropt.search.frontiers import model_frontier, point_peaks
from tensoropt.search.frontiers.find_frontier import find_baseline
from tensoropt.search.frontiers.model_frontier import spread
from tensoropt.search.frontiers.point_peaks import PeakCounter
from tensoropt.sharding.resharding import PathFinder
from tensoropt.tools.offline import record


@given(st.integers(2, 300), st.integers(2, 40), st.integers(0, 1000))
def test_points_that_stay_are_spread_along_the_frontier(n: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mem = np.cumsum(rng.integers(1, 10 ** rng.integers(1, 7, n)))
    time_ns = np.cumsum(rng.integers(1, 10 ** rng.integers(1, 7, n)))[::-1]
    kept = spread(mem, time_ns, most)
    assert kept[0] == 0 and kept[-1] == n - 1 and (np.diff(kept) > 0).all()
    assert len(kept) == n if n <= most else 2 <= len(kept) <= most
    # Whatever was left out is nearer to the point that stays before it than so many equal parts are long, and a half.
    steps = np.maximum(np.diff(np.log(mem)), -np.diff(np.log(time_ns)))
    along = np.concatenate([[0.0], np.cumsum(steps)])
    before = kept[np.searchsorted(kept, np.arange(n), side="right") - 1]
    assert (along - along[before] <= along[-1] / max(most // 2, 1) + 1e-9).all()


@pytest.mark.parametrize("is_deep", [False, True])
def test_only_so_many_points_have_their_peaks_counted(is_deep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends stay, what is certified stays, and points are still in one order."""
    model = record(SMALL["cnn"], "cnn").model
    frontier = find_frontier(model, HARDWARE, 4, budget=Budget(seconds=0))
    assert len(frontier.certified) > 12
    limit, of_operators = (1200, 12) if is_deep else (12, 1200)
    monkeypatch.setattr(model_frontier, "MOST_COUNTED", limit)
    monkeypatch.setattr(model_frontier, "MOST_OF_DEEP_MODELS", of_operators * frontier.built.n_operators)
    monkeypatch.setattr(model_frontier, "MOST_OPERATORS_COUNTED", 0)
    few = find_frontier(model, HARDWARE, 4, budget=Budget(seconds=0))
    assert 2 <= len(few.found) <= 12 < len(few.certified)
    assert few.found.time_ns[-1] == frontier.found.time_ns[-1]
    assert few.all_peaks is not None and (np.diff(few.all_peaks) > 0).all() and (np.diff(few.found.time_ns) < 0).all()


@pytest.mark.parametrize("n_threads", ["1", "4"])
def test_threads_count_the_peaks_that_programs_have(n_threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frontier = find_frontier(record(SMALL["cnn"], "cnn").model, HARDWARE, 4, budget=Budget(seconds=0))
    monkeypatch.setenv("TENSOROPT_WORKERS", n_threads)
    monkeypatch.setattr(point_peaks, "WORTH_LOADING", 0)
    monkeypatch.setattr(peaks, "IN_A_ROW", 2)
    counting = Peaks(frontier.model, frontier.costing, PathFinder(frontier.costing.reshardings.steps))
    counted = PeakCounter(frontier.model, frontier.built, counting).peaks_of(frontier.found.strategies)
    assert counted.tolist() == [frontier.peak(point).n_bytes for point in range(len(frontier.found))]
    assert 1 <= len(counting._arenas) <= int(n_threads)


def test_where_training_splits_nothing_predictions_are_not_split_either() -> None:
    def loss_beside_products() -> tf.Tensor:
        loss = zoo.lenet5(batch=4096)
        images = next(op for op in tf.compat.v1.get_default_graph().get_operations() if op.type == "Placeholder").outputs[0]
        rows = tf.reshape(images, [4096, -1])
        tf.matmul(rows, rows, transpose_b=True)
        return loss

    frontier = find_frontier(record(loss_beside_products, "lenet5", "sgd").model, named("v100-1x2"), 2)
    assert plans_of(frontier).plan(0).n_split_operators
    assert plans_of(find_baseline(frontier, "unsplit")).plan(0).splits_nothing
