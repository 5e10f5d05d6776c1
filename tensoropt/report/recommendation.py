"""Which devices meet what is asked for, in memory, time and money; and why not others that would be preferred."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tabulate import tabulate

from ..common.errors import InputError
from ..common.memory_units import default_limit, memory_text
from ..common.words import counted
from ..reschedule.mesh import mesh_of
from .frontier_rows import FrontierRows
from .plan_rows import Row, device_bytes_of

FORMAT, VERSION = "tensoropt/recommendation", 2
MORE = 1.1
"""How much more memory is asked about."""
HOUR_US = 3.6e9


@dataclass(frozen=True, slots=True)
class Wanted:
    """What devices have to meet.

    Attributes:
        limit_bytes: the memory limit per device; None for the one that was searched within.
        step_us: the longest that a step may take; None for any.
        finish_us: the longest that training on ``samples`` may take; the cheapest devices are then preferred.
        spend: the most that training on ``samples`` may cost; the fastest devices are then preferred.
    """

    limit_bytes: int | None = None
    step_us: float | None = None
    finish_us: float | None = None
    spend: float | None = None
    samples: float | None = None

    def text(self) -> str:
        samples = f" for {self.samples or 0:,.6g} samples"
        parts = (
            None if self.limit_bytes is None else f"{memory_text(self.limit_bytes)} per device",
            None if self.step_us is None else f"{self.step_us / 1e3:,.4g} ms per step",
            None if self.finish_us is None else f"{self.finish_us / HOUR_US:,.4g} h{samples}",
            None if self.spend is None else f"a price of {self.spend:,.2f}{samples}",
        )
        return " and ".join(part for part in parts if part)


def of_curve(curve: Row, conditions: Wanted) -> dict[str, Any]:
    """Return the recommendation that a curve leads to.

    A curve has few plans for each number of devices. Where the fastest meets a time but needs more than the limit, a slower
    plan may need less: then it isn't known whether that many devices do.

    Raises:
        InputError: samples are asked about, and the curve doesn't know its batch.
    """
    return _recommendation([_candidate(point, conditions) for point in curve["curve"]], curve["cluster"], conditions)


def of_frontier(frontier: FrontierRows, conditions: Wanted) -> dict[str, Any]:
    """Return the recommendation that the frontier of one number of devices leads to; see :func:`of_curve`."""
    assumed, memory = frontier.value["assumed"], device_bytes_of(frontier.value["assumed"])
    limit = default_limit(memory) if conditions.limit_bytes is None and memory is not None else conditions.limit_bytes
    ends = [(frontier.needed_bytes(at), frontier.points[at]["time_us"]) for at in frontier.comparable]
    point = {
        "cluster": frontier.value["hardware"],
        "parallelism": mesh_of(frontier.value["mesh"]).n_devices,
        "fits": frontier.fastest_within(limit) is not None,
        "peak_bytes": frontier.needed_bytes(frontier.least_point()),
        "limit_bytes": limit,
        "batch": assumed.get("batch"),
        "price_per_hour": None,
        "ends": ends,
    }
    return _recommendation([_candidate(point, conditions)], point["cluster"], conditions)


def _candidate(point: Row, conditions: Wanted) -> dict[str, Any]:
    """Return whether a number of devices does (None where it isn't known) and at what costs, or why not."""
    limit = conditions.limit_bytes or point["limit_bytes"] or math.inf
    within = [end for end in point["ends"] if end[0] <= limit]
    peak_bytes, time_us = min(within, key=lambda end: end[1], default=(point["peak_bytes"], None))
    row = {key: point[key] for key in ("cluster", "parallelism", "batch", "price_per_hour")}
    row.update(peak_bytes=peak_bytes, time_us=time_us, samples_per_s=None, hours=None, price=None, more_memory_saves=None)
    if time_us is not None:
        if limit == point["limit_bytes"]:
            more = min(end[1] for end in point["ends"] if end[0] <= round(limit * MORE))
            row["more_memory_saves"] = 1 - more / time_us
        row["samples_per_s"] = row["batch"] and row["batch"] / time_us * 1e6
        row["hours"], row["price"] = _of_samples(row, time_us, conditions)
    does, why = _verdict(row, point, limit, conditions)
    return {**row, "does": does, "why": why and f"{counted(row['parallelism'], 'device')}{why}"}


def _of_samples(row: Row, time_us: float, conditions: Wanted) -> tuple[float | None, float | None]:
    """Return the hours and the price of training on all samples with steps of a time, as far as they are known."""
    if conditions.samples is None:
        return None, None
    if not row["batch"]:
        raise InputError("the batch isn't known, so neither is the time of --samples; leave it out, or give the model")
    hours = conditions.samples / row["batch"] * time_us / HOUR_US
    return hours, None if row["price_per_hour"] is None else hours * row["price_per_hour"]


def _missed(row: Row, time_us: float, conditions: Wanted) -> str | None:
    """Return which of the times and the sum steps of a time don't meet; None if they meet all."""
    hours, price = _of_samples(row, time_us, conditions)
    if conditions.step_us is not None and time_us > conditions.step_us:
        return f": {time_us / 1e3:,.4g} ms per step, the limit is {conditions.step_us / 1e3:,.4g} ms"
    if conditions.finish_us is not None and hours is not None and hours * HOUR_US > conditions.finish_us:
        return f": takes {hours:,.4g} h, the limit is {conditions.finish_us / HOUR_US:,.4g} h"
    if conditions.spend is not None and price is not None and price > conditions.spend:
        return f": costs {price:,.2f}, the limit is {conditions.spend:,.2f}"
    return None


def _verdict(row: Row, point: Row, limit: float, conditions: Wanted) -> tuple[bool | None, str]:
    searched = point["limit_bytes"] or math.inf
    unknown = None, f": the curve was found within {memory_text(int(min(searched, 2**62)))} only"
    # No plan is faster than the fastest, be it within the limit or not.
    why = _missed(row, min(end[1] for end in point["ends"]), conditions) if point["fits"] else None
    if why is not None:
        return unknown if searched < limit else (False, why)
    if row["time_us"] is None:
        need_text = memory_text(row["peak_bytes"])
        if point["fits"]:
            return None, f": its fastest plan needs {need_text}, and the curve doesn't tell of others"
        if row["peak_bytes"] <= limit:
            return unknown
        return False, f": needs {need_text} per device, the limit is {memory_text(int(limit))}"
    if conditions.spend is not None and row["price_per_hour"] is None:
        return None, f" of {row['cluster']}: left out, since its hardware file has no price_per_hour"
    why = _missed(row, row["time_us"], conditions)
    return (True, "") if why is None else (None, f"{why}; the curve doesn't tell of plans of this memory that are faster")


def _preference(row: Row, conditions: Wanted) -> tuple[float, ...]:
    """Return by what candidates are in order: the fastest within a sum, the cheapest within a time, the fewest devices."""
    fastest = math.inf if row["samples_per_s"] is None else -row["samples_per_s"]
    if conditions.spend is not None:
        return math.inf if row["price"] is None else fastest, row["parallelism"]
    price = math.inf if conditions.finish_us is None or row["price"] is None else row["price"]
    return price, row["parallelism"], fastest


def _recommendation(candidates: Sequence[dict[str, Any]], cluster: str, conditions: Wanted) -> dict[str, Any]:
    candidates = sorted(candidates, key=lambda row: _preference(row, conditions))
    at = next((number for number, row in enumerate(candidates) if row["does"]), len(candidates))
    unpriced = {row["cluster"] for row in candidates if row["price_per_hour"] is None and conditions.finish_us is not None}
    left_out = "is left out of the comparison of prices: its hardware file has no price_per_hour"
    notes = [f"{name} {left_out}" for name in sorted(unpriced)]
    chosen = dict.fromkeys(("cluster", "peak_bytes", "time_us", "samples_per_s", "hours", "price", "more_memory_saves"))
    chosen = {key: candidates[at][key] for key in chosen} if at < len(candidates) else {**chosen, "cluster": cluster}
    return {
        "format": FORMAT,
        "version": VERSION,
        **chosen,
        "wanted": asdict(conditions),
        "devices": candidates[at]["parallelism"] if at < len(candidates) else None,
        "why_not_others": [row["why"] for row in candidates[:at] if row["why"]],
        "notes": notes,
        "candidates": candidates,
    }


def row_text(advice: Mapping[str, Any]) -> str:
    """Return in a line whether the only candidate of a recommendation does, and at what cost or why not."""
    (row,) = advice["candidates"]
    return str(row["why"]) if not row["does"] else f"{counted(row['parallelism'], 'device')} of {_costs(row)}"


def _costs(row: Mapping[str, Any]) -> str:
    hours = "" if row["hours"] is None else f", {row['hours']:,.4g} h"
    hours += "" if row["price"] is None else f" for {row['price']:,.2f}"
    memory = f"{memory_text(row['peak_bytes'])} per device"
    return f"{row['cluster']}: {row['time_us'] / 1e3:,.4g} ms per step, {memory}{hours}"


def recommendation_text(advice: Mapping[str, Any]) -> str:
    """Return the recommendation in words, with the candidates as a table, the preferred ones first."""
    within = Wanted(**advice["wanted"]).text()
    within = within and f", within {within}"
    if advice["devices"] is None:
        lines = [f"no number of devices of {advice['cluster']} is known to train it{within}"]
    else:
        lines = [f"{counted(advice['devices'], 'device')} of {_costs(advice)}{within}"]
        if advice["more_memory_saves"] is not None:
            lines.append(f"10 % more memory per device would save {advice['more_memory_saves']:.1%} of a step")
    lines += ["why not others before it:" if advice["devices"] else "why:"] if advice["why_not_others"] else []
    lines += [*(f"  {why}" for why in advice["why_not_others"]), *(f"note: {note}" for note in advice["notes"])]
    rows = advice["candidates"]
    columns: dict[str, list[str]] = {
        "cluster": [row["cluster"] for row in rows],
        "devices": [row["parallelism"] for row in rows],
        "batch": [row["batch"] for row in rows],
        "memory per device": [memory_text(row["peak_bytes"]) for row in rows],
        "time (us)": ["does not fit" if row["time_us"] is None else f"{row['time_us']:,.1f}" for row in rows],
        "samples/s": ["" if row["samples_per_s"] is None else f"{row['samples_per_s']:,.0f}" for row in rows],
        "hours": ["" if row["hours"] is None else f"{row['hours']:,.4g}" for row in rows],
        "price": ["" if row["price"] is None else f"{row['price']:,.2f}" for row in rows],
        "does": [{True: "yes", False: "no", None: "not known"}[row["does"]] for row in rows],
    }
    nonempty = {name: cells for name, cells in columns.items() if set(cells) - {"", None}}
    align = (*("right",) * (len(nonempty) - 1), "left")
    return "\n".join(lines) + "\n\n" + tabulate(nonempty, list(nonempty), disable_numparse=True, colalign=align)
