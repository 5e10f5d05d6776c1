"""Compare choosing configs and what to keep in memory together with choosing one after the other.

    python tests/benchmarks/joint.py [MODEL ...] [--without remat] [--cluster NAME] [--seconds S] [--plans N]
        [--json OUT.json]

*Joint* is the frontier of a search that also chooses which copies to regather and which operators to rematerialize. In *two
stages* the frontier without these choices is found first. Then, for the plan of each of its points, the configs of all
operators are held fixed and the choices are searched; which copies consumers share is chosen again, too, in favour of the
two stages. At each memory the best of all second stages counts: a system that shards first, saves memory afterwards, and
knows which sharding to start from would do no better. A second stage is searched like a frontier: once with
rematerialization and once without (where it is exact or nearly so), and is then improved one node at a time.

Both are compared at equal memory, from the least at which two stages fit to the most of the joint frontier, in steps of
equal ratio. ``slower`` and ``mean`` are the largest and the geometric mean of how much longer two stages take; ``memory`` is
where it is largest. ``least joint`` and ``two stages`` beside it are the least memories of both, by Equation (1). Except for
small models both searches are heuristic: ``gap`` is the joint frontier's worst.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from tensoropt.common.files import write_json
from tensoropt.common.memory_units import memory_text
from tensoropt.common.tensorflow_import import import_tensorflow
from tensoropt.ft import Budget, search
from tensoropt.ft.nonadditive.local_search import Descent
from tensoropt.ft.problem import INFEASIBLE, Edge, Node, Problem, identity
from tensoropt.search.problem.choices import ACCUMULATE, REMAT, REUSE

if TYPE_CHECKING:
    from tensoropt.plan.find_frontier import ModelFrontier
    from tensoropt.rules.rule import Config

DEFAULT = ("vgg16", "wide_resnet", "transformer", "rnn", "bert_large")
N_MEMORIES = 200
HEADERS = ("model", "plans", "memory", "joint (s)", "two stages (s)", "slower", "mean", "least joint", "two stages",
           "gap", "seconds")  # fmt: skip


@dataclass(frozen=True)
class Steps:
    """Least times by memory, as int64 bytes and nanoseconds: memory ascends, time descends."""

    mem_bytes: np.ndarray
    time_ns: np.ndarray

    @classmethod
    def of(cls, mem_bytes: np.ndarray, time_ns: np.ndarray) -> Steps:
        """Return the points that no other beats."""
        order = np.lexsort((time_ns, mem_bytes))
        mem_bytes, time_ns = mem_bytes[order], time_ns[order]
        before = np.minimum.accumulate(np.concatenate([[np.iinfo(np.int64).max], time_ns[:-1]]))
        return cls(mem_bytes[time_ns < before], time_ns[time_ns < before])

    def within(self, mem_bytes: np.ndarray) -> np.ndarray:
        """Return the least time within each amount of memory; each must be enough for at least one point."""
        least: np.ndarray = self.time_ns[np.searchsorted(self.mem_bytes, mem_bytes, side="right") - 1]
        return least


def second_stages(joint: ModelFrontier, first: ModelFrontier, n_plans: int | None, seconds: float) -> tuple[Steps, int]:
    """Return the costs of second stages after the plans of a first stage, and the number of plans."""
    plans = {_splits(configs): configs for configs in (_configs(first, point) for point in range(len(first)))}
    taken = list(plans.values())
    if n_plans is not None and len(taken) > n_plans:
        taken = [taken[i] for i in np.unique(np.linspace(0, len(taken) - 1, n_plans).round().astype(int))]
    mem_bytes, time_ns = [], []
    for configs in tqdm(taken, desc="second stages", leave=False, disable=None):
        for found in second_stage(joint, configs, seconds):
            mem_bytes.append(found[0])
            time_ns.append(found[1])
    return Steps.of(np.concatenate(mem_bytes), np.concatenate(time_ns)), len(taken)


def second_stage(
    joint: ModelFrontier, configs: Mapping[str, Config], seconds: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield bytes and nanoseconds of the second stages after one plan: with all that is allowed, then without remat."""
    pinned = joint.built.allowing(lambda op, config: config == configs[op.name]).problem
    transient = joint.built.transient
    allowed = [np.flatnonzero(np.maximum(node.mem_bytes, node.time_ns) < INFEASIBLE) for node in pinned.nodes]
    searched = [allowed]
    if transient is not None:
        searched.append([np.intersect1d(states, transient.plain.get(i, states)) for i, states in enumerate(allowed)])
    charged = pinned if transient is None else transient.charged(pinned)
    for states in searched:
        found = search(restricted(charged, states), budget=Budget(seconds=seconds / len(searched)))
        at = np.stack([of[found.strategies[:, i]] for i, of in enumerate(states)], axis=1).astype(np.int32)
        found = replace(found, strategies=at)
        if transient is not None:
            mem_bytes, time_ns, _ = Descent(pinned, transient, time.monotonic() + seconds).improved(found.strategies)
            yield mem_bytes, time_ns
        else:
            yield found.mem_bytes, found.time_ns


