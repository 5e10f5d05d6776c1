"""Find devices, and links, that have equal timelines whatever the step, so that one of each is simulated.

All devices execute the same step. What tells them apart is their speed, and the links over which the groups of each set of
mesh axes communicate. A *flow* is what the groups of one set of axes send in one pattern; groups that share a link go
together and form a *component* of it. Devices, links and components are coloured, and the colouring is refined until it is
stable, as graphs are compared by colour refinement:

- a device by its speed, and by the colours of its components in all flows;
- a link by its bandwidth, and in each flow by the colour of the component that uses it and how often it does;
- a component by its flow, its latency, the colours of its devices, and the colours of its links with how often each is used.

Then all members of a colour have equal timelines: by induction over the events of a simulation, equal things become ready
at the same time, and a resource is asked for the same things in the same order as any other of its colour. So one of each
stands for all, exactly.

Complexity: O(rounds x flows x (devices + links)).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, combinations

from ...profiling.hardware import Topology
from ...reschedule.layout import Axes
from ...reschedule.mesh import Mesh

RING, DOUBLING, PAIRS = "ring", "doubling", "pairs"
PATTERNS = (RING, DOUBLING, PAIRS)


@dataclass(frozen=True)
class Component:
    """Groups that share links in a flow.

    Attributes:
        devices: the members of all of them.
        loads: how many sends go over each link that they use.
        latency_us: the largest latency of a send.
    """

    devices: tuple[int, ...]
    loads: Mapping[int, int]
    latency_us: float


@dataclass(frozen=True)
class Flow:
    """The sends of the groups of a set of axes in a pattern.

    Attributes:
        of_device: the number of each device's component.
        distinct: the number of one component of each colour.
    """

    components: tuple[Component, ...]
    of_device: tuple[int, ...]
    distinct: tuple[int, ...] = ()


@dataclass(frozen=True)
class Symmetry:
    """The classes of devices and links of equal timelines.

    Attributes:
        devices: the ranks of each class of devices, by the first of them.
        links: the numbers of the links of each class; links that no flow uses aren't there.
        flows: by axes, ascending, and pattern.
    """

    devices: tuple[tuple[int, ...], ...]
    links: tuple[tuple[int, ...], ...]
    flows: Mapping[tuple[Axes, str], Flow]

    @cached_property
    def class_of_device(self) -> dict[int, int]:
        return {rank: number for number, ranks in enumerate(self.devices) for rank in ranks}


@lru_cache(maxsize=8)
def symmetry_of(topology: Topology, mesh: Mesh, is_merged: bool = True) -> Symmetry:
    """Return the classes of the first devices of a topology, as the ranks of a mesh.

    Args:
        is_merged: False makes every device and every link a class of its own (in tests).
    """
    sets = [axes for n in range(1, len(mesh.axes) + 1) for axes in combinations(mesh.axes, n)]
    flows = {(axes, pattern): _flow(topology, mesh, axes, pattern) for axes in sets for pattern in PATTERNS}
    devices: list[int] = _numbered([topology.speed(rank) for rank in range(mesh.n_devices)])
    links: list[int] = _numbered([link.bytes_per_s for link in topology.directed])
    if not is_merged:
        devices, links = list(range(len(devices))), list(range(len(links)))
    n_colours = 0
    while len(set(devices)) + len(set(links)) > n_colours:
        n_colours = len(set(devices)) + len(set(links))
        colours = _colours_of_components(tuple(flows.values()), devices, links)
        of_link: list[list[tuple[int, int, int]]] = [[] for _ in links]
        of_flows = list(zip(flows.values(), colours, strict=True))
        for number, (flow, of_flow) in enumerate(of_flows):
            for component, colour in zip(flow.components, of_flow, strict=True):
                for link, sends in component.loads.items():
                    of_link[link].append((number, colour, sends))
        near = [tuple(of_flow[flow.of_device[rank]] for flow, of_flow in of_flows) for rank in range(mesh.n_devices)]
        devices = _numbered(zip(devices, near, strict=True))
        links = _numbered([(own, tuple(used)) for own, used in zip(links, of_link, strict=True)])
    used = {link for flow in flows.values() for component in flow.components for link in component.loads}
    final = {
        key: Flow(flow.components, flow.of_device, tuple({colour: k for k, colour in enumerate(of_flow)}.values()))
        for (key, flow), of_flow in zip(flows.items(), colours, strict=True)
    }
    return Symmetry(_members(devices), tuple(ids for ids in _members(links) if ids[0] in used), final)


def _colours_of_components(flows: tuple[Flow, ...], devices: list[int], links: list[int]) -> list[list[int]]:
    described = [
        (
            number,
            component.latency_us,
            frozenset(devices[rank] for rank in component.devices),
            frozenset((links[link], sends) for link, sends in component.loads.items()),
        )
        for number, flow in enumerate(flows)
        for component in flow.components
    ]
    colours = iter(_numbered(described))
    return [[next(colours) for _ in flow.components] for flow in flows]


def _flow(topology: Topology, mesh: Mesh, axes: Axes, pattern: str) -> Flow:
    from networkx.utils import UnionFind  # type: ignore[import-untyped,unused-ignore]  # here, since loading it takes .2 s

    groups = list(dict.fromkeys(mesh.group(axes, rank) for rank in range(mesh.n_devices)))
    loads: list[Counter[int]] = []
    latencies: list[float] = []
    joined = UnionFind(range(len(groups)))
    first_user: dict[int, int] = {}
    latency_us = [link.latency_us for link in topology.directed]
    for number, group in enumerate(groups):
        routes = [topology.route(*ends) for ends in _sends(pattern, mesh, axes, group)]
        loads.append(Counter(chain.from_iterable(routes)))
        latencies.append(max((sum(latency_us[link] for link in route) for route in routes), default=0.0))
        for link in loads[-1]:
            joined.union(number, first_user.setdefault(link, number))
    components, of_device = [], [0] * mesh.n_devices
    for number, subset in enumerate(sorted(map(sorted, joined.to_sets()))):
        total = Counter[int]()
        for index in subset:
            total.update(loads[index])
        members = tuple(sorted(rank for index in subset for rank in groups[index]))
        components.append(Component(members, total, max(latencies[index] for index in subset)))
        for rank in members:
            of_device[rank] = number
    return Flow(tuple(components), tuple(of_device))


def _sends(pattern: str, mesh: Mesh, axes: Axes, group: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield (from, to) of all that a group's members send each other in a pattern."""
    if pattern == RING:
        yield from zip(group, (*group[1:], group[0]), strict=True)
        return
    along = [axes] if pattern == PAIRS else [(axis,) for axis in axes]
    for source in group:
        for part in along:
            yield from ((source, target) for target in mesh.group(part, source) if target != source)


def _numbered(values: Iterable[Hashable]) -> list[int]:
    """Return for each value the number of the first that is equal to it, in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _members(colours: list[int]) -> tuple[tuple[int, ...], ...]:
    by_colour: dict[int, list[int]] = {}
    for number, colour in enumerate(colours):
        by_colour.setdefault(colour, []).append(number)
    return tuple(tuple(numbers) for numbers in by_colour.values())
