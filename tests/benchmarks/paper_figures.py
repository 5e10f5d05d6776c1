"""The TensorOpt paper's Figures 6, 7 and 8, and what its Table 4 compares, from hardware descriptions.

    python tests/benchmarks/paper_figures.py [--only 6,7a,7b,7c,8,table4] [--seconds S] [--limit S]

It draws ``docs/figures/paper_*.png``, prints the numbers, and writes them to ``docs/figures/paper.json`` (with ``--only``,
those of these figures). ``docs/reference/paper.md`` compares them with what the paper observes. Nothing is measured: costs
are those of a roofline model of 16-GB V100s as the paper's section 5 describes them. Needs no MPI and no GPU; minutes on two
cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate
from tqdm import tqdm

from tensoropt.common.process.tensorflow_import import import_tensorflow

import_tensorflow()
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.paper_hardware import between_machines, within_a_machine  # noqa: E402

from tensoropt import zoo  # noqa: E402
from tensoropt.common.files import write_json  # noqa: E402
from tensoropt.common.memory_units import memory_text  # noqa: E402
from tensoropt.ft import Budget  # noqa: E402
from tensoropt.profiling.hardware import Hardware, named  # noqa: E402
from tensoropt.search.algorithms import BASELINES  # noqa: E402
from tensoropt.search.compare import Comparison  # noqa: E402
from tensoropt.search.frontiers.find_frontier import find_baseline, find_frontier  # noqa: E402
from tensoropt.search.frontiers.model_frontier import ModelFrontier  # noqa: E402
from tensoropt.search.problem.choices import REMAT  # noqa: E402
from tensoropt.search.problem.config_space import COMPACT, FULL  # noqa: E402
from tensoropt.search.request import Request  # noqa: E402
from tensoropt.sharding.model import Model  # noqa: E402
from tensoropt.tools.offline import record  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "figures"
NUMBERS = FOLDER / "paper.json"
FORMAT, VERSION = "tensoropt/paper", 1
DPI = 90
SAFETY = 1.1
"""The paper's section 5.2: a plan should take no more than a device's memory over this."""
TITLES = {"rnn": "RNN", "wide_resnet": "WideResNet", "transformer": "Transformer", "transformer_s": "Transformer-S",
          "vgg16": "VGG16"}
WIDTHS = (1856, 2576, 3712)
COUNTS = (4, 8, 16, 32)
FULL_UP_TO = {"rnn": 8, "wide_resnet": 8, "vgg16": 16, "transformer": 8}
"""On how many devices the full space is searched within a minute or two; beyond, the compact one."""
COLORS = ("tab:blue", "tab:orange", "tab:green")
MARKERS = {"data-parallel": ("s", "tab:orange"), "optcnn": ("*", "tab:brown"), "tofu": ("v", "tab:pink")}
Numbers = dict[str, Any]


class TooLongError(Exception):
    """A search took longer than it may."""


@dataclass
class Lab:
    """Records models and searches them, each once.

    Attributes:
        budget: of each search.
        limit_s: seconds after which a search or a baseline is given up.
        bar: shows how many are done.
    """

    budget: Budget
    limit_s: float
    bar: tqdm[Any]
    _models: dict[tuple[object, ...], Model] = field(default_factory=dict)
    _found: dict[tuple[object, ...], ModelFrontier | None] = field(default_factory=dict)

    def model(self, name: str, **sizes: int) -> Model:
        key = name, *sizes.items()
        if key not in self._models:
            self._models[key] = record(partial(zoo.find(name), **sizes), f"zoo:{name}").model
        return self._models[key]

    def frontier(self, name: str, hardware: Hardware, parallelism: int, **sizes: int) -> ModelFrontier | None:
        """Return a model's frontier; None if the search took too long."""
        space = FULL if parallelism <= FULL_UP_TO.get(name, 0) else COMPACT
        model = self.model(name, **sizes)
        # The paper regathers copies, and rematerializes nothing.
        asked = Request(model, hardware, None, space=space, budget=self.budget, without=frozenset({REMAT}))
        links = tuple((level.latency_us, level.bytes_per_s) for level in hardware.levels)
        key = name, tuple(sizes.items()), links, parallelism

        def search(progress: Callable[[str, int, int], None]) -> ModelFrontier:
            return find_frontier(replace(asked, progress=progress), parallelism)

        return self._searched(key, f"{name} on {parallelism}", search)

    def baseline(self, frontier: ModelFrontier, algorithm: str) -> ModelFrontier | None:
        """Return what a baseline finds; None if it took too long."""
        key = id(frontier), algorithm
        return self._searched(key, algorithm, partial(find_baseline, frontier, algorithm))

    def _searched(self, key: tuple[object, ...], what: str, search: Callable[..., ModelFrontier]) -> ModelFrontier | None:
        self.bar.set_description(what)
        if key not in self._found:
            try:
                self._found[key] = search(progress=_no_longer_than(self.limit_s))
            except TooLongError:
                self._found[key] = None
        self.bar.update()
        return self._found[key]


