"""Compare steps in stages with those of the fastest plan without stages, of data parallelism and of the bound, in turn.

    tests/benchmarks/two_machines.sh [-n RANKS] tests/benchmarks/stages.py [--models small,deep] [--rounds 10]
        [--micro-batches 2,4,8] [--schedules 1f1b,zero-bubble,interleaved] [--profile-budget 60s]
    tensoropt run -n 2 tests/benchmarks/stages.py

One thread a rank. There are two stages, and four by ``interleaved``. The hardware is measured first. "Bound" trains on the
rank's share of the batch in plain TensorFlow and never communicates. The printed table has medians and quartiles of the
slowest rank; ratios are of medians, to the fastest plan without stages and to the bound. What ``stages=(1, 2)`` chooses of
these is marked: the plan of least predicted time but data parallelism, if it has no stages or is predicted to save
WORTH_STAGES of the fastest without. With ``--profile-budget`` each plan is found and predicted by operators that were
measured for it within these seconds, as by ``profile_budget=``. Then there is also what ``stages=(1, 2)`` chooses, after it
has run its plan beside data parallelism; "at this speed" is a prediction times how much slower the bound runs beside the
plans than it did before and after the plan's operators were measured. Below stands the mean error of predictions, at this
speed, and for each stage how long it is predicted to be busy, and the CPU time that its first rank took for a step, naps'
looks included.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import math
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import tensorflow as tf
from harness import Timing, alternate
from tabulate import tabulate
from versus_horovod import MODELS, plain_step

from tensoropt import zoo
from tensoropt.plan.plan import Plan
from tensoropt.program.orders.interleaved import INTERLEAVED
from tensoropt.runtime.context import Context
from tensoropt.runtime.execute import MPI
from tensoropt.runtime.execution import execute
from tensoropt.runtime.measuring.synthetic_batch import synthetic_step
from tensoropt.runtime.ranks import Processes
from tensoropt.search.candidates.plan_points import frontier_of_whole
from tensoropt.search.frontiers.find_frontier import find_baseline, find_frontier
from tensoropt.search.options import find_answer
from tensoropt.search.request import WORTH_STAGES, Request
from tensoropt.tools.offline import record
from tensoropt.tools.recorded import Recorded
from tensoropt.tuning.profile_guided import find_measured

v1 = tf.compat.v1
TOWERS = {"batch": 256, "users": 20000, "items": 50000, "user_widths": (1200, 800, 128), "item_widths": (1536, 512, 128)}
SMALL = {"batch": 16, "length": 64, "layers": 2, "width": 256, "heads": 4, "inner": 1024, "vocabulary": 4096}


def two_tower(batch: int, users: int, items: int, user_widths: tuple[int, ...], item_widths: tuple[int, ...]) -> tf.Tensor:
    """Return the loss of two towers, each of a table and dense layers: which item of the batch belongs to which user."""

    def tower(name: str, rows: int, width: int, words: int, widths: tuple[int, ...]) -> tf.Tensor:
        indices = v1.placeholder(tf.int32, [batch, words], name=name)
        x = tf.reshape(tf.gather(v1.get_variable(f"{name}/table", [rows, width]), indices), [batch, words * width])
        for layer, units in enumerate(widths):
            kernel = v1.get_variable(f"{name}/kernel_{layer}", [x.shape[-1], units])
            x = tf.nn.bias_add(tf.matmul(x, kernel), v1.get_variable(f"{name}/bias_{layer}", [units]))
            x = tf.nn.relu(x) if layer + 1 < len(widths) else x
        return x

    user, item = tower("users", users, 48, 20, user_widths), tower("items", items, 32, 24, item_widths)
    scores = tf.matmul(user, item, transpose_b=True) / math.sqrt(user_widths[-1])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.range(batch), logits=scores))


SIZES: dict[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    **{name: MODELS[name] for name in ("transformer", "vgg16", "transformer_s")},
    "small": (zoo.find("transformer"), SMALL),
    "deep": (zoo.find("transformer"), {**SMALL, "layers": 6}),
    "two_tower": (two_tower, TOWERS),
}

FASTEST, DATA_PARALLEL, MEASURED = "fastest", "data parallel", "stages=(1, 2)"


Plans = dict[str, Plan]
N_BOUNDS = 5
"""So often the bound runs between two plans' measurements."""


