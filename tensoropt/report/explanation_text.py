"""Tables of text of an explanation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..common.memory_units import memory_text
from .explanation import BASELINE_US, BESIDE, COLLECTIVES, COMPUTE, INTERLEAVED, NETWORK, WAITS
from .tables import by_stage, signed, stages_table, table, with_rest

MOST_ROWS = 8
_Rows = Sequence[dict[str, Any]]


def explanation_text(facts: dict[str, Any]) -> str:
    """Return the tables of an explanation: of each stage where its time and memory go, then neighbours and assumptions."""
    stages: _Rows = facts["stages"]
    around = _neighbours(facts) if facts["has_frontier"] else _rows_around(facts["frontier"])
    of_stages = by_stage(stages_table({"": stages}), [_stage(stage) for stage in stages])
    summary = "\n".join(filter(None, (facts["summary"], facts["too_large"])))
    return "\n\n".join([summary, *of_stages, around, _assumed(facts)])


def _stage(facts: dict[str, Any]) -> str:
    memory = [_memory(facts), *_regathered(facts), *_rematerialized(facts), *_peak(facts)]
    return "\n\n".join([_time(facts), _reshardings(facts), *memory, _layers(facts)])


def _time(facts: dict[str, Any]) -> str:
    """Return the time per step by operator type, with all network time as one row."""
    rest = [row for row in facts["time"] if row["part"] not in (COMPUTE, COLLECTIVES)]
    network = sum(row["time_us"] for row in _rows_of(facts, COLLECTIVES))
    amounts = sorted([*_rows_of(facts, COMPUTE), {"name": NETWORK, "time_us": network}], key=lambda row: -row["time_us"])
    rows = [*_largest(amounts, "time_us"), *((row["name"], row["time_us"]) for row in rest)]
    return _times(rows, facts, "where the time goes")


def _times(amounts: Iterable[Sequence[Any]], facts: dict[str, Any], header: str) -> str:
    total_us = sum(row["time_us"] for row in facts["time"])
    return table([[name, f"{us:,.1f}", _share(us, total_us)] for name, us in amounts], (header, "us", ""))


def _rows_of(facts: dict[str, Any], part: str) -> list[dict[str, Any]]:
    return [row for row in facts["time"] if row["part"] == part]


def _reshardings(facts: dict[str, Any]) -> str:
    if not facts["reshardings"]:
        return f"nothing is communicated{' within the stage' * bool(_rows_of(facts, WAITS))}"
    return _times(_largest(facts["reshardings"], "time_us"), facts, "reshardings")


def _memory(facts: dict[str, Any]) -> str:
    header = f"where the paper's sum of {memory_text(facts['sum_bytes'])} per device goes"
    return _bytes(_largest(facts["memory"], "bytes"), facts["sum_bytes"], header)


def _bytes(amounts: Iterable[Sequence[Any]], total: float, header: str) -> str:
    return table([[name, memory_text(round(n)), _share(n, total)] for name, n in amounts], (header, "", ""))


def _peak(facts: dict[str, Any]) -> list[str]:
    if not facts["peak"]:
        return []
    beside = "".join(f", with {row['name']}" for row in _rows_of(facts, BESIDE))
    total = sum(row["bytes"] for row in facts["peak"])
    uses = _bytes(_largest(facts["peak"], "bytes"), total, f"at once, at the peak of a step: {memory_text(total)}{beside}")
    if not facts["peak_instant"]:
        return [uses]
    instant, rows = facts["peak_instant"], [(row["name"], row["bytes"]) for row in facts["peak_tensors"][:MOST_ROWS]]
    rows.append(("all else", total - sum(n_bytes for _, n_bytes in rows)))
    tensors = _bytes([row for row in rows if row[1] > 0], total, "tensors at the peak")
    makes = f", while it makes {instant['makes']}" if instant["makes"] else ""
    at = f"the peak is at instruction {instant['instruction'] + 1} of {instant['instructions']}{makes}"
    return [uses, f"{at}\n{tensors}"]


def _layers(facts: dict[str, Any]) -> str:
    rows = with_rest(facts["layers"], MOST_ROWS, ("operators", "time_us", "network_time_us", "sum_bytes"))
    cells = [[name, n, f"{us:,.1f}", f"{network:,.1f}", memory_text(n_bytes)] for name, n, us, network, n_bytes in rows]
    return table(cells, ("layers", "operators", "compute us", "network us", "of the sum"))


def _rematerialized(facts: dict[str, Any]) -> list[str]:
    rows = with_rest(facts["rematerialized"], MOST_ROWS, ("operators", "freed_bytes", "time_us"), "other types")
    cells = [[name, count, memory_text(freed), f"{us:,.1f}"] for name, count, freed, us in rows]
    return [table(cells, ("rematerialized in the backward pass", "operators", "not saved", "us"))] if cells else []


def _regathered(facts: dict[str, Any]) -> list[str]:
    rows = with_rest(facts["regathered"], MOST_ROWS, ("freed_bytes", "time_us"))
    cells = [[name, memory_text(freed), f"{us:,.1f}"] for name, freed, us in rows]
    return [table(cells, ("copies regathered in the backward pass", "not saved", "us"))] if cells else []


def _rows_around(lines: Sequence[str]) -> str:
    """Return the rows around the plan in the table of its frontier."""
    at = next((number for number, line in enumerate(lines) if line.endswith("chosen")), None)
    head = next((number + 1 for number, line in enumerate(lines) if line.startswith("--")), 0)
    if at is None:
        return "the plan is none of its frontier's" if lines else "the frontier isn't at hand"
    return "\n".join(["the next smaller and the next faster plan", *lines[:head], *lines[max(head, at - 1) : at + 2]])


def _neighbours(facts: dict[str, Any]) -> str:
    rows, points = [], [facts, *(facts[side] for side in ("smaller", "faster") if facts[side])]
    memory = "peak_bytes" if all(point["peak_bytes"] for point in points) else "sum_bytes"
    for side in ("smaller", "faster"):
        point = facts[side]
        if point is None:
            rows.append([f"none is {side}", "", "", "", ""])
            continue
        rows.append([
            f"the next {side}",
            memory_text(point[memory]), signed(point["memory_change"]),
            f"{point['time_us']:,.1f}", signed(point["time_change"]),
        ])  # fmt: skip
    header = "memory per device" if memory == "peak_bytes" else "paper's sum"
    return table(rows, ("plan", header, "", "us", ""))


def _assumed(facts: dict[str, Any]) -> str:
    """Return lines on what the plan's costs rest on, and on its baseline trial if there was one."""
    assumed = facts["assumed"]
    lines = [f"assumed: {assumed.get('hardware', 'unknown hardware')}, {assumed.get('device', 'unknown device')}"]
    stats = assumed.get("operators")
    if isinstance(stats, dict):
        share = f"{stats['measured_time_percent']} % of their time"
        lines.append(f"operators: {stats['measured']} measured ({share}), {stats['predicted']} predicted")
    interleaved = assumed.get(INTERLEAVED)
    if isinstance(interleaved, dict):
        baselines = [f"{interleaved[key] / 1e3:,.2f} by {name}" for name, key in BASELINE_US.items() if key in interleaved]
        lines.append(
            f"interleaved steps: {interleaved['plan_us'] / 1e3:,.2f} ms by the plan that was found, "
            f"{', '.join(baselines)}; chosen: {interleaved['chosen']}"
        )
    return "\n".join(lines)


def _largest(rows: _Rows, key: str) -> list[list[Any]]:
    """Return the names and amounts of the first ``MOST_ROWS`` rows, and the sum of all others; zeros are left out."""
    return with_rest([row for row in rows if row[key] > 0], MOST_ROWS, [key])


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""