def _no_longer_than(seconds: float) -> Callable[[str, int, int], None]:
    deadline = time.monotonic() + seconds

    def progress(stage: str, done: int, total: int) -> None:
        if time.monotonic() > deadline:
            raise TooLongError

    return progress


def point_numbers(frontier: ModelFrontier, point: int) -> Numbers:
    at = frontier.points[point]
    return {
        "sum_bytes": at.sum_bytes, "time_us": at.time_us, "compute_time_us": at.compute_time_us,
        "network_time_us": at.network_time_us, **made_again(frontier, point),
    }  # fmt: skip


def made_again(frontier: ModelFrontier, point: int) -> Numbers:
    """Return how many copies are regathered in the backward pass instead of being saved, and the bytes not saved."""
    copies = [resharding for resharding in frontier.stage(point).reshardings if resharding.is_regathered]
    return {"copies_regathered": len(copies), "bytes_not_saved": sum(copy.copy_bytes for copy in copies)}


def numbers_of(frontier: ModelFrontier | None) -> Numbers:
    """Return a frontier's numbers: its ends, its turning point, how far its compute varies, and how certain it is."""
    if frontier is None:
        return {"feasible": False}
    found, compute = frontier.found, frontier.costs.compute_ns
    return {
        "feasible": True, "seconds": round(sum(frontier.seconds_by_phase.values()), 2), "points": len(found),
        "exact": found.exact, "gap": {"median": found.median_gap, "worst": found.worst_gap}, "space": frontier.built.space,
        "compute_spread": float(compute.max() / compute.min() - 1),
        "least_memory": point_numbers(frontier, found.smallest()),
        "turning_point": point_numbers(frontier, found.turning_point()), "fastest": point_numbers(frontier, found.fastest()),
    }  # fmt: skip


def rows_of(name: str, numbers: Numbers, with_copies: bool) -> list[list[str]]:
    """Return the rows of a table, one for each distinct point of :func:`numbers_of`."""
    if not numbers["feasible"]:
        return [[name, "took too long"]]
    certain = "exact" if numbers["exact"] else f"gap {numbers['gap']['median']:.2%}, worst {numbers['gap']['worst']:.2%}"
    told = [certain, numbers["space"], f"{numbers['seconds']:.1f}"]
    marks = ("least_memory", "turning_point", "fastest") if numbers["points"] > 1 else ("fastest",)
    rows = []
    for mark in marks:
        at = numbers[mark]
        times = [f"{at[part] / 1e6:.3f}" for part in ("time_us", "compute_time_us", "network_time_us")]
        mark = mark.replace("_", " ") if numbers["points"] > 1 else ""
        again = f"{at['copies_regathered']}, {memory_text(at['bytes_not_saved'])}" if at.get("copies_regathered") else ""
        rows.append([name, mark, memory_text(at["sum_bytes"]), *times, *([again] * with_copies), *told])
        name, told = "", ["", "", ""]
    return rows


def table_of(name: str, numbers: Numbers) -> str:
    """Return the numbers of a figure as they are printed, and as ``docs/reference/paper.md`` quotes them."""
    if name == "8":
        return _table_of_counts(numbers)
    if name in ("6", "table4"):
        named_rows = [
            (f"{TITLES[model]}, {algorithm}", each)
            for model, of_model in numbers.items()
            for algorithm, each in of_model.items()
        ]
    else:
        named_rows = list(numbers.items())
    # Numbers of older files don't have this count.
    with_copies = any("copies_regathered" in each.get("fastest", {}) for _, each in named_rows)
    rows = [row for label, each in named_rows for row in rows_of(label, each, with_copies)]
    again = ["regathered"] * with_copies
    headers = ["", "point", "memory", "time (s)", "compute (s)", "network (s)", *again, "certain", "space", "seconds"]
    align = ("left", "left", *["right"] * (4 + with_copies), "left", "left", "right")
    text: str = tabulate(rows, headers, disable_numparse=True, colalign=align)
    return text


def _table_of_counts(numbers: Numbers) -> str:
    rows = [
        [f"{TITLES[model]}, {algorithm}", *(_cell(each) for each in of_counts.values())]
        for model, of_model in numbers.items()
        if model in TITLES
        for algorithm, of_counts in of_model.items()
    ]
    headers = ["time (s) on", *(f"{count} devices" for count in COUNTS)]
    text = tabulate(rows, headers, disable_numparse=True, colalign=("left", *["right"] * len(COUNTS)))
    return f"{text}\n(in brackets: needs so much memory, of {memory_text(numbers['memory_limit_bytes'])})"


