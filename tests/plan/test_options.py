"""The three options of ``find_strategy``, and what limits and shapes them."""

from __future__ import annotations

import json
from functools import cache

import matplotlib
import numpy as np
import pytest
from session.models import begin, network

import tensoropt
from tensoropt.common.memory_units import default_limit, memory_text, parse_memory
from tensoropt.profiling.hardware import resolve

matplotlib.use("Agg")


@pytest.fixture(scope="module", autouse=True)
def session():
    begin()
    return network()


def find(*arguments, **options):
    """A request without micro-batches and stages, so that what fits is on one frontier."""
    return tensoropt.find_strategy(*arguments, without=["accumulate", "stages"], **options)


@cache
def found(parallelism: int):
    return tensoropt.find_strategy(parallelism=parallelism)


@cache
def curve_of(*parallelisms: int):
    return tensoropt.find_strategy("profiling", parallelism=[*parallelisms])


def least_peak(parallelism: int) -> int:
    frontier = found(parallelism).frontier
    return min(frontier.peak_json(point)["peak_bytes"] for point in range(len(frontier)))


def test_mini_parallelism_takes_the_fewest_devices_that_fit(everything):
    needs = {count: least_peak(count) for count in (1, 2, 3, 4)}
    for limit in (needs[1], needs[2] - 1, needs[1] - 1, needs[2], needs[4])[: 5 if everything else 2]:
        plan = find("mini_parallelism", memory=limit)
        assert plan.parallelism == min(count for count, least in needs.items() if least <= limit)
        assert plan.frontier.peak_json(plan.point)["peak_bytes"] <= limit
        fastest = find("mini_time", memory=limit, parallelism=plan.parallelism)
        assert plan.time_us == fastest.time_us
    with pytest.raises(tensoropt.InputError, match=f"memory={min(needs.values())} or more"):
        find("mini_parallelism", memory=min(needs.values()) - 1)
    assert find("mini_parallelism", parallelism=[4, 2]).parallelism == 2


def test_profiling_is_the_least_time_of_each_parallelism():
    curve = curve_of(1, 2, 4)
    assert [point.parallelism for point in curve.points] == [1, 2, 4]
    for point in curve.points:
        plan = found(point.parallelism)
        assert (point.time_us, point.peak_bytes) == (plan.time_us, plan.frontier.peak_json(plan.point)["peak_bytes"])
        assert point.samples_per_s == pytest.approx(8 / point.time_us * 1e6)
    assert {point.batch for point in curve.points} == {8}
    everything = tensoropt.find_strategy("profiling")
    assert [point.parallelism for point in everything.points] == [1, 2, 3, 4]


def test_a_curve_says_what_does_not_fit_and_what_would():
    limit = least_peak(1) - 1
    curve = find("profiling", memory=limit, parallelism=[1, 2])
    value = json.loads(json.dumps(curve.to_json()))
    assert (value["format"], value["version"]) == ("tensoropt/curve", 2)
    first, second = value["curve"]
    assert (first["fits"], first["peak_bytes"], first["time_us"], first["exact"]) == (False, limit + 1, None, True)
    assert second["fits"] and second["peak_bytes"] <= limit
    assert second["compute_time_us"] + second["network_time_us"] == pytest.approx(second["time_us"])
    assert [min(second["peak_bytes"], limit), second["time_us"]] in [[min(end[0], limit), end[1]] for end in second["ends"]]
    lines = curve.table().splitlines()
    assert "does not fit" in lines[2] and "does not fit" not in lines[3]
    assert repr(curve) == curve.table()


def test_a_curve_is_drawn(tmp_path):
    curve = curve_of(1, 2, 4)
    axes = curve.plot()
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1, 2, 4])
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [point.time_us / 1e3 for point in curve.points])
    axes.figure.savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 5000
    nothing = tensoropt.find_strategy("profiling", memory=1, parallelism=2)
    nothing.plot(axes)
    matplotlib.pyplot.close(axes.figure)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("16GB", 16 * 10**9), ("15GiB", 15 * 2**30), (" 1.5 kb ", 1500), ("2MiB", 2 * 2**20), ("7B", 7), (".5TB", 5 * 10**11),
     (123, 123), (np.int64(5), 5), (2.5e9, 2_500_000_000)],
)  # fmt: skip
def test_memory_is_a_number_of_bytes_or_a_text_with_a_unit(text, n_bytes):
    assert parse_memory(text) == n_bytes


def test_the_default_limit_is_the_device_over_1_1(monkeypatch):
    assert default_limit(16 * 10**9) == 14_545_454_545
    asked = []
    plan = tensoropt.find_strategy("mini_parallelism", parallelism=1)
    monkeypatch.setattr("tensoropt.search.options._find_plan", lambda option, request, *_: asked.append(request) or plan)
    tensoropt.find_strategy()
    tensoropt.find_strategy(memory="16GB")
    assert [request.limit_bytes for request in asked] == [int(resolve("v100-1x4").device.memory_bytes / 1.1), 16 * 10**9]


def test_memory_is_written_short():
    told = {5: "5 B", 999: "999 B", 1500: "1.5 kB", 999_600: "1000 kB", 1_250_000: "1.25 MB", 16 * 10**9: "16 GB"}
    assert {n: memory_text(n) for n in told} == told


def test_clusters_by_name_file_and_object(tmp_path):
    plan = tensoropt.find_strategy(cluster="p100-2x2")
    assert plan.parallelism == 4 and str(plan.mesh) == "(2 | 2)" and plan.assumed["hardware"] == "p100-2x2"
    file = tmp_path / "two.json"
    file.write_text(json.dumps(resolve("k80-1x2").to_json()))
    assert tensoropt.find_strategy(cluster=str(file)).assumed["device"] == resolve("k80-1x2").device.name
    assert tensoropt.find_strategy(cluster=resolve("h100-1x8"), parallelism=2).parallelism == 2


def test_force_by_name_and_by_type():
    plan = tensoropt.find_strategy(force={"MatMul_1": {"k": 4}})
    config = {op.name: op.config for op in plan.operators}
    assert config["MatMul_1"].degree("k") == 4
    plan = tensoropt.find_strategy(force={"MatMul": {"m": 2}, "Variable": {"d0": 1}, "Relu": {"d0": 2, "d1": 2}})
    config = {op.name: op.config for op in plan.operators}
    # TensorFlow names the first operator of a type like the type, and MatMul is also the type of MatMul_1.
    assert [config[name].degree("m") for name in ("MatMul", "MatMul_1")] == [2, 2]
    assert [config[name].degree("d0") for name in ("w", "v", "b")] == [1, 1, 1]
    assert (config["Relu"].degree("d0"), config["Relu"].degree("d1")) == (2, 2)
    free, forced = tensoropt.find_strategy(), plan
    assert forced.time_us >= free.time_us
    plan = tensoropt.find_strategy(force={"MatMul": {"m": 2}, "MatMul_1": {"k": 4}})  # a name counts before a type
    config = {op.name: op.config for op in plan.operators}
    assert (config["MatMul"].degree("m"), config["MatMul_1"].degree("k")) == (2, 4)


def test_a_plan_for_another_cluster_needs_neither_its_devices_nor_mpi():
    plan = tensoropt.find_strategy(cluster="v100-2x4", memory="16kB")
    assert plan.parallelism == 8 and str(plan.mesh) == "(2 | 2, 2)"
    assert plan.frontier.found.exact
