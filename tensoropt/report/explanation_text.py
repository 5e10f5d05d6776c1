"""Tables of text of an explanation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tabulate import tabulate

from ..common.memory_units import memory_text
from ..common.words import listed
from .explanation import BASELINE_US, COLLECTIVES, INTERLEAVED, NETWORK

MOST_ROWS = 8
_Rows = Sequence[dict[str, Any]]


def explanation_text(told: dict[str, Any]) -> str:
    """Return the tables of an explanation: of each stage where its time and memory go, then neighbours and assumptions."""
    stages: _Rows = told["stages"]
    around = _neighbours(told) if told["has_frontier"] else _rows_around(told["frontier"])
    of_stages = [_stage(stage) for stage in stages]
    if len(stages) > 1:
        of_stages = [_stages(stages), *(f"stage {number}\n{text}" for number, text in enumerate(of_stages))]
    return "\n\n".join([_summary(told), *of_stages, around, _assumed(told)])


def _stage(told: dict[str, Any]) -> str:
    memory = [_memory(told), *_regathered(told), *_rematerialized(told), *_peak(told)]
    return "\n\n".join([_time(told), _reshardings(told), *memory, _layers(told)])


def _stages(stages: _Rows) -> str:
    """Return one row for each stage."""
    rows = [
        [
            number,
            listed(stage["devices"]),
            stage["last_operator"] or "(the end)",
            stage["in_flight"],
            stage["deferred"],
            "" if stage["peak_bytes"] is None else memory_text(stage["peak_bytes"]),
            f"{stage['time_us']:,.1f}",
            f"{stage['idle_share']:.0%}",
        ]
        for number, stage in enumerate(stages)
    ]
    headers = ("stage", "devices", "ends with", "in flight", "deferred", "memory per device", "time (us)", "waits")
    text: str = tabulate(rows, headers, disable_numparse=True)
    return text


def _summary(told: dict[str, Any]) -> str:
    return "\n".join([told["summary"], *([told["too_large"]] if told["too_large"] else [])])


def _time(told: dict[str, Any]) -> str:
    """Return the time per step by operator type, with all network time as one row."""
    compute = [(row["name"], row["time_us"]) for row in told["time"] if row["part"] == "compute"]
    hidden = [(row["name"], row["time_us"]) for row in told["time"] if row["part"] == "overlap"]
    network = sum(row["time_us"] for row in told["time"] if row["part"] == COLLECTIVES)
    amounts = sorted([*compute, (NETWORK, network)], key=lambda row: -row[1])
    rows = [[name, f"{us:,.1f}", _share(us, told["time_us"])] for name, us in [*_largest(amounts), *hidden]]
    return _table(rows, ("where the time goes", "us", ""))


def _reshardings(told: dict[str, Any]) -> str:
    if not told["reshardings"]:
        return "nothing is communicated"
    amounts = _largest((row["name"], row["time_us"]) for row in told["reshardings"])
    return _table([[name, f"{us:,.1f}", _share(us, told["time_us"])] for name, us in amounts], ("reshardings", "us", ""))


def _memory(told: dict[str, Any]) -> str:
    amounts = _largest((row["name"], row["bytes"]) for row in told["memory"])
    rows = [[name, memory_text(round(n)), _share(n, told["sum_bytes"])] for name, n in amounts]
    return _table(rows, (f"where the paper's sum of {memory_text(told['sum_bytes'])} per device goes", "", ""))


def _peak(told: dict[str, Any]) -> list[str]:
    if not told["peak"]:
        held = [f"{told[key]} {what}" for key, what in (("in_flight", "in flight"), ("deferred", "deferred")) if told[key]]
        if told["peak_bytes"] is None or told["in_flight"] + told["deferred"] == 1:
            return []
        return [
            f"at once, at the peak of a step: {memory_text(told['peak_bytes'])}, with {' and '.join(held)} of its "
            "micro-batches and their messages, where the sum has one"
        ]
    total = sum(row["bytes"] for row in told["peak"])
    amounts = _largest((row["name"], row["bytes"]) for row in told["peak"])
    rows = [[name, memory_text(round(n)), _share(n, total)] for name, n in amounts]
    uses = _table(rows, (f"at once, at the peak of a step: {memory_text(total)}", "", ""))
    instant, tensors = told["peak_instant"], [(row["name"], row["bytes"]) for row in told["peak_tensors"]]
    shown = tensors[:MOST_ROWS]
    shown.append(("all else", total - sum(n_bytes for _, n_bytes in shown)))
    rows = [[name, memory_text(n), _share(n, total)] for name, n in shown if n > 0]
    makes = f", while it makes {instant['makes']}" if instant["makes"] else ""
    at = f"the peak is at instruction {instant['instruction'] + 1} of {instant['instructions']}{makes}"
    return [uses, f"{at}\n{_table(rows, ('tensors at the peak', '', ''))}"]


def _layers(told: dict[str, Any]) -> str:
    rows: _Rows = told["layers"]
    shown = [
        [row["name"], row["operators"], f"{row['time_us']:,.1f}", f"{row['network_time_us']:,.1f}",
         memory_text(row["sum_bytes"])]
        for row in rows[:MOST_ROWS]
    ]  # fmt: skip
    rest = rows[MOST_ROWS:]
    if rest:
        sums = [sum(row[key] for row in rest) for key in ("operators", "time_us", "network_time_us", "sum_bytes")]
        shown.append([f"{len(rest)} others", sums[0], f"{sums[1]:,.1f}", f"{sums[2]:,.1f}", memory_text(sums[3])])
    return _table(shown, ("layers", "operators", "compute us", "network us", "of the sum"))


def _rematerialized(told: dict[str, Any]) -> list[str]:
    rows: _Rows = told["rematerialized"]
    if not rows:
        return []
    shown = [(row["name"], row["operators"], row["freed_bytes"], row["time_us"]) for row in rows[:MOST_ROWS]]
    rest = rows[MOST_ROWS:]
    if rest:
        sums = (sum(row[key] for row in rest) for key in ("operators", "freed_bytes", "time_us"))
        shown.append((f"{len(rest)} other types", *sums))
    cells = [[name, str(count), memory_text(freed), f"{us:,.1f}"] for name, count, freed, us in shown]
    return [_table(cells, ("rematerialized in the backward pass", "operators", "not saved", "us"))]


def _regathered(told: dict[str, Any]) -> list[str]:
    rows: _Rows = told["regathered"]
    if not rows:
        return []
    shown = [(row["name"], row["freed_bytes"], row["time_us"]) for row in rows[:MOST_ROWS]]
    rest = rows[MOST_ROWS:]
    if rest:
        shown.append((f"{len(rest)} others", sum(r["freed_bytes"] for r in rest), sum(r["time_us"] for r in rest)))
    cells = [[name, memory_text(freed), f"{us:,.1f}"] for name, freed, us in shown]
    return [_table(cells, ("copies regathered in the backward pass", "not saved", "us"))]


def _rows_around(lines: Sequence[str]) -> str:
    """Return the rows around the plan in the table of its frontier."""
    at = next((number for number, line in enumerate(lines) if line.endswith("chosen")), None)
    if at is None:
        return "the plan is none of its frontier's" if lines else "the frontier isn't at hand"
    return "\n".join(["the next smaller and the next faster plan", *lines[:2], *lines[max(2, at - 1) : at + 2]])


def _neighbours(told: dict[str, Any]) -> str:
    rows, shown = [], [told, *(told[what] for what in ("smaller", "faster") if told[what])]
    memory = "peak_bytes" if all(each["peak_bytes"] for each in shown) else "sum_bytes"
    for what in ("smaller", "faster"):
        point = told[what]
        if point is None:
            rows.append([f"none is {what}", "", "", "", ""])
            continue
        rows.append([
            f"the next {what}",
            memory_text(point[memory]), signed(point["memory_change"]),
            f"{point['time_us']:,.1f}", signed(point["time_change"]),
        ])  # fmt: skip
    header = "memory per device" if memory == "peak_bytes" else "paper's sum"
    text: str = tabulate(rows, ("plan", header, "", "us", ""), disable_numparse=True)
    return text


def signed(change: float | None) -> str:
    """Return a change as a signed percentage; nothing if it isn't known."""
    return "" if change is None else f"{change:+.1%}"


def _assumed(told: dict[str, Any]) -> str:
    """Return lines on what the plan's costs rest on, and on its baseline trial if there was one."""
    assumed = told["assumed"]
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


def _largest(amounts: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the first ``MOST_ROWS`` of descending amounts, and the sum of all others; zeros are left out."""
    ordered = [(name, amount) for name, amount in amounts if amount > 0]
    rest = ordered[MOST_ROWS:]
    return [*ordered[:MOST_ROWS], *([(f"{len(rest)} others", sum(amount for _, amount in rest))] if rest else [])]


def _table(rows: Sequence[Sequence[Any]], headers: Sequence[str]) -> str:
    alignment = ("left", *("right",) * (len(headers) - 1))
    text: str = tabulate(rows, headers, disable_numparse=True, colalign=alignment)
    return text


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""
