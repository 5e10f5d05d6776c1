"""The timeline of a step in stages: each pass when it may run, as long as it takes, and all of it as long as the step."""

from __future__ import annotations

import random
from itertools import chain, pairwise

import pytest
from helpers.timelines import tasks_of
from pipeline.orders import random_step_order

from tensoropt.program.orders.fast_makespan import PassTimes, Transfers, step_us
from tensoropt.program.orders.interleaved import INTERLEAVED
from tensoropt.program.orders.passes import BACKWARD, FORWARD, PARAMETERS, Pass, needs
from tensoropt.search.frontiers.decisions import COMPUTE_LANE, NETWORK_LANE
from tensoropt.search.stages.placement import blocks_of
from tensoropt.search.stages.points import AT_END, BEFORE, BRANCHES, SENT_BACK, SENT_ON, UPDATE, stage_timeline

Task = tuple[float, float]
"""Begin and end, in microseconds."""


def random_times(rng: random.Random, n_stages: int) -> tuple[list[PassTimes], Transfers]:
    """Return whole microseconds, so that sums are exact; in some places nothing."""
    def some(most: int) -> float:
        return float(rng.choice([0, rng.randint(1, most)]))

    forward = [rng.randint(2, 9) for _ in range(n_stages)]
    rest = [(rng.randint(5, 20), some(4), some(6), some(4), some(4)) for _ in range(n_stages)]
    times = [PassTimes(each, *others, early=some(each - 1)) for each, others in zip(forward, rest, strict=True)]
    # The last stage alone sends rows that it looked up, and is sent their gradients' way back.
    first, last = [0.0] * n_stages, [0.0] * n_stages
    first[0], last[-1] = some(5), some(5)
    return times, Transfers([some(7) for _ in range(n_stages - 1)], first, last)


@pytest.mark.parametrize("seed", range(40))
def test_passes_run_when_they_may_and_fill_the_step(seed: int) -> None:
    rng = random.Random(seed)
    n_stages, n = rng.choice((2, 3, 4, 4, 6)), rng.randint(1, 6)
    order = random_step_order(rng, n_stages, n)
    submeshes, names_stages = order.submeshes, order.schedule == INTERLEAVED
    times, on_the_way = random_times(rng, n_stages)
    blocks = blocks_of([rng.randint(1, 3) for _ in range(max(submeshes) + 1)])
    timeline = stage_timeline(times, on_the_way, order, [blocks[submesh] for submesh in submeshes])
    assert timeline["devices"] == [list(block.devices) for block in blocks]
    assert timeline["makespan_ns"] == 1e3 * step_us(times, on_the_way, order)

    tasks: dict[tuple[int, str, str], Task] = {}
    lanes: dict[tuple[int, int], list[Task]] = {}
    for stage, lane, start_ns, duration_ns, operator, kind in tasks_of(timeline):
        span = start_ns / 1e3, (start_ns + duration_ns) / 1e3
        key = stage, timeline["operators"][operator], timeline["kinds"][kind]
        assert key not in tasks
        tasks[key] = span
        lanes.setdefault((stage, lane), []).append(span)
        assert (lane == COMPUTE_LANE) == (key[2] in (BEFORE, BRANCHES, FORWARD, BACKWARD, PARAMETERS, UPDATE))
    for submesh in range(len(blocks)):
        spans = sorted(lanes[submesh, COMPUTE_LANE])
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        own = [each.total(n) for stage, each in enumerate(times) if submeshes[stage] == submesh]
        assert sum(end - begin for begin, end in spans) == sum(own)
    ends = [end for spans in lanes.values() for _, end in spans]
    assert max(ends) <= timeline["makespan_ns"] / 1e3
    if not any(on_the_way.last):
        assert max(ends) == timeline["makespan_ns"] / 1e3

    def task_of(stage: int, micro_batch: int, kind: str) -> Task | None:
        name = f"micro-batch {micro_batch + 1}{f', stage {stage}' * names_stages}"
        return tasks.get((submeshes[stage], name, kind))

    def span_of(each: Pass) -> Task | None:
        return task_of(each.stage, each.micro_batch, each.work)

    orders = order.orders
    for each in chain(*orders):
        stage, span = each.stage, span_of(each)
        if span is None:  # its parameters take no time
            assert each.work == PARAMETERS and not times[stage].parameters
            continue
        for needed in needs(each, n_stages):
            found = span_of(needed)
            begin, end = span[0], found[1]
            if needed.stage == stage:
                assert begin >= end
                continue
            is_backward = needed.work == BACKWARD
            is_divided = any(other.work == PARAMETERS for other in orders[submeshes[needed.stage]])
            sent = end - times[needed.stage].late * (is_backward and not is_divided)
            way = on_the_way.each[min(stage, needed.stage)]
            assert begin >= sent + way
            kind = SENT_BACK if is_backward else SENT_ON
            message = task_of(needed.stage, each.micro_batch, kind)
            assert message == ((sent, sent + way) if way else None)
    last = submeshes[-1]
    if on_the_way.last[-1]:
        assert (last, NETWORK_LANE) in lanes and tasks[last, AT_END, SENT_BACK][1] <= timeline["makespan_ns"] / 1e3
