"""Format what ``tensoropt search`` prints and writes, with ``--stages`` as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...common.memory_units import default_limit, memory_text
from ...common.progress import Display
from ...plan.plan import Plan
from ...plan.scaling_curve import Curve
from ...plan.staged_frontier import StagedFrontier
from ...plan.staged_plan import StagedPlan
from .search_report import FORMAT, VERSION, SearchSetup, result_json, result_text


def any_text(setup: SearchSetup, found: Plan | StagedPlan | Curve) -> str:
    """Return what a search found as text, with stages or without."""
    if not isinstance(found, Curve) and isinstance(found.frontier, StagedFrontier):
        return _text(setup, found, found.frontier)
    assert not isinstance(found, StagedPlan), "a plan that was just found has its frontier"
    return result_text(setup, found)


def any_json(setup: SearchSetup, found: Plan | StagedPlan | Curve) -> dict[str, Any]:
    """Return the JSON value of a search result, with stages or without."""
    if not isinstance(found, Curve) and isinstance(found.frontier, StagedFrontier):
        return _json(setup, found, found.frontier)
    assert not isinstance(found, StagedPlan), "a plan that was just found has its frontier"
    return result_json(setup, found)


def write_outputs(found: Plan | StagedPlan | Curve, file: Path | None, report: Path | None, display: Display) -> None:
    """Write the frontier of plans with stages and without, and its report, where they are asked for."""
    if isinstance(found, Curve):
        return
    if file is not None and isinstance(found.frontier, StagedFrontier):
        with display.phase("writing of the frontier"):
            found.frontier.save(file, display.update, found.point)
    if report is not None:
        with display.phase("report"):
            if found.frontier is None:
                found.report(report)
            else:
                found.frontier.report(report, found.point)


def _text(setup: SearchSetup, found: Plan | StagedPlan, frontier: StagedFrontier) -> str:
    """Return the frontier of plans with stages and without, how it was found, and the chosen plan, as text."""
    seconds = ", ".join(f"{phase} {value:.2f}" for phase, value in _seconds_by_phase(setup, frontier).items())
    lines = [
        f"\n{frontier.table(found.point)}\n",
        f"search    {setup.algorithm}: {frontier.summary()}",
        f"seconds   {seconds}",
    ]
    if isinstance(found, StagedPlan):
        first, *rest = found.brief().splitlines()
        lines += [f"plan      {setup.option}: {first.removeprefix('plan: ')}", *rest, *_too_large(setup, found, frontier)]
        lines += ["", found.table()]
    else:
        too_large = found.too_large()
        lines += [
            f"plan      {found.summary()}",
            f"peak      {memory_text(found.peak_bytes or found.memory_bytes)} per device at once",
            *([] if too_large is None else [f"note      {too_large}"]),
        ]
    return "\n".join(lines)


def _too_large(setup: SearchSetup, found: StagedPlan, frontier: StagedFrontier) -> list[str]:
    """Return a line that a plan needs more memory than its device has, with the fastest point that fits; none if it fits."""
    device_bytes = int(setup.hardware.device.memory_bytes)
    if found.peak_bytes <= device_bytes:
        return []
    text = f"note      the plan needs {memory_text(found.peak_bytes)} of a device of {memory_text(device_bytes)}"
    fitting = frontier.fastest_within(default_limit(device_bytes))
    if fitting is None:
        return [f"{text}, and no point of the frontier fits"]
    return [f"{text}; point {fitting + 1} is the fastest that fits: --memory {frontier.points_of[fitting].n_bytes}"]


def _json(setup: SearchSetup, found: Plan | StagedPlan, frontier: StagedFrontier) -> dict[str, Any]:
    """Return the JSON value of a search with stages.

    ``bound_time_us`` bounds the time of all plans; ``without_stages`` has what is proven of those without.
    """
    phases = _seconds_by_phase(setup, frontier)
    points = [
        {
            "memory_bytes": point.n_bytes,
            "time_us": time_ns / 1e3,
            "compute_time_us": compute_ns / 1e3,
            "stages": point.n_stages,
            "micro_batches": point.micro_batches,
            "idle_share": point.idle_share,
            "peak_bytes": point.n_bytes,
            "exact": False,
        }
        for point, time_ns, compute_ns in zip(
            frontier.points_of, frontier.costs.time_ns.tolist(), frontier.costs.compute_ns.tolist(), strict=True
        )
    ]
    proven = [each.certified for each in frontier.unstaged[:1]]
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": setup.recorded.name,
        "cluster": setup.hardware.name,
        "devices": frontier.parallelism,
        "algorithm": setup.algorithm,
        "objectives": list(frontier.objectives),
        "optimizer": setup.optimizer,
        "option": setup.option,
        "seconds": sum(phases.values()) - phases["record"],
        "seconds_by_phase": phases,
        "exact": False,
        "bound_time_us": frontier.bound_us,
        "without_stages": [
            {"exact": each.exact, "gap": {"median": each.median_gap, "worst": each.worst_gap}} for each in proven
        ],
        "left_out": list(frontier.left_out),
        **({"why_stages": frontier.why_stages} if frontier.why_stages else {}),
        "turning_point": frontier.turning_number,
        "chosen": found.point,
        "chosen_peak_bytes": found.peak_bytes,
        "points": points,
    }


def _seconds_by_phase(setup: SearchSetup, frontier: StagedFrontier) -> dict[str, float]:
    return {**setup.recorded.seconds_by_phase, **frontier.seconds_by_phase}
