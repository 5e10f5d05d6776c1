"""``tensoropt compare``: its table, its file and its picture, and what bad input gets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import refused
from helpers.large import first
from matplotlib.figure import Figure

from tensoropt.ft import Frontier
from tensoropt.search.algorithms import BASELINES
from tensoropt.search.compare import Comparison, compare
from tensoropt.tools.cli.main import main

from .models import frontier_of

MODELS = Path(__file__).parents[2] / "tools" / "cli" / "models.py"
GOOD = f"{MODELS}:good"


def run(*arguments):
    return main(["compare", *map(str, arguments)])


def rows_of(table: str) -> dict[str, list[str]]:
    """The rows of each algorithm."""
    rows: dict[str, list[str]] = {}
    name = ""
    for line in table.splitlines()[2:]:
        name = line.split("  ")[0].strip() or name
        rows.setdefault(name, []).append(line)
    return rows


def with_points(frontier, *points):
    """The frontier with other points, of the same strategies."""
    mem, time_ns = (np.array(costs, np.int64) for costs in zip(*points, strict=True))
    strategies = np.repeat(frontier.found.strategies[:1], len(points), axis=0)
    return replace(frontier, found=Frontier(mem, time_ns, strategies, {}, "ft-ldp"), searched=None, _peaks={})


def test_the_table_the_file_and_the_picture_tell_the_same(tmp_path, capsys):
    file, picture = tmp_path / "compared.json", tmp_path / "compared.png"
    assert run(GOOD, "--devices", 4, "--memory", "20kB", "--space", "full", "--json", file, "--plot", picture) == 0
    told = capsys.readouterr().out
    value = json.loads(file.read_text())
    assert (value["format"], value["version"]) == ("tensoropt/compare", 2)
    assert (value["model"], value["cluster"], value["devices"], value["optimizer"]) == (GOOD, "v100-1x4", 4, "sgd")
    assert (value["memory_limit_bytes"], value["exact"], value["gap"]["worst"]) == (20_000, True, 0.0)
    algorithms = {each["algorithm"]: each for each in value["algorithms"]}
    assert list(algorithms) == ["ft-ldp", *BASELINES]
    assert all(algorithms[name]["space"].startswith(name) for name in BASELINES if name != "optcnn")
    assert algorithms["optcnn"]["space"] == algorithms["ft-ldp"]["space"] == "full: all configs of all operators"
    rows = rows_of(told.split("\n\n")[1])
    for name, each in algorithms.items():
        assert each["seconds"] > 0
        for point in each["points"]:
            assert point["compute_time_us"] + point["network_time_us"] == pytest.approx(point["time_us"])
            assert point["fits"] == (point["peak_bytes"] <= 20_000)
            assert point["above"] >= 0
        assert f"{each['points'][-1]['time_us']:,.1f}" in rows[name][-1]
    assert all(point["above"] == 0 for point in algorithms["ft-ldp"]["points"])
    assert algorithms["optcnn"]["points"][0]["time_us"] == algorithms["ft-ldp"]["points"][-1]["time_us"]
    assert not value["notes"] or all(note.startswith("mesh-tensorflow: ") for note in value["notes"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {file}" in told and f"wrote {picture}" in told


def test_how_far_above_and_below_points_are():
    frontier = with_points(frontier_of("lenet5", "full"), (100, 50), (200, 20))
    cases = {(100, 50): 0.0, (150, 60): 0.2, (200, 30): 0.5, (1000, 20): 0.0, (200, 10): -0.5, (99, 1000): None}
    compared = Comparison(frontier, {})
    for point, above in cases.items():
        each = with_points(frontier, point)
        assert compared.above(each) == ([None] if above is None else [pytest.approx(above)])
        assert compared.is_below(each).tolist() == [above is None or above < 0]
    texts = {(100, 50): "on it", (150, 60): "+20.00%", (1000, 20): "+400.00% memory", (99, 1000): "less memory"}
    for point, text in texts.items():
        table = Comparison(frontier, {"tofu": with_points(frontier, point)}).table()
        assert f"  {text}  " in rows_of(table)["tofu"][0]


def test_a_point_below_the_frontier_is_told_with_the_reason():
    full, compact = frontier_of("lenet5", "full"), frontier_of("lenet5", "compact")
    mem, time_ns = int(compact.found.mem_bytes[0]), int(compact.found.time_ns[0])
    of_tofu = with_points(replace(full, built=replace(full.built, space="tofu")), (mem - 1, time_ns))
    (note,) = Comparison(compact, {"tofu": of_tofu}).notes()
    assert note == (
        "tofu: its point is below the frontier, since the space that was searched, compact, doesn't have all of its "
        "strategies (the full one does)"
    )
    on_it = with_points(full, (mem, time_ns))
    vars(on_it)["peaks"] = compact.peaks[:1]
    assert Comparison(compact, {"tofu": on_it}).notes() == []


def test_a_limit_marks_what_does_not_fit_and_the_fastest_that_does():
    frontier = frontier_of("vgg16", "full")
    limit = frontier.peak_bytes(len(frontier) // 2)
    compared = compare(frontier, limit_bytes=limit)
    rows = rows_of(compared.table())
    for each in compared.all().values():
        peaks = [each.peak(point).n_bytes for point in range(len(each))]
        assert compared.points_of(each).mem_bytes.tolist() == peaks == sorted(set(peaks))
    assert [row.split("  ")[-1].strip() for row in rows["ft-ldp"]].count("fastest that fits") == 1
    for name, each in compared.baselines.items():
        fits = [each.peak_bytes(point) <= limit for point in (0, len(each) - 1)]
        assert ["does not fit" not in row for row in (rows[name][0], rows[name][-1])] == fits


def test_the_picture_has_all_algorithms_and_tells_points_that_are_far_away():
    frontier = frontier_of("lenet5", "full")
    most_mem, most_time = int(frontier.found.mem_bytes[-1]), int(frontier.found.time_ns[0])
    far = with_points(frontier, (100 * most_mem, 3 * most_time))
    axes = Figure().subplots()
    Comparison(frontier, {**compare(frontier).baselines, "data-parallel": far}, most_mem).plot(axes)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label.split(":")[0].split(",")[0] for label in labels] == [
        "TensorOpt", "its compute", "its network", "turning point", *BASELINES, "memory limit",
    ]  # fmt: skip
    assert "data-parallel: beyond, at " in labels[4]
    assert axes.get_xlim()[1] * 1e9 < 10 * most_mem


@pytest.mark.parametrize(
    ("arguments", "told"),
    [([GOOD, "--devices", 0], "--devices takes a positive number of devices, got '0'"),
     ([GOOD, "--devices", 4, "--parallelism", "1,2"], "--parallelism takes a positive number of devices, got '1,2'"),
     ([GOOD, "--devices", 4, "--parallelism", "5"], "5"),
     ([GOOD, "--devices", 4, "--memory", "-1GB"], "-1GB"),
     ([f"{MODELS}:fails", "--devices", 4], "failed"),
     ([GOOD, "--devices", 4, "--plot", "/no/such/folder/picture.png"], "there is no folder '/no/such/folder'"),
     ([GOOD, "--devices", 4, "--plot", "picture.gen"], "has a suffix that Matplotlib doesn't know"),
     ([GOOD, "--devices", 4, "--json", "x", "--plot", "x"], "--json and --plot name the same file")],
)  # fmt: skip
def test_bad_input_gets_one_sentence(capsys, arguments, told):
    assert told in refused(capsys, "compare", *arguments)


@pytest.mark.parametrize("algorithm", first(2, BASELINES))
def test_a_search_takes_baselines_and_writes_what_it_writes_for_others(algorithm, tmp_path, capsys):
    plan, points, frontier, picture = (tmp_path / name for name in ("plan.json", "points.json", "all.json", "p.png"))
    outputs = ("--plan", plan, "--json", points, "--frontier", frontier, "--plot", picture)
    arguments = [GOOD, "--devices", 4, "--algorithm", algorithm, "--space", "compact", *outputs]
    assert main(["search", *map(str, arguments)]) == 0
    value = json.loads(points.read_text())
    assert value["algorithm"] == algorithm
    expected = "compact: " if algorithm == "optcnn" else f"{algorithm}: "
    assert value["space"].startswith(expected)
    assert f"space     {expected}" in capsys.readouterr().out
    assert json.loads(plan.read_text())["format"] == "tensoropt/plan"
    assert frontier.exists() and picture.exists()
