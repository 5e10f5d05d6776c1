"""Compare the delta simulation with the full one, for single changes on FlexFlow's six models.

    python tests/benchmarks/simulator.py [MODEL ...] [--cluster k80-16x4] [--changes 50]

Starting with data parallelism, a random operator gets a random config: all devices along one of its factors, or two. The
change is simulated in full (Algorithm 1: the task graph is built and simulated) and by the delta simulation; both must give
the same time, and every second change is kept. The resharding paths are looked up before either is timed. The columns are
medians in milliseconds of processor time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from tabulate import tabulate

from tensoropt.costs.operator_costs import costing_of
from tensoropt.ir.graph import Operator
from tensoropt.profiling.hardware import resolve
from tensoropt.program.simulator import StepActions, network_of, step_graph
from tensoropt.program.simulator.full import simulate_tasks, task_graph
from tensoropt.rules.rule import NONE, Config, why_unsearched
from tensoropt.search.baselines import data_parallel
from tensoropt.search.flexflow.simulated_position import DeltaSimulation
from tensoropt.search.task import BaselineTask
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import Strategy, StrategyView
from tensoropt.tools.offline import record_named

MODELS = ("alexnet", "resnet101", "inception_v3", "rnntc", "rnnlm", "nmt")


def timed(action: Callable[[], object]) -> tuple[float, object]:
    started = time.process_time()
    result = action()
    return (time.process_time() - started) * 1e3, result


def random_config(view: StrategyView, op: Operator, rng: random.Random) -> Config:
    rule, mesh = view.rules[op.name], view.strategy.mesh
    while True:
        one, other = (rng.choice([NONE, *rule.splittable]) for _ in range(2))
        middle = rng.randint(0, len(mesh.axes))
        config = Config(mesh, tuple(one if axis < middle else other for axis in mesh.axes))
        if not why_unsearched(rule, config):
            return config


def measured(name: str, cluster: str, n_changes: int) -> list[object]:
    """Return a row of the table."""
    model, hardware = record_named(f"zoo:{name}").model, resolve(cluster)
    mesh = hardware.mesh()
    costing, network = costing_of(model, hardware, mesh), network_of(hardware, mesh)
    view = model.view(Strategy(mesh, data_parallel.configs(BaselineTask(costing, mesh, "compact"))))
    actions = StepActions(costing, PathFinder(costing.reshardings.steps))
    graph = step_graph(view, actions.path_finder)

    def chains(view: StrategyView) -> list:
        return actions.chains(view, graph.nodes)

    def in_full(view: StrategyView) -> int:
        tasks.append(task_graph(graph, chains(view), network))
        return max(each.end_ns for each in simulate_tasks(tasks[-1]))

    def by_difference(view: StrategyView, op: Operator, config: Config) -> tuple[int, StrategyView]:
        changed = view.changed({op.name: config})
        touched = graph.touched([op.name])
        chains = actions.chains(changed, [graph.nodes[n] for n in touched])
        return simulation.try_chains(dict(zip(touched, chains, strict=True))), changed

    tasks: list = []
    simulation = DeltaSimulation(graph, chains(view), network)
    rng, operators = random.Random(1), [op for op in model.graph.step_operators if op.updates is None]
    full, delta = [], []
    for number in range(n_changes):
        op = rng.choice(operators)
        config = random_config(view, op, rng)
        by_difference(view, op, config)  # finds the paths of new reshardings, and compiles
        ms, (tried_ns, changed) = timed(lambda view=view, op=op, config=config: by_difference(view, op, config))
        delta.append(ms)
        ms, full_ns = timed(lambda changed=changed: in_full(changed))
        full.append(ms)
        assert tried_ns == full_ns, (name, op.name, str(config), tried_ns, full_ns)
        if number % 2:
            simulation.keep()
            view = changed
    medians = [f"{statistics.median(each):.2f}" for each in (full, delta)]
    ratio = statistics.median(a / b for a, b in zip(full, delta, strict=True))
    return [name, len(operators), len(tasks[-1]), *medians, f"{ratio:.1f}", n_changes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--cluster", default="k80-16x4")
    parser.add_argument("--changes", type=int, default=50)
    arguments = parser.parse_args()
    names = arguments.models or MODELS
    rows = [measured(name, arguments.cluster, arguments.changes) for name in names]
    headers = ["model", "operators", "tasks", "full", "delta", "full/delta", "changes"]
    print(tabulate(rows, headers, disable_numparse=True))


if __name__ == "__main__":
    main()
