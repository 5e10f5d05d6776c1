"""Find plans in stages: cut the model where stages take equally long and little crosses, then search each stage.

Cuts are chosen by the operators' predicted times on a stage's devices, each split as it is fastest, and by the bytes that
cross. Each stage is then a model of its own, searched on its own devices, in micro-batches. What a request leaves open, the
numbers of stages and of micro-batches, is searched one after the other, and the minimal points of all make one frontier.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..common.errors import InputError, short
from ..common.memory_units import memory_text
from ..costs.model_costs import costing_of
from ..ft import ALGORITHMS, BY_DEFAULT
from ..ir.graph import SOURCES
from ..profiling.hardware import Hardware
from ..program.schedule import ONE_FORWARD_ONE_BACKWARD, SCHEDULES
from ..rules.registry import rule_of
from ..rules.rule import configs, interface_of
from ..search.problem.choices import ACCUMULATE, STAGES
from ..search.problem.objectives import MEMORY_TIME
from ..sharding.model import Model
from ..sharding.stages import Stages
from .memory_cuts import least_memory
from .request import Request, fastest_that_fits, searched
from .stage_points import SearchedStages, Transfers
from .staged_frontier import AnyPoint, StagedFrontier, StagedPoint, minimal_points
from .staged_plan import StagedPlan

MICRO_BATCHES_PER_STAGE = (1, 2, 4)
"""Without a number of micro-batches so many for each stage are searched, where the batch can be divided so."""


def find_staged(request: Request, parallelism: int, n_stages: object, schedule: str | None) -> StagedPlan:
    """Return the fastest plan that was found in a number of stages, within the memory limit.

    Raises:
        InputError: as :func:`find_with_stages`.
    """
    counts = checked_stages(n_stages)
    if 1 in counts:
        raise InputError(f"a plan in stages has 2 or more, got {short(n_stages)}")
    frontier = find_with_stages(request, parallelism, counts, schedule)
    plan = frontier.plan(frontier.fastest_within(request.limit_bytes), "mini_time")
    assert isinstance(plan, StagedPlan)
    return plan


def find_with_stages(
    request: Request, parallelism: int, counts: Sequence[int], schedule: str | None = None
) -> StagedFrontier:
    """Return the minimal points of all plans with these numbers of stages, of which 1 stands for plans without.

    Raises:
        InputError: no plan fits the memory limit, none of the numbers is possible, or the request has what can't be combined
            with stages. A number that isn't possible beside others that are is left out; the frontier says so.
    """
    counts = _allowed(request, counts)
    schedule = schedule or ONE_FORWARD_ONE_BACKWARD
    if schedule not in SCHEDULES:
        raise InputError(f"unknown schedule {short(schedule)}; expected {' or '.join(map(repr, SCHEDULES))}")
    unstaged = fastest_that_fits(request, parallelism)[1] if 1 in counts else []
    found: list[SearchedStages] = []
    left_out: list[str] = []
    for count in sorted({*counts} - {1}):
        try:
            found += _searched(request, parallelism, count, schedule)
        except InputError as error:
            left_out.append(str(error))
    if not found and not unstaged:
        raise InputError(left_out[0])
    started = time.perf_counter()
    points = minimal_points(unstaged, found, request.limit_bytes, request.progress)
    if request.limit_bytes is not None and points[0].n_bytes > request.limit_bytes:
        raise InputError(_nothing_fits(points[0], request.limit_bytes))
    seconds: defaultdict[str, float] = defaultdict(float)
    for frontier in [*unstaged, *(each for of_cut in found for each in of_cut.frontiers)]:
        for phase, value in frontier.seconds_by_phase.items():
            seconds[phase] += value
    seconds["peaks"] += time.perf_counter() - started
    return StagedFrontier(
        points_of=tuple(points),
        hardware=request.hardware,
        parallelism=parallelism,
        unstaged=tuple(unstaged),
        searched=tuple(found),
        left_out=tuple(left_out),
        assumed=request.assumed,
        seconds_by_phase=seconds,
    )


def checked_stages(given: object) -> tuple[int, ...]:
    """Return the numbers of stages that a user gave: one, or several of which the search chooses.

    Raises:
        InputError: they aren't whole numbers from 1 up.
    """
    several = given if isinstance(given, (tuple, list)) else (given,)
    for count in several:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"stages takes whole numbers from 1 up, such as 2, or (1, 2) for a choice, got {short(given)}")
    if not several:
        raise InputError("stages is empty; give whole numbers from 1 up, such as (1, 2)")
    return tuple(dict.fromkeys(several))


def _allowed(request: Request, counts: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of stages that a request allows.

    Raises:
        InputError: it has what can't be combined with stages.
    """
    asked = f"stages={counts[0] if len(counts) == 1 else tuple(counts)}"
    if STAGES in request.without:
        if 1 not in counts:
            raise InputError(f"{asked} is asked for, and to do without '{STAGES}'; leave one of the two")
        return (1,)
    if max(counts) > 1:
        if request.force:
            raise InputError("force= and stages= can't be combined; leave one of the two")
        if request.objectives != MEMORY_TIME:
            raise InputError(
                f"{asked} trades memory and time, got the objectives {','.join(request.objectives)}; leave one of the two"
            )
        if request.algorithm not in ALGORITHMS:
            raise InputError(
                f"algorithm '{request.algorithm}' knows no stages; leave {asked}, or search with {ALGORITHMS[0]}"
            )
        if ACCUMULATE in request.without:
            raise InputError(f"{asked} takes micro-batches, and to do without '{ACCUMULATE}' is asked; leave one of the two")
    return tuple(counts)


