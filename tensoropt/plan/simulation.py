"""Simulate the step of a plan on some hardware."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from ..common.errors import InputError
from ..common.memory_units import memory_text
from ..common.words import counted
from ..costs.operator_costs import costing_of
from ..ir.graph import PLACEHOLDER
from ..profiling.hardware import Hardware
from ..program.fetch import all_of, operators_of
from ..program.gradient_flow import GradientFlow
from ..program.orders.passes import PARAMETERS, Orders
from ..program.simulator import Network, StepActions, StepTimeline, network_of
from ..program.simulator.network import DEVICE, LINK, NETWORK, Action, Resource
from ..program.simulator.stages_network import StagesNetwork
from ..program.simulator.step_graph import SEND, StageProgram, StepNode, stages_graph
from ..program.simulator.timeline import additive_ns, timeline_of
from ..program.stage_ends import ahead_alone, ends_of
from ..program.step import whole_program
from ..program.tasks import SENT
from ..sharding.model import Model
from ..sharding.resharding import PathFinder
from ..sharding.stages import Stages
from ..sharding.strategy import StrategyView
from .build import check_reshardings
from .plan import Plan

FORMAT, VERSION = "tensoropt/simulation", 1
MOST_SHOWN = 15


@dataclass(frozen=True, eq=False)
class Simulation:
    """The simulated step of a plan.

    Attributes:
        timeline: what each device and link does when.
        additive_ns: the time of the step by Equations (1) to (3), with nothing hidden.
    """

    plan: Plan
    hardware: Hardware
    timeline: StepTimeline
    additive_ns: int

    @property
    def peak_bytes(self) -> int:
        """The most memory that is alive at once on a device; by Equation (1) where the plan doesn't know it."""
        return self.plan.needed_bytes

    def report(self) -> str:
        """Return tables of the step: its time, how busy devices and links are, and the critical path by operator."""
        makespan = self.timeline.makespan_ns
        basis = "by its levels" if self.hardware.topology is None or len(self.plan.submeshes) > 1 else "by its topology"
        lines = [
            f"step      {_ms(makespan)} ms simulated on {self.hardware.name} {basis}; {_ms(self.additive_ns)} ms if nothing "
            "overlapped",
            f"memory    {memory_text(self.peak_bytes)} per device at once",
        ]
        resources = list(zip(self.timeline.resources, self.timeline.busy_ns, strict=True))
        devices = [row for row in resources if row[0].kind != LINK]
        links = sorted((row for row in resources if row[0].kind == LINK), key=lambda row: -row[1])
        parts = ["\n".join(lines), self._busy("devices", devices)]
        if links:
            parts.append(self._busy(f"links, of {len(links)} kinds", links[:MOST_SHOWN]))
        return "\n\n".join([*parts, self._path()])

    def _busy(self, title: str, rows: list[tuple[Resource, int]]) -> str:
        makespan = self.timeline.makespan_ns
        cells = [
            [_resource_name(resource), _ms(busy), _ms(makespan - busy), f"{busy / makespan:.0%}" if makespan else ""]
            for resource, busy in rows
        ]
        headers = (title, "busy ms", "idle ms", "busy")
        return tabulate(cells, headers, disable_numparse=True, colalign=("left", "right", "right", "right"))

    def _path(self) -> str:
        """Return the critical path by operator and part of the step, the longest first."""
        path = self.timeline.critical_path()
        total: dict[tuple[str, str], int] = {}
        for part in path:
            key = part.operator, part.kind
            total[key] = total.get(key, 0) + part.end_ns - part.start_ns
        rows = sorted(total.items(), key=lambda row: (-row[1], row[0]))
        makespan = max(1, self.timeline.makespan_ns)
        cells = [[name, kind, _ms(ns), f"{ns / makespan:.1%}"] for (name, kind), ns in rows[:MOST_SHOWN]]
        ns_left = sum(ns for _, ns in rows[MOST_SHOWN:])
        if ns_left:
            cells.append([f"{len(rows) - MOST_SHOWN} others", "", _ms(ns_left), f"{ns_left / makespan:.1%}"])
        headers = (f"critical path, {len(path)} tasks", "part", "ms", "of the step")
        return tabulate(cells, headers, disable_numparse=True, colalign=("left", "left", "right", "right"))

    def to_json(self) -> dict[str, Any]:
        """Return the simulation as a JSON value, of the format ``FORMAT`` in version ``VERSION``."""
        busy = list(zip(self.timeline.resources, self.timeline.busy_ns, strict=True))

        def rows_of_kind(kind: str) -> list[dict[str, Any]]:
            rows = [(name, ns) for resource, ns in busy if resource.kind == kind for name in resource.members]
            return [{"name": name, "busy_us": ns / 1e3} for name, ns in rows]

        devices = [(rank, name, ns) for resource, ns in busy if resource.kind == DEVICE
                  for rank, name in zip(resource.devices, resource.members, strict=True)]  # fmt: skip
        return {
            "format": FORMAT,
            "version": VERSION,
            "cluster": self.hardware.name,
            "makespan_us": self.timeline.makespan_ns / 1e3,
            "additive_time_us": self.additive_ns / 1e3,
            "peak_bytes": [self.peak_bytes] * self.plan.parallelism,
            "devices": [{"name": name, "busy_us": ns / 1e3} for _, name, ns in sorted(devices)],
            "links": [*rows_of_kind(NETWORK), *rows_of_kind(LINK)],
            "critical_path": [
                {"task": part.task, "operator": part.operator, "start_us": part.start_ns / 1e3, "end_us": part.end_ns / 1e3}
                for part in self.timeline.critical_path()
            ],
        }


