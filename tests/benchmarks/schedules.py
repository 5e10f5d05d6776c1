"""Compare schedules of a pipeline by the share of a step that stages wait: 1F1B and zero-bubble as they run, and others.

    python tests/benchmarks/schedules.py [--stages 2,4,8] [--transfer 0,0.5] [MODEL@CLUSTER ...]

Stages are equally long: a forward pass takes 1, a backward pass 1 for what an earlier stage waits for and 1 for gradients of
parameters. A message is on its way for ``--transfer``, beside the passes.

- ``1f1b``: each backward pass at once, with as many micro-batches in flight as are fastest of those that are tried.
- ``first``: 1F1B whose stages send what an earlier stage waits for before they compute the gradients of their parameters, as
  ranks of one core do.
- ``interleaved``: each group of devices has two stages, which take half as long, and messages are twice as many: in
  Megatron's order, and with the rounds that are fastest of those that are tried. Both send first, as ``first`` does.
- ``zero-bubble``: gradients of parameters are deferred, with as many micro-batches in flight and deferred as are fastest of
  those that are tried.
- ``filling``: gradients of parameters wait until a stage would, any number of them: no fixed order.

With a model the same is predicted of its operators' times on two groups of devices, cut in two and in four parts.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Callable, Sequence
from itertools import product

from tabulate import tabulate

from tensoropt.program.passes import BACKWARD
from tensoropt.program.schedule import makespan, pass_orders, tried_in_flight, tried_orders

Task = tuple[str, int, int]
"""Kind (F, B for inputs' gradients, W for parameters'), part of the model, micro-batch."""
Times = Callable[[str, int], float]
"""The time of a kind of task of a part."""


def run(orders: Sequence[Sequence[Task]], times: Times, transfer: float, n_parts: int, fills: bool = False) -> float:
    """Return when all tasks have ended, that groups of devices run in their orders, each as soon as what it needs is there.

    Args:
        orders: for each group of devices its tasks; without W where ``fills``.
        fills: whether a group runs a W of which it has done the B whenever its next task isn't ready.
    """
    group_of = {task: group for group, order in enumerate(orders) for task in order}
    ended: dict[Task, float] = {}
    at, clock, late = [0] * len(orders), [0.0] * len(orders), [[] for _ in orders]
    pending = [(0.0, group) for group in range(len(orders))]
    stuck: set[int] = set()
    while pending:
        _, group = heapq.heappop(pending)
        if at[group] == len(orders[group]):
            continue
        kind, part, index = task = orders[group][at[group]]
        needed = {
            "F": [("F", part - 1, index)] if part else [],
            "B": [("F", part, index), *([("B", part + 1, index)] if part + 1 < n_parts else [])],
            "W": [("B", part, index)],
        }[kind]
        if any(each not in ended for each in needed):
            stuck.add(group)
            continue
        ready = max((ended[each] + transfer * (group_of[each] != group) for each in needed), default=0.0)
        while fills and late[group] and clock[group] + late[group][0] <= ready:
            clock[group] += late[group].pop(0)
        clock[group] = ended[task] = max(clock[group], ready) + times(kind, part)
        if fills and kind == "B":
            late[group].append(times("W", part))
        at[group] += 1
        for other in [group, *stuck]:
            heapq.heappush(pending, (clock[other], other))
        stuck.clear()
    assert all(index == len(order) for index, order in zip(at, orders, strict=True)), "tasks wait for each other"
    return max(end + sum(rest) for end, rest in zip(clock, late, strict=True))


def of_passes(n_stages: int, n: int, in_flight: Sequence[int], with_w: bool) -> list[list[Task]]:
    """Return the tasks of 1F1B; ``with_w`` has a W follow each B."""
    found = []
    for order in pass_orders("1f1b", n, in_flight):
        tasks: list[Task] = []
        for each in order:
            tasks.append(("B" if each.work == BACKWARD else "F", each.stage, each.micro_batch))
            if each.work == BACKWARD and with_w:
                tasks.append(("W", each.stage, each.micro_batch))
        found.append(tasks)
    return found


def compared(n_groups: int, n: int, transfer: float, of_group: Times, of_half: Times) -> dict[str, float]:
    """Return the time of a step by each schedule.

    Args:
        of_group: the times of the model cut in one part for each group.
        of_half: those of two parts for each group.
    """
    tried = tried_in_flight(n_groups, n)
    forward = [of_group("F", part) for part in range(n_groups)]
    backward = [of_group("B", part) + of_group("W", part) for part in range(n_groups)]
    at_once = (
        makespan(pass_orders("1f1b", n, each), forward, backward, [transfer] * (n_groups - 1)) for each in tried
    )
    parameters = [of_group("W", part) for part in range(n_groups)]
    halves = [[of_half(kind, part) for part in range(2 * n_groups)] for kind in ("F", "B", "W")]
    of_halves = halves[0], [b + w for b, w in zip(*halves[1:], strict=True)], [transfer] * (2 * n_groups - 1)
    rounds = [
        float(makespan(each.orders, *of_halves, late=halves[2]))
        for each in tried_orders("interleaved", 2 * n_groups, n, n_groups)
    ]
    deferring = (
        makespan(each.orders, forward, backward, [transfer] * (n_groups - 1), parameters=parameters)
        for each in tried_orders("zero-bubble", n_groups, n)
    )
    return {
        "1f1b": min(map(float, at_once)),
        "first": min(run(of_passes(n_groups, n, each, True), of_group, transfer, n_groups) for each in tried),
        "interleaved": rounds[0],
        "rounds": min(rounds),
        "zero-bubble": min(map(float, deferring)),
        "filling": min(run(of_passes(n_groups, n, each, False), of_group, transfer, n_groups, True) for each in tried),
    }


def of_model(case: str, n: int) -> dict[str, float]:
    """Return the predicted milliseconds of a model's step in ``n`` micro-batches on two groups of devices, by schedule."""
    from tensoropt.plan.cuts import balanced
    from tensoropt.plan.stage_times import TimesBySize, beside, transfers, works
    from tensoropt.plan.submeshes import blocks_of
    from tensoropt.profiling.hardware import named
    from tensoropt.tools.offline import record_named

    name, cluster = case.split("@")
    model, hardware = record_named(f"zoo:{name}", "momentum", None).model, named(cluster)
    per_group = hardware.n_devices // 2
    times = TimesBySize(model, hardware, n)
    found: list[Times] = []
    for n_parts in (2, 4):
        # As on a line of groups, each as far from the next one as the two are.
        line = named(f"{cluster.rpartition('-')[0]}-{n_parts}x{per_group}")
        blocks = blocks_of((per_group,) * n_parts)
        of_stages = times.of([block.size for block in blocks])
        cut = balanced(model, line, [[block] for block in blocks], times)
        others = beside(cut.stages, line, blocks, of_stages)
        passes = [own + other for own, other in zip(works(cut.stages, of_stages), others, strict=True)]
        by_kind = {"F": [p.forward for p in passes], "B": [p.backward / 2 for p in passes]}
        found.append(lambda kind, part, by_kind=by_kind: float(by_kind["B" if kind == "W" else kind][part]) / 1e3)
        if n_parts == 2:
            transfer_ms = transfers(cut.stages, line, blocks, n).each[0] / 1e3
    return compared(2, n, transfer_ms, *found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL@CLUSTER")
    parser.add_argument("--stages", default="2,4,8")
    parser.add_argument("--transfer", default="0,0.5")
    given = parser.parse_args()
    names = ("1f1b", "first", "interleaved", "rounds", "zero-bubble", "filling")
    rows = []
    for n_stages, transfer in product(map(int, given.stages.split(",")), map(float, given.transfer.split(","))):
        for n in (n_stages, 2 * n_stages, 4 * n_stages):
            times = compared(n_stages, n, transfer, lambda kind, part: 1.0, lambda kind, part: 0.5)
            rows.append([n_stages, transfer, n, *(f"{1 - 3 * n / times[name]:.1%}" for name in names)])
    print(tabulate(rows, ["stages", "transfer", "micro-batches", *names]))
    rows = []
    for case in given.cases:
        for n in (2, 4, 8):
            times = of_model(case, n)
            rows.append([case, n, *(f"{times[name]:,.1f} ms" for name in names)])
    if rows:
        print(tabulate(rows, ["model", "micro-batches", *names]))


if __name__ == "__main__":
    main()
