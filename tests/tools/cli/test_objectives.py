"""Other pairs of costs than memory and time: what is found, what it really costs, and what questions then mean."""

import dataclasses
import itertools
import json
from functools import cache

import numpy as np
import pytest
from helpers.large import first
from helpers.searches import find_frontier, plans_of
from tools.cli.models import good

import tensoropt
from tensoropt.costs.objectives import PAIRS, parse_objectives
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.tools.cli.main import main
from tensoropt.tools.offline import record

DENSE = f"{__file__}:dense"
COSTS = ("memory", "time", "network")
# Memory and time are the pair of all other tests.
PAIRS_BY_DEFAULT = first(len(PAIRS) - 1, [(pair,) for pair in (*PAIRS[1:], PAIRS[0])])
pairs = pytest.mark.parametrize(("objectives",), PAIRS_BY_DEFAULT, ids=[",".join(pair) for pair in (*PAIRS[1:], PAIRS[0])])


def dense():
    """Large enough for splits to pay: else computing all everywhere is the fastest, and has no network time."""
    return good(8192, 1000, 2000)


def two_layers():
    x = tensoropt.placeholder(tensoropt.float32, [1200, 600])
    w = tensoropt.get_variable("w", [600, 4000])
    v = tensoropt.get_variable("v", [4000, 30])
    return tensoropt.reduce_mean(tensoropt.matmul(tensoropt.matmul(x, w), v))


@cache
def frontier_of(function, parallelism, space, objectives):
    model = record(function, function.__name__).model
    return find_frontier(model, named(f"v100-1x{parallelism}"), parallelism, space=space, objectives=objectives)


def real_costs(built, strategy):
    memory, time_ns = built.problem.cost(strategy)
    return {"memory": memory, "time": time_ns, "network": time_ns - int(built.compute_ns(np.array(strategy)))}


@cache
def every_strategy(function, parallelism, space):
    built = frontier_of(function, parallelism, space, PAIRS[0]).built
    return [real_costs(built, chosen) for chosen in itertools.product(*(range(n.n_states) for n in built.problem.nodes))]


def minimal(found):
    """Pareto-minimal pairs, by definition."""
    least, kept = None, []
    for one, other in sorted(found):
        if least is None or other < least:
            kept.append((one, other))
            least = other
    return kept


@pytest.mark.parametrize(
    ("function", "parallelism", "space"), [(dense, 2, "full"), (dense, 4, "compact"), (two_layers, 2, "compact")]
)
@pairs
def test_the_frontier_is_that_of_all_strategies(function, parallelism, space, objectives):
    frontier = frontier_of(function, parallelism, space, objectives)
    expected = minimal([tuple(each[name] for name in objectives) for each in every_strategy(function, parallelism, space)])
    searched = frontier.certified
    assert searched.exact and frontier.objectives == objectives
    assert list(zip(searched.mem_bytes.tolist(), searched.time_ns.tolist(), strict=True)) == expected
    # Points that others beat in peak and time aren't shown.
    for point, strategy in zip(frontier.points, frontier.found.strategies.tolist(), strict=True):
        real = real_costs(frontier.built, strategy)
        told = point.sum_bytes, point.time_us * 1e3, point.network_time_us * 1e3
        assert told == pytest.approx([real[name] for name in COSTS])
        assert point.compute_time_us + point.network_time_us == pytest.approx(point.time_us)


def test_the_pairs_differ():
    """Or the other tests would hold for any."""
    found = {pair: frontier_of(dense, 4, "compact", pair) for pair in PAIRS}
    n_points = [len(each) for each in found.values()]
    assert min(n_points) > 2
    least = [min(point.network_time_us for point in each) for each in found.values()]
    assert least[1] == least[2] == 0 < least[0]


@pairs
def test_plans_cost_what_they_do(objectives, everything):
    frontier = frontier_of(dense, 4, "compact", objectives)
    for number, point in [*enumerate(frontier)][:: 1 if everything else 4]:
        plan = plans_of(frontier).plan(number)
        assert (plan.sum_bytes, plan.time_us, plan.compute_time_us) == dataclasses.astuple(point)[:3]
        assert point.network_time_us == pytest.approx(sum(resharding.time_us for resharding in plan.reshardings))
        assert point.compute_time_us == pytest.approx(sum(op.time_us for op in plan.operators))


@pairs
def test_questions_mean_what_they_say(objectives, tmp_path, everything):
    searched = plans_of(frontier_of(dense, 4, "compact", objectives))
    searched.save(tmp_path / "frontier.json")
    loaded = tensoropt.load_frontier(tmp_path / "frontier.json")
    assert (loaded.objectives, loaded.points, repr(loaded)) == (objectives, searched.points, repr(searched))
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "frontier.json").read_bytes()
    for frontier in (searched, loaded):
        points = frontier.points
        memories, times = [[getattr(point, name) for point in points] for name in ("sum_bytes", "time_us")]
        assert frontier.fastest().time_us == frontier.at().time_us == min(times)
        assert frontier.smallest().sum_bytes == min(memories)
        peaks = [searched.peak_json(point)["peak_bytes"] for point in range(len(searched))]
        for limit in peaks[:: 1 if everything else 4]:
            plan = frontier.at(limit)
            assert plan.peak_bytes <= limit
            assert plan.time_us == min(time for peak, time in zip(peaks, times, strict=True) if peak <= limit)
        with pytest.raises(tensoropt.InputError, match=f"the least on 4 devices is {min(peaks):,} bytes"):
            frontier.at(min(peaks) - 1)
        turning = frontier.found.turning_point()
        assert 0 < turning < len(frontier) - 1
        assert frontier.turning_point().point == turning


