"""Find Mesh-TensorFlow's frontier: of all strategies that split each logical dimension the same way everywhere.

The device mesh is the same for all operators: the mesh's axes in their order, cut into at most MOST_GROUPS runs, which are
the dimensions of Mesh-TensorFlow's mesh (Shazeer et al., 2018). An *assignment* gives each logical dimension
(:mod:`.dimensions`) one of these runs or none; two logical dimensions of one operator never have the same run. As a user
would, it gives the dimensions of equal layers one *name*: those whose members have the same operator types, factors and
extents. With many names there are too many assignments. Then only the names whose tensors have the most bytes are split, as
many as have at most MOST_ASSIGNMENTS assignments together. The assignments of d + 1 names are those of d names, each
extended by every run for the next name that no conflicting name has.

All assignments are costed; only the shared copies are left to choose under each. The costs of an assignment are a sum over
operators, reshardings and shared copies. Each of these terms depends on few names: it is computed once for each combination
of their runs, and then looked up by all assignments at once.

    lowest(a)   = (sum of least memories, sum of least times): no strategy of assignment a is below
    fastest(a)  = the strategy whose copies are all the fastest: a real one, at the least time of a

The frontier of all ``fastest`` is computed first. An assignment whose ``lowest`` it doesn't dominate may hold more points:
those of the product of its copies' frontiers (:func:`...ft.pareto.product`). So the result is the frontier of all
assignments.

Complexity: O(assignments x distinct sets of names + terms x combinations x copies).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import numpy as np

from ...ft import Frontier
from ...ft.pareto import product, reduce_unsorted, union
from ...ir.graph import Operator
from ...reschedule.layout import Axes
from ...reschedule.mesh import Mesh
from ...rules.rule import Config
from ..problem.strategy_problem import StrategyProblem
from ..task import BaselineResult, BaselineTask
from .dimensions import Dimension, by_operator, config_of, logical_dimensions

MOST_GROUPS = 3
MOST_ASSIGNMENTS = 1 << 15
Columns = tuple[int, ...]
Ints = np.ndarray


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


@dataclass(frozen=True, eq=False)
class Naming:
    """All assignments of names (groups of logical dimensions) to runs of mesh axes.

    Attributes:
        runs: the runs of axes that a name may be assigned to; the first is empty: not split.
        factors: for each operator, (column of ``assigned``, factor) for each of its names that may be split, in the order of
            the columns.
        assigned: int16[assignments, names], the index in ``runs`` of each name's run.
        n_names: the number of the model's names that can be split by some axis, also of those left out here.
    """

    runs: tuple[Axes, ...]
    factors: dict[str, tuple[tuple[int, str], ...]]
    assigned: Ints
    n_names: int

    @classmethod
    def of(cls, task: BaselineTask, max_assignments: int) -> Naming:
        """Return the assignments of a model's names on a mesh; ``max_assignments`` is how many there may be."""
        names = _names(task)
        grids = tuple(_grids(task.mesh))
        runs: tuple[Axes, ...] = ((), *dict.fromkeys(run for grid in grids for run in grid))
        carried = [by_operator(name, task.rules) for name in names]
        assignments = [np.zeros((1, 0), np.int16) for _ in grids]
        for column, name in enumerate(names):
            conflicts = [earlier for earlier in range(column) if carried[earlier].keys() & carried[column].keys()]
            fitting_runs = [index for index, run in enumerate(runs) if name.degree_fits(task.mesh.size_of(run), task.rules)]
            extensions = []
            for grid, assigned in zip(grids, assignments, strict=True):
                indices = [index for index in fitting_runs if not index or runs[index] in grid]
                extensions.append(_extended(assigned, indices, conflicts))
            if sum(map(len, extensions)) > max_assignments:
                break
            assignments = extensions
        assigned = np.unique(np.concatenate(assignments), axis=0)
        factors = {
            op.name: tuple((i, carried[i][op.name]) for i in range(assigned.shape[1]) if op.name in carried[i])
            for op in task.operators
        }
        return cls(runs, factors, assigned, len(names))

    def columns(self, operator: str) -> tuple[int, ...]:
        """Return the columns of the names on which an operator's config depends."""
        return tuple(column for column, _ in self.factors[operator])

    def config(self, task: BaselineTask, operator: str, assignment: int) -> Config:
        run_of_name = self.assigned[assignment]
        requests = [(factor, self.runs[run_of_name[column]]) for column, factor in self.factors[operator]]
        return config_of(task.rules[operator], task.mesh, requests)


def _extended(assigned: Ints, indices: Sequence[int], conflicts: Sequence[int]) -> Ints:
    """Return the assignments extended by one more name, in each run that no conflicting name has."""
    extended = []
    for index in indices:
        is_free = np.ones(len(assigned), bool) if not index else (assigned[:, conflicts] != index).all(axis=1)
        column = np.full((int(is_free.sum()), 1), index, np.int16)
        extended.append(np.concatenate([assigned[is_free], column], axis=1))
    return np.concatenate(extended)


def _grids(mesh: Mesh) -> Iterator[tuple[Axes, ...]]:
    """Yield the mesh's axes cut into runs, in every way that makes at most MOST_GROUPS runs."""
    n_axes = len(mesh.sizes)
    for n_cuts in range(min(MOST_GROUPS, max(n_axes, 1))):
        for cuts in combinations(range(1, n_axes), n_cuts):
            ends = (0, *cuts, n_axes)
            yield tuple(mesh.axes[start:end] for start, end in pairwise(ends))


def _names(task: BaselineTask) -> list[Dimension]:
    """Return the logical dimensions of each name as one, those first whose tensors have the most bytes.

    Names that no mesh axis can split are left out.
    """
    operators = {op.name: op for op in task.operators}
    groups: dict[frozenset[tuple[str, str, int]], list[Dimension]] = {}
    for dimension in logical_dimensions(task.operators, task.rules):
        signature = {(operators[name].type, factor, task.rules[name].extents[factor]) for name, factor in dimension.members}
        groups.setdefault(frozenset(signature), []).append(dimension)
    names = [Dimension(tuple(member for dimension in group for member in dimension.members)) for group in groups.values()]
    splittable = [name for name in names if any(name.degree_fits(size, task.rules) for size in task.mesh.sizes)]
    return sorted(splittable, key=lambda name: -sum(_bytes(task, operators[op], factor) for op, factor in name.members))


def _bytes(task: BaselineTask, op: Operator, factor: str) -> int:
    results = zip(op.outputs, task.rules[op.name].results, strict=True)
    return sum(tensor.mem_bytes for tensor, dims in results if any(factor in names for names in dims))
