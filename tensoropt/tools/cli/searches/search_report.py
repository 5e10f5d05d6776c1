"""Print and write what ``tensoropt search`` found: text, the search result and curve of FORMATS, and pictures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....common.files import write_json
from ....common.memory_units import memory_text
from ....common.process.progress import Display
from ....common.words import counted
from ....plan.frontier import JOINED, Frontier
from ....plan.picture import new_axes, save_picture
from ....plan.plan import Plan
from ....plan.scaling_curve import Curve
from ....profiling.hardware import Hardware
from ....rules.registry import rule_of
from ....search.algorithms import SPACES as BASELINE_SPACES
from ....search.compare import Comparison
from ....search.frontiers.model_frontier import ModelFrontier
from ....search.problem.config_space import described
from .frontier_outputs import write_frontier

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...recorded import Recorded

FORMAT, VERSION = "tensoropt/search", 4


@dataclass(frozen=True)
class SearchSetup:
    """The model and hardware of a search, and its option and algorithm."""

    recorded: Recorded
    hardware: Hardware
    option: str
    algorithm: str

    @property
    def optimizer(self) -> str:
        return ", ".join(self.recorded.optimizers)


def introduction(setup: SearchSetup) -> str:
    """Return lines that describe the model and the hardware."""
    graph, hardware, seconds = setup.recorded.model.graph, setup.hardware, setup.recorded.seconds_by_phase
    replicated = {op.type: rule_of(op).without for op in graph.step_operators if op.updates is None}
    of_batch = "" if graph.batch is None else f" on batches of {graph.batch:,}"
    lines = [
        f"model     {setup.recorded.name}: {counted(len(graph.step_operators), 'operator')}, "
        f"{memory_text(graph.parameter_bytes)} of parameters, trained by {setup.optimizer}{of_batch}; recorded in "
        f"{sum(seconds.values()):.1f} s",
        f"hardware  {hardware.name}: {hardware.n_devices} x {hardware.device.name} with "
        f"{memory_text(hardware.device.memory_bytes)}, in machines of {hardware.levels[-1].count}; costs "
        f"{hardware.basis()}",
    ]
    lines += [f"note      {kind} runs whole on every device: {why}" for kind, why in replicated.items() if why]
    return "\n".join(lines)


def write_result(
    arguments: argparse.Namespace, setup: SearchSetup, result: Plan | Curve, compared: Comparison | None, display: Display
) -> None:
    """Print what was found, and write the files that are asked for.

    Args:
        compared: the plan's frontier beside what baselines found; None where none were asked.
    """
    print(result_text(setup, result))
    for note in () if compared is None else compared.notes_below():
        print(f"note      {note}")
    if not isinstance(result, Curve):
        if arguments.plan is not None:
            result.save(arguments.plan)
        baselines = None if compared is None else compared.baselines
        write_frontier(arguments, _frontier_of(result), result.point, display, baselines)
    if arguments.json is not None:
        write_json(arguments.json, result_json(setup, result), "result")
    if arguments.plot is not None:
        plot(result, arguments.plot)
    for output in (arguments.plan, arguments.frontier, arguments.json, arguments.plot, arguments.report):
        if output is not None:
            print(f"wrote {output}")


def result_text(setup: SearchSetup, result: Plan | Curve) -> str:
    """Return the frontier, how it was found, and the chosen plan, as text; or the curve as a table."""
    if isinstance(result, Curve):
        exact = "exact" if all(point.exact for point in result.points) else "not exact"
        return f"\n{result.table()}\n\n{setup.algorithm}, {exact}"
    frontier = _frontier_of(result)
    notes = [note for note in (result.too_large(), result.hint) if note]
    seconds = ", ".join(f"{phase} {value:.2f}" for phase, value in _seconds_by_phase(setup, frontier).items())
    text = "\n".join(
        [
            f"\n{frontier.table(result.point)}\n",
            f"search    {setup.algorithm}: {frontier.summary()}",
            *(f"space     {space(whole)}" for whole in frontier.without_stages[:1]),
            f"seconds   {seconds}",
            *_operators_text(result),
            f"plan      {result.summary()}",
            _peak_told(result, frontier),
            *(f"note      {note}" for note in notes),
        ]
    )
    return "\n\n".join(filter(None, [text, result.stages_table()]))


def _peak_told(plan: Plan, frontier: Frontier) -> str:
    """Return a line with the plan's peak memory, by what it is used for, as far as that is known."""
    peak = None if plan.point is None else frontier.peak_json(plan.point)
    if peak is None:
        return f"peak      {memory_text(plan.needed_bytes)} per device at once"
    n_bytes, uses = peak["peak_bytes"], sorted(peak["peak_by_use"].items(), key=lambda row: -row[1])
    parts = [f"{memory_text(of_use)} {use}" for use, of_use in uses if of_use > n_bytes / 100]
    return f"peak      {memory_text(n_bytes)} per device at once: {', '.join(parts)}"


