"""Find plans in stages: cut the model (:mod:`.cuts`), then search each stage as a model of its own, in micro-batches.

What a request leaves open, the numbers of stages and of micro-batches, is searched one after the other, and the minimal
points of all make one frontier.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..common.errors import InputError
from ..common.garbage import older_objects_kept
from ..common.memory_units import memory_text
from ..common.words import counted
from ..ft import ALGORITHMS, BY_DEFAULT
from ..profiling.hardware import Hardware
from ..program.interleaved import INTERLEAVED
from ..program.schedule import StepOrder, check_schedule, tried_orders
from ..search.problem.choices import ACCUMULATE, STAGES
from ..search.problem.objectives import MEMORY_TIME
from ..sharding.model import Model
from .alike_stages import AlikeStages
from .cuts import Cut
from .cuts_to_search import cuts_to_search
from .fewer_micro_batches import is_left_out
from .find_frontier import ModelFrontier
from .memory_cuts import least_bytes
from .placement import fewest_stages, of_stage, placement
from .request import Request, fastest_that_fits
from .stage_memory import StageCosts, needed_bytes
from .stage_points import SearchedStages
from .stage_times import OperatorTimes, beside, transfers, works
from .staged_frontier import StagedFrontier
from .staged_frontier_points import PlanPoint, minimal_points
from .submeshes import Block, interleaved_blocks, interleaved_counts

MICRO_BATCHES_PER_STAGE = (1, 2, 4)
"""Without a number of micro-batches so many for each stage, or submesh, are searched, where the batch can be divided so."""
WORTH_AT_ONCE = 1 / 3
"""The batch is also taken at once where two stages can run this share of all operators' time at the same time."""


@older_objects_kept()
def find_with_stages(
    request: Request, parallelism: int, counts: Sequence[int] | None, schedule: str | None = None
) -> StagedFrontier:
    """Return the minimal points of all plans with these numbers of stages, of which 1 stands for plans without.

    None stands for as few as a placement takes. Of other numbers those are taken that go with it.

    They needn't be within the memory limit, see :func:`why_too_large`. A number that isn't possible beside others that are
    is left out; the frontier says so.

    Raises:
        InputError: none of the numbers is possible, or the request has what can't be combined with stages.
    """
    if schedule is not None:
        check_schedule(schedule)
    placed = placement(request.model.graph, request.placed, request.hardware, parallelism)
    if placed and schedule == INTERLEAVED:
        raise InputError(
            "schedule='interleaved' has stages share their devices, and operators are placed; leave one of the two"
        )
    counts = _allowed(request, counts, fewest_stages(placed, parallelism) if placed else 1)
    alone = fastest_that_fits(replace(request, placed={}), parallelism)[1] if 1 in counts else []
    found: list[SearchedStages] = []
    left_out: list[str] = []
    bounds_us: list[float] = []
    for count in sorted({*counts} - {1}):
        try:
            of_count, bound_us = search_cuts(request, placed, parallelism, count, schedule, found)
        except InputError as error:
            left_out.append(str(error))
            continue
        left_out += _why_beaten(request, count, of_count)
        bounds_us += [] if of_count else [bound_us]
        found += of_count
    if not found and not alone:
        raise InputError(left_out[0])
    if found and request.micro_batches is None and all(each.micro_batches == 1 for each in found):
        left_out += _why_at_once(request, found)
    return frontier_of(request, parallelism, [*map(SearchedStages.whole, alone), *found], left_out, bounds_us)


def frontier_of(
    request: Request,
    parallelism: int,
    found: Sequence[SearchedStages],
    left_out: Sequence[str] = (),
    bounds_us: Sequence[float] = (),
    points: Sequence[PlanPoint] | None = None,
) -> StagedFrontier:
    """Return the minimal points of all that was searched, as one frontier.

    Args:
        found: the cuts, the model that isn't cut among them.
        left_out: why some numbers of stages weren't searched.
        bounds_us: for each number of which no cut was searched, a time that no step beats.
        points: the minimal points; None to evaluate some.
    """
    started = time.perf_counter()
    if points is None:
        points = minimal_points(found, request.limit_bytes, request.progress)
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


