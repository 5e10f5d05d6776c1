"""What the simulator's tests share: models, networks, random changes, and the full simulation as events."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from zoo.small import SMALL

import tensoropt
from tensoropt import zoo
from tensoropt.costs.operator_costs import OperatorCosting, costing_of
from tensoropt.ir.graph import Operator
from tensoropt.profiling.hardware import Hardware, Link, Topology, named
from tensoropt.profiling.hardware_costs import CollectiveCosts
from tensoropt.program.simulator.actions import Chain, StepActions
from tensoropt.program.simulator.full import simulate_tasks, task_graph
from tensoropt.program.simulator.network import Network
from tensoropt.program.simulator.step_graph import StepGraph, step_graph
from tensoropt.program.simulator.timeline import StepTimeline, additive_ns, timeline_of
from tensoropt.program.simulator.topology_network import TopologyNetwork, network_of
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.configs import configs
from tensoropt.rules.rule import Config, OperandSharding
from tensoropt.search.flexflow.simulated_position import Event
from tensoropt.sharding.consumers import consumers_of, sharding_of, shareable_copies
from tensoropt.sharding.model import Model
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import Strategy, StrategyView
from tensoropt.tools.offline import record

RANDOM = "random graph "


@cache
def model_of(name: str) -> Model:
    """A small model of the zoo, or a random graph by its seed."""
    if name.startswith(RANDOM):
        return record(lambda: random_graph(random.Random(name)), name, "adam").model
    return record(lambda: zoo.find(name)(**SMALL[name]), name).model


def random_graph(rng: random.Random) -> object:
    """Record products, sums and activations that use each other's results at random; some share weights."""
    api, width = tensoropt, 12
    values = [api.placeholder(api.float32, [16, width])]
    weights: list = []
    unused: list = []
    for number in range(rng.randint(4, 16)):
        one, other = (rng.choice(values[-4:]) for _ in range(2))
        kind = rng.choice(["product", "product", "tanh", "sum", "hadamard", "norm"])
        if kind == "product":
            if not weights or rng.random() < 0.7:
                weights.append(api.get_variable(f"w{number}", [width, width]))
            made = api.matmul(one, rng.choice(weights))
        elif kind == "norm":
            made = one - api.reduce_mean(one, 0)
        else:
            made = api.tanh(one) if kind == "tanh" else one + other if kind == "sum" else one * other
        unused = [each for each in (*unused, made) if each is not one and each is not other]
        values.append(made)
    last = api.matmul(values[-1], api.get_variable("last", [width, 3]))
    rest = [api.reduce_mean(api.square(each)) for each in unused if each is not values[-1]]
    return api.add_n([api.reduce_mean(api.square(last)), *rest])


def uneven(n_machines: int = 2) -> Hardware:
    """Return a cluster in which no device is like another: two machines of four, speeds and bandwidths all different."""
    links = []
    for machine in range(n_machines):
        for number in range(4):
            rate = 1e9 * (1 + number + 5 * machine)
            links.append(Link(f"{machine}:{number}", f"{machine}:switch", rate, 0.5 + number, both_ways=number != 2))
        links.append(Link(f"{machine}:switch", f"{machine}:2", 3.3e9, 1.0))
        links.append(Link(f"{machine}:switch", "net", 1e9 + 1e8 * machine, 5.0, both_ways=True))
    devices = tuple(f"{machine}:{number}" for machine in range(n_machines) for number in range(4))
    topology = Topology(devices, tuple(links), tuple(1 + 0.1 * number for number in range(len(devices))))
    return replace(named(f"v100-{n_machines}x4"), topology=topology)


CLUSTERS = {
    "levels": lambda: named("v100-1x4"),
    "levels that overlap": lambda: replace(named("v100-2x2"), exposed_share=0.3),
    "p100": lambda: named("p100-2x4"),
    "k80": lambda: named("k80-1x4"),
    "uneven": uneven,
}


