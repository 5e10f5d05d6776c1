"""Search by measured operators, within a budget: only operators that can change the answer are measured.

A search by what is known so far gives a frontier. The unmeasured operators of the chosen plan are measured first,
largest first, with those of data parallelism, than which no plan should be slower; then those of all other points of the
frontier; then the search is repeated. It ends when all operators of the frontier have been measured (those of other
strategies can't make the answer slower than it is predicted to be), or when the budget is spent.

A search tends to choose operators that are predicted too fast. So if the plan's operators couldn't all be measured, a
last search is cautious about unmeasured ones. Operators that are predicted to take next to nothing are left out: those
of the plan add up to a hundredth of its compute time.

Rank 0 searches and keeps the store. All ranks time the same operators at the same time, as they will run, and the
slowest rank counts. Last, the steps of the plan and of data parallelism are timed interleaved, where their predictions
are close: see :mod:`.baseline_trial`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ..common.errors import InputError
from ..costs.config_costs import costs_of_config
from ..plan.frontier import Frontier
from ..plan.plan import Plan
from ..profiling.store import FILE, Store, cache_folder
from ..profiling.tensorflow_engine import TensorFlowEngine
from ..profiling.work import Measured, MeasuredOperators, WorkItem
from ..rules.registry import rule_of
from ..rules.rule import Config
from ..runtime.execute import MPI
from ..runtime.measuring.operator_timer import OperatorTimer, OperatorTrial, Timed
from ..runtime.ranks import Processes
from ..search.frontiers.find_frontier import data_parallel_configs
from ..search.frontiers.model_frontier import ModelFrontier
from ..search.options import find_answer
from ..search.request import WORTH_STAGES, WORTH_TRYING, Request
from ..sharding.model import Model
from .baseline_trial import BaselineTrial
from .interleaved_timing import FirstValue

Search = Callable[[MeasuredOperators], Plan]
NEGLIGIBLE = 0.01
"""The smallest operators, up to this share of the plan's compute time, are never measured."""


class _Operator(NamedTuple):
    """An operator in a config, of one of so many micro-batches."""

    name: str
    config: Config
    micro_batches: int


_Queue = list[tuple[_Operator, float]]
"""Operators with their predicted microseconds."""


def environment(processes: Processes) -> str:
    """Return all that measurements of operators depend on besides the operators."""
    engine = TensorFlowEngine()
    shared = f", {processes.ranks_per_core:g} to a core" if processes.shares_core else ""
    return f"{engine.device_name()}, {engine.name}, {processes.local_size} ranks at once{shared}"


