"""Compress a frontier that a search found into the parts that its plans share, without building each plan.

The costs of an operator depend on its config. The costs of the reshardings of its results depend on its config, on the
configs of its consumers, and on the copies that these share. Along a frontier few combinations of these occur at each
operator, however many points there are. So

1. the strategy of each point becomes a row of numbers, with one column per operator and per shared tensor
   (:class:`.Columns`);
2. the distinct combinations at an operator are found in the columns that its costs depend on;
3. each combination is evaluated once, on a graph of the operator and its consumers alone (:class:`_Neighbourhood`).

Complexity: O(points x operators) numbers, and one evaluation per distinct combination.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np

from ...common.process.progress import Progress
from ...ir.graph import Graph, Operator
from ...ir.optimizer import ParameterUpdate
from ...plan.build import CostEntry, complete_configs, cost_entries, planned_operator
from ...plan.frontier_file import Entry, StoredPart, parts_value
from ...plan.record import PlannedOperator
from ...program.fast_peak import Columns
from ...program.fast_peak.rows import Numbers
from ...rules.registry import rule_of
from ...rules.rule import Config, Interface, OperandSharding, interface_of
from ...rules.shardings import first_seen
from ...sharding.resharding import PathFinder
from ...sharding.strategy import Copy, Strategy, StrategyView
from .model_frontier import ModelFrontier
from .point_peaks import columns_of

Ints = np.ndarray


def shared_parts(frontier: ModelFrontier, progress: Progress | None = None) -> Entry:
    """Return the parts of which all of a frontier's plans consist, as its file has them.

    Args:
        progress: called with (phase, done, total) now and then; the phase is ``plans``.
    """
    parts = _PartsBuilder(frontier)
    operators, reshardings = [], []
    ops = [op for op in frontier.model.graph.operators.values() if op.updates is None]
    for n_done, op in enumerate(ops):
        if progress is not None:
            progress("plans", n_done, len(ops))
        operators.append(parts.operator_part(op))
        if op.name in parts.step_names:
            reshardings.append(parts.resharding_part(op))
    return parts_value(operators, [part for part in reshardings if part.pool])


def _numbered(frontier: ModelFrontier) -> tuple[Columns, Sequence[Any]]:
    """Return the strategies of all points of a frontier as columns of numbers, and the value that each stands for.

    There are columns of the operators that no training step runs, too.
    """
    numbers = Numbers()
    columns = columns_of(frontier.built, frontier.found.strategies, numbers.of, numbers.of)
    configs = {**columns.configs, **_beside_the_steps(frontier, columns.configs, numbers)}
    return replace(columns, configs=configs), numbers.values


def _beside_the_steps(frontier: ModelFrontier, configs: Mapping[str, Ints], numbers: Numbers) -> dict[str, Ints]:
    """Return the configs of the operators that no training step runs, by operator: int32[P].

    They are determined by the configs of the operators whose results they use.
    """
    graph, states = frontier.model.graph, frontier.found.strategies
    ops = [op for op in graph.operators.values() if op.updates is None and op.name not in configs]
    if not ops:
        return {}
    reads = [op for op in graph.operators.values() if op.name not in configs]
    producers = [graph.producers[tensor.name] for op in reads for _, tensor in op.operands]
    leaders = {op.updates or op.name for op in [*producers, *reads]} & configs.keys()
    columns = [configs[name] for name in sorted(leaders)] or [np.zeros(len(states), np.int32)]
    firsts, rows = first_seen(np.stack(columns, axis=1), axis=0)
    steps = [frontier.built.strategy(states[point]) for point in firsts]
    strategies = [complete_configs(frontier.model, step, frontier.costing) for step in steps]
    return {op.name: np.array([numbers.of(step.configs[op.name]) for step in strategies], np.int32)[rows] for op in ops}


@dataclass(frozen=True, eq=False)
class _Neighbourhood(Graph):
    """An operator of a graph and its consumers, all run by the training steps.

    Which variables are updated, and how, is taken from the graph around them.
    """

    around: Graph = field(kw_only=True)

    @cached_property
    def updates(self) -> dict[str, tuple[ParameterUpdate, ...]]:
        return self.around.updates

    @cached_property
    def lookups(self) -> dict[str, tuple[str, ...]]:
        return self.around.lookups

    @property
    def step_operators(self) -> tuple[Operator, ...]:
        return tuple(self.operators.values())


class _PartsBuilder:
    """A builder of the parts of a frontier's plans, which computes each interface and the paths of each resharding once."""

    def __init__(self, frontier: ModelFrontier) -> None:
        self.graph, self.backward = frontier.model.graph, frontier.model.backward
        self.mesh, self.costing, (self.numbered, self._values) = frontier.mesh, frontier.costing, _numbered(frontier)
        self.step_names = {op.name for op in self.graph.step_operators}
        self._position = {name: position for position, name in enumerate(self.graph.operators)}
        self._path_finder = PathFinder(frontier.costing.reshardings.steps)
        self._rules = {op.name: rule_of(op) for op in self.graph.operators.values()}
        self._interfaces: dict[tuple[str, int], Interface] = {}
        self._consumers: dict[str, list[Operator]] = {}
        for op in self.graph.step_operators:
            for _, tensor in op.operands:
                self._consumers.setdefault(tensor.name, []).append(op)

    def _config(self, name: str, point: int) -> Config:
        config = self._values[self.numbered.configs[name][point]]
        assert isinstance(config, Config)
        return config

    def _interface(self, name: str, point: int) -> Interface:
        key = name, int(self.numbered.configs[name][point])
        if key not in self._interfaces:
            self._interfaces[key] = interface_of(self._rules[name], self._config(name, point))
        return self._interfaces[key]

    def operator_part(self, op: Operator) -> StoredPart:
        """Return the part of an operator's rows: one choice per combination of config and being rematerialized or not."""
        is_remat = self.numbered.rematerialized.get(op.name)
        columns = [self.numbered.configs[op.name], *([] if is_remat is None else [is_remat])]
        firsts, choice = first_seen(np.stack(columns, axis=1), axis=0)
        pool = tuple(self._plan_operator(op, point).to_json() for point in firsts)
        return StoredPart(pool, tuple((i,) for i in range(len(pool))), choice)

    def _plan_operator(self, op: Operator, point: int) -> PlannedOperator:
        rule, config, interface = self._rules[op.name], self._config(op.name, point), self._interface(op.name, point)
        if op.name not in self.step_names:
            return PlannedOperator(op.name, op.type, config, interface.results, 0, 0.0)
        return planned_operator(self.costing, op, rule, config, interface, self._is_rematerialized(op.name, point))

    def _is_rematerialized(self, name: str, point: int) -> bool:
        return name in self.numbered.rematerialized and bool(self.numbered.rematerialized[name][point])

    def resharding_part(self, op: Operator) -> StoredPart:
        """Return the part of the reshardings inside an operator and of its results.

        It has one choice per set of rows to which a combination of the configs, shared copies, regathered copies and
        rematerialized operators around the operator leads.
        """
        neighbourhood, tensors = self._neighbourhood(op), {tensor.name for tensor in op.outputs}
        names = [name for name in neighbourhood.operators if name in self.numbered.configs]
        shared = [name for name in tensors if name in self.numbered.shared]
        regathered = [copy for copy in self.numbered.regathered if copy.tensor in tensors]
        columns = [self.numbered.configs[name] for name in names] + [self.numbered.shared[name] for name in shared]
        columns += [self.numbered.regathered[copy] for copy in regathered]
        columns += [self.numbered.rematerialized[name] for name in names if name in self.numbered.rematerialized]
        firsts, combination = first_seen(np.stack(columns, axis=1), axis=0)
        pool: dict[CostEntry, int] = {}
        rows: list[Entry] = []
        choices: dict[tuple[int, ...], int] = {}
        choice_of = np.empty(len(firsts), np.int32)
        for number, point in enumerate(firsts):
            entries = takewhile(lambda entry: entry.tensor in tensors or entry.tensor == op.name,
                              cost_entries(self._view(neighbourhood, names, shared, regathered, point), self.costing))
            choice = []
            for entry in entries:
                if entry not in pool:
                    row = entry.planned(self._path_finder)
                    pool[entry] = -1 if row is None else len(rows)
                    rows += [] if row is None else [row.to_json()]
                if pool[entry] >= 0:
                    choice.append(pool[entry])
            choice_of[number] = choices.setdefault(tuple(choice), len(choices))
        return StoredPart(tuple(rows), tuple(choices), choice_of[combination])

    def _neighbourhood(self, op: Operator) -> _Neighbourhood:
        """Return the graph of an operator, its consumers, and the variables that these update; the operator comes first."""
        consumers = [consumer for tensor in op.outputs for consumer in self._consumers.get(tensor.name, ())]
        names = {name for consumer in consumers for name in (consumer.name, consumer.updates) if name}
        graph, others = self.graph, sorted(names - {op.name}, key=self._position.__getitem__)
        by_name = {name: graph.operators[name] for name in [op.name, *others]}
        return _Neighbourhood(by_name, graph.train_steps, {}, graph.micro_batching, gradients=graph.gradients, around=graph)

    def _view(
        self, neighbourhood: Graph, names: Iterable[str], shared: Iterable[str], regathered: Iterable[Copy], point: int
    ) -> StrategyView:
        """Return the strategy of a point, restricted to a neighbourhood, on the neighbourhood's graph."""
        copies = {name: self._values[self.numbered.shared[name][point]] for name in shared}
        strategy = Strategy(
            self.mesh,
            {name: self._config(name, point) for name in names},
            {name: sharding for name, sharding in copies.items() if isinstance(sharding, OperandSharding)},
            frozenset(copy for copy in regathered if self.numbered.regathered[copy][point]),
            frozenset(name for name in names if self._is_rematerialized(name, point)),
        )
        view = StrategyView(neighbourhood, strategy, self.backward)
        # The view would compute these again, but other combinations had them already.
        interfaces = {name: self._interface(name, point) for name in names}
        vars(view).update(rules=self._rules, interfaces=interfaces, rematerialized=strategy.rematerialized)
        return view
