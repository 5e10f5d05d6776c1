"""The submeshes of a plan in stages as one network: each by its levels, and links for what one sends another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

from ...profiling.hardware import Hardware
from ...profiling.hardware_costs import CollectiveCosts, link_between
from ...reschedule.mesh import Mesh
from .network import LINK, MESSAGE, Action, LevelNetwork, Resource, Work


class StagesNetwork:
    """The network of submeshes, each a class of devices; see :class:`.network.Network`."""

    def __init__(self, hardware: Hardware, submeshes: Mapping[tuple[int, ...], Mesh]) -> None:
        """Take the mesh of each submesh, by its devices."""
        self._hardware, self.classes = hardware, tuple(submeshes)
        self.of_submeshes = [LevelNetwork(CollectiveCosts(hardware, mesh)) for mesh in submeshes.values()]
        # Computing resources come first, then networks, where devices have them, then links.
        n = len(submeshes)
        own = [network.resources for network in self.of_submeshes]
        self._number = {(at, kind): kind * n + at for at, resources in enumerate(own) for kind in range(len(resources))}
        self._links = {way: len(self._number) + i for i, way in enumerate(permutations(range(n), 2))}
        named = {
            self._number[at, kind]: replace(resource, members=tuple(map(str, self.classes[at])), devices=self.classes[at])
            for at, resources in enumerate(own) for kind, resource in enumerate(resources)
        }  # fmt: skip
        links = [Resource(LINK, (f"devices of submesh {a} > {b}",)) for a, b in self._links]
        self.resources: tuple[Resource, ...] = (*(named[number] for number in sorted(named)), *links)

    def message(self, n_bytes: int, source: int, target: int) -> Action:
        """Return the sending of a tensor from one submesh to another."""
        link = link_between(self._hardware, self.classes[source], self.classes[target])
        time_us = link.latency_us + n_bytes / link.bytes_per_us
        return Action(MESSAGE, (), n_bytes, round(1e3 * time_us), submeshes=(source, target))

    def works(self, action: Action) -> tuple[Work, ...]:
        """Return the work of an action on its submeshes; see :class:`.network.Network`."""
        if action.kind == MESSAGE:
            source, target = action.submeshes
            link = link_between(self._hardware, self.classes[source], self.classes[target])
            latency_ns = round(1e3 * link.latency_us)
            use = self._links[source, target], action.time_ns - latency_ns
            return (Work(tuple(sorted(action.submeshes)), (use,), latency_ns),)
        (at,) = action.submeshes
        (work,) = self.of_submeshes[at].works(action)
        return (Work((at,), tuple((self._number[at, kind], time_ns) for kind, time_ns in work.uses), work.latency_ns),)
