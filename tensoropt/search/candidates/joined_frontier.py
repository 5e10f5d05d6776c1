"""Join all that was searched into one frontier, and say why nothing of it fits."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

from ...common.memory_units import memory_text
from ..asked import Request
from ..stages.points import SearchedStages
from .candidate import most_micro_batches
from .staged_frontier import StagedFrontier
from .staged_frontier_points import minimal_points


def frontier_of(
    request: Request,
    parallelism: int,
    found: Sequence[SearchedStages],
    left_out: Sequence[str] = (),
    bounds_us: Sequence[float] = (),
) -> StagedFrontier:
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
    return StagedFrontier(
        points_of=tuple(points),
        hardware=request.hardware,
        parallelism=parallelism,
        searched=tuple(found),
        left_out=tuple(left_out),
        bounds_us=tuple(bounds_us),
        assumed=request.assumed,
        seconds_by_phase=seconds,
    )


def why_too_large(frontier: StagedFrontier, limit_bytes: int | None) -> str | None:
    """Return the sentence that even the point of least memory is above a limit, with the stage that is; None if it isn't."""
    least = frontier.points_of[0]
    if limit_bytes is None or least.n_bytes <= limit_bytes:
        return None
    text = f"no plan fits {limit_bytes:,} bytes ({memory_text(limit_bytes)}) per device: "
    if least.n_stages > 1:
        stages = least.searched.stages
        number = least.stage_bytes.index(least.n_bytes)
        n = least.micro_batches
        passes = ", which take the batch at once," if n == 1 else f" and {n} micro-batches"
        text += (
            f"in {stages.n} stages{passes} stage {number} alone, {stages.between(number)}, "
            f"needs {least.n_bytes:,} bytes ({memory_text(least.n_bytes)})"
        )
        can_divide = most_micro_batches(stages.whole, 2 * n, above=n) > n
    else:
        text += f"the least that was found is {least.n_bytes:,} bytes ({memory_text(least.n_bytes)}), without stages"
        can_divide = True
    ways = ["more stages"] * (least.n_stages < frontier.parallelism) + ["more micro-batches"] * can_divide
    return f"{text}; ask for {', '.join([*ways, 'more devices'])}, or memory={least.n_bytes} or more"
