"""Join all that was searched into one frontier, and say why nothing of it fits."""

from __future__ import annotations

import time
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
    cuts: Sequence[SearchedStages],
    left_out: Sequence[str] = (),
    bounds_us: Sequence[float] = (),
) -> Frontier[PlanPoint]:
    """Return the minimal points of all that was searched, as one frontier.

    Args:
        cuts: the cuts, the model that isn't cut among them.
        left_out: why some of what was asked for wasn't searched.
        bounds_us: times that no step beats of what was looked at, whether it was searched or not.
    """
    start_s = time.perf_counter()
    points = minimal_points(cuts)
    # Those of cuts and micro-batches may be another process's, and pass at the same time.
    whole = [cut.frontiers[0].seconds_by_phase for cut in cuts if cut.stages.n == 1 and cut.micro_batches == 1]
    seconds = {"peaks": 0.0, **(whole[0] if whole else {})}
    seconds["peaks"] += time.perf_counter() - start_s
    mesh, least_ns = request.hardware.mesh(parallelism), int(min([*bounds_us, *(cut.bound_us for cut in cuts)]) * 1e3)
    return Frontier(
        points_of=tuple(points),
        mesh=mesh,
        hardware_name=request.hardware.name,
        told=_summary(points, mesh, cuts, least_ns / 1e3),
        # With stages it is the time of all operators as fast as they can be, on all devices; without, the search's bound.
        bound=LowerBound(np.array([0]), np.array([least_ns]), "the operators' least times"),  # none of memory is known
        assumed=request.assumed,
        seconds_by_phase=seconds,
        left_out=tuple(left_out),
        searched=tuple(cuts),
    )


def _summary(points: Sequence[PlanPoint], mesh: Mesh, cuts: Sequence[SearchedStages], bound_us: float) -> str:
    """Return in words which points there are, what was searched, and what is proven."""
    counts, gaps = [point.n_stages for point in points], [point.gap for point in points if point.gap is not None]
    count_texts = [f"{counts.count(n)} {'without stages' if n == 1 else f'in {n} stages'}" for n in sorted(set(counts))]
    slices_by_count: dict[int, list[int]] = {}
    for cut in cuts:
        slices_by_count.setdefault(cut.stages.n, []).append(cut.micro_batches)
    descriptions = [
        "no stages" if n == 1 else f"{n} stages in {' or '.join(map(str, sorted(set(slices))))} micro-batches"
        for n, slices in slices_by_count.items()
    ]
    return (
        f"{counted(len(points), 'point')} on {counted(mesh.n_devices, 'device')} {mesh}: {', '.join(count_texts)}; "
        f"searched {', '.join(descriptions)}; "
        f"gap at most {max(gaps):.2%} (median {np.median(gaps):.2%}) in what was searched for each point; "
        f"with stages or without no plan takes less than {bound_us:,.1f} us"
    )


def why_too_large(frontier: Frontier[PlanPoint], limit_bytes: int | None) -> str | None:
    """Return the sentence that even the point of least memory is above a limit, with the stage that is; None if it isn't."""
    smallest = frontier.points_of[0]
    if limit_bytes is None or smallest.peak_bytes <= limit_bytes:
        return None
    n, need_text = smallest.micro_batches, smallest.searched.need_text(smallest.stage_bytes)
    text = f"no plan fits {limit_bytes:,} bytes ({memory_text(limit_bytes)}) per device: {need_text}"
    can_divide = most_micro_batches(smallest.searched.stages.whole, 2 * n, default=n) > n
    advice = ["more stages"] * (smallest.n_stages < frontier.mesh.n_devices) + ["more micro-batches"] * can_divide
    return f"{text}; ask for {', '.join([*advice, 'more devices'])}, or memory={smallest.peak_bytes} or more"