@dataclass
class MeasuredSearch:
    """A search that measures operators and searches again, within a budget.

    Attributes:
        search: finds a plan from the measured operators, on rank 0.
        budget_s: the seconds that measuring may take, without searches and the first measurement.
        progress: is called with (phase, done, total) on rank 0.
        limit_bytes: the memory limit per device of what is searched; None without a limit.
    """

    processes: Processes
    model: Model
    search: Search
    budget_s: float
    store: Store
    timer: OperatorTimer = field(default_factory=OperatorTimer)
    clock: Callable[[], float] = time.monotonic
    progress: Callable[[str, int, int], None] | None = None
    limit_bytes: int | None = None
    _failed: set[str] = field(default_factory=set)
    _work_items: dict[_Operator, WorkItem] = field(default_factory=dict)

    def find(self, on_first_rank: Callable[[Callable[[], Any]], Any]) -> Plan:
        """Return the plan; every rank must call it.

        Args:
            on_first_rank: gives the result that rank 0 computes, or its error, to all ranks.
        """
        measured_s, has_measured = 0.0, False
        plans: list[Plan] = []

        def next_round() -> _Queue:
            plans[:] = [self.search(MeasuredOperators(self.store.measured))]
            operators = self._next_operators(plans[0], is_first=not has_measured)
            if not has_measured or measured_s <= self.budget_s:
                return operators
            parts = parts_of(plans[0])
            if self._unmeasured(parts, self._least_worth_us(parts)):
                plans[:] = [self.search(MeasuredOperators(self.store.measured, is_cautious=True))]
            return []

        def result() -> Plan:
            return replace(plans[0], assumed={**plans[0].assumed, "operators": self.stats(plans[0])})

        while operators := on_first_rank(next_round):
            measured_s += self._measure_all(operators, self.budget_s - measured_s)
            has_measured = True
        plan: Plan = on_first_rank(result)
        return plan

    def _measure_all(self, operators: _Queue, budget_s: float) -> float:
        """Measure operators one after the other until the budget is spent by rank 0's clock, but at least one.

        Return the seconds that it took.
        """
        start = self.clock()
        for number, (operator, predicted_us) in enumerate(operators):
            if self.processes.broadcast(number > 0 and self.clock() - start > budget_s):
                break
            self._measure(operator, predicted_us)
            if self.progress is not None and self.processes.rank == 0:
                self.progress("operators", number + 1, len(operators))
        return self.clock() - start

    def _measure(self, operator: _Operator, predicted_us: float) -> None:
        graph = self.model.in_micro_batches(operator.micro_batches).graph
        op = graph.operators[operator.name]
        trial = OperatorTrial.of(op, operator.config, graph, self.model.backward, predicted_us)
        times = self.processes.gather(self.timer.time(trial))
        if self.processes.rank == 0:
            work = self._work_items[operator]
            if any(t is None for t in times):
                self._failed.add(work.key)
            else:
                self.store.add([slowest_of(work, [t for t in times if t is not None])])

    def _next_operators(self, plan: Plan, is_first: bool) -> _Queue:
        """Return the operators to measure next, largest first: those of the plan, then those of what no plan should be
        slower than, data parallelism and, beside stages, the fastest plan without; or else those of the frontier.
        """
        parts = parts_of(plan)
        least_us = self._least_worth_us(parts)
        of_plan = self._unmeasured(parts, least_us)
        if is_first or not of_plan:
            keys = {self._work_items[operator].key for operator, _ in of_plan}
            fastest = plan.frontier.fastest_without_stages(self.limit_bytes) if len(plan.stages) > 1 else None
            uncut = [] if fastest is None else [part_of(*fastest)]
            baselines = [_data_parallel_part(part.frontier) for part in (*parts, *uncut)]
            others = self._unmeasured([*uncut, *baselines], least_us)
            of_plan += [pair for pair in others if self._work_items[pair[0]].key not in keys]
        return of_plan or self._unmeasured(parts_of_points(plan.frontier), least_us)

    def _unmeasured(self, parts: Iterable[PlannedPart], least_us: float = 0.0) -> _Queue:
        by_key: dict[str, tuple[_Operator, float]] = {}
        for part in parts:
            for name, config in part.pairs(self.model):
                operator = _Operator(name, config, part.frontier.model.graph.n_micro_batches)
                work = self._work_items.get(operator) or work_of(part.frontier, name, config)
                if work is None or not work.key or work.key in self._failed:
                    continue
                if work.key not in by_key and work.key not in self.store.measured:
                    predicted_us = part.frontier.costing.compute.time_ns(work) / 1e3
                    if predicted_us >= least_us:
                        by_key[work.key] = (operator, predicted_us)
                        self._work_items[operator] = work
        return sorted(by_key.values(), key=lambda pair: -pair[1])

    def _least_worth_us(self, parts: Sequence[PlannedPart]) -> float:
        """Return the least predicted microseconds of an operator that is worth measuring.

        The plan's smaller operators take a negligible share of its compute time together.
        """
        items = ((part, work_of(part.frontier, *pair)) for part in parts for pair in part.pairs(self.model))
        times_us = sorted(part.frontier.costing.compute.time_ns(work) / 1e3 for part, work in items if work is not None)
        is_small = np.cumsum(times_us) <= NEGLIGIBLE * sum(times_us)
        return times_us[int(is_small.sum())] if times_us else 0.0

    def stats(self, plan: Plan) -> dict[str, Any]:
        """Return the stats of how much of a plan's compute time was measured."""
        measured_ns = total_ns = n_measured = n_predicted = 0
        for part in parts_of(plan):
            for name, config in part.pairs(self.model):
                work = work_of(part.frontier, name, config)
                if work is None:
                    continue
                time_ns = part.frontier.costing.compute.time_ns(work)
                is_measured = work.key in self.store.measured
                n_measured, n_predicted = n_measured + is_measured, n_predicted + (not is_measured)
                measured_ns, total_ns = measured_ns + time_ns * is_measured, total_ns + time_ns
        return {
            "measured": n_measured,
            "predicted": n_predicted,
            "measured_time_percent": round(100 * measured_ns / total_ns, 1) if total_ns else 100.0,
            "environment": self.store.environment,
        }


def _data_parallel_part(frontier: ModelFrontier) -> PlannedPart:
    """Return data parallelism, as far as it is in the searched space; forced configs may exclude some operators'."""
    batch = data_parallel_configs(frontier)
    configs = {
        op.name: batch[op.name]
        for node, states in frontier.built.nodes
        for op, possible in zip(node.operators, states.configs, strict=True)
        if op.name in batch and batch[op.name] in possible
    }
    return PlannedPart(frontier, configs)


def slowest_of(work: WorkItem, times: list[Timed]) -> Measured:
    slowest = max(times, key=lambda t: t.forward_us + t.backward_us)
    return Measured(work, slowest.forward_us, slowest.backward_us, max(t.spread for t in times))


def parse_budget(budget: float | int | str) -> float:
    """Return seconds, from a number or a text such as ``60s`` or ``2min``; raise InputError if it is no time above 0."""
    text = str(budget).strip().lower()
    for suffix, scale in (("min", 60.0), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("", 1.0)):
        if text.endswith(suffix):
            try:
                seconds = float(text.removesuffix(suffix)) * scale
            except ValueError:
                continue
            if 0 < seconds < float("inf"):
                return seconds
    raise InputError(f"a budget for profiling is a time above 0 such as '60s' or '2min', got {budget!r}")


