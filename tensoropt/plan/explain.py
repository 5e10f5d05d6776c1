"""Explain a plan (``plan.explain()``): what its time and memory are spent on, and what the neighbouring plans cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tabulate import tabulate

from ..common.memory_units import memory_text
from ..ir.graph import VARIABLE
from ..program.liveness import Peak
from .frontier import FrontierPoint
from .record import PlannedOperator, PlanRecord

MOST_ROWS = 8
NETWORK, COPIES = "collectives", "saved copies of reshardings"
INTERLEAVED = "interleaved_steps"
"""The key of ``plan.assumed`` for a baseline trial: the times of interleaved steps by the plan and by data parallelism; see
:mod:`..tuning.baseline_trial`.
"""
TAKEN = "results saved for their consumers, or rematerialized"
ACCUMULATED = "gradients accumulated beside those of parameters"
HIDDEN = "compute and collectives at the same time"
_Amounts = dict[str, float]
Neighbours = tuple[FrontierPoint | None, FrontierPoint | None]


def explain(plan: PlanRecord, neighbours: Neighbours | None = None, peak: Peak | None = None) -> str:
    """Return tables as text: time by operator type and by resharding, memory by use, and the neighbouring plans.

    Args:
        neighbours: the next smaller and the next faster point of the frontier that the plan was chosen from, None for each
            that there isn't; without them the rows of the frontier's table around the plan are shown.
        peak: the peak memory by use, if it is known.
    """
    memory = [_memory(plan), *_regathered(plan), *_rematerialized(plan), *_peak(peak)]
    around = _rows_around(plan) if neighbours is None else _neighbours(plan, neighbours)
    return "\n\n".join([plan.summary(), _time(plan), _edges(plan), *memory, around, _assumed(plan)])


def _time(plan: PlanRecord) -> str:
    """Return a table of the time per step by operator type, with all network time as one row."""
    times: _Amounts = {}
    for op in plan.operators:
        _add(times, "Variable (updates)" if op.type == VARIABLE else op.type, op.time_us)
    times[NETWORK] = plan.network_time_us
    hidden = [(HIDDEN, -plan.hidden_time_us)] if plan.hidden_time_us else []
    rows = [[name, f"{time_us:,.1f}", _share(time_us, plan.time_us)] for name, time_us in [*_largest(times), *hidden]]
    return tabulate(rows, ("where the time goes", "us", ""), disable_numparse=True, colalign=("left", "right", "right"))


def _edges(plan: PlanRecord) -> str:
    """Return a table of the time per step of each resharding that communicates."""
    edges: _Amounts = {}
    for resharding in plan.reshardings:
        kinds = dict.fromkeys(
            step.kind for path in resharding.paths for step in path.steps if step.communicates
        )
        if kinds:
            _add(edges, f"{resharding.tensor} to {resharding.consumers[0]}: {', '.join(kinds)}", resharding.time_us)
    if not edges:
        return "nothing is communicated"
    rows = [[name, f"{time_us:,.1f}", _share(time_us, plan.time_us)] for name, time_us in _largest(edges)]
    return tabulate(rows, ("reshardings", "us", ""), disable_numparse=True, colalign=("left", "right", "right"))


def _memory(plan: PlanRecord) -> str:
    """Return a table of the memory per device by use."""
    amounts: _Amounts = {}
    for op in plan.operators:
        what = "parameters, gradients and slots" if op.type == VARIABLE else f"saved for the backward pass of {op.type}"
        _add(amounts, what, op.memory_bytes)
    amounts[ACCUMULATED] = sum(resharding.accumulator_bytes for resharding in plan.reshardings)
    amounts[COPIES] = sum(resharding.copy_bytes for resharding in plan.reshardings if not resharding.is_regathered)
    amounts[TAKEN] = plan.memory_bytes - sum(amounts.values())
    rows = [
        [name, memory_text(round(n_bytes)), _share(n_bytes, plan.memory_bytes)] for name, n_bytes in _largest(amounts)
    ]
    headers = ("where the memory goes, per device", "", "")
    return tabulate(rows, headers, disable_numparse=True, colalign=("left", "right", "right"))


def _rematerialized(plan: PlanRecord) -> list[str]:
    """Return a table of the operators that are rematerialized in the backward pass, by type; nothing if there are none."""
    made = [op for op in plan.operators if op.is_rematerialized]
    if not made:
        return []
    by_type: dict[str, list[PlannedOperator]] = {}
    for op in sorted(made, key=lambda op: (-op.freed_bytes, -op.rematerialization_us)):
        by_type.setdefault(op.type, []).append(op)
    shown = list(by_type.items())
    if len(shown) > MOST_ROWS:
        rest = shown[MOST_ROWS:]
        shown[MOST_ROWS:] = [(f"{len(rest)} other types", [op for _, ops in rest for op in ops])]
    rows = [
        [
            kind,
            str(len(ops)),
            memory_text(sum(op.freed_bytes for op in ops)),
            f"{sum(op.rematerialization_us for op in ops):,.1f}",
        ]
        for kind, ops in shown
    ]
    headers = ("rematerialized in the backward pass", "operators", "not saved", "us")
    return [tabulate(rows, headers, disable_numparse=True, colalign=("left", "right", "right", "right"))]


def _regathered(plan: PlanRecord) -> list[str]:
    """Return a table of the copies that are regathered in the backward pass; nothing if there are none."""
    made = [resharding for resharding in plan.reshardings if resharding.is_regathered]
    if not made:
        return []
    made.sort(key=lambda resharding: -resharding.copy_bytes)
    amounts = [(f"{d.tensor} to {d.consumers[0]}", d.copy_bytes, d.regathering_us) for d in made]
    shown, rest = amounts[:MOST_ROWS], amounts[MOST_ROWS:]
    if rest:
        shown.append((f"{len(rest)} others", sum(n_bytes for _, n_bytes, _ in rest), sum(us for _, _, us in rest)))
    rows = [[name, memory_text(n_bytes), f"{us:,.1f}"] for name, n_bytes, us in shown]
    headers = ("copies regathered in the backward pass", "not saved", "us")
    return [tabulate(rows, headers, disable_numparse=True, colalign=("left", "right", "right"))]


def _peak(peak: Peak | None) -> list[str]:
    """Return a table of the peak memory by use; nothing if it isn't known."""
    if peak is None:
        return []
    rows = [
        [name, memory_text(round(n_bytes)), _share(n_bytes, peak.n_bytes)] for name, n_bytes in _largest(dict(peak.by_use))
    ]
    headers = (f"at once, at the peak of a step: {memory_text(peak.n_bytes)}", "", "")
    return [tabulate(rows, headers, disable_numparse=True, colalign=("left", "right", "right"))]