def figure_6(lab: Lab) -> Numbers:
    """Draw frontiers of three models on 16 devices, and all baselines."""
    numbers, drawn = {}, {}
    for name in ("rnn", "wide_resnet", "transformer"):
        frontier = lab.frontier(name, named("v100-2x8"), 16)
        of_model = {"ft-ldp": numbers_of(frontier)}
        if frontier is not None:
            baselines = {algorithm: lab.baseline(frontier, algorithm) for algorithm in BASELINES}
            of_model.update({algorithm: numbers_of(each) for algorithm, each in baselines.items()})
            drawn[name] = Comparison(frontier, {algorithm: each for algorithm, each in baselines.items() if each})
        numbers[name] = of_model
    draw("paper_6.png", (17, 5), [partial(_comparison, TITLES[name], each) for name, each in drawn.items()])
    return numbers


def _comparison(title: str, compared: Comparison, axes: Axes) -> None:
    compared.plot(axes)
    axes.set_title(f"{title}, 16 devices")
    axes.set_xlim(left=0)


def figure_7(frontiers: dict[str, ModelFrontier | None], file: str, title: str) -> Numbers:
    """Draw frontiers of one model that differ in one property, such as its size or the links."""
    found = {name: frontier for name, frontier in frontiers.items() if frontier is not None}
    draw(file, (7, 4.8), [partial(_frontiers, title, found)])
    return {name: numbers_of(frontier) for name, frontier in frontiers.items()}


def _frontiers(title: str, frontiers: dict[str, ModelFrontier], axes: Axes) -> None:
    """Draw the time per step, and its network part as a dotted line."""
    for (name, frontier), color in zip(frontiers.items(), COLORS, strict=False):
        costs, turning = frontier.costs, frontier.found.turning_point()
        memory, times = costs.mem_bytes / 1e9, costs.time_ns / 1e9
        axes.plot(memory, times, color=color, drawstyle="steps-post", linewidth=2, label=name)
        axes.plot(memory, costs.network_ns / 1e9, ":", color=color, drawstyle="steps-post")
        axes.plot(memory[turning], times[turning], "o", color=color, fillstyle="none", markersize=10, markeredgewidth=2)
    axes.plot([], [], "k:", label="of which network")
    axes.plot([], [], "ko", fillstyle="none", markersize=10, label="turning point")
    axes.set_xlabel("memory per device (GB)")
    axes.set_ylabel("time per step (s)")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.grid(alpha=0.25)
    axes.legend()


def figure_7a(lab: Lab) -> Numbers:
    """Draw the frontiers of Transformers of three hidden sizes."""
    found = {}
    for width in WIDTHS:
        sizes = {} if width == WIDTHS[-1] else {"width": width}
        parameters = lab.model("transformer", **sizes).graph.parameter_bytes
        found[f"hidden size {width}, {memory_text(parameters)}"] = lab.frontier(
            "transformer", named("v100-2x8"), 16, **sizes
        )
    return figure_7(found, "paper_7a.png", "Transformer, 16 devices")


def figure_7b(lab: Lab) -> Numbers:
    """Draw the Transformer's frontiers for three links between machines."""
    found = {name: lab.frontier("transformer", hardware, 16) for name, hardware in between_machines().items()}
    return figure_7(found, "paper_7b.png", "Transformer, 16 devices, between machines")


def figure_7c(lab: Lab) -> Numbers:
    """Draw the Transformer's frontiers for two links within a machine."""
    found = {name: lab.frontier("transformer", hardware, 8) for name, hardware in within_a_machine().items()}
    return figure_7(found, "paper_7c.png", "Transformer, 8 devices of one machine")


def figure_8(lab: Lab) -> Numbers:
    """Draw the least time of plans that fit, by the number of devices."""
    hardware = named("v100-4x8")
    limit = int(hardware.device.memory_bytes / SAFETY)
    numbers: Numbers = {"memory_limit_bytes": limit}
    for name in ("wide_resnet", "transformer"):
        of_model: dict[str, dict[str, Numbers]] = {"ft-ldp": {}, **{algorithm: {} for algorithm in MARKERS}}
        for count in COUNTS:
            frontier = lab.frontier(name, hardware, count)
            of_model["ft-ldp"][str(count)] = _that_fits(frontier, limit)
            for algorithm in MARKERS:
                each = None if frontier is None else lab.baseline(frontier, algorithm)
                of_model[algorithm][str(count)] = _that_fits(each, limit)
        numbers[name] = of_model
    draw("paper_8.png", (12, 4.8), [partial(_scaling, name, numbers[name]) for name in ("wide_resnet", "transformer")])
    return numbers