def opened_store(processes: Processes) -> Store:
    """Return the store of this machine's measurements: on rank 0 the file, on others only this process's memory."""
    folder = cache_folder()
    path = folder / FILE if folder is not None and processes.rank == 0 else None
    return Store(path, environment(processes))


def _refuse_unmeasurable(option: str, request: Request) -> None:
    """Raise InputError where measured operators can't answer a request."""
    if option == "profiling":
        raise InputError(
            "option 'profiling' compares parallelisms and measures none of their operators; leave out the profiling budget"
        )
    own, target = TensorFlowEngine().device_name(), request.hardware.device.name
    if own != target:
        raise InputError(
            f"operators of {request.hardware.name} can't be measured here: its device is {target!r}, this one {own!r}; "
            "leave out the profiling budget, or plan for what tensoropt calibrate wrote on this machine"
        )


def find_measured(
    option: str,
    request: Request,
    parallelism: int | Sequence[int] | None,
    budget: float | int | str,
    processes: Processes,
    on_first_rank: Callable[[Callable[[], Any]], Any] = lambda compute: compute(),
    first_values: Callable[[], FirstValue] | None = None,
    collectives: str = MPI,
) -> Plan:
    """Return a plan that is found by measured operators; every rank must call it. Measurements are kept, however the
    search ends. The number of micro-batches isn't searched, except with stages.

    Args:
        budget: see :func:`parse_budget`.
        first_values: returns the function of variables' first values, so that plans can be run; None to run none.
        collectives: the implementation of collectives by which plans run.

    Raises:
        InputError: no budget, a curve is asked for, or the plan is for other devices than these, which can't be measured
            here.
    """
    budget_s = parse_budget(budget)
    _refuse_unmeasurable(option, request)
    is_asked = request.asks_for_stages
    if request.micro_batches is None and not is_asked:
        request = replace(request, searches_micro_batches=False)
    # Where no trial follows, stages that nobody asked for must pay by more than predictions are off.
    runs_here = processes.size > 1 and option == "mini_time" and parallelism in (None, processes.size, [processes.size])
    is_tried = first_values is not None and not request.force and runs_here
    share = WORTH_TRYING if is_tried or is_asked else WORTH_STAGES

    def search(measured: MeasuredOperators) -> Plan:
        return find_answer(option, replace(request, known=measured, worth_stages=share), parallelism)

    with closing(opened_store(processes)) as store:
        timer = OperatorTimer(ranks_per_core=processes.ranks_per_core)
        searching = MeasuredSearch(
            processes, request.model, search, budget_s, store, timer, progress=request.progress,
            limit_bytes=request.limit_bytes,
        )  # fmt: skip
        plan = searching.find(on_first_rank)
        if first_values is None or request.force or not plan.parallelism == processes.size > 1:
            return plan
        baseline_trial = BaselineTrial(
            processes=processes,
            model=request.model,
            first_values=first_values,
            collectives=collectives,
            limit_bytes=request.limit_bytes,
            budget_s=budget_s,
            store=store,
            stats=searching.stats,
            progress=request.progress,
        )
        return baseline_trial.winner(plan, on_first_rank)


@dataclass(frozen=True, eq=False)
class PlannedPart:
    """A model or one of its stages, with a config for each of its operators.

    Attributes:
        frontier: the frontier that it was searched in, which has the costs.
    """

    frontier: ModelFrontier
    configs: Mapping[str, Config]

    def pairs(self, whole: Model) -> list[tuple[str, Config]]:
        """Return the operators in training steps with their configs, but those that only stages have: what they are fed by
        others, and the loss that stands in for theirs.
        """
        return [
            (op.name, self.configs[op.name])
            for op in self.frontier.model.graph.step_operators
            if op.updates is None and op.name in self.configs and op.name in whole.graph.operators
        ]


def work_of(frontier: ModelFrontier, name: str, config: Config) -> WorkItem | None:
    """Return the work of an operator; None where it has none that could be timed by itself."""
    op = frontier.model.graph.operators[name]
    return costs_of_config(frontier.costing, op, rule_of(op), config).work()


def parts_of(plan: Plan) -> list[PlannedPart]:
    """Return the parts of a plan that was found in this process: its stages."""
    parts = ((stage.frontier, stage.strategy.configs) for stage in plan.stages)
    return [PlannedPart(frontier, configs) for frontier, configs in parts if frontier is not None]


def parts_of_points(frontier: Frontier | None) -> Iterator[PlannedPart]:
    assert frontier is not None
    return (part_of(*part) for point in range(len(frontier)) for part in frontier.parts(point))


def part_of(frontier: ModelFrontier, point: int) -> PlannedPart:
    return PlannedPart(frontier, frontier.built.strategy(frontier.found.strategies[point]).configs)
