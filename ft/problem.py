"""The input of a search: nodes with states, and the costs of states and of pairs of states.

A strategy picks one state per node; it costs (Equation 3 of the TensorOpt paper)

    mem(S)  = sum over nodes  mem[s_i]  + sum over edges  mem[s_i, s_j]
    time(S) = sum over nodes time[s_i]  + sum over edges time[s_i, s_j]

which :meth:`Problem.cost` computes from scratch, and which every search here minimises in both components at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

INFEASIBLE = 1 << 55
"""A cost at or above this means "not allowed". Two feasible costs, and 128 infeasible ones, add up within int64."""


_CHECKED: WeakValueDictionary[int, Ints] = WeakValueDictionary()
"""The arrays of nodes and edges, by their own ids and by those of the read-only arrays that they are views of: problems are
made of other problems' arrays, and equal layers of the same arrays, which need no second look.
"""


class InfeasibleError(ValueError):
    """Raised where no strategy is allowed; the message names the node or edge that shows it."""


def _costs(owner: Node | Edge, what: str, n_dims: int) -> Ints:
    """Return the owner's memory or time as a read-only int64 view, checked unless another node or edge has it."""
    costs = getattr(owner, what)
    view = _CHECKED.get(id(costs))
    # As long as the view is there, what it is a view of is there too, so that no other array has its id.
    if view is not None and (view is costs or view.base is costs) and view.ndim == n_dims:
        return view
    array, name = np.asarray(costs), f"{what} of {_label(owner)}"
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name} must be integers (bytes, nanoseconds), got {array.dtype}; round them first")
    if array.ndim != n_dims or array.size == 0:
        expected = "[K] with K >= 1" if n_dims == 1 else "[K source, K target] with both K >= 1"
        raise ValueError(f"{name} must have shape {expected}, got {array.shape}")
    if array.min() < 0 or array.max() > np.iinfo(np.int64).max:
        worst = array.min() if array.min() < 0 else array.max()
        raise ValueError(f"{name} must lie in [0, 2^63), got {worst}; INFEASIBLE means not allowed")
    result: Ints = array.astype(np.int64, copy=False).view()
    result.flags.writeable = False
    _CHECKED[id(result)] = result
    if result.base is array and not array.flags.writeable:
        _CHECKED[id(array)] = result
    return result


def _label(owner: Node | Edge) -> str:
    """Return what a node or an edge is called in messages."""
    return f"node {owner.name!r}" if isinstance(owner, Node) else f"edge {owner.source} -> {owner.target}"


