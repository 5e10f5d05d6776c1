"""Find Mesh-TensorFlow's frontier: of all strategies that split each logical dimension the same way everywhere.

All assignments of names to runs of mesh axes (:mod:`.naming`) are costed; only the shared copies are left to choose under
each. The costs of an assignment are a sum over operators, reshardings and shared copies. Each of these terms depends on few
names: it is computed once for each combination of their runs, and then looked up by all assignments at once.

    lowest(a)   = (sum of least memories, sum of least times): no strategy of assignment a is below
    fastest(a)  = the strategy whose copies are all the fastest: a real one, at the least time of a

The frontier of all ``fastest`` is computed first. An assignment whose ``lowest`` it doesn't dominate may hold more points:
those of the product of its copies' frontiers (:func:`...ft.pareto.product`). So the result is the frontier of all
assignments.

Complexity: O(assignments x distinct sets of names + terms x combinations x copies).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...ft import Frontier
from ...ft.pareto import product, reduce_unsorted, union
from ...rules.rule import Config
from ..problem.strategy_problem import StrategyProblem
from ..task import BaselineResult, BaselineTask
from .naming import MOST_ASSIGNMENTS, Ints, Naming

Columns = tuple[int, ...]


def search(task: BaselineTask, max_assignments: int = MOST_ASSIGNMENTS) -> BaselineResult:
    """Return Mesh-TensorFlow's frontier, of at most ``max_assignments`` assignments."""
    naming = Naming.of(task, max_assignments)
    problem = _Restricted.of(task, naming)
    frontier = problem.frontier()
    n_assignments, n_split = naming.assigned.shape
    note = f"{n_split} of {naming.n_names} logical dimensions may be split, in {n_assignments:,} ways"
    return BaselineResult(problem.built, frontier, note)


@dataclass(frozen=True, eq=False)
class _Combinations:
    """The distinct combinations of some names' runs that occur among all assignments.

    Attributes:
        first: an assignment that has each combination.
        of: int[assignments], each assignment's combination.
    """

    first: Ints
    of: Ints


@dataclass(frozen=True, eq=False)
class _Copies:
    """The costs of the copies of one tensor that its consumers may share, int64[combinations, copies].

    Attributes:
        node: the number of the tensor's node.
        columns: the names whose combinations these are.
    """

    node: int
    columns: Columns
    mem: Ints
    time: Ints


