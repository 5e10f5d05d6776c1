"""Errors of predicted costs against measured ones: plans of random strategies and of the frontier, of four models.

    tensoropt run -n 2 tests/benchmarks/cost_error.py [--models vgg16,rnn] [--random 20] [--frontier 10] [--steps 10]

Each plan's step is predicted in four ways. *step* takes each operator as measured by itself, as the TensorOpt paper does for
its Table 2. *searched* is what the search predicted, which had measured some operators and estimated the others by a model
fitted to their class. *simulated* is the step by the simulator, and *sum* is the step as if no communication overlapped with
computation; both take operators as measured by themselves. *tau* is Kendall's: how well *step*, *sum* and *simulated* put
the plans into the order of their measured steps.

    tensoropt run -n 2 tests/benchmarks/cost_error.py --random 14 --frontier 5 --steps 5 --budget 15s
    tests/benchmarks/two_machines.sh tests/benchmarks/cost_error.py --random 14 --frontier 5 --steps 5 --budget 15s

run 20 plans of each model, data parallelism's among them.

Hardware: ``--hardware FILE`` of ``tensoropt calibrate``, else what ``init`` would take (a calibration that is fresh, or a
quick measurement). ``--budget 60s`` is how long the search may measure. One thread a rank. Random strategies lie between the
frontier and the rest of the space: in the i-th of n, i/n of the operators have a random config, and the others that of a
point of the frontier. Regathering and rematerialization that no step does are left out of such a strategy.
The noise is that of the plan of ``mini_time``, which is run again between the others: the mean distance of its runs from
their median, of its step and of its network. Errors are |predicted - measured| / measured.

Among many plans whose times are measured to a few percent, the one that was measured fastest may just have been lucky. So in
the end the few that were measured fastest, data parallelism and the plan of ``mini_time`` take steps in turn, and are
compared by the medians of these; *mini_time / best* is relative to the fastest of them. ``mini_time`` is what users get with
a profiling budget: the plan that was found, or data parallelism, if that was the faster of the two when they took steps in
turn.

A shared machine's speed drifts by a third within minutes. So a product of matrices and an elementwise operator are timed on
all ranks when the operators are measured and before and after each plan's run. *At one speed* is the error of the step after
its measured time has been scaled to the speed at which the operators were measured; *speeds* are the slowest and the fastest
run's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
from random_plans import chosen_plans
from scipy.stats import kendalltau
from tabulate import tabulate

from tensoropt import zoo
from tensoropt.costs.operator_costs import OperatorCosting, costing_of
from tensoropt.plan.build import planned_operator
from tensoropt.plan.plan import Plan
from tensoropt.plan.record import PlannedOperator
from tensoropt.profiling.collective_tables import SIZES, CollectiveTables, device_partitions
from tensoropt.profiling.compute import time_s
from tensoropt.profiling.hardware import Hardware
from tensoropt.profiling.hardware_costs import CollectiveCosts
from tensoropt.profiling.measuring_ranks import MeasuringProcess, lower_quartile
from tensoropt.profiling.tensorflow_engine import TensorFlowEngine
from tensoropt.profiling.work import MeasuredOperators
from tensoropt.program.simulator import StepActions, network_of, step_graph, timeline_of
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import interface_of
from tensoropt.runtime.collectives.mpi import MpiCommunicator
from tensoropt.runtime.context import Context
from tensoropt.runtime.execute import MPI
from tensoropt.runtime.measuring.local_hardware import hardware_here, prepared_processes
from tensoropt.runtime.ranks import Processes
from tensoropt.search.candidates.plan_points import frontier_of_whole
from tensoropt.search.frontiers.find_frontier import find_baseline
from tensoropt.search.options import mini_time
from tensoropt.search.problem.strategy_problem import StrategyProblem
from tensoropt.search.request import Request, assumptions
from tensoropt.search.task import BaselineTask
from tensoropt.sharding.model import Model
from tensoropt.tools.offline import record
from tensoropt.tools.plan_check import PlanCheck, check_plan
from tensoropt.tools.recorded import Recorded
from tensoropt.tuning.baseline_trial import BaselineTrial, runs_as
from tensoropt.tuning.interleaved_timing import interleaved_seconds
from tensoropt.tuning.profile_guided import MeasuredSearch, PlannedPart, opened_store, parse_budget

# Steps of 0.1 to 2 s on two cores, by the machine and the plan. On CPUs with oneDNN tensors of less than 256 KiB can't be
# seen (profiling/trace.py), so activations are larger.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vgg16": (
        "vgg16",
        {"batch": 64, "image": 32, "widths": (32, 64, 128, 256, 256), "hidden": (1024, 1024), "classes": 100},
    ),
    "wide_resnet": ("wide_resnet", {"batch": 32, "image": 32, "depth": 10, "widening": 4}),
    "transformer": ("transformer", {"batch": 32, "length": 64, "layers": 2, "width": 256, "heads": 4, "vocabulary": 2048}),
    "rnn": ("rnn", {"batch": 256, "steps": 6, "layers": 2, "hidden": 1024, "vocabulary": 2048}),
}
SPEED_REPEATS = 15
REPEATS = 5
"""How often the plan whose noise is measured is run again."""
CONTENDERS, TURNS = 3, 10
"""How many of the plans that were measured fastest take steps in turn with mini_time's, and how often it is their turn."""
TIMES = ("step", "searched", "simulated", "sum", "compute", "network")
ORDERED = ("step", "sum", "simulated")
PARTS = ("steady", *TIMES, "steady_network", "memory")
TITLES = {"steady": "step at one speed", "steady_network": "network at one speed"}
REFERENCES = ("all_gather", "all_reduce")
REFERENCE_S = 0.2
"""Seconds for which one of ``REFERENCES`` is timed."""
COMPARED = ("mini_time / best", "data parallel / mini_time")
PERCENTILES = {"median": 50, "p95": 95}


