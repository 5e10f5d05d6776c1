"""Say in sentences what the plans of a frontier do, and what differs from data parallelism."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..common.memory_units import memory_text
from ..common.words import counted
from .config_words import config_words
from .frontier_rows import FrontierRows
from .plan_rows import SOURCES, PlanRows, Row, StageRows
from .sums import Sums

MOST_DIFFERENCES = 8
Difference = tuple[str, str, str, float]
"""An operator whose config differs: its type, the other config and its own in words, and what it costs."""


def time_text(time_us: float) -> str:
    """Return a time as a short text, such as ``1.25 ms``."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(time_us) >= size:
            return f"{time_us / size:.4g} {unit}"
    return f"{time_us:.4g} us"


def milliseconds(time_us: float) -> str:
    """Return a time in milliseconds with three digits, or whole ones, such as ``0.181`` and ``1,109``."""
    return f"{time_us / 1e3:,.3g}" if time_us < 999_500 else f"{time_us / 1e3:,.0f}"


class PointSentences:
    """The sentences on each point of a frontier. What doesn't depend on the point is found once.

    Attributes:
        other: the plan of data parallelism; None if it isn't known.
    """

    def __init__(self, frontier: FrontierRows, other: PlanRows | None) -> None:
        self.frontier, self.other = frontier, other

    def of(self, point: int, view: Row) -> list[str]:
        """Return the sentences on a point, of which a step is stored."""
        return [self._costliest(point), *_peak(view["memory"]), *self._beside(point)]

    def _costliest(self, point: int) -> str:
        """Return the sentence on the layer that takes the most time."""
        compute, network = self._layers
        names = list(dict.fromkeys([*compute, *network]))
        times = [(float(compute[n][point]) if n in compute else 0.0, float(network[n][point]) if n in network else 0.0)
                 for n in names]  # fmt: skip
        at = max(range(len(names)), key=lambda i: sum(times[i]))
        total, takes = self.frontier.points[point]["time_us"], sum(times[at])
        share = f", {takes / total:.0%} of the step" if total else ""
        return (
            f"Layer {names[at]} takes the most time: {time_text(takes)}{share} "
            f"({time_text(times[at][0])} compute, {time_text(times[at][1])} collectives)."
        )

    @cached_property
    def _layers(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The compute and the network time of each layer at each point; see :func:`.explanation.layers`."""
        frontier = self.frontier
        compute: Sums[str] = Sums(frontier)
        network: Sums[str] = Sums(frontier)
        for part in frontier.value["operators"]:
            compute.add(frontier.layers[part["name"]], part, [row["time_us"] for row in part["choices"]])
        rows = StageRows({}, frontier.layers)
        for part in frontier.value["reshardings"]:
            layers = [rows.layer_of(row) for row in part["pool"]]
            for layer in dict.fromkeys(layers):
                amounts = [
                    sum(part["pool"][i]["time_us"] for i in choice if layers[i] == layer) for choice in part["choices"]
                ]
                network.add(layer, part, amounts)
        return dict(compute.items()), dict(network.items())

    def _beside(self, point: int) -> list[str]:
        """Return sentences on what a point costs beside data parallelism, and on what differs, the costliest first."""
        if self.other is None:
            return []
        mine, other = self.frontier.points[point], self.other.value
        said = [
            f"Data parallelism would take {time_text(other['time_us'])} per step "
            f"({_ratio(other['time_us'], mine['time_us'])} this plan) and {memory_text(other['sum_bytes'])} per device "
            f"as the frontier counts it ({_ratio(other['sum_bytes'], mine['sum_bytes'])} this plan)."
        ]
        counts: dict[tuple[str, str, str], tuple[int, float]] = {}
        columns = self.frontier.columns
        for column, differing in self._differences:
            difference = differing[columns[column][point]]
            if difference is not None:
                *key, cost = difference
                count, before = counts.get(tuple(key), (0, 0.0))
                counts[tuple(key)] = count + 1, before + cost
        ordered = sorted(counts.items(), key=lambda row: -row[1][1])
        for (kind, was, now), (count, _) in ordered[:MOST_DIFFERENCES]:
            what = counted(count, "variable" if kind == "Variable" else kind)
            said.append(f"{what}: {now}, where data parallelism has {was}.")
        rest = sum(count for _, (count, _) in ordered[MOST_DIFFERENCES:])
        if rest:
            said.append(f"{counted(rest, 'other operator')} differ{'s' * (rest == 1)} too.")
        if not ordered:
            said.append("No operator's config differs from data parallelism.")
        remade, regathered = (int(counts_of[point]) for counts_of in self._again)
        if remade or regathered:
            copies = "1 copy" if regathered == 1 else f"{regathered} copies"
            said.append(f"It computes {counted(remade, 'operator')} again in the backward pass, and gathers {copies} again.")
        return said

    @cached_property
    def _differences(self) -> list[tuple[int, list[Difference | None]]]:
        """The column of each operator of which some choice differs from data parallelism, and by choice what differs."""
        assert self.other is not None
        theirs = {op["name"]: op for op in self.other.operators}
        found = []
        for part in self.frontier.value["operators"]:
            before = theirs.get(part["name"])
            if before is None or all(row["config"] == before["config"] for row in part["choices"]):
                continue
            was = config_words(before["type"], before["config"], before["results"])
            found.append((part["column"], [
                None if row["config"] == before["config"] else
                (part["type"], was, config_words(part["type"], row["config"], row["results"]),
                 row["time_us"] + row["sum_bytes"] / 1e9)
                for row in part["choices"]
            ]))  # fmt: skip
        return found

    @cached_property
    def _again(self) -> tuple[np.ndarray, np.ndarray]:
        """How many operators each point computes again in the backward pass, and how many copies it gathers again."""
        sums: Sums[str] = Sums(self.frontier)
        for part in self.frontier.value["operators"]:
            is_source = part["type"] in SOURCES
            counts = [int(row.get("is_rematerialized", False) and not is_source) for row in part["choices"]]
            sums.add("operators", part, counts)
        for part in self.frontier.value["reshardings"]:
            again = [int(row.get("is_regathered", False)) for row in part["pool"]]
            sums.add("copies", part, [sum(again[i] for i in choice) for choice in part["choices"]])
        found, none = dict(sums.items()), np.zeros(len(self.frontier), int)
        return found.get("operators", none), found.get("copies", none)


def _peak(memory: Row) -> list[str]:
    """Return the sentence on the instant of the peak; none of a step without instructions."""
    if not memory["instructions"]:
        return []
    largest = next(iter(memory["peak_by_tensor"].items()), None)
    what = f" while it makes {memory['peak_runs']}" if memory["peak_runs"] else ""
    holds = f"; the largest tensor then is {largest[0]} with {memory_text(largest[1])}" if largest else ""
    return [
        f"The peak of {memory_text(memory['peak_bytes'])} is at instruction {memory['peak_instruction'] + 1} of "
        f"{memory['instructions']}{what}{holds}."
    ]


def _ratio(other: float, mine: float) -> str:
    if not mine:
        return "beside"
    ratio = other / mine
    return f"{ratio:.2f} times" if ratio >= 1 else f"{ratio:.0%} of"