def _operators_text(plan: Plan) -> list[str]:
    """Return a line that says how many operators' times were measured; none if no operator was measured by itself."""
    stats = plan.assumed.get("operators")
    if not isinstance(stats, Mapping):
        return []
    n_operators = stats["measured"] + stats["predicted"]
    share = f"{stats['measured_time_percent']} % of their time"
    return [f"operators {stats['measured']} of the plan's {n_operators} measured, {share}; the others predicted"]


def space(frontier: ModelFrontier) -> str:
    """Return the space that was searched, in words."""
    searched = frontier.built.space
    return BASELINE_SPACES.get(searched) or described(searched)


def result_json(setup: SearchSetup, result: Plan | Curve) -> dict[str, Any]:
    """Return the JSON value of a search result, or for ``profiling`` of a curve with what was searched; see FORMATS."""
    searched = {"model": setup.recorded.name, "algorithm": setup.algorithm, "optimizer": setup.optimizer}
    if isinstance(result, Curve):
        return {**result.to_json(), **searched}
    return {"format": FORMAT, "version": VERSION, **searched, **_frontier_json(setup, result)}


def _frontier_json(setup: SearchSetup, plan: Plan) -> dict[str, Any]:
    """Return the JSON value of a frontier.

    ``seconds`` count from the recorded graph; recording is a phase of its own beside them. A point's bound is the least of
    the second objective that any plan with no more of the first objective could have, of those searched for it.
    """
    frontier = _frontier_of(plan)
    result, phases = frontier.found, _seconds_by_phase(setup, frontier)
    lower = frontier.bounds_ns
    least_ns = result.time_ns.min() if result.bound is None else result.bound.time_ns.min()
    of_bound = "bound_time_us" if frontier.objectives[1] == "time" else "bound_network_time_us"
    points = [{**frontier.row(number), of_bound: bound_ns / 1e3} for number, bound_ns in enumerate(lower.tolist())]
    whole = next(iter(frontier.without_stages), None)
    gaps = frontier.gaps if whole is None or frontier.algorithm == JOINED else whole.certified.gaps
    return {
        "cluster": setup.hardware.name,
        "devices": frontier.mesh.n_devices,
        "objectives": list(frontier.objectives),
        "space": None if whole is None else space(whole),
        "option": setup.option,
        "seconds": sum(phases.values()) - phases["record"],
        "seconds_by_phase": phases,
        "exact": result.exact,
        "gap": {"median": float(np.median(gaps)), "worst": float(gaps.max())},
        "bound": {of_bound: int(least_ns) / 1e3},
        "eliminations": dict(result.eliminations),
        "left_out": list(frontier.left_out),
        "why_stages": frontier.why_stages,
        "turning_point": frontier.turning_number,
        "chosen": plan.point,
        "chosen_peak_bytes": plan.peak_bytes,
        "points": points,
    }


def plot(result: Plan | Curve, file: Path) -> None:
    """Draw the frontier with the chosen plan marked, or the curve."""
    if isinstance(result, Curve):
        write_picture(result.plot, file)
        return
    write_picture(lambda axes: _frontier_of(result).plot(axes=axes, chosen=result.point), file)


def write_picture(plot: Callable[[Axes], object], file: Path) -> None:
    """Write the picture that ``plot`` draws on the axes that it is given."""
    axes = new_axes(is_shown=False)
    plot(axes)
    save_picture(axes, file)


def _frontier_of(plan: Plan) -> Frontier:
    assert plan.frontier is not None, "a plan that was just found has its frontier"
    return plan.frontier


def _seconds_by_phase(setup: SearchSetup, frontier: Frontier) -> dict[str, float]:
    return {**setup.recorded.seconds_by_phase, **frontier.seconds_by_phase}