@dataclass(frozen=True)
class Choice:
    """A plan that all ranks run, with measured operators, and its step as the search predicted it and as it is simulated."""

    kind: str
    searched_us: float
    simulated_us: float
    plan: Plan


@dataclass(frozen=True)
class Run:
    """One plan's predictions and measurements, each as (predicted, measured)."""

    kind: str
    step: tuple[float, float]
    searched: tuple[float, float]
    simulated: tuple[float, float]
    sum: tuple[float, float]
    compute: tuple[float, float]
    network: tuple[float, float]
    memory: tuple[float, float]
    waiting_us: float
    speed: float
    network_speed: float

    @classmethod
    def of(cls, choice: Choice, check: PlanCheck, speed: float, network_speed: float) -> Run:
        step, *parts = ((c.predicted, c.measured) for c in (check.step, check.compute, check.network, check.memory))
        predicted_us = choice.searched_us, choice.simulated_us, choice.plan.compute_time_us + choice.plan.network_time_us
        others = ((time_us, step[1]) for time_us in predicted_us)
        return cls(choice.kind, step, *others, *parts, check.waiting_us, speed, network_speed)

    @property
    def steady(self) -> tuple[float, float]:
        """The step, scaled to the machine's speed when the operators were measured."""
        return self.step[0], self.step[1] * self.speed

    @property
    def steady_network(self) -> tuple[float, float]:
        """The network's time, scaled to its speed when the tables were measured."""
        return self.network[0], self.network[1] * self.network_speed


@dataclass
class Speed:
    """The slowest rank's speed, by a product of matrices and an elementwise operator; every rank must call it."""

    processes: Processes
    actions: tuple[Callable[[], Any], ...] = field(default_factory=lambda: _reference(TensorFlowEngine()))

    def seconds(self) -> float:
        low = [lower_quartile([time_s(action) for _ in range(SPEED_REPEATS)]) for action in self.actions]
        return float(np.prod([self.processes.gather_max(seconds) for seconds in low]) ** 0.5)


@dataclass
class NetworkSpeed:
    """The speed of collectives, relative to the hardware's tables of them; every rank must call it."""

    processes: Processes
    hardware: Hardware

    def __post_init__(self) -> None:
        self.mesh = mesh = self.hardware.mesh(self.processes.size)
        communicator = MpiCommunicator(self.processes.comm, mesh, self.processes.begin_collective, self.processes.naps)
        communicator.prepare(device_partitions(mesh))
        place = MeasuringProcess(communicator, self.processes.rank)
        beside_us = self.hardware.collective_call_us, self.hardware.collective_path_us
        self.tables = CollectiveTables(TensorFlowEngine(), mesh, place, *beside_us)
        self.costs = CollectiveCosts(self.hardware, mesh)

    def times(self, kind: str) -> float:
        """Return the tables' time over this kind of collective's time now: the geometric mean over all sizes."""
        found_us = self.tables.afresh(kind, self.mesh.axes, SIZES, REFERENCE_S)
        told_us = [self.costs.time_ns(kind, self.mesh, self.mesh.axes, size) / 1e3 for size in found_us]
        return float(np.exp(np.mean(np.log(np.divide(told_us, list(found_us.values()))))))


def _reference(engine: TensorFlowEngine) -> tuple[Callable[[], Any], ...]:
    return engine.gemm("float32"), engine.stream()


