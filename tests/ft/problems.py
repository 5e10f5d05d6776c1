"""Random problems with integer costs, small enough to enumerate, and the shapes that real models have."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from tensoropt.ft import INFEASIBLE, Edge, Frontier, Node, Problem
from tensoropt.ft.elimination.tracking import Tracked
from tensoropt.ft.weighted.lagrangian import Found


@dataclass(frozen=True)
class Costs:
    """The distribution of costs: below ``limit`` (small ones give ties and duplicates), some infeasible, some rows equal."""

    limit: int
    infeasible: float = 0.0
    interfaces: float = 0.0

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        mem, time = rng.integers(0, self.limit, (2, *shape))
        if self.infeasible:
            mem = np.where(rng.random(shape) < self.infeasible, INFEASIBLE + rng.integers(0, 3), mem)
            time = np.where(rng.random(shape) < self.infeasible / 2, 1 << 62, time)
        if len(shape) == 2 and rng.random() < self.interfaces:
            rows = rng.integers(0, max(1, shape[0] // 2), shape[0])
            columns = rng.integers(0, max(1, shape[1] // 2), shape[1])
            mem, time = mem[rows][:, columns], time[rows][:, columns]
        return mem, time


def build(rng: np.random.Generator, sizes: list[int], pairs: list[tuple[int, int]], costs: Costs) -> Problem:
    nodes = tuple(Node(f"n{i}", *costs.draw(rng, (size,))) for i, size in enumerate(sizes))
    edges = tuple(Edge(i, j, *costs.draw(rng, (sizes[i], sizes[j]))) for i, j in pairs)
    return Problem(nodes, edges)


def chain_pairs(n: int) -> list[tuple[int, int]]:
    return [(i, i + 1) for i in range(n - 1)]


SHAPES: dict[str, tuple[int, list[tuple[int, int]]]] = {
    "single": (1, []),
    "two": (2, [(0, 1)]),
    "both directions": (2, [(0, 1), (1, 0)]),
    "parallel": (3, [(0, 1), (0, 1), (1, 2), (1, 2), (2, 1)]),
    "chain": (6, chain_pairs(6)),
    "chain, shuffled": (6, [(3, 0), (0, 5), (5, 1), (1, 4), (4, 2)]),
    "diamond": (4, [(0, 1), (0, 2), (1, 3), (2, 3)]),
    "nested diamonds": (7, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 6), (0, 5), (5, 6), (0, 6)]),
    "residual blocks": (7, [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4), (4, 5), (5, 6), (3, 6)]),
    "mask": (7, [*chain_pairs(6), (6, 0), (6, 1), (6, 2), (6, 3), (6, 4), (6, 5)]),
    "parameters first": (7, [(0, 4), (1, 5), (2, 6), (3, 4), (4, 5), (5, 6)]),
    "star": (6, [(0, i) for i in range(1, 6)]),
    "clique": (5, [(i, j) for i in range(5) for j in range(i)]),
    "disconnected": (6, [(0, 2), (2, 4), (1, 3)]),
    "no edges": (3, []),
    "attention": (7, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (4, 5), (3, 5), (5, 6), (0, 6)]),
    "tree": (7, [(0, 2), (1, 2), (2, 5), (3, 4), (4, 5), (5, 6)]),
    "lines off the line": (7, [(2, 3), (3, 0), (0, 4), (4, 1), (5, 4), (5, 6)]),
}


def random_problem(seed: int) -> Problem:
    """One of SHAPES, or random edges over few nodes; states from 1 to 4."""
    rng = np.random.default_rng(seed)
    names = [*SHAPES, "random", "random"]
    name = names[seed % len(names)]
    if name == "random":
        n = int(rng.integers(2, 7))
        ends = [rng.permutation(n)[:2].tolist() for _ in range(int(rng.integers(0, 2 * n)))]
        pairs = [(int(i), int(j)) for i, j in ends]
    else:
        n, pairs = SHAPES[name]
    sizes = rng.integers(1, 5, n).tolist()
    limit = int(rng.choice([2, 4, 30, 10**6, 1 << 53]))
    costs = Costs(limit, float(rng.choice([0.0, 0.0, 0.1, 0.35])), float(rng.choice([0.0, 0.8])))
    return build(rng, sizes, pairs, costs)


def identity_edge(source: int, target: int, n_states: int) -> Edge:
    """The target's state must be the source's."""
    costs = np.where(np.eye(n_states, dtype=bool), 0, INFEASIBLE)
    return Edge(source, target, costs, costs)


def resnet_pairs(n_blocks: int) -> list[tuple[int, int]]:
    """Blocks of 4 nodes with a residual edge around them."""
    pairs = chain_pairs(4 * n_blocks + 1)
    return pairs + [(4 * block, 4 * block + 4) for block in range(n_blocks)]


def real_points(problem: Problem, found: Frontier | Found | Tracked) -> list[tuple[int, int]]:
    """Return the points, memory and time, that strategies have; each is what its strategy costs."""
    costs = (found.mem_bytes, found.time_ns) if isinstance(found, Frontier) else (found.mem, found.time)
    points = list(zip(*(each.tolist() for each in costs), strict=True))
    assert [problem.cost(strategy) for strategy in found.strategies.tolist()] == points
    return points


def all_strategies(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All allowed strategies with their costs."""
    strategies = np.array(list(product(*(range(node.n_states) for node in problem.nodes))), np.int32)
    costs = np.array([problem.cost(strategy) for strategy in strategies.tolist()], dtype=object)
    allowed = (costs < INFEASIBLE).all(axis=1)
    return strategies[allowed], costs[allowed, 0], costs[allowed, 1]
