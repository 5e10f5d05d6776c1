"""Curves over batches, kinds of hardware and shapes of it, with prices; and the files that schedulers read of them."""

from __future__ import annotations

import csv
import json
import random
import re
import runpy
from pathlib import Path

import pytest
from helpers.commands import said

import tensoropt
from tensoropt.common.errors import InputError
from tensoropt.lowering.gradient_analysis import analyse
from tensoropt.plan.scaling_curve import configurations
from tensoropt.profiling.hardware import named, resolve
from tensoropt.report.curve_files import unbeaten
from tensoropt.search.options import profiling
from tensoropt.search.request import Request
from tensoropt.sharding.micro_batches import with_batch
from tensoropt.sharding.model import Model
from tensoropt.tools.cli.main import main
from tensoropt.tools.cli.searches.recommend import NEAR, largest
from tensoropt.tools.offline import record_named

PRICED = {"format": "tensoropt/hardware", "version": 1, "like": "v100-2x2", "name": "cheap-2x2", "price_per_hour": 3.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("curves")
    (made / "cheap.json").write_text(json.dumps(PRICED))
    (made / "model.py").write_text(
        """import tensoropt

def wide(width=2048):
    x = tensoropt.placeholder(tensoropt.float32, [4096, 256])
    y = tensoropt.placeholder(tensoropt.int32, [4096])
    hidden = tensoropt.nn.relu(tensoropt.matmul(x, tensoropt.get_variable("w", [256, width])))
    return tensoropt.softmax_cross_entropy(y, tensoropt.matmul(hidden, tensoropt.get_variable("v", [width, 256])))
"""
    )
    asked = ["--cluster", f"{made / 'cheap.json'},v100-4x2", "--option", "profiling", "--batch-per-device", "256,1024"]
    asked += ["--parallelism", "1,2,1x2,2x2,4x1"]
    assert main(["search", f"{made / 'model.py'}:wide", *asked, "--json", str(made / "curve.json")]) == 0
    return made


def test_a_smaller_batch_costs_what_a_model_recorded_with_it_costs():
    points = []
    for batch in (64, 16):
        recorded = record_named("zoo:lenet5", None, batch).model
        graph = with_batch(recorded.graph, 16) if batch == 64 else recorded.graph
        model = Model(graph, analyse(graph))
        assert model.graph.batch == 16
        found = profiling([(Request(model, named("v100-1x4"), None), count) for count in (1, 4)]).points
        points.append([(point.peak_bytes, point.time_us, point.network_time_us, point.samples_per_s) for point in found])
    assert points[0] == points[1]
    with pytest.raises(InputError, match="records 64 samples per step, so a batch of 48 can't be had"):
        with_batch(record_named("zoo:lenet5", None, 64).model.graph, 48)


def test_points_are_over_batches_kinds_and_shapes(folder):
    points = json.loads((folder / "curve.json").read_text())["curve"]
    shapes = [(1, 1), (2, 1), (4, 2), (1, 1), (2, 1), (4, 2), (4, 4)]
    assert [(point["parallelism"], point["machines"]) for point in points] == shapes * 2
    assert [point["batch"] for point in points] == [256 * n for n, _ in shapes] + [1024 * n for n, _ in shapes]
    assert [point["price_per_hour"] for point in points[:4]] == [3.0, 6.0, 12.0, None]
    apart, together = points[13], points[12]
    assert (apart["cluster"], together["cluster"]) == ("v100-4x1", "v100-4x2")
    for cheap, same in zip(points[:3], points[3:6], strict=True):
        assert (cheap["peak_bytes"], cheap["time_us"]) == (same["peak_bytes"], same["time_us"])


def test_a_session_has_the_same_curve():
    tensoropt.init()
    x, y = tensoropt.placeholder(tensoropt.float32, [4096, 256]), tensoropt.placeholder(tensoropt.int32, [4096])
    logits = tensoropt.matmul(x, tensoropt.get_variable("w", [256, 256]))
    tensoropt.GradientDescentOptimizer(0.1).minimize(tensoropt.softmax_cross_entropy(y, logits))
    curve = tensoropt.find_strategy(
        "profiling", parallelism=[1, "2x2"], cluster="v100-2x2,a100-1x2", batch_per_device=[64, 1024]
    )
    kinds = ("v100-2x2", 1), ("v100-2x2", 4), ("a100-1x2", 1)
    expected = [(cluster, count, size * count) for size in (64, 1024) for cluster, count in kinds]
    assert [(point.cluster, point.parallelism, point.batch) for point in curve.points] == expected
    assert curve.points[0].limit_bytes == int(16e9 / 1.1) and "cluster" in curve.table() and "batch" in curve.table()
    with pytest.raises(InputError, match="records 4096 samples per step, so a batch of 2000 can't be had"):
        tensoropt.find_strategy("profiling", parallelism=[4], cluster="v100-1x4", batch_per_device=500)
    with pytest.raises(InputError, match="batch_per_device is the batch of a curve"):
        tensoropt.find_strategy(batch_per_device=4)


def test_parallelisms_that_no_hardware_has_are_refused():
    clusters = [named("v100-2x2"), named("a100-1x8")]
    assert [(each.name, count) for each, count in configurations(clusters, [8, "2x1"])] == [("v100-2x1", 2), ("a100-1x8", 8)]
    refused = {"1+3": "nearest is 2x2", "four": "got 'four'", "3x3": "3x3 is not possible on v100-2x2", 7000: "nearest are"}
    for given, why in refused.items():
        with pytest.raises(InputError, match=re.escape(why)):
            configurations(clusters, [given])


def test_what_is_cheapest_and_fastest(folder, capsys):
    points = json.loads((folder / "curve.json").read_text())["curve"]
    priced = [point for point in points if point["price_per_hour"]]
    price = {id(point): 1e12 / point["samples_per_s"] / 3600 * point["price_per_hour"] for point in priced}
    cheapest = min(priced, key=lambda point: price[id(point)])
    file, samples = folder / "curve.json", ["--samples", "1e12"]
    told = json.loads(said(capsys, 0, "recommend", file, "--finish-within", "10000h", *samples, "--json"))
    assert told["price"] == pytest.approx(price[id(cheapest)]) and told["devices"] == cheapest["parallelism"]
    assert {row["does"] for row in told["candidates"]} == {True} and len(told["notes"]) == 2
    sum_of_money = sorted(price.values())[3]
    told = json.loads(said(capsys, 0, "recommend", file, "--spend", f"{sum_of_money * 1.0001}USD", *samples, "--json"))
    within = [point for point in priced if price[id(point)] <= sum_of_money * 1.0001]
    assert told["samples_per_s"] == pytest.approx(max(point["samples_per_s"] for point in within))
    assert sum(bool(row["why"].endswith("no price_per_hour")) for row in told["candidates"]) == 8
    text = said(capsys, 1, "recommend", file, "--spend", "1USD", *samples)
    assert text.startswith("no number of devices of cheap-2x2,v100-4x2")
    for arguments, why in (
        (["--spend", "5USD"], "--samples goes with --spend"),
        (["--spend", "-5USD", *samples], "--spend takes an amount above 0, such as 100USD, got '-5USD'"),
        (["--batch", "3"], "leave out --batch"),
    ):
        assert why in said(capsys, 2, "recommend", file, *arguments)


def test_the_largest_batch_that_fits(folder, capsys):
    for most in (4, 1000, 4097):
        assert most - most / NEAR <= largest(lambda value, most=most: value <= most, 4) <= most
    assert largest(lambda value: False, 4) is None
    asked = ["recommend", "zoo:lenet5", "--cluster", "v100-1x1", "--memory", "3750kB", "--largest", "batch"]
    text = said(capsys, 0, *asked)
    fits, too_large = re.search(r"the largest batch that does: (\d+); (\d+) doesn't", text).groups()
    peaks = dict(re.findall(r"batch (\d+): 1 device of v100-1x1: .* ms per step, ([\d.]+) MB per device", text))
    assert float(peaks[fits]) <= 3.75 and f"batch {too_large}: 1 device: needs" in text and too_large not in peaks
    asked = ["recommend", f"{folder / 'model.py'}:wide", "--cluster", "v100-1x1", "--memory", "40MB", "--largest"]
    assert "wide has no size 'layers': expected one of width" in said(capsys, 2, *asked, "layers")
    text = said(capsys, 0, *asked, "width")
    fits, too_large = map(int, re.search(r"the largest width that does: (\d+); (\d+) doesn't", text).groups())
    assert fits < too_large <= fits * (1 + 2 / NEAR) and f"width {too_large}: 1 device: needs" in text


def test_a_frontier_of_time_and_cost(folder, tmp_path, capsys):
    dear = {**PRICED, "like": "a100-2x2", "name": "dear-2x2", "price_per_hour": 9.0, "watts": 450}
    (tmp_path / "dear.json").write_text(json.dumps(dear))
    asked = ["search", f"{folder / 'model.py'}:wide", "--option", "profiling", "--parallelism", "1,2,4", "--cluster"]
    asked.append(f"{folder / 'cheap.json'},{tmp_path / 'dear.json'},v100-2x2")
    whole = said(capsys, 0, *asked, "--json", tmp_path / "all.json")
    assert "cheap-2x2 is modelled, operators peaks of datasheets; dear-2x2 is modelled, operators assumed" in whole
    text = said(capsys, 0, *asked, "--objectives", "cost,time", "--json", tmp_path / "few.json")
    assert "v100-2x2 is left out: its hardware file has no price_per_hour" in text
    assert "kWh of 10^6 samples" in whole
    points, few = (json.loads((tmp_path / f"{name}.json").read_text())["curve"] for name in ("all", "few"))
    costs = {(p["time_us"], p["price_per_hour"] * p["time_us"]): p for p in points if p["price_per_hour"]}
    expected = [costs[a] for a in sorted(costs) if not any(b[0] <= a[0] and b[1] <= a[1] for b in costs if b != a)]
    assert [point["watts"] for point in points] == [300, 600, 1200, 450, 900, 1800, 300, 600, 1200]
    assert few == expected and 1 < len(few) < len(costs)
    assert [points[at] for at in unbeaten(points)] == few
    text = said(capsys, 2, *asked[:-1], "v100-2x2", "--objectives", "time,cost")
    assert "no point that fits has one; add price_per_hour" in text


def test_a_scheduler_gives_devices_by_curves(folder):
    """Each of 30 jobs ends, none has more devices than there are, and devices by curves end them sooner."""
    scheduler = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "scheduler.py"))
    jobs = scheduler["make_jobs"](dict([scheduler["read_curve"](folder / "curve.json")]), random.Random(0))
    ends = []
    for policy in ("as_asked", "by_curves"):
        done, used = scheduler["simulate"](jobs, scheduler[policy])
        assert sorted(done) == list(range(30)) and 0 < max(n for _, n in used) <= scheduler["DEVICES"]
        ends.append(sum(done.values()))
    assert ends[1] < ends[0]