@dataclass
class Simulated:
    """A model under a strategy on some hardware, which random changes go on from."""

    model: Model
    hardware: Hardware
    network: Network
    costing: OperatorCosting
    view: StrategyView
    graph: StepGraph
    actions: StepActions

    @classmethod
    def of(cls, name: str, hardware: Hardware, seed: int, is_merged: bool = True) -> Simulated:
        model, mesh = model_of(name), hardware.mesh()
        costing = costing_of(model, hardware, mesh)
        network = network_of(hardware, mesh)
        if not is_merged:
            network = TopologyNetwork(hardware.topology, CollectiveCosts(hardware, mesh), is_merged=False)
        view = random_view(model, mesh, random.Random(seed))
        actions = StepActions(costing, PathFinder(costing.reshardings.steps))
        return cls(model, hardware, network, costing, view, step_graph(view, actions.path_finder), actions)

    def chains(self, view: StrategyView) -> list:
        return self.actions.chains(view, self.graph.nodes)

    def timeline(self) -> StepTimeline:
        return step_timeline(self.view, self.costing, self.actions.path_finder, self.network)

    def full(self, view: StrategyView) -> tuple[int, list[Event]]:
        """Return the makespan and the events of the full simulation, in the order of :class:`DeltaSimulation`."""
        tasks = task_graph(self.graph, self.chains(view), self.network)
        times = simulate_tasks(tasks)
        found: dict[tuple[int, int, int], Event] = {}
        for task, each in zip(tasks, times, strict=True):
            if task.key.action < 0:
                continue
            before = found.get(task.key[:3])
            ready, end = (each.ready_ns, 0) if before is None else before[3:]
            found[task.key[:3]] = Event(*task.key[:3], ready, max(end, each.end_ns))
        return max((each.end_ns for each in times), default=0), sorted(found.values(), key=lambda e: (e.ready_ns, *e[:3]))

    def of_nodes(self, view: StrategyView, nodes: Sequence[int]) -> dict[int, Chain]:
        """Return the actions of some nodes under a strategy, by their numbers."""
        return dict(zip(nodes, self.actions.chains(view, [self.graph.nodes[n] for n in nodes]), strict=True))

    def changes(self, rng: random.Random, n: int) -> Iterator[tuple[list[int], StrategyView]]:
        """Yield changes of one operator's config, or of one tensor's shared copy: the nodes that they touch, and the view.

        Each starts from ``self.view`` as it is then.
        """
        operators = [op for op in self.model.graph.step_operators if op.updates is None]
        shared = [name for name, those in consumers_of(self.model.graph).items() if len(those) > 1]
        for _ in range(n):
            if shared and rng.random() < 0.2:
                name = rng.choice(shared)
                yield self.graph.touched([], [name]), self.view.changed({}, {name: random_copy(self.view, name, rng)})
            else:
                op = rng.choice(operators)
                changed = self.view.changed({op.name: random_config(self.view, op, rng)})
                yield self.graph.touched([op.name]), changed


def step_timeline(view: StrategyView, costing: OperatorCosting, path_finder: PathFinder, network: Network) -> StepTimeline:
    graph = step_graph(view, path_finder)
    chains = StepActions(costing, path_finder).chains(view, graph.nodes)
    return timeline_of(view.graph.producers, graph, chains, network)


def summed_ns(timeline: StepTimeline, costs: CollectiveCosts) -> int:
    return sum(additive_ns(action, costs) for chain in timeline.chains for action in chain)


def random_config(view: StrategyView, op: Operator, rng: random.Random) -> Config:
    return rng.choice(configs(view.rules[op.name], view.strategy.mesh))


def random_copy(view: StrategyView, name: str, rng: random.Random) -> OperandSharding | None:
    tensor = view.graph.tensors[name]
    wanted = [sharding_of(view, tensor, consumer) for consumer in consumers_of(view.graph)[name]]
    return rng.choice([None, *shareable_copies(wanted)])


def random_view(model: Model, mesh: Mesh, rng: random.Random) -> StrategyView:
    unsplit = {op.name: Config.unsplit(mesh) for op in model.graph.step_operators if op.updates is None}
    view = model.view(Strategy(mesh, unsplit))
    chosen = {name: random_config(view, model.graph.operators[name], rng) for name in unsplit}
    view = view.changed(chosen)
    tensors = [name for name, those in consumers_of(model.graph).items() if len(those) > 1]
    return view.changed({}, {name: random_copy(view, name, rng) for name in tensors})