class Speed:
    """How long the bound took, on the slowest rank, around the making of each plan."""

    def __init__(self, bound: Callable[[], object], processes: Processes) -> None:
        self.bound, self.processes = bound, processes
        self.medians = [self._median()]

    def _median(self) -> float:
        return in_turn([self.bound], self.processes, N_BOUNDS)[0].median

    def after(self, plan: Plan) -> Plan:
        """Return a plan that was made just now."""
        self.medians.append(self._median())
        return plan


def plans_by_rates(recorded: Recorded, context: Context, micro_batches: list[int], schedules: list[str]) -> Plans:
    """Return the plans that are compared, by the hardware's rates, the same on all ranks."""
    processes, values = context.processes, {}
    if processes.rank == 0:
        frontier = find_frontier(Request(recorded.model, context.hardware, None), processes.size)
        plans = frontier_of_whole(frontier), frontier_of_whole(find_baseline(frontier, "data-parallel"))
        values = dict(zip((FASTEST, DATA_PARALLEL), (each.fastest().to_json() for each in plans), strict=True))
        for n, schedule in product(micro_batches, schedules):
            asked = {"micro_batches": n, "stages": (_n_stages(schedule),), "schedule": schedule}
            plan = find_answer("mini_time", Request(recorded.model, context.hardware, None, **asked), processes.size)
            values[_title(n, schedule)] = plan.to_json()
    values = processes.broadcast(values)
    return {name: Plan.from_json(value) for name, value in values.items()}


def plans_by_measured_operators(
    recorded: Recorded, context: Context, micro_batches: list[int], schedules: list[str], budget: str, speed: Speed
) -> Plans:
    """Return the plans that are compared, each found by operators that were measured for it; every rank must call it."""

    def found(stages: tuple[int, ...], n: int | None = None, schedule: str | None = None, runs: bool = False) -> Any:
        request = Request(recorded.model, context.hardware, None, micro_batches=n, stages=stages, schedule=schedule)
        first_values = recorded.first_values if runs else None
        ranks, on_first_rank = context.processes, context.on_first_rank
        return find_measured("mini_time", request, None, budget, ranks, on_first_rank, first_values)

    fastest = speed.after(found((1,)))
    plans: Plans = {FASTEST: fastest}
    is_first = context.processes.rank == 0
    whole = fastest.frontier.without_stages if is_first else []
    baseline = next((frontier_of_whole(find_baseline(each, "data-parallel")).plan(0).to_json() for each in whole), None)
    plans[DATA_PARALLEL] = speed.after(Plan.from_json(context.processes.broadcast(baseline)))
    for n, schedule in product(micro_batches, schedules):
        plans[_title(n, schedule)] = speed.after(found((_n_stages(schedule),), n, schedule))
    plans[MEASURED] = speed.after(found((1, 2), runs=True))
    return plans


def _n_stages(schedule: str) -> int:
    return 4 if schedule == INTERLEAVED else 2


def _title(n_micro_batches: int, schedule: str) -> str:
    if n_micro_batches == 1:
        return "2 stages, the batch at once"
    return f"{_n_stages(schedule)} stages, {n_micro_batches} micro-batches, {schedule}"


def clocked(step: Callable[[], object], cpu_s: list[float]) -> Callable[[], None]:
    """Return a function that runs a step, and appends the seconds of CPU time that this process took."""

    def run() -> None:
        started_s = time.process_time()
        step()
        cpu_s.append(time.process_time() - started_s)

    return run


def stages_table(plan: Plan, cpu_s: list[float]) -> str:
    """Return a table of stages: predicted busy time beside the CPU time of a step."""
    rows = []
    for number, stage in enumerate(plan.stages):
        busy_ms, cpu_ms = (1 - stage.idle_share) * plan.time_us / 1e3, cpu_s[stage.devices[0]] * 1e3
        ends_with = stage.last_operator or "(the end)"
        rows.append([number, ends_with, stage.in_flight, stage.deferred, f"{busy_ms:,.0f} ms", f"{cpu_ms:,.0f} ms"])
    return tabulate(rows, ["stage", "ends with", "in flight", "deferred", "predicted busy", "CPU time"])