def planned(
    recorded: Recorded, hardware: Hardware, processes: Processes, arguments: argparse.Namespace, speed: Speed
) -> tuple[list[Choice], float]:
    """Return the plans that all ranks run, mini_time first, and the mean of ``speed.seconds()`` around the measurements.

    Every rank must call it.
    """
    request = Request(recorded.model, hardware, None, assumed=assumptions(hardware, recorded.model))
    on_first_rank = Context(hardware, None).on_first_rank

    def search(known: MeasuredOperators) -> Plan:
        return mini_time(replace(request, known=known), processes.size)

    each: list[tuple[str, Plan]] = []
    frontier = None
    with closing(opened_store(processes)) as store:
        searching = MeasuredSearch(processes, recorded.model, search, parse_budget(arguments.budget), store)
        plan = searching.find(on_first_rank)
        baseline_trial = BaselineTrial(
            processes=processes, model=recorded.model, first_values=recorded.first_values, collectives=MPI, limit_bytes=None,
            budget_s=searching.budget_s, store=store, stats=searching.stats,
        )
        winner = baseline_trial.winner(plan, on_first_rank)
        if processes.rank == 0:
            (frontier,) = plan.frontier.without_stages
            each = [("mini_time", winner), *([] if runs_as(winner) == runs_as(plan) else [("found", plan)])]
            each += chosen_plans(frontier, arguments.random, arguments.frontier)
            each += [("data parallel", frontier_of_whole(find_baseline(frontier, "data-parallel")).plan(0))]
        seconds = [speed.seconds()]
        parts = [PlannedPart(frontier, plan.stages[0].strategy.configs) for _, plan in each]  # none but on rank 0
        searching._measure_all(processes.broadcast(searching._unmeasured(parts)), math.inf)
        seconds.append(speed.seconds())
        chosen = []
        if frontier is not None:
            costing = costing_of(recorded.model, hardware, frontier.mesh, MeasuredOperators(store.measured))
            built = BaselineTask(costing, frontier.mesh, frontier.built.space).full_problem()
            for kind, plan in each:
                simulated_us = simulated_ns(plan, recorded.model, costing, hardware) / 1e3
                chosen.append((kind, plan.time_us, simulated_us, costed(plan, recorded.model, costing, built).to_json()))
    plans = [Choice(*rest, Plan.from_json(value)) for *rest, value in processes.broadcast(chosen)]
    return plans, float(np.mean(seconds))


def simulated_ns(plan: Plan, model: Model, costing: OperatorCosting, hardware: Hardware) -> int:
    """Return the simulated time of a plan's step, with measured operators."""
    view, network = model.view(plan.stages[0].strategy), network_of(hardware, plan.mesh)
    actions = StepActions(costing, plan.stages[0].path_finder(costing.reshardings.steps))
    graph = step_graph(view, actions.path_finder)
    return timeline_of(view.graph.producers, graph, actions.chains(view, graph.nodes), network).makespan_ns


def costed(plan: Plan, model: Model, costing: OperatorCosting, built: StrategyProblem) -> Plan:
    """Return the plan with its times of operators and of overlap by another costing, whose problem is ``built``."""
    in_step = {op.name for op in model.graph.step_operators}

    def time_us(planned: PlannedOperator) -> float:
        if planned.name not in in_step:
            return planned.time_us
        op = model.graph.operators[planned.name]
        rule, config = rule_of(op), planned.config
        return planned_operator(costing, op, rule, config, interface_of(rule, config), planned.is_rematerialized).time_us

    operators = tuple(replace(op, time_us=time_us(op)) for op in plan.operators)
    compute_us = sum(op.time_us for op in operators)
    (overlap_ns,) = built.overlap_ns(built.states_of(plan.stages[0].strategy)[None])
    hidden_us = overlap_ns / 1e3
    (stage,), step_us = plan.stages, compute_us + plan.network_time_us - hidden_us
    times_us = {"time_us": step_us, "compute_time_us": compute_us, "overlap_time_us": hidden_us}
    return replace(plan, stages=(replace(stage, operators=operators, **times_us),), time_us=step_us)


@dataclass(frozen=True)
class Measured:
    """Measurements of one model's plans.

    Attributes:
        noise: the mean distance of the repeated plan's runs from their median, relative to it; of the step, of the network.
        compared: the ratios ``COMPARED``, by steps in turn.
    """

    runs: list[Run]
    noise: tuple[float, float]
    compared: tuple[float, float]


