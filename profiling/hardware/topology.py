"""The devices and links of a cluster as a graph: FlexFlow, section 5.1 and Figure 5.

A link transfers in one direction, or in both at once where it says so (two links then). The ends of links that aren't
devices are switches: PCIe switches, processors, network cards. They take no time. A route between two devices, which may go
through others, is the one on which :data:`REFERENCE_BYTES` take the least time, link after link; among equal ones the one of
fewer links.

A topology stands beside the levels of a hardware, whose devices it names in the order of ranks. Searches and additive costs
go by the levels, the simulator by the topology.
"""

from __future__ import annotations

import difflib
import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...common.reach import reached
from . import checks
from .checks import HardwareError

REFERENCE_BYTES = 1 << 20
_LINK_FIELDS = ("from", "to", "bytes_per_s", "latency_us")


@dataclass(frozen=True, slots=True)
class Link:
    """A link between two devices or switches.

    Attributes:
        source: the name of the end that sends.
        target: the name of the end that receives.
        bytes_per_s: the bytes that it transfers per second, in each direction that it has.
        latency_us: the latency of a message on it.
        both_ways: whether it transfers back as well, at the same rate and at the same time.
    """

    source: str
    target: str
    bytes_per_s: float
    latency_us: float
    both_ways: bool = False


@dataclass(frozen=True)
class Topology:
    """Devices, in the order of ranks, and the links between them.

    Attributes:
        links: the links, in the order of the file.
        speeds: how fast each device computes, over the rates of the hardware's ``device``; empty if all are as fast.
    """

    devices: tuple[str, ...]
    links: tuple[Link, ...]
    speeds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, values in (("devices", self.devices), ("links", self.links), ("speeds", self.speeds)):
            object.__setattr__(self, name, tuple(values))
        if not self.devices:
            raise checks.fail("topology.devices", [], "at least one device")
        for name, count in Counter(self.devices).items():
            if count > 1:
                raise HardwareError(f"topology.devices: '{name}' is named {count} times; expected different names")
        if len(set(self.speeds)) == 1 and self.speeds[0] == 1.0:
            object.__setattr__(self, "speeds", ())
        self._check_links()
        self._check_reachable()

    def _check_links(self) -> None:
        number_of: dict[tuple[str, str], int] = {}
        neighbours: dict[str, set[str]] = {}
        for number, link in enumerate(self.links):
            path = f"topology.links[{number}]"
            if link.source == link.target:
                raise HardwareError(f"{path}: got a link from '{link.source}' to itself, expected two ends")
            for ends in _directions(link):
                if ends in number_of:
                    raise HardwareError(
                        f"{path}: '{ends[0]}' to '{ends[1]}' is topology.links[{number_of[ends]}] already; give one link "
                        "with what both transfer"
                    )
                number_of[ends] = number
                neighbours.setdefault(ends[0], set()).add(ends[1])
                neighbours.setdefault(ends[1], set()).add(ends[0])
        devices = set(self.devices)
        for number, link in enumerate(self.links):
            for end in (link.source, link.target):
                if end not in devices and len(neighbours[end]) == 1:
                    near = difflib.get_close_matches(end, [*self.devices, *(n for n in neighbours if n != end)], n=1)
                    hint = f": did you mean '{near[0]}'?" if near else ""
                    raise HardwareError(
                        f"topology.links[{number}]: got an end '{end}' that is no device and has no other link, expected a "
                        f"device, or a switch that leads on{hint}"
                    )

    def _check_reachable(self) -> None:
        first = self.devices[0]
        outward: defaultdict[str, list[str]] = defaultdict(list)
        inward: defaultdict[str, list[str]] = defaultdict(list)
        for source, target in (ends for link in self.links for ends in _directions(link)):
            outward[source].append(target)
            inward[target].append(source)
        for neighbours, verb in ((outward, "can't be reached from"), (inward, "can't reach")):
            connected = reached([first], neighbours.__getitem__)
            missing = [name for name in self.devices if name not in connected]
            if missing:
                others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
                raise HardwareError(
                    f"topology.devices: '{missing[0]}'{others} {verb} '{first}' over the links given; expected a way "
                    "between any two devices"
                )

    def check_count(self, counts: tuple[int, ...]) -> None:
        """Check that there is a device for each unit of the levels, of which there are so many.

        Raises:
            HardwareError: there are more, or fewer.
        """
        if len(self.devices) != math.prod(counts):
            levels = " x ".join(map(str, counts))
            expected = f"one for each of the {math.prod(counts)} devices of the levels ({levels}), in the order of ranks"
            raise checks.fail("topology.devices", f"{len(self.devices)} devices", expected)

    def first(self, n_devices: int) -> Topology:
        """Return the topology of the first devices, with the links that lie on a route between two of them."""
        devices = range(n_devices)
        numbers = {number for i in devices for j in devices for number in self.route(i, j)}
        ends = {(self.directed[number].source, self.directed[number].target) for number in numbers}
        links = tuple(link for link in self.links if ends.intersection(_directions(link)))
        return Topology(self.devices[:n_devices], links, self.speeds[:n_devices])

    @cached_property
    def directed(self) -> tuple[Link, ...]:
        """The links with one direction each: a link of both directions is two."""
        return tuple(Link(*ends, link.bytes_per_s, link.latency_us) for link in self.links for ends in _directions(link))

    def speed(self, device: int) -> float:
        """Return how fast a device computes, over the rates of the hardware's ``device``."""
        return self.speeds[device] if self.speeds else 1.0

    @property
    def is_uneven(self) -> bool:
        """Return whether devices have different speeds."""
        return len(set(self.speeds)) > 1

    def slowest(self, n_devices: int) -> float:
        """Return the speed of the slowest of the first devices, for which a step waits whose operators are split evenly."""
        return min(self.speeds[:n_devices], default=1.0)

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Return the numbers, in :attr:`directed`, of the links from a device to another."""
        return self._routes(source)[target]

    @cached_property
    def _route_cache(self) -> dict[int, tuple[tuple[int, ...], ...]]:
        return {}

    def _routes(self, source: int) -> tuple[tuple[int, ...], ...]:
        """Return the routes from a device to all devices, by Dijkstra's algorithm."""
        if source not in self._route_cache:
            outward: dict[str, list[int]] = {}
            for number, link in enumerate(self.directed):
                outward.setdefault(link.source, []).append(number)
            routes: dict[str, tuple[int, ...]] = {}
            heap: list[tuple[float, int, tuple[int, ...], str]] = [(0.0, 0, (), self.devices[source])]
            while heap:
                time_us, n_links, path, end = heapq.heappop(heap)
                if end in routes:
                    continue
                routes[end] = path
                for number in outward.get(end, ()):
                    link = self.directed[number]
                    if link.target not in routes:
                        passed_us = link.latency_us + REFERENCE_BYTES / link.bytes_per_s * 1e6
                        heapq.heappush(heap, (time_us + passed_us, n_links + 1, (*path, number), link.target))
            self._route_cache[source] = tuple(routes[name] for name in self.devices)
        return self._route_cache[source]

    def to_json(self) -> dict[str, Any]:
        """Return the topology as a JSON object of a hardware file."""
        devices: list[Any] = [
            name if self.speed(number) == 1.0 else {"name": name, "speed": self.speed(number)}
            for number, name in enumerate(self.devices)
        ]
        links = [
            {
                "from": link.source, "to": link.target, "bytes_per_s": link.bytes_per_s, "latency_us": link.latency_us,
                **({"both_ways": True} if link.both_ways else {}),
            }
            for link in self.links
        ]
        return {"devices": devices, "links": links}