def _allowed(request: Request, counts: Sequence[int] | None, fewest: int) -> tuple[int, ...]:
    """Return the numbers of stages that a request allows.

    Args:
        fewest: in how many a placement is at least.

    Raises:
        InputError: it has what can't be combined with stages.
    """
    counts = (fewest,) if counts is None else counts
    if fewest > 1 and set(counts) == {1}:
        raise InputError(f"stages=1 is asked for, and operators are placed in {fewest} stages; leave one of the two")
    counts = [count for count in counts if count > 1 or fewest == 1]
    asked = f"stages={counts[0] if len(counts) == 1 else tuple(counts)}"
    if STAGES in request.without:
        if 1 not in counts:
            raise InputError(f"{asked} is asked for, and to do without '{STAGES}'; leave one of the two")
        return (1,)
    if max(counts) > 1:
        if request.objectives != MEMORY_TIME:
            raise InputError(
                f"{asked} trades memory and time, got the objectives {','.join(request.objectives)}; leave one of the two"
            )
        if request.algorithm not in ALGORITHMS:
            raise InputError(
                f"algorithm '{request.algorithm}' knows no stages; leave out {asked}, or search with {ALGORITHMS[0]}"
            )
        if request.hardware.topology is not None and request.hardware.topology.is_uneven:
            raise InputError(f"{asked} isn't searched on devices of unequal speed, as {request.hardware.name} has")
        if request.model.graph.late:
            request.model.in_micro_batches(2)  # says why not
        if (n_steps := len(request.model.graph.train_steps)) > 1:
            raise InputError(f"{asked} is for one training step, and the model has {n_steps}; record one, or use stages=1")
    return tuple(counts)


@older_objects_kept()
def search_cuts(
    request: Request,
    placed: Mapping[str, Block],
    parallelism: int,
    count: int,
    schedule: str | None,
    before: Sequence[SearchedStages] = (),
) -> tuple[list[SearchedStages], float]:
    """Return the cuts into a number of stages that are searched, in the numbers of micro-batches that a request allows.

    Args:
        before: what was searched in other numbers of stages.

    Returns:
        The cuts but those predicted to be beaten (:mod:`.fewer_micro_batches`), and a time that no step beats.

    Raises:
        InputError: there are more stages than devices, the model can't be cut into so many, or can't be trained in
            micro-batches.
    """
    devices = counted(parallelism, "device")
    if schedule != INTERLEAVED and count > parallelism:
        raise InputError(f"{count} stages on {devices}: each takes one at least; give {parallelism} or fewer")
    try:
        request.hardware.mesh(parallelism)
    except ValueError as error:
        raise InputError(f"{count} stages: {error}") from error
    model, hardware = request.model, request.hardware
    shared = interleaved_blocks(hardware, parallelism, count) if schedule == INTERLEAVED else None
    if schedule == INTERLEAVED and shared is None:
        possible = interleaved_counts(hardware, parallelism)
        ask = f"ask for {' or '.join(map(str, possible))} stages, or for another schedule" if possible else "use another one"
        raise InputError(
            f"{count} stages can't be interleaved on {devices}: two submeshes or more of equal size have two stages or more "
            f"each; {ask}"
        )
    n_submeshes = len(set(shared)) if shared else count
    slices = [request.micro_batches] if request.micro_batches else possible_micro_batches(request, n_submeshes)
    if shared and slices == [1]:
        model.in_micro_batches(2)  # says why not
        raise InputError("interleaved stages take a batch in micro-batches, got one; ask for more, or for another schedule")
    cuts = list(cuts_to_search(request, placed, parallelism, count, slices, schedule, shared))
    if request.micro_batches is None and not shared and 1 not in slices and cuts[0][1].beside >= WORTH_AT_ONCE:
        slices = [1, *slices]
        at_once = cuts_to_search(request, placed, parallelism, count, [1], schedule)
        cuts += (each for each in at_once if math.isfinite(each[1].time_us))
    # Together all stages are refined as long as a model without.
    budget = request.budget or BY_DEFAULT
    share = count * len(cuts)
    budget = replace(budget, seconds=budget.seconds / share, max_work=budget.max_work / share)
    bound_us, found, alike = min(each[-1] for each in cuts), list[SearchedStages](), AlikeStages()
    for n in reversed(slices):
        own = replace(request, micro_batches=n, budget=budget, placed={})
        for cut, times in ((cut, times) for n_of_cut, cut, times, _ in cuts if n_of_cut == n):
            if is_left_out(cut, hardware, times, schedule, found, before):
                continue
            limit, orders = own.limit_bytes, tried_orders(schedule, count, n, n_submeshes)
            fits = limit is not None and any(each.combinations[0].mem_bytes[0] <= limit for each in (*before, *found))
            frontiers = _of_stages(own, cut, n, orders, alike, must_fit=fits)
            if frontiers is not None:
                found.append(_searched(cut, frontiers, hardware, times.of(cut.sizes), schedule, bound_us))
    return found, bound_us


