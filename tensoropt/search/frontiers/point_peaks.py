"""Count the peaks of all points that a search found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from ...common.pickling import ByArguments
from ...common.process.progress import Progress
from ...program.fast_peak import Columns, Peaks
from ...program.memory.pass_memory import PassMemory, pass_memory
from ...program.memory.peak import MOST_MICRO_BATCHES, peak_of
from ...program.stage_ends import StageEnds
from ...rules.registry import rule_of
from ...rules.rule import Config, OperandSharding, Rule, known_interface_of
from ...sharding.model import Model
from ...sharding.strategy import StrategyView, is_rematerializable
from ..problem.strategy_problem import StrategyProblem

WORTH_LOADING = 1_500
"""So many operators, over all points, take longer to replay than the compiled kernels take to load."""
Value = TypeVar("Value", Config, OperandSharding)


@dataclass(eq=False)
class PeakCounter(ByArguments):
    """The peaks of strategies of one problem, each counted once.

    Strategies have most of their configs in common, so what follows from a config is computed once, too. Configs are those
    of the problem's states, and so are known by their identity.

    Attributes:
        known: the peaks that were counted so far, by the bytes of the nodes' states.
        known_passes: of a stage the memory of its passes, by what it exchanges and by these bytes.
    """

    model: Model
    built: StrategyProblem
    peaks: Peaks
    known: dict[bytes, int] = field(default_factory=dict)
    known_passes: dict[tuple[object, ...], dict[bytes, PassMemory]] = field(default_factory=dict)
    _rematerializable: dict[tuple[str, int], bool] = field(default_factory=dict)

    @cached_property
    def _rules(self) -> dict[str, Rule]:
        return {name: rule_of(op) for name, op in self.model.graph.operators.items()}

    def view(self, states: np.ndarray) -> StrategyView:
        """Return the strategy that one state for each node means, on its graph."""
        strategy, rules = self.built.strategy(states.tolist()), self._rules
        view = self.model.view(strategy)
        interfaces = {name: known_interface_of(rules[name], config) for name, config in strategy.configs.items()}
        rematerialized = frozenset(name for name in strategy.rematerialized if self._is_rematerializable(view, name))
        vars(view).update(rules=rules, interfaces=interfaces, rematerialized=rematerialized)
        return view

    def _is_rematerializable(self, view: StrategyView, name: str) -> bool:
        config, cache = view.strategy.configs[name], self._rematerializable
        key = name, id(config)
        if key not in cache:
            op = view.graph.operators[name]
            cache[key] = is_rematerializable(view.graph, op, self._rules[name], config, view.backward.gradients)
        return cache[key]

    def passes_of(self, states: np.ndarray, ends: StageEnds) -> PassMemory:
        """Return the memory of a stage's passes under strategies.

        Args:
            states: int32[P, nodes].
        """
        numbers = {name: number for number, name in enumerate(self.model.graph.tensors)}
        returned = frozenset((step, numbers[name]) for step, name in ends.returned)
        key = frozenset(map(numbers.get, ends.received)), returned, ends.divides
        cache = self.known_passes.setdefault(key, {})  # stages that are alike have other names
        keys = [row.tobytes() for row in states]
        missing = [i for i, key in enumerate(keys) if key not in cache]
        if missing:
            memory = self._count_passes(states[missing], ends)
            cache.update((keys[i], memory.take([row])) for row, i in enumerate(missing))
        return PassMemory.joined([cache[key] for key in keys])

    def _count_passes(self, states: np.ndarray, ends: StageEnds) -> PassMemory:
        peaks, n_replayed = self.peaks, min(self.model.graph.n_micro_batches, MOST_MICRO_BATCHES)
        if peaks.is_quick and len(states) * self.built.n_operators * n_replayed > WORTH_LOADING:
            return peaks.passes_of_columns(self._columns(states), self._views(states), ends)
        views = map(self.view, states)
        return PassMemory.joined([pass_memory(view, peaks.costing, peaks.path_finder, ends) for view in views])

    def peaks_of(self, states: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """Return the peaks of strategies, int64[P].

        Args:
            states: int32[P, nodes].
            progress: called with ("peaks", done, total) now and then.
        """
        keys = [row.tobytes() for row in states]
        missing = [i for i, key in enumerate(keys) if key not in self.known]
        peaks = self._count_peaks(states[missing], progress)
        self.known.update((keys[i], n_bytes) for i, n_bytes in zip(missing, peaks.tolist(), strict=True))
        return np.array([self.known[key] for key in keys], np.int64)

    def _count_peaks(self, states: np.ndarray, progress: Progress | None) -> np.ndarray:
        """Return the peaks of strategies that weren't counted before."""
        n, peaks = len(states), self.peaks
        if peaks.is_quick and n * self.built.n_operators > WORTH_LOADING:
            _report(progress, 0, n)
            return peaks.of_columns(self._columns(states), self._views(states))
        peaks_bytes = np.empty(n, np.int64)
        for i in range(n):
            _report(progress, i, n)
            peaks_bytes[i] = peak_of(self.view(states[i]), peaks.costing, peaks.path_finder).n_bytes
        return peaks_bytes

    def _columns(self, states: np.ndarray) -> Columns:
        rows = self.peaks.rows
        return columns_of(self.built, states, rows.config_number, rows.sharding_number)

    def _views(self, states: np.ndarray) -> Callable[[int], StrategyView]:
        return lambda i: self.view(states[i])


def _report(progress: Progress | None, n_done: int, total: int) -> None:
    if progress is not None:
        progress("peaks", n_done, total)


def columns_of(
    problem: StrategyProblem,
    states: np.ndarray,
    config_number: Callable[[Config], int],
    sharding_number: Callable[[OperandSharding], int],
) -> Columns:
    """Return strategies, int32[P, nodes], as columns of numbers."""
    configs, rematerialized = {}, {}
    columns = np.asfortranarray(states)
    cache: dict[int, np.ndarray] = {}  # by the identities of what equal layers share

    def numbers(values: Sequence[Value], number: Callable[[Value], int]) -> np.ndarray:
        """Return the number of each of a node's configs, or operand shardings."""
        if id(values) not in cache:
            cache[id(values)] = np.array([number(value) for value in values], np.int32)
        return cache[id(values)]

    for i, (node, node_states) in enumerate(problem.nodes):
        column = columns[:, i]
        for op, op_configs, index in zip(node.operators, node_states.configs, node_states.index, strict=True):
            configs[op.name] = numbers(op_configs, config_number)[index[column]]
        for k in node_states.rematerialized:
            rematerialized[node.operators[k].name] = node_states.rematerializes[column].astype(np.int32)
    shared = {copy.tensor.name: numbers(copy.shardings, sharding_number)[columns[:, copy.node]] for copy in problem.shared}
    regathered = {
        choice.copy: np.asarray(choice.is_regathered)[columns[:, choice.node]].astype(np.int32) for choice in problem.choices
    }
    return Columns(len(states), configs, shared, regathered, rematerialized)