def _set_costs(owner: Node | Edge, n_dims: int) -> None:
    """Check the owner's two cost arrays and replace them with read-only views."""
    mem_bytes, time_ns = _costs(owner, "mem_bytes", n_dims), _costs(owner, "time_ns", n_dims)
    if mem_bytes.shape != time_ns.shape:
        shapes = mem_bytes.shape, time_ns.shape
        raise ValueError(f"mem_bytes and time_ns of {_label(owner)} must have one shape, got {shapes}")
    object.__setattr__(owner, "mem_bytes", mem_bytes)
    object.__setattr__(owner, "time_ns", time_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One variable with K states: an operator's configs, or a tensor's states.

    Attributes:
        name: for messages.
        mem_bytes: int64[K], the memory of each state.
        time_ns: int64[K], the time of each state.
    """

    name: str
    mem_bytes: Ints
    time_ns: Ints

    def __post_init__(self) -> None:
        _set_costs(self, 1)

    @property
    def n_states(self) -> int:
        return len(self.mem_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """Costs that depend on the states of two nodes.

    Attributes:
        source, target: indices into ``Problem.nodes``.
        mem_bytes, time_ns: int64[K of source, K of target].
    """

    source: int
    target: int
    mem_bytes: Ints
    time_ns: Ints

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise ValueError(f"an edge joins two nodes, got {self.source} twice; add its diagonal to the node's costs")
        _set_costs(self, 2)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Nodes in topological order, and edges between them.

    Several edges between two nodes, in either direction, are allowed.

    Raises:
        ValueError: there is no node, or an edge's ends or shape do not fit the nodes.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "edges", tuple(self.edges))
        if not self.nodes:
            raise ValueError("a problem needs at least one node, got none")
        sizes = [node.n_states for node in self.nodes]
        for index, edge in enumerate(self.edges):
            for end in (edge.source, edge.target):
                if not 0 <= end < len(sizes):
                    raise ValueError(f"edge {index} names node {end}, but there are {len(sizes)} nodes")
            expected = sizes[edge.source], sizes[edge.target]
            if edge.mem_bytes.shape != expected:
                raise ValueError(f"costs of edge {self.edge_name(edge)} must be {expected}, got {edge.mem_bytes.shape}")

    def edge_name(self, edge: Edge) -> str:
        """Return the names of an edge's two ends, for messages."""
        return f"{self.nodes[edge.source].name!r} -> {self.nodes[edge.target].name!r}"

    def restricted(self, states: Sequence[Ints]) -> Problem:
        """Return the problem with only some states of each node.

        Args:
            states: for each node the indices of its states to keep, in their new order; at least one.
        """
        numbers: dict[bytes, int] = {}  # of each different choice of states
        number_of = [numbers.setdefault(subset.tobytes(), len(numbers)) for subset in states]
        cache: dict[tuple[object, ...], Ints] = {}  # what was one array stays one where the same states are kept

        def part(costs: Ints, *ends: int) -> Ints:
            key = identity(costs), *(number_of[end] for end in ends)
            if key not in cache:
                cache[key] = costs[np.ix_(*(states[end] for end in ends))]
                cache[key].flags.writeable = False
            return cache[key]

        nodes = [Node(n.name, part(n.mem_bytes, i), part(n.time_ns, i)) for i, n in enumerate(self.nodes)]
        edges = [
            Edge(e.source, e.target, part(e.mem_bytes, e.source, e.target), part(e.time_ns, e.source, e.target))
            for e in self.edges
        ]
        return Problem(tuple(nodes), tuple(edges))

    def cost(self, strategy: Sequence[int]) -> tuple[int, int]:
        """Return memory in bytes and time in nanoseconds of one state per node, computed from scratch (Equation 3).

        The strategy is allowed if both are below INFEASIBLE.

        Raises:
            ValueError: there isn't one state per node, or a node does not have its state.
        """
        if len(strategy) != len(self.nodes):
            raise ValueError(f"a strategy has one state for each of {len(self.nodes)} nodes, got {len(strategy)}")
        states = [int(state) for state in strategy]
        mem_bytes = time_ns = 0
        for node, state in zip(self.nodes, states, strict=True):
            if not 0 <= state < node.n_states:
                raise ValueError(f"node {node.name!r} has states 0 to {node.n_states - 1}, got {state}")
            mem_bytes += int(node.mem_bytes[state])
            time_ns += int(node.time_ns[state])
        for edge in self.edges:
            pair = states[edge.source], states[edge.target]
            mem_bytes += int(edge.mem_bytes[pair])
            time_ns += int(edge.time_ns[pair])
        return mem_bytes, time_ns


def in_states(strategies: npt.NDArray[np.int32], states: Sequence[Ints]) -> npt.NDArray[np.int32]:
    """Return strategies of a problem that was restricted to ``states`` in the states of the problem itself."""
    return np.stack([indices[strategies[:, node]] for node, indices in enumerate(states)], axis=1).astype(np.int32)


def identity(array: Ints) -> tuple[object, ...]:
    """Return a key that is equal for two views of all of one array."""
    return array.__array_interface__["data"][0], array.strides, array.shape


def split_sum(costs: Ints) -> tuple[Ints, Ints] | None:
    """Return ``(f, g)`` with ``costs[i, j] = f[i] + g[j]``, both non-negative; None if there is no such pair.

    There is one for every edge to a node with a single state, and for edges that are free, unless a pair of states is
    forbidden.
    """
    if int(costs.max()) >= INFEASIBLE:
        return None
    column = int(costs[0].argmin())
    of_source, of_target = costs[:, column], costs[0] - costs[0, column]
    return (of_source, of_target) if (of_source[:, None] + of_target == costs).all() else None