def step_of(recorded: Recorded, plan: Plan, processes: Processes) -> Callable[[], object]:
    """Return a function that runs a step under a plan."""
    execution = execute(plan, recorded.model, recorded.first_values(), processes, MPI)
    return partial(execution.engine.run, *synthetic_step(recorded.model.graph))


def in_turn(steps: list[Callable[[], object]], processes: Processes, rounds: int) -> list[Timing]:
    """Return the seconds of steps in turn, which all ranks begin together, of the slowest rank."""

    def together(step: Callable[[], object]) -> None:
        processes.barrier()
        step()

    timings = alternate([partial(together, step) for step in steps], rounds)
    slowest = np.max(processes.gather([timing.seconds for timing in timings]), axis=0)
    return [Timing(tuple(map(float, seconds))) for seconds in slowest]


def compare(
    name: str, context: Context, rounds: int, micro_batches: list[int], schedules: list[str], budget: str | None
) -> None:
    """Time the plans of a model, and print them on rank 0; every rank must call it."""
    function, sizes = SIZES[name]
    recorded, processes = record(lambda: function(**sizes), name, "momentum"), context.processes
    bound_step = plain_step(function, sizes, recorded, processes)
    speed = Speed(bound_step, processes)
    if budget is None:
        plans = plans_by_rates(recorded, context, micro_batches, schedules)
        speed.medians *= 1 + len(plans)
    else:
        plans = plans_by_measured_operators(recorded, context, micro_batches, schedules, budget, speed)
    cpu_s: list[list[float]] = [[] for _ in plans]
    steps = [clocked(step_of(recorded, plan, processes), own) for plan, own in zip(plans.values(), cpu_s, strict=True)]
    *timings, bound = in_turn([*steps, bound_step], processes, rounds)
    by_rank = processes.gather([statistics.median(own[-rounds:]) for own in cpu_s])
    if processes.rank:
        return
    chosen = min(plans.keys() - {DATA_PARALLEL, MEASURED}, key=lambda each: plans[each].time_us)
    if budget is not None:
        chosen = MEASURED
    elif plans[chosen].time_us > (1 - WORTH_STAGES) * plans[FASTEST].time_us:
        chosen = FASTEST
    rows, errors = [], {}
    drifts = [2 * bound.median / sum(around) for around in pairwise(speed.medians)]
    for (title, plan), timing, drift in zip(plans.items(), timings, drifts, strict=True):
        ratios = [f"{timing.median / to.median:.3f}" for to in (timings[0], bound)]
        mark, predicted_ms = " (chosen)" * (title == chosen), plan.time_us / 1e3
        rows.append([title + mark, f"{predicted_ms:,.0f} ms", f"{predicted_ms * drift:,.0f} ms", str(timing), *ratios])
        errors[title] = abs(predicted_ms * drift / 1e3 / timing.median - 1)
    rows.append(["bound", "", "", str(bound), "", ""])
    print(tabulate(rows, [name, "predicted", "at this speed", "measured", "to the fastest", "to the bound"]))
    staged = [error for title, error in errors.items() if len(plans[title].stages) > 1]
    of_all = f"{statistics.mean(errors.values()):.1%} of all plans"
    print(f"mean error of predictions: {statistics.mean(staged):.1%} with stages, {of_all}")
    for number, (title, plan) in enumerate(plans.items()):
        if len(plan.stages) > 1:
            print(f"\n{title}\n{stages_table(plan, [of_rank[number] for of_rank in by_rank])}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="small", help=f"of {', '.join(SIZES)}; default: small")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--micro-batches", default="2,4,8")
    parser.add_argument("--schedules", default="1f1b,zero-bubble")
    parser.add_argument("--profile-budget", help="seconds for measuring operators, such as 60s; default: no such plan")
    given = parser.parse_args()
    context = Context(None, seed=0)
    micro_batches, schedules = [int(n) for n in given.micro_batches.split(",")], given.schedules.split(",")
    for name in given.models.split(","):
        compare(name, context, given.rounds, micro_batches, schedules, given.profile_budget)


if __name__ == "__main__":
    main()