@pytest.mark.parametrize(
    ("objectives", "labels", "lines"),
    [(("memory", "time"), ("peak memory per device (MB)", "time per step (ms)"), ["time per step", "compute", "network"]),
     (("memory", "network"), ("memory per device (MB)", "network time per step (ms)"), ["network time per step"]),
     (("time", "network"), ("time per step (ms)", "network time per step (ms)"), ["network time per step"])],
)  # fmt: skip
def test_axes_are_the_objectives(objectives, labels, lines):
    from matplotlib.figure import Figure

    frontier = plans_of(frontier_of(dense, 4, "compact", objectives))
    axes = frontier.plot(axes=Figure().subplots())
    assert (axes.get_xlabel(), axes.get_ylabel()) == labels
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [*lines, "turning point"]
    first = frontier.found.mem_bytes if frontier.all_peaks is None else frontier.all_peaks
    np.testing.assert_allclose(axes.lines[0].get_xdata(), first / 1e6)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), frontier.found.time_ns / 1e6)


@pairs
def test_the_command_line(objectives, tmp_path, capsys):
    json_file, plan_file, picture = (tmp_path / name for name in ("found.json", "plan.json", "found.png"))
    arguments = [DENSE, "--devices", "4", "--space", "compact", "--objectives", ",".join(objectives)]
    assert main(["search", *arguments, "--json", str(json_file), "--plan", str(plan_file), "--plot", str(picture)]) == 0
    told, found = capsys.readouterr().out, json.loads(json_file.read_text())
    assert found["objectives"] == list(objectives)
    columns = [{"memory": "sum_bytes", "time": "time_us", "network": "network_time_us"}[name] for name in objectives]
    of_bound = f"bound_{columns[1]}"
    points = found["points"]
    for one, other in itertools.pairwise(points):
        assert one[columns[0]] < other[columns[0]] and one[columns[1]] > other[columns[1]]
    assert all(point[of_bound] == point[columns[1]] for point in points)
    assert (f"of {' and '.join(objectives)} on 4 devices" in told) == (objectives != PAIRS[0])
    plan, chosen = Plan.load(plan_file), points[found["chosen"]]
    assert plan.time_us == chosen["time_us"] == min(point["time_us"] for point in points)
    assert plan.sum_bytes == chosen["sum_bytes"]


def test_a_memory_limit_holds_for_any_pair(tmp_path, capsys):
    file = tmp_path / "found.json"
    pair = ["--objectives", "time,network", "--without", "remat"]
    arguments = ["search", DENSE, "--devices", "4", *pair, "--json", str(file)]
    assert main(arguments) == 0
    peaks = sorted(point["peak_bytes"] for point in json.loads(file.read_text())["points"])
    assert peaks[0] < peaks[-1]
    assert main([*arguments, "--memory", f"{peaks[0]}B"]) == 0
    found = json.loads(file.read_text())
    assert found["points"][found["chosen"]]["peak_bytes"] == found["chosen_peak_bytes"] == peaks[0]
    capsys.readouterr()
    # In micro-batches a step would need less.
    whole = ["--option", "profiling", "--parallelism", "4", "--without", "accumulate"]
    assert main([*arguments, *whole, "--memory", f"{peaks[0] - 1}B"]) == 0
    (point,) = json.loads(file.read_text())["curve"]
    assert (point["fits"], point["peak_bytes"]) == (False, peaks[0])


def test_the_order_of_a_pair_does_not_matter():
    assert parse_objectives("network,memory") == parse_objectives(" memory , network ") == ("memory", "network")


@pytest.mark.parametrize("wrong", ["", "memory", "memory,memory", "memory,,time", "memory,money", "memory,time,network"])
def test_a_bad_pair_gets_a_sentence(wrong, capsys):
    assert main(["search", DENSE, "--devices", "2", "--objectives", wrong]) == 2
    known = "memory,time or memory,network or time,network or time,cost with --option profiling"
    expected = f"--objectives takes two costs, {known}, got {wrong!r}"
    assert capsys.readouterr().err.strip() == f"tensoropt: {expected}"


def test_baselines_have_objectives_of_their_own(capsys):
    assert main(["search", DENSE, "--devices", "2", "--algorithm", "tofu", "--objectives", "memory,network"]) == 2
    assert "algorithm 'tofu' has objectives of its own, got memory,network" in capsys.readouterr().err