def runs_of(name: str, hardware: Hardware, processes: Processes, arguments: argparse.Namespace) -> Measured:
    """Run every plan, measure the noise, and compare the fastest plans."""
    recorded = recorded_of(name)
    speed, network = Speed(processes), NetworkSpeed(processes, hardware)
    plans, then_s = planned(recorded, hardware, processes, arguments, speed)
    repeated_at = set(np.linspace(0, len(plans) - 1, REPEATS).round().astype(int).tolist())
    runs, repeats = [], []

    def run(plan: Plan) -> PlanCheck:
        return check_plan(plan, recorded.model, recorded.first_values(), processes, arguments.steps, hardware)

    for number, choice in enumerate(plans):
        before, after = REFERENCES
        seconds, network_speeds = [speed.seconds()], [network.times(before)]
        check = run(choice.plan)
        seconds.append(speed.seconds())
        network_speeds.append(network.times(after))
        speeds = then_s / float(np.mean(seconds)), float(np.mean(network_speeds))
        runs.append(Run.of(choice, check, *speeds))
        if number in repeated_at:
            again = run(plans[0].plan)
            repeats.append((again.step.measured, again.network.measured))
        if processes.rank == 0:
            parts = [f"{part} {p / 1e3:.1f} / {m / 1e3:.1f}" for part in TIMES for p, m in [getattr(runs[-1], part)]]
            told = f"predicted / measured ms: {', '.join(parts)}; speed {speeds[0]:.2f}, {speeds[1]:.2f}"
            print(f"{name} {number + 1}/{len(plans)} {choice.kind}: {told}", flush=True)
    fastest = processes.broadcast(np.argsort([run.step[1] for run in runs])[:CONTENDERS].tolist())
    compared = [0, len(plans) - 1, *(place for place in fastest if 0 < place < len(plans) - 1)]
    compared_plans = [plans[place].plan for place in compared]
    seconds = interleaved_seconds(compared_plans, recorded.model, recorded.first_values, processes, MPI, TURNS)
    mini_s, *others_s = np.median(seconds, axis=0).tolist()
    of_step, of_network = np.mean(np.abs(np.array(repeats) / np.median(repeats, axis=0) - 1), axis=0).tolist()
    return Measured(runs, (of_step, of_network), (mini_s / min(mini_s, *others_s), others_s[0] / mini_s))


def row(name: str, measured: Measured) -> list[str]:
    """Return a line of the table."""
    runs = measured.runs
    cells = [name, str(len(runs))]
    for part in PARTS:
        predicted, found = np.array([getattr(run, part) for run in runs]).T
        there = found > 0
        errors = np.abs(predicted[there] / found[there] - 1)
        values = [errors.mean(), *np.percentile(errors, list(PERCENTILES.values()))] if there.any() else []
        cells.append(" / ".join(f"{value:.1%}" for value in values))
    memory = np.array([run.memory for run in runs])
    cells.append(f"{min(0.0, float((memory[:, 0] / memory[:, 1]).min() - 1)):.1%}")
    speeds = [run.speed for run in runs]
    ordered = (np.array([getattr(run, part) for run in runs]).T for part in ORDERED)
    cells += [" / ".join(f"{kendalltau(*steps).statistic:.2f}" for steps in ordered)]
    cells += [" / ".join(f"{noise:.1%}" for noise in measured.noise)]
    cells += [f"{min(speeds):.2f} to {max(speeds):.2f}"]
    return cells + [f"{ratio:.2f}" for ratio in measured.compared]


def recorded_of(name: str, n_batches: int = 1) -> Recorded:
    """Return one of ``MODELS``, trained by momentum on so many of its batches together."""
    function, sizes = MODELS[name]
    sizes = {**sizes, "batch": n_batches * sizes["batch"]}
    return record(lambda: getattr(zoo, function)(**sizes), name, "momentum")


def parser_of(text: str, n_random: int, n_frontier: int, budget: str) -> argparse.ArgumentParser:
    """Return the arguments that say what plans are compared, on what hardware."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--random", type=int, default=n_random)
    parser.add_argument("--frontier", type=int, default=n_frontier)
    parser.add_argument("--budget", default=budget)
    parser.add_argument("--hardware", type=Path)
    parser.add_argument("--json", type=Path, help="write predictions and measured times")
    return parser


def main() -> None:
    parser = parser_of(__doc__, 20, 10, "60s")
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    processes = prepared_processes()
    hardware = Hardware.load(arguments.hardware) if arguments.hardware else hardware_here(processes)
    rows, everything = [], {}
    for name in arguments.models.split(","):
        measured = runs_of(name, hardware, processes, arguments)
        rows.append(row(name, measured))
        everything[name] = asdict(measured)
        if processes.rank == 0 and arguments.json:
            arguments.json.write_text(json.dumps(everything, indent=1))
    if processes.rank == 0:
        errors = [f"{TITLES.get(part, part)}: mean / {' / '.join(PERCENTILES)}" for part in PARTS]
        titles = [*errors, "memory under", f"tau: {' / '.join(ORDERED)}", "noise: step / network", "speeds"]
        print(tabulate(rows, ["model", "plans", *titles, *COMPARED]))


if __name__ == "__main__":
    main()