def _rows_around(plan: PlanRecord) -> str:
    """Return the rows around the plan in the table of its frontier."""
    lines = plan.frontier_text.splitlines()
    at = next((number for number, line in enumerate(lines) if line.endswith("chosen")), None)
    if at is None:
        return "the plan is none of its frontier's" if lines else "the frontier isn't at hand"
    return "\n".join(["the next smaller and the next faster plan", *lines[:2], *lines[max(2, at - 1) : at + 2]])


def _neighbours(plan: PlanRecord, neighbours: Neighbours) -> str:
    """Return a table of the next smaller and the next faster plan."""
    rows = []
    for point, what in zip(neighbours, ("smaller", "faster"), strict=True):
        if point is None:
            rows.append([f"none is {what}", "", "", "", ""])
            continue
        rows.append([
            f"the next {what}",
            memory_text(point.memory_bytes), f"{point.memory_bytes / plan.memory_bytes - 1:+.1%}",
            f"{point.time_us:,.1f}", f"{point.time_us / plan.time_us - 1:+.1%}" if plan.time_us else "",
        ])
    return tabulate(rows, ("plan", "memory", "", "us", ""), disable_numparse=True)


def _assumed(plan: PlanRecord) -> str:
    """Return lines on what the plan's costs rest on, and on its baseline trial if there was one."""
    lines = [f"assumed: {plan.assumed.get('hardware', 'unknown hardware')}, {plan.assumed.get('device', 'unknown device')}"]
    stats = plan.assumed.get("operators")
    if isinstance(stats, dict):
        share = f"{stats['measured_time_percent']} % of their time"
        lines.append(f"operators: {stats['measured']} measured ({share}), {stats['predicted']} predicted")
    interleaved = plan.assumed.get(INTERLEAVED)
    if isinstance(interleaved, dict):
        plan_ms, data_parallel_ms = (interleaved[name] / 1e3 for name in ("plan_us", "data_parallel_us"))
        lines.append(
            f"interleaved steps: {plan_ms:,.2f} ms by the plan that was found, {data_parallel_ms:,.2f} by data parallelism; "
            f"chosen: {interleaved['chosen']}"
        )
    return "\n".join(lines)


def _add(amounts: _Amounts, name: str, amount: float) -> None:
    amounts[name] = amounts.get(name, 0.0) + amount


def _largest(amounts: _Amounts) -> Iterable[tuple[str, float]]:
    """Return the ``MOST_ROWS`` largest amounts in descending order, and the sum of all others; zeros are left out."""
    ordered: Sequence[tuple[str, float]] = sorted(
        ((name, amount) for name, amount in amounts.items() if amount > 0), key=lambda row: -row[1]
    )
    rest = ordered[MOST_ROWS:]
    return [*ordered[:MOST_ROWS], *([(f"{len(rest)} others", sum(amount for _, amount in rest))] if rest else [])]


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""