def simulate_plan(plan: Plan, model: Model, hardware: Hardware) -> Simulation:
    """Simulate the step of a plan for a model on some hardware, by the plan's own paths.

    Raises:
        InputError: the plan is for another model or for another mesh, or the model can't be simulated.
    """
    stages = plan.cut(model)
    try:
        mesh = hardware.mesh(plan.parallelism)
    except ValueError as error:
        raise InputError(f"the plan is for {counted(plan.parallelism, 'device')}: {error}") from error
    if mesh != plan.mesh:
        raise InputError(
            f"the plan is for a mesh of {plan.mesh}, which {hardware.name} doesn't make of "
            f"{counted(plan.parallelism, 'device')}: there it is {mesh}; "
            f"find a plan for {hardware.name}, or give the cluster that the plan was found for"
        )
    numbers = [plan.submeshes.index(stage.devices) for stage in plan.stages]
    programs, actions = [], []
    for number, (stage_plan, part) in enumerate(zip(plan.stages, stages.models, strict=True)):
        model_part = part.in_micro_batches(plan.micro_batches, stage_plan.mesh.n_devices)
        view, costing = model_part.view(stage_plan.strategy), costing_of(model_part, hardware, stage_plan.mesh)
        check_reshardings(view, stage_plan)
        finder = stage_plan.path_finder(costing.reshardings.steps)
        programs.append(_program(stages, number, plan.orders, view, finder))
        actions.append(StepActions(costing, finder))
    graph = stages_graph(programs, plan.orders)
    chains = [
        iter(actions_of_stage.chains(program.view, [node for node in graph.nodes if node.stage == number]))
        for number, (actions_of_stage, program) in enumerate(zip(actions, programs, strict=True))
    ]
    stages_network = StagesNetwork(hardware, {stage.devices: stage.mesh for stage in plan.stages})
    placed_chains = [
        tuple(action._replace(submeshes=(numbers[node.stage],)) for action in next(chains[node.stage]))
        + tuple(_messages(stages, node, stages_network, numbers, programs[node.stage].view))
        for node in graph.nodes
    ]
    network: Network = stages_network if len(plan.submeshes) > 1 else network_of(hardware, mesh)
    producers = {name: op for program in programs for name, op in program.view.graph.producers.items()}
    timeline = timeline_of(producers, graph, placed_chains, network)
    costs = [submesh.costs for submesh in stages_network.of_submeshes]
    additive = sum(additive_ns(action, costs[action.submeshes[0]]) for chain in placed_chains for action in chain)
    return Simulation(plan, hardware, timeline, additive)


def _program(stages: Stages, number: int, orders: Orders, view: StrategyView, path_finder: PathFinder) -> StageProgram:
    """Return the program of a stage, as it is run, and who sends it what."""
    graph, model_graph = view.graph, stages.whole.graph
    outgoing = [crossing for crossing in stages.crossings if crossing.source == number]
    incoming = [crossing for crossing in stages.crossings if crossing.target == number]
    is_deferring = any(run == run._replace(stage=number, work=PARAMETERS) for order in orders for run in order)
    divides = is_deferring or bool(stages.early[number])
    ends = ends_of(stages, number, graph, outgoing, incoming, graph.train_steps, divides)
    fetch = all_of(graph)
    names = operators_of(graph, fetch) | graph.ancestors([graph.tensors[crossing.tensor] for crossing in outgoing], (), ())
    fetched = {name for name in names if name in model_graph.operators or graph.operators[name].type == PLACEHOLDER}
    fetched -= ahead_alone(stages, graph, fetch, fetched)
    flow, senders = GradientFlow(view, path_finder), dict[tuple[str, str], list[int]]()
    flow.losses.update((name, loss) for name, loss in ends.losses.items() if loss is not None)
    for crossing in incoming:
        senders.setdefault((crossing.tensor, ""), []).append(crossing.source)
    for crossing in outgoing:
        for step in crossing.steps:
            senders.setdefault((crossing.tensor, step), []).append(crossing.target)
    program = whole_program(view, path_finder, ends, fetch, [crossing.tensor for crossing in incoming], fetched)
    return StageProgram(view, program, flow, senders)


def _messages(
    stages: Stages, node: StepNode, network: StagesNetwork, numbers: Sequence[int], view: StrategyView
) -> Iterator[Action]:
    """Yield the messages of a node: to each stage that uses the tensor, or its gradient to the one that computes it."""
    for crossing in stages.crossings if node.kind == SEND else ():
        ends = (crossing.source, crossing.target) if node.site.kind == SENT else (crossing.target, crossing.source)
        source, target = (numbers[end] for end in ends)
        if crossing.tensor == node.site.name and ends[0] == node.stage and source != target:
            yield network.message(view.graph.tensors[crossing.tensor].mem_bytes, source, target)


def _resource_name(resource: Resource) -> str:
    names, devices = resource.members, resource.devices
    if len(names) == 1:
        return names[0]
    head = "network of " if resource.kind == NETWORK else ""
    if resource.kind != LINK and devices == tuple(range(devices[0], devices[0] + len(devices))):
        return f"{head}{names[0]} to {names[-1]}, {len(names)} alike"
    return f"{head}{names[0]} and {len(names) - 1} alike"


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:,.3f}"
