"""Compare every search with enumeration on many random graphs: the same points, to the byte and the nanosecond.

    python tests/benchmarks/exactness.py [--graphs 10000] [--seed 0]

Graph number i is drawn from seed ``S + i``, so that one can be repeated by itself: ``--graphs 1 --seed`` with its seed. Each
kind of graph comes with costs that all differ, with costs below 4 (ties and duplicates), with states and pairs that are
not allowed, with rows and columns that are equal, and at the largest sizes that int64 adds up. Every strategy that is
returned is costed again from scratch. At the first difference the seed is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from tensoropt.ft import INFEASIBLE, Edge, Frontier, InfeasibleError, Node, Problem, search

ALGORITHMS = ("ft-ldp", "ft-elimination")
HEADERS = (
    *("graphs", "n", "allowed", "nodes", "edges", "states", "strategies", "points", "longest"),
    *("node", "edge", "branch", "enumeration s", *(f"{name} s" for name in ALGORITHMS)),
)
COST_LIMITS = (2, 4, 30, 10**6, 1 << 53)
MAX_STRATEGIES = 5000

Pairs = list[tuple[int, int]]
Draw = Callable[[np.random.Generator], tuple[int, Pairs]]


def chain(rng: np.random.Generator) -> tuple[int, Pairs]:
    n = int(rng.integers(2, 8))
    order = rng.permutation(n).tolist()
    return n, list(itertools.pairwise(order))


def parallel(rng: np.random.Generator) -> tuple[int, Pairs]:
    n, pairs = chain(rng)
    again = [pairs[int(k)] for k in rng.integers(0, len(pairs), len(pairs))]
    return n, [*pairs, *again, *((j, i) for i, j in again)]


def residual(rng: np.random.Generator) -> tuple[int, Pairs]:
    length = int(rng.integers(2, 4))
    n = length * int(rng.integers(1, 3)) + 1
    line = [(i, i + 1) for i in range(n - 1)]
    return n, line + [(i, i + length) for i in range(0, n - length, length)]


def branches(rng: np.random.Generator) -> tuple[int, Pairs]:
    """Lines of different lengths from the first node to the last, some joined in between."""
    n = int(rng.integers(5, 8))
    pairs: Pairs = []
    inner = list(range(1, n - 1))
    while inner:
        length = int(rng.integers(1, 3))
        pairs += itertools.pairwise([0, *inner[:length], n - 1])
        inner = inner[length:]
    return n, pairs + [tuple(sorted(rng.choice(n, 2, replace=False).tolist())) for _ in range(int(rng.integers(0, 2)))]


def mask(rng: np.random.Generator) -> tuple[int, Pairs]:
    """A line whose every node also takes the last one's result."""
    n = int(rng.integers(4, 8))
    return n, [(i, i + 1) for i in range(n - 2)] + [(n - 1, i) for i in range(n - 1)]


def tree(rng: np.random.Generator) -> tuple[int, Pairs]:
    n = int(rng.integers(2, 8))
    return n, [(i, int(rng.integers(0, i))) for i in range(1, n)]


def clique(rng: np.random.Generator) -> tuple[int, Pairs]:
    n = int(rng.integers(3, 6))
    return n, [(i, j) for i in range(n) for j in range(i)]


def anything(rng: np.random.Generator) -> tuple[int, Pairs]:
    """Any edges, none at all and parts that do not touch included."""
    n = int(rng.integers(1, 8))
    count = int(rng.integers(0, 2 * n)) if n > 1 else 0
    return n, [tuple(rng.choice(n, 2, replace=False).tolist()) for _ in range(count)]


GRAPHS: dict[str, Draw] = {
    "chain": chain,
    "parallel edges": parallel,
    "residual blocks": residual,
    "branches": branches,
    "mask": mask,
    "tree": tree,
    "clique": clique,
    "anything": anything,
}