def _searched(request: Request, parallelism: int, count: int, schedule: str) -> list[SearchedStages]:
    """Return all cuts into a number of stages that are searched, in all numbers of micro-batches that a request allows.

    Raises:
        InputError: the number of stages doesn't divide that of devices, the model can't be cut into so many, or can't be
            trained in micro-batches.
    """
    if count > parallelism:
        raise InputError(f"{count} stages on {parallelism} devices: each takes one at least; give {parallelism} or fewer")
    if parallelism % count:
        raise InputError(
            f"{count} stages on {parallelism} devices: each takes equally many; give a divisor of {parallelism}"
        )
    if request.micro_batches == 1:
        raise InputError(f"stages={count} need several micro-batches, got micro_batches=1; give 2 or more")
    model, hardware, per_stage = request.model, request.hardware, parallelism // count
    slices = [request.micro_batches] if request.micro_batches else _micro_batches(model, count)
    budget = request.budget or BY_DEFAULT
    # Together all stages are refined as long as a model without.
    budget = replace(budget, seconds=budget.seconds / (count * len(slices)))
    found = []
    for n, stages in _cut(request, count, per_stage, slices):
        requests = (replace(request, model=each, micro_batches=n, budget=budget) for each in stages.models)
        frontiers = tuple(searched(each, per_stage) for each in requests)
        found.append(SearchedStages(stages, frontiers, n, schedule, _transfers(stages, hardware, per_stage, n)))
    return found


def _cut(request: Request, count: int, per_stage: int, slices: Sequence[int]) -> Iterator[tuple[int, Stages]]:
    """Yield the cuts that are searched, with numbers of micro-batches.

    Each number has the cut of least time; the largest, which needs the least memory, also that of least memory.
    """
    for n in slices:
        request.model.in_micro_batches(n)
        fastest = balanced(request.model, request.hardware, count, per_stage, n)
        yield n, fastest
    least = least_memory(request.model, count, slices[-1])
    if least is not None and least.cuts != fastest.cuts:
        yield slices[-1], least


def _micro_batches(model: Model, n_stages: int) -> list[int]:
    """Return the numbers of micro-batches that are searched, ascending.

    Raises:
        InputError: the model can't be trained in micro-batches.
    """
    found = {_most_micro_batches(model, each * n_stages) for each in MICRO_BATCHES_PER_STAGE} - {1}
    if not found:
        model.in_micro_batches(2)  # says why not
    return sorted(found)


def _most_micro_batches(model: Model, most: int) -> int:
    """Return the largest number of micro-batches up to ``most`` in which the model can be trained."""
    for n in range(most, 1, -1):
        try:
            model.in_micro_batches(n)
        except InputError:
            continue
        return n
    return 1


def _nothing_fits(least: AnyPoint, limit_bytes: int) -> str:
    """Return the sentence that even the point of least memory is above the limit, with the stage that is."""
    text = f"no plan fits {limit_bytes:,} bytes ({memory_text(limit_bytes)}) per device: "
    if isinstance(least, StagedPoint):
        stages = least.searched.stages
        number = least.stage_bytes.index(least.n_bytes)
        text += (
            f"in {stages.n} stages and {least.micro_batches} micro-batches stage {number} alone, {stages.between(number)}, "
            f"needs {least.n_bytes:,} bytes ({memory_text(least.n_bytes)})"
        )
    else:
        text += f"the least that was found is {least.n_bytes:,} bytes ({memory_text(least.n_bytes)}), without stages"
    return f"{text}; ask for more stages, more micro-batches, more devices, or memory={least.n_bytes} or more"