def _that_fits(frontier: ModelFrontier | None, limit: int) -> Numbers:
    """Return the fastest point within a limit of memory as the paper counts it; if none fits, that of least memory."""
    if frontier is None:
        return {"feasible": False}
    point = frontier.found.at(limit)
    shown = frontier.found.smallest() if point is None else point
    worst = frontier.found.worst_gap
    return {"feasible": True, "fits": point is not None, "worst_gap": worst, **point_numbers(frontier, shown)}


def _cell(numbers: Numbers) -> str:
    if not numbers["feasible"]:
        return "took too long"
    text = f"{numbers['time_us'] / 1e6:.2f}"
    return text if numbers["fits"] else f"({text}, {memory_text(numbers['sum_bytes'])})"


def _scaling(name: str, numbers: dict[str, dict[str, Numbers]], axes: Axes) -> None:
    """Draw one model's times by devices: filled markers are plans that fit, hollow ones plans that don't."""
    styles = {"ft-ldp": ("o", "tab:blue"), **MARKERS}
    for algorithm, (marker, color) in styles.items():
        known = [(int(count), each) for count, each in numbers[algorithm].items() if each["feasible"]]
        label = "TensorOpt" if algorithm == "ft-ldp" else algorithm
        fitting = [(count, each["time_us"] / 1e6) for count, each in known if each["fits"]]
        axes.plot(*zip(*fitting, strict=True), color=color, linewidth=2) if fitting else None
        for count, each in known:
            fill = "full" if each["fits"] else "none"
            axes.plot(count, each["time_us"] / 1e6, marker, color=color, fillstyle=fill, markersize=9, markeredgewidth=1.5)
        axes.plot([], [], marker=marker, color=color, linewidth=2, markersize=9, label=label)
    axes.plot([], [], "o", color="gray", fillstyle="none", markersize=9, label="doesn't fit")
    axes.set_xscale("log", base=2)
    axes.set_xticks(COUNTS, [str(count) for count in COUNTS])
    axes.set_xlabel("devices")
    axes.set_ylabel("time per step (s)")
    axes.set_ylim(bottom=0)
    axes.set_title(TITLES[name])
    axes.grid(alpha=0.25)
    axes.legend()


def table_4(lab: Lab) -> Numbers:
    """Compare the least time with data parallelism's."""
    numbers = {}
    for name in ("vgg16", "wide_resnet", "transformer_s"):
        frontier = lab.frontier(name, named("v100-2x8"), 16)
        simple = None if frontier is None else lab.baseline(frontier, "data-parallel")
        numbers[name] = {"ft-ldp": numbers_of(frontier), "data-parallel": numbers_of(simple)}
    return numbers


def draw(file: str, size: tuple[float, float], plots: Sequence[Callable[[Axes], None]]) -> None:
    """Write a picture of plots side by side; none if all searches took too long."""
    from matplotlib.figure import Figure

    if not plots:
        return
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(plots), squeeze=False)[0]
    for plot, each in zip(plots, axes, strict=True):
        plot(each)
    figure.savefig(FOLDER / file, dpi=DPI)


FIGURES: dict[str, tuple[Callable[[Lab], Numbers], int]] = {
    "6": (figure_6, 18), "7a": (figure_7a, 3), "7b": (figure_7b, 3), "7c": (figure_7c, 2), "8": (figure_8, 32),
    "table4": (table_4, 6),
}  # fmt: skip
"""The function that draws each figure, and its number of searches."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(FIGURES), metavar="NAME[,NAME...]", help=f"of {', '.join(FIGURES)}")
    parser.add_argument("--seconds", type=float, default=Budget().seconds, help="for refining a search that isn't exact")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a search is given up")
    given = parser.parse_args()
    names = given.only.split(",")
    if unknown := set(names) - FIGURES.keys():
        parser.error(f"--only takes names of {', '.join(FIGURES)}, got {', '.join(sorted(unknown))}")
    kept = json.loads(NUMBERS.read_text())["figures"] if NUMBERS.is_file() else {}
    with tqdm(total=sum(FIGURES[name][1] for name in names)) as bar:
        lab = Lab(Budget(seconds=given.seconds), given.limit, bar)
        for name in names:
            kept[name] = FIGURES[name][0](lab)
            bar.write(f"\n{name}\n{table_of(name, kept[name])}")
            ordered = {each: kept[each] for each in FIGURES if each in kept}
            write_json(NUMBERS, {"format": FORMAT, "version": VERSION, "figures": ordered}, "numbers")


if __name__ == "__main__":
    main()