def _of_stages(
    request: Request, cut: Cut, n: int, orders: Sequence[StepOrder], alike: AlikeStages, must_fit: bool
) -> tuple[ModelFrontier, ...] | None:
    """Return the frontier of each stage of a cut in n micro-batches.

    Args:
        must_fit: whether to return None as soon as a stage doesn't fit the memory limit.
    """
    limit, found = request.limit_bytes, dict[int, ModelFrontier]()
    needs = [0.0] * cut.stages.n if cut.needs is None else least_bytes(cut.stages, cut.needs, cut.sizes, n)
    for stage in sorted(range(cut.stages.n), key=lambda stage: -needs[stage]):
        model = cut.stages.models[stage]
        asked = replace(request, model=model, force=of_stage(request.model.graph, model.graph, request.force))
        frontier = alike.searched(asked, cut.sizes[stage], partial(_fastest_fits, limit, orders, stage))
        if must_fit and StageCosts.of(frontier).near_peaks().bytes_of(stage, orders[0]).min() > limit:
            return None
        found[stage] = frontier
    return tuple(found[stage] for stage in range(cut.stages.n))


def _fastest_fits(limit_bytes: int | None, orders: Sequence[StepOrder], stage: int, frontier: ModelFrontier) -> bool:
    """Return whether the fastest point of a stage is within a memory limit, in all of some orders of a step's passes."""
    if limit_bytes is None:
        return True
    if any(order.interleaving for order in orders):  # others share the devices
        return False
    fastest = frontier.fastest_within(None)
    return all(needed_bytes(frontier, fastest, stage, order) <= limit_bytes for order in orders)


def _searched(
    cut: Cut,
    frontiers: tuple[ModelFrontier, ...],
    hardware: Hardware,
    times: Sequence[OperatorTimes],
    schedule: str | None,
    bound_us: float,
) -> SearchedStages:
    """Return a cut with the frontier of each stage, and with what the times of its steps follow from."""
    stages, n = cut.stages, times[0].graph.n_micro_batches
    return SearchedStages(
        stages,
        cut.blocks,
        frontiers,
        n,
        schedule,
        tuple(works(stages, times)),
        tuple(beside(stages, hardware, cut.blocks, times)),
        transfers(stages, hardware, cut.blocks, n),
        bound_us,
    )


def possible_micro_batches(request: Request, n_submeshes: int) -> list[int]:
    """Return the numbers of micro-batches that are searched, ascending; 1 where several aren't possible or not wanted.

    Args:
        n_submeshes: the number of stages that run at the same time.
    """
    if ACCUMULATE in request.without:
        return [1]
    found = {_most_micro_batches(request.model, each * n_submeshes) for each in MICRO_BATCHES_PER_STAGE} - {1}
    return sorted(found) or [1]


def _why_at_once(request: Request, found: Sequence[SearchedStages]) -> list[str]:
    """Return why stages take the batch at once, where that wasn't asked for."""
    if ACCUMULATE in request.without:
        return []
    try:
        request.model.in_micro_batches(2)
    except InputError as error:
        branches = ", but for branches" if any(any(each.stages.early) for each in found) else ""
        return [f"stages run one after the other{branches}, on the whole batch: {error}"]
    return []


def _why_beaten(request: Request, count: int, searched: Sequence[SearchedStages]) -> list[str]:
    """Return which numbers of micro-batches weren't searched in a number of stages, as others are predicted to be better."""
    if not searched:
        return [f"{count} stages are predicted to be beaten by what was searched"]
    n_submeshes = max(len(set(each.blocks)) for each in searched)
    possible = [request.micro_batches] if request.micro_batches else possible_micro_batches(request, n_submeshes)
    beaten = [str(n) for n in possible if n not in {each.micro_batches for each in searched}]
    in_some = f" in {' or '.join(beaten)} micro-batches"
    return [f"{count} stages{in_some} are predicted to be beaten by what was searched"] if beaten else []


def _most_micro_batches(model: Model, most: int, above: int = 1) -> int:
    """Return the largest number of micro-batches up to ``most`` in which the model can be trained.

    Args:
        above: the number to return where no larger one is possible.
    """
    for n in range(most, above, -1):
        try:
            model.in_micro_batches(n)
        except InputError:
            continue
        return n
    return above


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
        can_divide = _most_micro_batches(stages.whole, 2 * n, above=n) > n
    else:
        text += f"the least that was found is {least.n_bytes:,} bytes ({memory_text(least.n_bytes)}), without stages"
        can_divide = True
    ways = ["more stages"] * (least.n_stages < frontier.parallelism) + ["more micro-batches"] * can_divide
    return f"{text}; ask for {', '.join([*ways, 'more devices'])}, or memory={least.n_bytes} or more"