def _directions(link: Link) -> tuple[tuple[str, str], ...]:
    ends = link.source, link.target
    return (ends, ends[::-1]) if link.both_ways else (ends,)


def topology_from_json(value: object) -> Topology:
    """Read the result of :meth:`Topology.to_json`.

    Raises:
        HardwareError: a field is missing, unknown or impossible, or the links don't join the devices.
    """
    fields = checks.fields(value, "topology", ("devices", "links"))
    devices, speeds = [], []
    for number, device in enumerate(checks.sequence(fields["devices"], "topology.devices", "a list of devices")):
        path = f"topology.devices[{number}]"
        if isinstance(device, Mapping):
            checks.fields(device, path, ("name",), ("speed",))
        else:
            device = {"name": device}
        devices.append(checks.text(device["name"], path, "a device's name, or an object with name and speed"))
        speeds.append(checks.number(device.get("speed", 1.0), f"{path}.speed", "a positive number"))
    links = [
        _link(link, f"topology.links[{number}]")
        for number, link in enumerate(checks.sequence(fields["links"], "topology.links", "a list of links"))
    ]
    return Topology(tuple(devices), tuple(links), tuple(speeds))


def _link(value: object, path: str) -> Link:
    fields = checks.fields(value, path, _LINK_FIELDS, ("both_ways",))
    expected = "the name of a device or a switch"
    source, target = (checks.text(fields[end], f"{path}.{end}", expected) for end in ("from", "to"))
    ends = f"{path} from '{source}' to '{target}'"
    both_ways = fields.get("both_ways", False)
    if not isinstance(both_ways, bool):
        raise checks.fail(f"{ends}: both_ways", both_ways, "true or false")
    bytes_per_s = checks.number(fields["bytes_per_s"], f"{ends}: bytes_per_s", "a positive number per second")
    latency_us = checks.number(fields["latency_us"], f"{ends}: latency_us", "microseconds, at least 0", least=0)
    return Link(source, target, bytes_per_s, latency_us, both_ways)