def _transfers(stages: Stages, hardware: Hardware, per_stage: int, n_micro_batches: int) -> Transfers:
    """Return how long what stages send each other takes on its way.

    Before its first pass a stage waits for what is sent once a step, and for the first micro-batch's rows of a table that is
    looked up ahead; after its last pass the gradients of these are still on their way. The rows of other micro-batches share
    the link with what these send.
    """
    graph = stages.whole.in_micro_batches(n_micro_batches).graph
    forms = graph.micro_batching.forms if graph.micro_batching is not None else {}
    per_us = _bytes_per_us(hardware, per_stage)
    each, first, last = [0.0] * (stages.n - 1), [0.0] * stages.n, [0.0] * stages.n
    for crossing in stages.crossings:
        time_us = graph.tensors[crossing.tensor].mem_bytes / per_us
        if crossing.tensor in forms:
            for stage in range(*sorted((crossing.source, crossing.target))):
                each[stage] += time_us
        if crossing.is_ahead or crossing.tensor not in forms:
            first[crossing.target] += time_us
            last[crossing.target] += time_us if crossing.has_gradient else 0.0
    return Transfers(each, first, last)


# Where to cut


@dataclass(frozen=True)
class _Cuts:
    """The places where a model may be cut: after each operator, in program order.

    Attributes:
        names: the operators.
        time_us: the time of all operators up to each of them.
        crossing_us: the time that it takes to send what crosses there, forward and back.
        trained: how many variables are used up to each of them.
    """

    names: Sequence[str]
    time_us: Sequence[float]
    crossing_us: Sequence[float]
    trained: Sequence[int]


def balanced(model: Model, hardware: Hardware, n_stages: int, parallelism: int, n_micro_batches: int) -> Stages:
    """Return a model cut such that the longest stage, with what it sends, takes the least time.

    Raises:
        InputError: there are fewer places to cut at than stages need.
    """
    cuts = _cuts(model, hardware, parallelism, n_micro_batches)
    n = len(cuts.names)
    best: list[list[float]] = [[math.inf] * n for _ in range(n_stages)]
    before: list[list[int]] = [[-1] * n for _ in range(n_stages)]
    for end in range(n):
        if cuts.trained[end]:
            best[0][end] = cuts.time_us[end] + cuts.crossing_us[end]
    for stage in range(1, n_stages):
        for end in range(n):
            for start in range(end):
                if cuts.trained[end] == cuts.trained[start]:
                    continue
                own = cuts.time_us[end] - cuts.time_us[start] + cuts.crossing_us[start] + cuts.crossing_us[end]
                longest = max(best[stage - 1][start], own)
                if longest < best[stage][end]:
                    best[stage][end], before[stage][end] = longest, start
    if math.isinf(best[-1][-1]):
        raise InputError(
            f"the model can't be cut into {n_stages} stages: each needs a variable that is trained; ask for fewer stages"
        )
    at = n - 1
    found: list[str] = []
    for stage in range(n_stages - 1, 0, -1):
        at = before[stage][at]
        found.insert(0, cuts.names[at])
    return Stages(model, tuple(found))


def _cuts(model: Model, hardware: Hardware, parallelism: int, n_micro_batches: int) -> _Cuts:
    mesh = hardware.mesh(parallelism)
    sliced = model.in_micro_batches(n_micro_batches)
    graph, costing = sliced.graph, costing_of(sliced, hardware, mesh)
    in_step = {op.name for op in graph.step_operators}
    last_use = {
        tensor.name: number
        for number, op in enumerate(graph.operators.values())
        if op.name in in_step
        for _, tensor in op.operands
    }
    per_us = _bytes_per_us(hardware, parallelism)
    names, times, crossings, trained = [], [], [], []
    total_us = 0.0
    alive: dict[str, int] = {}
    used: set[str] = set()
    for number, op in enumerate(graph.operators.values()):
        if op.name not in in_step or op.type in SOURCES or op.updates is not None:
            continue
        rule = rule_of(op)
        total_us += min(costing.compute_time_ns(op, rule, c, interface_of(rule, c)) for c in configs(rule, mesh)) / 1e3
        used.update(t.name for _, t in op.operands if graph.producers[t.name].is_trainable)
        alive.update({t.name: t.mem_bytes for t in op.outputs if last_use.get(t.name, -1) > number})
        alive = {name: n_bytes for name, n_bytes in alive.items() if last_use[name] > number}
        names.append(op.name)
        times.append(total_us)
        crossings.append(2 * sum(alive.values()) / per_us)
        trained.append(len(used))
    return _Cuts(names, times, crossings, trained)


def _bytes_per_us(hardware: Hardware, parallelism: int) -> float:
    """Return how fast the devices of a stage send to the next one, by the slowest link."""
    speeds = [level.bytes_per_s for level in hardware.levels if level.count > 1]
    return parallelism * min(speeds, default=hardware.device.memory_bytes_per_s) / 1e6