def drawn(seed: int) -> tuple[str, Problem]:
    """Return the kind and the graph that a seed draws."""
    rng = np.random.default_rng(seed)
    kind = list(GRAPHS)[seed % len(GRAPHS)]
    n, pairs = GRAPHS[kind](rng)
    sizes = rng.integers(1, 7, n)
    while math.prod(sizes.tolist()) > MAX_STRATEGIES:
        sizes[np.argmax(sizes)] -= 1
    limit, infeasible = int(rng.choice(COST_LIMITS)), float(rng.choice([0.0, 0.0, 0.05, 0.25]))
    repeats = float(rng.choice([0.0, 0.7]))

    def costs(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        mem, time_ns = rng.integers(0, limit, (2, *shape))
        if len(shape) == 2 and rng.random() < repeats:
            rows, columns = (rng.integers(0, -(-size // 2), size) for size in shape)
            mem, time_ns = mem[np.ix_(rows, columns)], time_ns[np.ix_(rows, columns)]
        forbidden = rng.random((2, *shape)) < infeasible
        return np.where(forbidden[0], INFEASIBLE + rng.integers(0, 9), mem), np.where(forbidden[1], 1 << 62, time_ns)

    nodes = tuple(Node(f"n{i}", *costs(size)) for i, size in enumerate(sizes.tolist()))
    return kind, Problem(nodes, tuple(Edge(i, j, *costs(int(sizes[i]), int(sizes[j]))) for i, j in pairs))


@dataclass
class Tally:
    """Counts of the outcomes for one kind of graph."""

    n: int = 0
    allowed: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    longest: int = 0
    seconds: Counter[str] = field(default_factory=Counter)

    def row(self, kind: str) -> list[str]:
        means = [f"{self.sums[what] / self.n:.1f}" for what in ("nodes", "edges", "states", "strategies")]
        points = f"{self.sums['points'] / max(self.allowed, 1):.1f}"
        eliminations = [str(self.sums[what]) for what in ("node", "edge", "branch")]
        seconds = [f"{self.seconds[name]:.1f}" for name in ("exhaustive", *ALGORITHMS)]
        return [kind, str(self.n), str(self.allowed), *means, points, str(self.longest), *eliminations, *seconds]

    def add(self, other: Tally) -> None:
        self.n, self.allowed = self.n + other.n, self.allowed + other.allowed
        self.sums.update(other.sums)
        self.seconds.update(other.seconds)
        self.longest = max(self.longest, other.longest)


def found_by(problem: Problem, algorithm: str, tally: Tally) -> Frontier | None:
    """Return the frontier that an algorithm finds; None if it says that nothing is allowed."""
    start = time.perf_counter()
    try:
        return search(problem, algorithm)
    except InfeasibleError:
        return None
    finally:
        tally.seconds[algorithm] += time.perf_counter() - start


def difference(expected: Frontier | None, got: Frontier | None) -> str | None:
    """Return a sentence about what differs from enumeration; None if nothing does."""
    if expected is None or got is None:
        names = ["nothing is allowed" if found is None else f"{len(found)} points" for found in (expected, got)]
        return None if expected is got else f"enumeration says {names[0]}, it says {names[1]}"
    if not got.exact or got.eliminations["heuristic"]:
        return f"says of itself: {got.certificate}"
    points = [list(zip(found.mem_bytes.tolist(), found.time_ns.tolist(), strict=True)) for found in (expected, got)]
    return None if points[0] == points[1] else f"enumeration finds {points[0]}, it finds {points[1]}"


def unreal(problem: Problem, found: Frontier) -> str | None:
    """Return a sentence about the first strategy whose cost isn't the one that was found; None if there is none."""
    for mem, time_ns, strategy in zip(found.mem_bytes.tolist(), found.time_ns.tolist(), found.strategies, strict=True):
        if problem.cost(strategy) != (mem, time_ns):
            return f"strategy {strategy.tolist()} costs {problem.cost(strategy)}, it says {(mem, time_ns)}"
    return None


def compare(problem: Problem, tally: Tally) -> str | None:
    """Search by all algorithms and count; return a sentence about what is wrong, None if nothing is."""
    tally.n += 1
    tally.sums["nodes"] += len(problem.nodes)
    tally.sums["edges"] += len(problem.edges)
    tally.sums["states"] += sum(node.n_states for node in problem.nodes)
    tally.sums["strategies"] += math.prod(node.n_states for node in problem.nodes)
    expected = found_by(problem, "exhaustive", tally)
    if expected is not None:
        tally.allowed += 1
        tally.sums["points"] += len(expected)
        tally.longest = max(tally.longest, len(expected))
    for name in ALGORITHMS:
        got = found_by(problem, name, tally)
        wrong = difference(expected, got) or (unreal(problem, got) if got is not None else None)
        if wrong:
            return f"{name}: {wrong}"
        tally.sums.update(got.eliminations if got is not None else {})
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tallies = {kind: Tally() for kind in GRAPHS}
    seeds = range(given.seed, given.seed + given.graphs)
    for seed in tqdm(seeds, unit="graph", disable=None):
        kind, problem = drawn(seed)
        wrong = compare(problem, tallies[kind])
        if wrong:
            print(f"seed {seed}, {kind}: {wrong}", file=sys.stderr)
            return 1
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    rows = [tally.row(kind) for kind, tally in (*tallies.items(), ("all", total)) if tally.n]
    print(tabulate(rows, HEADERS, disable_numparse=True, colalign=("left", *["right"] * (len(HEADERS) - 1))))
    names = " and ".join(ALGORITHMS)
    print(f"seeds {seeds.start} to {seeds.stop - 1}: {names} equal enumeration on all {len(seeds)} graphs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
