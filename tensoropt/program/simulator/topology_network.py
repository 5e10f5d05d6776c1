"""Collectives as rings, recursive doubling and pairs over the links of a topology.

A group's members are taken in the order of their ranks. A collective of ``n`` bytes (as
:mod:`tensoropt.profiling.hardware_costs` defines them) over groups of ``g`` members sends,
and has messages that wait for each other:

    ==============  =====================================  =============================  =================
    kind            sends                                  bytes on each                  messages in turn
    ==============  =====================================  =============================  =================
    all_gather      from each member to the next (ring)    ``n (g-1)/g``                  ``g-1``
    reduce_scatter  ring                                   ``n (g-1)/g``                  ``g-1``
    all_reduce      ring                                   ``2 n (g-1)/g``                ``2 (g-1)``
    all_reduce      axis by axis, to each other member     ``n``                          sum of ``size - 1``
                    along the axis (recursive doubling)                                   over the axes
    all_to_all      from each member to each other         ``n/g``                        ``g-1``
    ==============  =====================================  =============================  =================

An all-reduce takes the way that is faster on free links. Every link of a route carries what is sent over it at the same
time as the others (messages are cut into packets), for its bytes over its bandwidth; a message takes the sum of the
latencies of its route, of which the largest of the collective counts. All groups of a collective go at once. Those that
share a link, directly or by way of other groups, share it evenly: they go together. Where a collective was measured, every
link that a ring of it uses is occupied for the measured time.

Devices compute while links transfer.
"""

from __future__ import annotations

from functools import cache

from ...profiling.hardware import Hardware, Topology
from ...profiling.hardware_costs import CollectiveCosts
from ...reschedule.mesh import Mesh
from .network import COMPUTE, DEVICE, LINK, Action, LevelNetwork, Network, Resource, Work
from .symmetry import DOUBLING, PAIRS, RING, symmetry_of

_PATTERNS = {"all_gather": (RING,), "reduce_scatter": (RING,), "all_reduce": (RING, DOUBLING), "all_to_all": (PAIRS,)}


class TopologyNetwork:
    """The network of a mesh of the first devices of a topology; see the module docstring."""

    def __init__(self, topology: Topology, costs: CollectiveCosts, is_merged: bool = True) -> None:
        self._topology, self.costs, self._mesh = topology, costs, costs.mesh
        self._symmetry = symmetry_of(topology, costs.mesh, is_merged)
        devices, links = self._symmetry.devices, self._symmetry.links
        self.classes: tuple[tuple[int, ...], ...] = devices
        directed, names = topology.directed, topology.devices
        self.resources: tuple[Resource, ...] = (
            *(Resource(DEVICE, tuple(names[rank] for rank in ranks), ranks) for ranks in devices),
            *(Resource(LINK, tuple(f"{directed[i].source} > {directed[i].target}" for i in ids)) for ids in links),
        )
        self._resource_of_link = {link: len(devices) + number for number, ids in enumerate(links) for link in ids}
        self.works = cache(self._works)

    def _works(self, action: Action) -> tuple[Work, ...]:
        """Return the work of an action for each class of devices; see :class:`.network.Network`."""
        if action.kind == COMPUTE:
            speeds = (self._topology.speed(ranks[0]) for ranks in self.classes)
            slowest = self._topology.slowest(self._mesh.n_devices)  # whose time it is
            return tuple(Work((i,), ((i, round(action.time_ns * slowest / speed)),)) for i, speed in enumerate(speeds))
        axes = tuple(sorted(action.axes))
        candidates = [self._of_pattern(pattern, axes, action) for pattern in _PATTERNS[action.kind]]
        # By how long each takes on free resources.
        works = min(candidates, key=lambda of: max(max((ns for _, ns in w.uses), default=0) + w.latency_ns for w in of))
        return tuple(
            Work(classes, tuple((resource, action.share(ns)) for resource, ns in uses), action.share(latency_ns))
            for classes, uses, latency_ns in works
        )

    def _of_pattern(self, pattern: str, axes: tuple[int, ...], action: Action) -> tuple[Work, ...]:
        """Return the work of each component of a pattern; where it was measured, links take the measured time."""
        g = self._mesh.size_of(axes)
        passes = 2 if action.kind == "all_reduce" else 1
        n_bytes = {RING: passes * action.n_bytes * (g - 1) / g, DOUBLING: action.n_bytes, PAIRS: action.n_bytes / g}[pattern]
        in_turn = sum(self._mesh.sizes[axis] - 1 for axis in axes) if pattern == DOUBLING else passes * (g - 1)
        is_measured, directed, works = self.costs.is_measured(action.kind, axes), self._topology.directed, list[Work]()
        measured_ns = self.costs.time_ns(action.kind, self._mesh, axes, action.n_bytes) if is_measured else 0
        flow = self._symmetry.flows[axes, pattern]
        for component in (flow.components[number] for number in flow.distinct):
            uses: dict[int, int] = {}
            for link, sent in component.loads.items():
                own_ns = measured_ns if is_measured else max(1, round(sent * n_bytes / directed[link].bytes_per_s * 1e9))
                uses[self._resource_of_link[link]] = own_ns
            classes = sorted({self._symmetry.class_of_device[rank] for rank in component.devices})
            latency_ns = 0 if is_measured else round(in_turn * component.latency_us * 1e3)
            works.append(Work(tuple(classes), tuple(sorted(uses.items())), latency_ns))
        return tuple(works)


def network_of(hardware: Hardware, mesh: Mesh) -> Network:
    """Return the network of a mesh of some hardware: by its topology, or by its levels where it has none."""
    costs = CollectiveCosts(hardware, mesh)
    if hardware.topology is None or mesh.n_devices == 1:
        return LevelNetwork(costs)
    return TopologyNetwork(hardware.topology, costs)
