"""Join all that was searched into one frontier, and say why nothing of it fits."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from ...common.memory_units import memory_text
from ...common.words import counted
from ...ft.lower_bound import LowerBound
from ...plan.frontier import Frontier
from ...reschedule.mesh import Mesh
from ..asked import Request
from ..stages.points import SearchedStages
from .candidate import most_micro_batches
from .staged_frontier_points import PlanPoint, minimal_points


def frontier_of(
    request: Request,
    parallelism: int,
    found: Sequence[SearchedStages],
    left_out: Sequence[str] = (),
    bounds_us: Sequence[float] = (),
) -> Frontier[PlanPoint]:
    """Return the minimal points of all that was searched, as one frontier.

    Args:
        found: the cuts, the model that isn't cut among them.
        left_out: why some of what was asked for wasn't searched.
        bounds_us: times that no step beats of what was looked at, whether it was searched or not.
    """
    started = time.perf_counter()
    points = minimal_points(found)
    seconds: defaultdict[str, float] = defaultdict(float)
    for frontier in (each for of_cut in found for each in of_cut.frontiers):
        for phase, value in frontier.seconds_by_phase.items():
            seconds[phase] += value
    seconds["peaks"] += time.perf_counter() - started
    mesh, least_ns = request.hardware.mesh(parallelism), int(min([*bounds_us, *(each.bound_us for each in found)]) * 1e3)
    return Frontier(
        points_of=tuple(points),
        mesh=mesh,
        hardware_name=request.hardware.name,
        told=_told(points, mesh, found, least_ns / 1e3),
        # With stages it is the time of all operators as fast as they can be, on all devices; without, the search's bound.
        bound=LowerBound(np.array([0]), np.array([least_ns]), "the operators' least times"),  # none of memory is known
        assumed=request.assumed,
        seconds_by_phase=seconds,
        left_out=tuple(left_out),
        searched=tuple(found),
    )


def _told(points: Sequence[PlanPoint], mesh: Mesh, found: Sequence[SearchedStages], bound_us: float) -> str:
    """Return in words which points there are, what was searched, and what is proven."""
    counts, gaps = [point.n_stages for point in points], [point.gap for point in points if point.gap is not None]
    of_counts = [f"{counts.count(n)} {'without stages' if n == 1 else f'in {n} stages'}" for n in sorted(set(counts))]
    tried: dict[int, list[int]] = {}
    for searched in found:
        tried.setdefault(searched.stages.n, []).append(searched.micro_batches)
    ways = [
        "no stages" if n == 1 else f"{n} stages in {' or '.join(map(str, sorted(set(each))))} micro-batches"
        for n, each in tried.items()
    ]
    return (
        f"{counted(len(points), 'point')} on {counted(mesh.n_devices, 'device')} {mesh}: {', '.join(of_counts)}; "
        f"searched {', '.join(ways)}; "
        f"gap at most {max(gaps):.2%} (median {np.median(gaps):.2%}) in what was searched for each point; "
        f"with stages or without no plan takes less than {bound_us:,.1f} us"
    )


def why_too_large(frontier: Frontier[PlanPoint], limit_bytes: int | None) -> str | None:
    """Return the sentence that even the point of least memory is above a limit, with the stage that is; None if it isn't."""
    least = frontier.points_of[0]
    if limit_bytes is None or least.peak_bytes <= limit_bytes:
        return None
    n, need = least.micro_batches, least.searched.need_text(least.stage_bytes)
    text = f"no plan fits {limit_bytes:,} bytes ({memory_text(limit_bytes)}) per device: {need}"
    can_divide = most_micro_batches(least.searched.stages.whole, 2 * n, above=n) > n
    ways = ["more stages"] * (least.n_stages < frontier.mesh.n_devices) + ["more micro-batches"] * can_divide
    return f"{text}; ask for {', '.join([*ways, 'more devices'])}, or memory={least.peak_bytes} or more"