def restricted(problem: Problem, states: Sequence[np.ndarray]) -> Problem:
    """:meth:`Problem.restricted`, where what was equal by identity stays so."""
    known: dict[tuple[object, ...], np.ndarray] = {}

    def of(costs: np.ndarray, *kept: np.ndarray) -> np.ndarray:
        key = identity(costs), tuple(each.tobytes() for each in kept)
        if key not in known:
            known[key] = costs[np.ix_(*kept)]
        return known[key]

    nodes = [
        Node(node.name, of(node.mem_bytes, kept), of(node.time_ns, kept))
        for node, kept in zip(problem.nodes, states, strict=True)
    ]
    edges = []
    for edge in problem.edges:
        kept = states[edge.source], states[edge.target]
        edges.append(Edge(edge.source, edge.target, of(edge.mem_bytes, *kept), of(edge.time_ns, *kept)))
    return Problem(tuple(nodes), tuple(edges))


def _configs(frontier: ModelFrontier, point: int) -> Mapping[str, Config]:
    return frontier.built.strategy(frontier.found.strategies[point]).configs


def _splits(configs: Mapping[str, Config]) -> tuple[Config, ...]:
    return tuple(configs[name] for name in sorted(configs))


def compared(name: str, cluster: str, seconds: float, n_plans: int | None, without: Sequence[str]) -> dict[str, object]:
    """Return one model's numbers."""
    from tensoropt.plan.find_frontier import find_frontier
    from tensoropt.profiling.hardware import named
    from tensoropt.tools.offline import record_named

    started = time.perf_counter()
    model, hardware = record_named(f"zoo:{name}").model, named(cluster)
    budget = Budget(seconds=seconds)
    joint = find_frontier(model, hardware, hardware.n_devices, budget=budget, without=(ACCUMULATE, *without))
    first = find_frontier(model, hardware, hardware.n_devices, budget=budget, without=(REUSE, REMAT, ACCUMULATE))
    apart, n_taken = second_stages(joint, first, n_plans, seconds)
    together = Steps.of(joint.found.mem_bytes, joint.found.time_ns)
    least = max(int(apart.mem_bytes[0]), int(together.mem_bytes[0]))
    most = max(least, int(together.mem_bytes[-1]))
    memories = np.geomspace(least, most, N_MEMORIES).astype(np.int64)
    memories[[0, -1]] = least, most
    ratios = apart.within(memories) / together.within(memories)
    worst = int(np.argmax(ratios))
    return {
        "model": name,
        "plans": n_taken,
        "at_memory_bytes": int(memories[worst]),
        "joint_time_us": int(together.within(memories)[worst]) / 1e3,
        "two_stages_time_us": int(apart.within(memories)[worst]) / 1e3,
        "largest": float(ratios[worst] - 1),
        "mean": float(np.exp(np.log(ratios).mean()) - 1),
        "least_memory_bytes": int(together.mem_bytes[0]),
        "two_stages_least_memory_bytes": int(apart.mem_bytes[0]),
        "gap": joint.found.worst_gap,
        "seconds": time.perf_counter() - started,
    }


def row(numbers: dict[str, object]) -> list[str]:
    """Return a model's line of the table."""
    value = {key: each for key, each in numbers.items() if isinstance(each, (int, float))}
    return [
        str(numbers["model"]),
        f"{value['plans']}",
        memory_text(int(value["at_memory_bytes"])),
        f"{value['joint_time_us'] / 1e6:.3f}",
        f"{value['two_stages_time_us'] / 1e6:.3f}",
        f"{value['largest']:.1%}",
        f"{value['mean']:.1%}",
        memory_text(int(value["least_memory_bytes"])),
        memory_text(int(value["two_stages_least_memory_bytes"])),
        f"{value['gap']:.2%}",
        f"{value['seconds']:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=DEFAULT, metavar="MODEL")
    parser.add_argument("--cluster", default="v100-2x8", help="default: v100-2x8")
    parser.add_argument("--seconds", type=float, default=5.0, help="for refining each search; default: 5")
    parser.add_argument("--without", action="append", default=[], choices=[REMAT], help="leave it out of both searches")
    parser.add_argument("--plans", type=int, metavar="N", help="of the first stage, at equal distances; default: all")
    parser.add_argument("--json", type=Path, metavar="OUT.json", help="write the numbers")
    given = parser.parse_args()
    import_tensorflow()
    numbers = [compared(name, given.cluster, given.seconds, given.plans, given.without) for name in given.models]
    print(tabulate([row(each) for each in numbers], HEADERS, disable_numparse=True, colalign=("left", *["right"] * 10)))
    if given.json is not None:
        write_json(given.json, {"cluster": given.cluster, "models": numbers}, "result")


if __name__ == "__main__":
    main()