@dataclass
class _Restricted:
    """A problem whose operators' states all follow from an assignment.

    Attributes:
        states: for each operator node, the names that it depends on, and its state in each of their combinations.
        combinations: the combinations of each set of names that is needed.
        copies: the nodes of shared copies, whose states don't follow.
    """

    built: StrategyProblem
    naming: Naming
    states: list[tuple[Columns, Ints]]
    combinations: dict[Columns, _Combinations]
    copies: list[_Copies] = field(default_factory=list)

    @classmethod
    def of(cls, task: BaselineTask, naming: Naming) -> _Restricted:
        combined: dict[Columns, _Combinations] = {}
        states, configs = [], {}
        for op in task.operators:
            columns = naming.columns(op.name)
            if columns not in combined:
                combined[columns] = _combinations(naming, columns)
            op_configs = [naming.config(task, op.name, int(first)) for first in combined[columns].first]
            distinct: dict[Config, int] = {}
            index = np.array([distinct.setdefault(config, len(distinct)) for config in op_configs], np.intp)
            configs[op.name] = tuple(distinct)
            states.append((columns, index))
        return cls(task.among(configs), naming, states, combined)

    def frontier(self) -> Frontier:
        """Return the frontier of all assignments."""
        self._add_copies()
        lowest, fastest = self._costs()
        minimal = reduce_unsorted(fastest[0], lowest[1])
        mem, time_ns = fastest[0][minimal], lowest[1][minimal]
        strategies = np.array([self._strategy(a) for a in minimal.tolist()], np.int32)
        trade_offs = np.flatnonzero(lowest[0] < fastest[0])
        for a in trade_offs[np.lexsort((lowest[1][trade_offs], lowest[0][trade_offs]))].tolist():
            step = int(np.searchsorted(mem, lowest[0][a], side="right")) - 1
            if step >= 0 and time_ns[step] <= lowest[1][a]:
                continue
            points = self._assignment_frontier(a)
            mem, time_ns, minimal = union(mem, time_ns, points[0], points[1])
            strategies = np.concatenate([strategies, points[2]])[minimal]
        return Frontier(mem, time_ns, strategies, {}, "mesh-tensorflow")

    def _at(self, node: int, assignments: Ints) -> Ints:
        """Return a node's state in each of some assignments; a training step's node has only one state."""
        if node >= len(self.states):
            return np.zeros(len(assignments), np.intp)
        columns, index = self.states[node]
        return index[self.combinations[columns].of[assignments]]

    def _names_of(self, *nodes: int) -> Columns:
        """Return the names on which some nodes together depend, and store their combinations."""
        node_columns = (self.states[node][0] for node in nodes if node < len(self.states))
        columns = tuple(sorted({column for columns_ in node_columns for column in columns_}))
        if columns not in self.combinations:
            self.combinations[columns] = _combinations(self.naming, columns)
        return columns

    def _add_copies(self) -> None:
        problem = self.built.problem
        copy_nodes = {copy.node for copy in self.built.shared}
        edges_of: dict[int, list[tuple[int, Ints, Ints]]] = {node: [] for node in copy_nodes}
        for edge in problem.edges:
            if edge.source in copy_nodes:
                edges_of[edge.source].append((edge.target, edge.mem_bytes.T, edge.time_ns.T))
            elif edge.target in copy_nodes:
                edges_of[edge.target].append((edge.source, edge.mem_bytes, edge.time_ns))
        for node, edges in edges_of.items():
            columns = self._names_of(*(neighbor for neighbor, _, _ in edges))
            first = self.combinations[columns].first
            mem = sum((m[self._at(neighbor, first)] for neighbor, m, _ in edges), start=problem.nodes[node].mem_bytes)
            time = sum((t[self._at(neighbor, first)] for neighbor, _, t in edges), start=problem.nodes[node].time_ns)
            self.copies.append(_Copies(node, columns, mem, time))

    def _costs(self) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """Return (memory, time) of ``lowest`` and of ``fastest``, int64[assignments] each; see the module's docstring.

        Both have the same time: the least for every copy.
        """
        totals: dict[Columns, list[Ints]] = {}

        def add(columns: Columns, *costs: Ints) -> None:
            current = totals.get(columns, [np.int64(0)] * 3)
            totals[columns] = [total + cost for total, cost in zip(current, costs, strict=True)]

        problem, copy_nodes = self.built.problem, {copy.node for copy in self.built.shared}
        for number, node in enumerate(problem.nodes):
            if number not in copy_nodes:
                columns = self._names_of(number)
                rows_of_node = self._at(number, self.combinations[columns].first)
                add(columns, node.mem_bytes[rows_of_node], node.mem_bytes[rows_of_node], node.time_ns[rows_of_node])
        for edge in problem.edges:
            if edge.source not in copy_nodes and edge.target not in copy_nodes:
                columns = self._names_of(edge.source, edge.target)
                first = self.combinations[columns].first
                pairs = self._at(edge.source, first), self._at(edge.target, first)
                add(columns, edge.mem_bytes[pairs], edge.mem_bytes[pairs], edge.time_ns[pairs])
        for copies in self.copies:
            best = _fastest(copies)
            rows = np.arange(len(best))
            add(copies.columns, copies.mem.min(axis=1), copies.mem[rows, best], copies.time[rows, best])
        sums = [np.zeros(len(self.naming.assigned), np.int64) for _ in range(3)]
        for columns, costs in totals.items():
            for total, cost in zip(sums, costs, strict=True):
                total += cost[self.combinations[columns].of]
        return (sums[0], sums[2]), (sums[1], sums[2])

    def _strategy(self, assignment: int) -> Ints:
        """Return the states of all nodes under an assignment, with the fastest copies."""
        assignments = np.array([assignment])
        states = np.zeros(len(self.built.problem.nodes), np.int32)
        for node in range(len(self.states)):
            states[node] = self._at(node, assignments)[0]
        for copies in self.copies:
            states[copies.node] = _fastest(copies)[self.combinations[copies.columns].of[assignment]]
        return states

    def _assignment_frontier(self, assignment: int) -> tuple[Ints, Ints, Ints]:
        """Return the frontier of one assignment: memory, time, strategies."""
        states = self._strategy(assignment)
        total = self.built.problem.cost(states.tolist())
        mem, time_ns = np.array([total[0]], np.int64), np.array([total[1]], np.int64)
        strategies = states[None]
        for copies in self.copies:
            row = self.combinations[copies.columns].of[assignment]
            copy_costs = copies.mem[row], copies.time[row]
            choices = reduce_unsorted(*copy_costs)
            if len(choices) == 1:
                continue
            state = states[copies.node]
            mem, time_ns = mem - copy_costs[0][state], time_ns - copy_costs[1][state]
            mem, time_ns, left, right = product(mem, time_ns, copy_costs[0][choices], copy_costs[1][choices])
            strategies = strategies[left].copy()
            strategies[:, copies.node] = choices[right]
        return mem, time_ns, strategies


def _combinations(naming: Naming, columns: Columns) -> _Combinations:
    rows = naming.assigned[:, columns]
    if not columns:
        return _Combinations(np.zeros(1, np.intp), np.zeros(len(rows), np.intp))
    _, first, combination = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return _Combinations(first, combination.ravel())


def _fastest(copies: _Copies) -> Ints:
    """Return the fastest copy in each combination, and among equally fast ones that of the least memory."""
    result: Ints = np.lexsort((copies.mem, copies.time), axis=1)[:, 0]
    return result
