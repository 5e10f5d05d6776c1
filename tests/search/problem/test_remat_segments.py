"""The division of a program into blocks against all divisions there are."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import tensorflow as tf
from helpers import zoo
from helpers.large import first
from helpers.searches import find_frontier
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.costs.operator_costs import costing_of
from tensoropt.profiling.hardware import named
from tensoropt.search.frontiers.find_frontier import NOTHING_OFFERED
from tensoropt.search.problem.builder import ProblemBuilder
from tensoropt.search.problem.remat_segments import LIMITS, SLACK, SLACK_OF_RESULTS, _choose_cuts, _Cut, _within

SIZES = st.integers(1, 9)
Program = tuple[list[int], np.ndarray]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Bytes of cuts, and results and parameters of the segments between them."""
    n_cuts = draw(st.integers(1, 6))
    segments = [draw(st.lists(SIZES, min_size=n_cuts + 1, max_size=n_cuts + 1)) for _ in range(2)]
    return draw(st.lists(SIZES, min_size=n_cuts, max_size=n_cuts)), np.array(segments)


def divisions(n_bytes: list[int], segments: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The bytes of the cuts and the largest segment of every division, by row."""
    ends = np.cumsum(segments, axis=1)
    found = []
    for count in range(len(n_bytes) + 1):
        for taken in combinations(range(len(n_bytes)), count):
            sizes = np.diff(ends[:, [*taken, -1]], prepend=0).max(axis=1)
            found.append((sum(n_bytes[i] for i in taken), sizes))
    return found


@given(programs(), st.lists(st.tuples(st.floats(1, 4), st.floats(1, 4)), min_size=1, max_size=4))
def test_no_division_within_limits_cuts_through_less(program: Program, slacks: list[tuple[float, float]]) -> None:
    n_bytes, segments = program
    all_limits = [(segments.max(axis=1) * slack).astype(np.int64) for slack in slacks]
    ends = np.cumsum(segments, axis=1)
    found = _within(n_bytes, ends, np.array(all_limits))
    assert len(found) <= len(slacks)
    for limits in all_limits:
        least = min(cost for cost, sizes in divisions(n_bytes, segments) if (sizes <= limits).all())
        within = [taken for taken in found if (np.diff(ends[:, [*taken, -1]], prepend=0) <= limits[:, None]).all()]
        assert min(sum(n_bytes[i] for i in taken) for taken in within) == least


@given(programs())
def test_of_divisions_that_are_about_the_best_the_finest_is_taken(program: Program) -> None:
    n_bytes, segments = program
    cuts = [_Cut(after, f"operator {after}", size) for after, size in enumerate(n_bytes)]
    taken = [cut.after for cut in _choose_cuts(cuts, segments[0].tolist(), segments[1].tolist())]
    largest = np.diff(np.cumsum(segments, axis=1)[:, [*taken, -1]], prepend=0).max(axis=1)
    of_results = sum(n_bytes[i] for i in taken) + int(largest[0])
    least_of_results = min(cost + int(sizes[0]) for cost, sizes in divisions(n_bytes, segments))
    # Limits are a geometric series of whole numbers: one that is better may lie between two of them.
    ratio = (segments.sum(axis=1) / segments.max(axis=1)).max() ** (1 / (LIMITS - 1))
    assert of_results <= max(least_of_results * ratio, least_of_results + 2) * (1 + SLACK_OF_RESULTS)
    least = min(cost + int(sizes.sum()) for cost, sizes in divisions(n_bytes, segments))
    if least_of_results >= segments[0].sum():
        assert not taken
        return
    assert of_results < segments[0].sum() or not taken
    everywhere = sum(n_bytes) + segments[0].max(), sum(n_bytes) + segments.max(axis=1).sum()
    is_good = everywhere[0] < segments[0].sum() and everywhere[0] <= least_of_results * (1 + SLACK_OF_RESULTS)
    if is_good and everywhere[1] <= least * (1 + SLACK):
        assert len(taken) == len(cuts)


def chain(n_layers: int) -> zoo.Built:
    value = x = tf.compat.v1.placeholder(tf.float32, [64, 8], name="x")
    for i in range(n_layers):
        value = tf.tanh(tf.matmul(value, tf.compat.v1.get_variable(f"w{i}", [8, 8])))
    return zoo.Built(tf.reduce_mean(tf.square(value)), {x: (np.ones((64, 8), np.float32),) * zoo.N_BATCHES}, ())


@pytest.mark.parametrize("n_layers", first(2, [20, 200, 500]))
def test_what_is_offered_of_a_layer_does_not_depend_on_how_many_there_are(n_layers: int) -> None:
    hardware, model = named("v100-1x1"), zoo.record(lambda: chain(n_layers), "sgd").model
    mesh = hardware.mesh(1)
    costing = costing_of(model, hardware, mesh)
    built = ProblemBuilder(costing, mesh, "full").build_rematerializing()
    offered = {op.type: 0 for op in model.graph.operators.values()}
    for node, states in built.nodes:
        for i in states.rematerialized:
            offered[node.operators[i].type] += 1
    assert offered["Tanh"] > n_layers / 2


def test_a_search_says_where_nothing_can_be_rematerialized() -> None:
    hardware = named("v100-1x1")
    assert NOTHING_OFFERED in find_frontier(zoo.record(lambda: chain(1), "sgd").model, hardware, 1).note
    assert NOTHING_OFFERED not in find_frontier(zoo.record(lambda: chain(20), "sgd").model, hardware, 1).note