def test_the_files_have_the_columns_that_schedulers_read(folder, tmp_path, capsys):
    points = json.loads((folder / "curve.json").read_text())["curve"]
    for target in ("gavel", "sia", "csv"):
        said(capsys, 0, "curve", folder / "curve.json", "--to", target, "-o", tmp_path)
    rates = json.loads((tmp_path / "throughputs.json").read_text())
    assert set(rates) == {"cheap", "v100", "v100_unconsolidated"}
    # As scheduler/utils.py of Gavel parses them, and every type of device has every job.
    jobs = [{re.fullmatch(r"\('(.*)', (\d+)\)", job).groups() for job in rates[worker]} for worker in rates]
    assert all(each == jobs[0] for each in jobs) and ("model.py wide (batch size 256)", "4") in jobs[0]
    together, apart = (
        rates[kind]["('model.py wide (batch size 1024)', 4)"]["null"] for kind in ("v100", "v100_unconsolidated")
    )
    assert (together, apart) == tuple(points[at]["samples_per_s"] / 1024 for at in (12, 13))
    with (tmp_path / "placements-v100.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    assert list(rows[0]) == ["placement", "local_bsz", "step_time", "sync_time"]
    assert [row["placement"] for row in rows] == ["1", "1", "2", "2", "22", "22", "1111", "1111"]
    assert float(rows[-1]["step_time"]) == points[13]["time_us"] / 1e6 >= float(rows[-1]["sync_time"])
    columns = (tmp_path / "scalability-v100.csv").read_text().splitlines()[0]
    assert columns == "num_nodes,num_replicas,local_bsz,step_time,sync_time"
    with (tmp_path / "curve.csv").open() as opened:
        assert [float(row["time_us"]) for row in csv.DictReader(opened)] == [point["time_us"] for point in points]
    assert "there is no folder" in said(capsys, 2, "curve", folder / "curve.json", "-o", tmp_path / "none")


@pytest.mark.parametrize(
    ("given", "why"),
    [({"price_per_hour": -1}, "price_per_hour: got -1, expected a price of at least 0"),
     ({"prize": 1}, "prize: unknown field; known are format, version, like, name, price_per_hour, watts"),
     ({"like": "v101-1x8"}, "did you mean v100-1x8")],
)  # fmt: skip
def test_a_hardware_file_that_is_like_another(tmp_path, given, why):
    (tmp_path / "own.json").write_text(json.dumps({**PRICED, **given}))
    with pytest.raises(ValueError, match=re.escape(why)):
        resolve(tmp_path / "own.json")
