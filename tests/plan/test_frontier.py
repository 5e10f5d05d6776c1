"""Frontiers that are asked, saved, loaded and asked again."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from helpers.large import first
from helpers.searches import plans_of
from plan.frontiers import frontier_of, two_layers
from session.models import begin, built, losses, network

import tensoropt
from tensoropt.ft.lower_bound import LowerBound
from tensoropt.plan.frontier import read_frontier

matplotlib.use("Agg")


def with_metrics_and_adam():
    model = network(trained=False)
    tensoropt.AdamOptimizer(0.1).minimize(model.loss)
    hits = tensoropt.equal(tensoropt.argmax(model.logits, 1), model.y)
    tensoropt.reduce_mean(tensoropt.cast(hits, tensoropt.float32), name="accuracy")
    tensoropt.reduce_max(tensoropt.square(model.w), name="largest")


def shared_many_times():
    """A mask with several consumers, a tensor taken twice by one operator, a variable that is used again."""
    x = tensoropt.placeholder(tensoropt.float32, [8, 4, 4], name="x")
    mask = tensoropt.placeholder(tensoropt.float32, [8, 1, 4], name="mask")
    w = tensoropt.get_variable("w", [4, 4])
    for _ in range(2):
        scores = tensoropt.nn.softmax(tensoropt.matmul(x, x, transpose_b=True) + mask)
        x = x + tensoropt.matmul(scores, tensoropt.einsum("nsd,de->nse", x, w))
    loss = tensoropt.reduce_mean(x * x) + tensoropt.reduce_mean(tensoropt.square(w))
    tensoropt.MomentumOptimizer(0.1).minimize(loss)


def normalised():
    x = tensoropt.placeholder(tensoropt.float32, [8, 4, 4, 2], name="x")
    h = tensoropt.nn.conv2d(x, tensoropt.get_variable("k", [3, 3, 2, 4]), 1, "SAME")
    ones = tensoropt.ones_initializer()
    scale, shift = (tensoropt.get_variable(name, [4], initializer=ones) for name in ("scale", "shift"))
    h, _, _ = tensoropt.compat.v1.nn.fused_batch_norm(h, scale, shift)
    tensoropt.GradientDescentOptimizer(0.1).minimize(tensoropt.reduce_mean(tensoropt.nn.relu(h)))


def same(plan, other) -> bool:
    return json.dumps(plan.to_json()) == json.dumps(other.to_json())


OPTIONS = ({}, {"option": "mini_parallelism", "parallelism": [2, 4]}, {"cluster": "v100-2x3"})
RECORDS = (two_layers, with_metrics_and_adam, shared_many_times, normalised)
# By default a model has one of the options, and the next model the next.
CASES = [case for n, record in enumerate(RECORDS) for case in first(1, [(record, OPTIONS[(n + k) % 3]) for k in range(3)])]


@pytest.mark.parametrize(("record", "options"), CASES)
def test_every_plan_of_a_file_is_the_one_that_the_search_gives(record, options, tmp_path):
    searched = frontier_of(record, **options)
    searched.save(tmp_path / "frontier.json")
    loaded = tensoropt.load_frontier(tmp_path / "frontier.json")
    assert len(loaded) == len(searched)
    for point in range(len(searched)):
        plan = searched.plan(point)
        assert same(loaded.plan(point), plan) and loaded.plan(point).point == point
        assert loaded.plan(point).reshardings == plan.reshardings
    assert repr(loaded) == repr(searched)


@pytest.mark.parametrize("record", first(1, [shared_many_times, with_metrics_and_adam]))
def test_points_may_differ_in_any_single_choice(record, everything):
    """Other than along a frontier, where configs and shared copies change together."""
    searched = dataclasses.replace(frontier_of(record).without_stages[0], searched=None, _peaks={})
    rng = np.random.default_rng(0)
    n_states = [len(node.mem_bytes) for node in searched.built.problem.nodes]
    states, rows = searched.found.strategies[0].copy(), []
    for _ in range(3 * len(n_states) if everything else min(20, 3 * len(n_states))):
        node = rng.integers(len(n_states))
        states[node] = rng.integers(n_states[node])
        rows.append(states.copy())
    costs = np.arange(len(rows)) + 1
    drawn = dataclasses.replace(searched.found, mem_bytes=costs, time_ns=costs[::-1], strategies=np.array(rows), bound=None)
    frontier = plans_of(dataclasses.replace(searched, found=drawn))
    parts = read_frontier(frontier.to_json())
    for point in range(len(rows)):
        assert same(parts.plan(point), frontier.plan(point))


def test_a_plan_is_what_its_frontier_gives(found):
    begin()
    network()
    for limit in (None, found.peak_bytes(2)):
        assert same(tensoropt.find_strategy("mini_time", memory=limit or "16GB"), found.at(limit))


def test_points_are_listed(found, whole):
    for frontier in (found, tensoropt.load_frontier(whole)):
        assert len(frontier) == len(frontier.points) == len(list(frontier)) > 3
        for number, point in enumerate(frontier):
            plan = frontier.plan(number)
            assert (point.sum_bytes, point.time_us) == (plan.sum_bytes, plan.time_us)
            assert point.compute_time_us == plan.compute_time_us and point.exact
            assert point.network_time_us == pytest.approx(sum(resharding.time_us for resharding in plan.reshardings))
            assert point.compute_time_us == pytest.approx(sum(op.time_us for op in plan.operators))


def test_questions_are_answered_by_plans(found, whole):
    for frontier in (found, tensoropt.load_frontier(whole)):
        last = len(frontier) - 1
        peaks, times = (np.array(each, float) for each in zip(*((frontier.peak_bytes(i), point.time_us)
                                                               for i, point in enumerate(frontier)), strict=True))
        depth = (peaks - peaks[0]) / np.ptp(peaks) + (times - times[-1]) / np.ptp(times)
        turning = int(np.argmin(depth))
        assert 0 < turning < last
        asked = (frontier.fastest(), frontier.smallest(), frontier.turning_point(), frontier.at(), frontier.plan(-1))
        assert [plan.point for plan in asked] == [last, 0, turning, last, last]
        assert [plan.option for plan in asked] == ["mini_time", "smallest", "turning_point", "mini_time", "point"]
        assert all(plan.frontier is frontier for plan in asked)
        for wrong in (last + 1, -last - 2, 0.5, "turning", None):
            said = f"the frontier has no point {wrong!r}; its {last + 1} points are numbered from 0"
            with pytest.raises(tensoropt.InputError, match=re.escape(said)):
                frontier.plan(wrong)


def test_a_limit_succeeds_at_the_least_and_fails_a_byte_below(found, whole):
    for frontier in (found, tensoropt.load_frontier(whole)):
        at_once = [found.peak_json(point)["peak_bytes"] for point in range(len(found))]
        assert [frontier.peak_bytes(point) for point in range(len(frontier))] == at_once
        for limit in {*at_once, *(n_bytes - 1 for n_bytes in at_once)} - {min(at_once) - 1}:
            fitting = [point for point, n_bytes in enumerate(at_once) if n_bytes <= limit]
            assert frontier.at(memory=limit).point == max(fitting)
        least = min(at_once)
        with pytest.raises(tensoropt.InputError, match=rf"the least on 4 devices is {least:,} bytes .* memory={least} or"):
            frontier.at(memory=least - 1)
        assert frontier.at("8GB").point == len(frontier) - 1
        with pytest.raises(tensoropt.InputError, match="isn't an amount of memory"):
            frontier.at("much")


def test_a_loaded_frontier_asked_for_another_limit_gives_a_plan_that_runs(whole, monkeypatch):
    expected = losses(built(parallelism=1))
    monkeypatch.setattr("tensoropt.search.frontiers.find_frontier.find_frontier", lambda *args: pytest.fail("searched"))
    frontier = tensoropt.load_frontier(whole)
    for plan in (frontier.at(frontier.peak_bytes(1)), frontier.turning_point()):
        begin()
        model = network()
        tensoropt.build_execution_graph(plan=plan, collectives="emulated")
        assert plan.parallelism == 4
        np.testing.assert_allclose(losses(model), expected, rtol=1e-5)


def test_a_frontier_that_is_not_exact_keeps_its_bound(found, tmp_path):
    bound = LowerBound(found.found.mem_bytes[:2], found.found.time_ns[1:3], "a test")
    (whole,) = found.without_stages
    inexact = plans_of(dataclasses.replace(whole, found=dataclasses.replace(whole.found, bound=bound)))
    inexact.save(tmp_path / "frontier.json")
    loaded = tensoropt.load_frontier(tmp_path / "frontier.json")
    assert loaded.found.certificate == inexact.found.certificate
    assert [point.exact for point in loaded] == [point.exact for point in inexact]
    assert not loaded.plan(0).exact and same(loaded.plan(0), inexact.plan(0))


@pytest.mark.parametrize("worth_loading", [0, 1 << 30])
@pytest.mark.parametrize("record", [with_metrics_and_adam, shared_many_times, normalised])
def test_the_points_are_those_that_no_other_one_beats_in_peak_and_time(record, worth_loading, monkeypatch):
    """By compiled kernels and by replays; a replay of each point that the search found is the oracle."""
    monkeypatch.setattr("tensoropt.search.frontiers.point_peaks.WORTH_LOADING", worth_loading)
    (frontier,) = frontier_of(record).without_stages
    everything = dataclasses.replace(frontier, found=frontier.certified, searched=None, _peaks={})
    all_found = [(everything.peak(i).n_bytes, point.time_us) for i, point in enumerate(everything)]
    kept = [(frontier.peak(i).n_bytes, point.time_us) for i, point in enumerate(frontier)]
    unbeaten = [
        (peak, time)
        for peak, time in all_found
        if not any(a <= peak and b <= time and (a, b) != (peak, time) for a, b in all_found)
    ]
    # A strategy of the same memory and time may have a smaller peak, with which it may beat others.
    assert set(kept) <= {(peak, time) for peak, time in kept if not any(
        a <= peak and b <= time and (a, b) != (peak, time) for a, b in kept)}  # fmt: skip
    assert all(any(a <= peak and b <= time for a, b in kept) for peak, time in unbeaten)
    assert {time for _, time in kept} <= {time for _, time in unbeaten}
    assert [peak for peak, _ in kept] == sorted({peak for peak, _ in kept}) == frontier.all_peaks.tolist()
    memory = [point.sum_bytes for point in frontier]
    assert memory == sorted(set(memory)) and set(memory) <= set(frontier.certified.mem_bytes.tolist())


def test_a_loaded_frontier_is_saved_as_it_was(whole, tmp_path):
    tensoropt.load_frontier(whole).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == whole.read_bytes()
    value = json.loads(whole.read_text())
    assert (value["format"], value["version"]) == ("tensoropt/frontier", 10)


def test_saving_leaves_one_whole_file_and_tells_how_far_it_is(found, tmp_path):
    told = []
    (tmp_path / "frontier.json").write_text("old")
    found.save(tmp_path / "frontier.json", lambda *progress: told.append(progress))
    assert [entry.name for entry in tmp_path.iterdir()] == ["frontier.json"]
    assert told == [("plans", i, len(told)) for i in range(len(told))] and told
    with pytest.raises(tensoropt.InputError, match=r"frontier can't be saved as '/no/such/f.json': No such file"):
        found.save("/no/such/f.json")


def test_loading_and_asking_needs_no_tensorflow(whole, tmp_path):
    code = (
        "import sys, tensoropt\n"
        f"frontier = tensoropt.load_frontier({str(whole)!r})\n"
        f"frontier.turning_point().save({str(tmp_path / 'plan.json')!r})\n"
        "print(frontier)\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "turning point" in ended.stdout and (tmp_path / "plan.json").is_file()


def test_printed_it_is_the_table_with_the_turning_point_marked(found):
    text = repr(found)
    (turning,) = [line for line in text.splitlines() if line.endswith("turning point")]
    assert int(turning.split()[0]) == found.turning_number + 1
    assert text.startswith(found.summary()) and text.endswith(found.table())


def test_it_is_drawn(found, whole, tmp_path):
    for number, frontier in enumerate((found, tensoropt.load_frontier(whole))):
        picture = tmp_path / f"frontier{number}.png"
        axes = frontier.plot(picture)
        assert picture.read_bytes().startswith(b"\x89PNG")
        np.testing.assert_allclose(axes.lines[0].get_xdata(), [frontier.peak_bytes(i) / 1e6 for i in range(len(found))])
        np.testing.assert_allclose(axes.lines[2].get_ydata(), [point.compute_time_us / 1e3 for point in frontier])
        assert axes.get_title() == "4 devices of v100-1x4"
    assert matplotlib.pyplot.get_fignums() == []
    given_axes = matplotlib.pyplot.subplots()[1]
    assert found.plot(axes=given_axes, chosen=1) is given_axes
    assert [text.get_text() for text in given_axes.get_legend().get_texts()][-1] == "chosen"
    assert found.plot() is not given_axes
    matplotlib.pyplot.close("all")
    with pytest.raises(tensoropt.InputError, match=r"picture '.*frontier.what' can't be drawn: Format 'what'"):
        found.plot(tmp_path / "frontier.what")
    assert not list(tmp_path.glob("*what"))
