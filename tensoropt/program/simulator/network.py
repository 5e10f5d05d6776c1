"""Work out what the actions of a step occupy, and for how long: a device's compute, its network, or links of a topology.

Devices whose timelines are equal by symmetry form one *class* and are simulated once (:mod:`.symmetry`). An action of all
devices is, for each class or for classes that go together, one :class:`Work`: it occupies each of its resources for a time
of its own, all from when it is ready on, and ends a latency after the last of them. A resource does one thing at a time, in
the order in which they become ready (FlexFlow, assumption A3).

Without a topology (:class:`LevelNetwork`) a collective takes what the additive costs say. A device whose hardware doesn't
compute while it communicates (``exposed_share`` 1) does it in its compute resource, so nothing runs side by side; else the
collective occupies the network, and the exposed share of its time the compute beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ...profiling.hardware_costs import CollectiveCosts
from ...reschedule.layout import Axes
from ...sharding.resharding import BUCKET_BYTES

COMPUTE, MESSAGE = "compute", "message"
DEVICE, NETWORK, LINK = "device", "network", "link"


class Action(NamedTuple):
    """One thing that all devices do at the same time, or all of a submesh: compute, one collective, or a message.

    Attributes:
        kind: COMPUTE, MESSAGE, or the kind of the collective.
        axes: the axes of the mesh that make the collective's groups.
        n_bytes: the collective's bytes, see :mod:`tensoropt.profiling.hardware_costs`.
        time_ns: the time of the computation, on the slowest device; of a message, how long it is on its way.
        of_bucket: the bytes that a small gradient has in a bucket of BUCKET_BYTES, which are ``n_bytes``; 0 for others. It
            takes its share of the bucket's time.
        submeshes: of a step in stages the number of the submesh; of a message those that it goes from and to.
    """

    kind: str
    axes: Axes = ()
    n_bytes: int = 0
    time_ns: int = 0
    of_bucket: int = 0
    submeshes: tuple[int, ...] = ()

    def share(self, time_ns: int) -> int:
        """Return the part of its bucket's time that an action takes; of one without a bucket all."""
        return time_ns * self.of_bucket // BUCKET_BYTES if self.of_bucket else time_ns

    def __str__(self) -> str:
        if self.kind == COMPUTE:
            return f"compute {self.time_ns} ns"
        bucket = f", {self.of_bucket} of a bucket" if self.of_bucket else ""
        return f"{self.kind}({','.join(map(str, self.axes))}) {self.n_bytes} bytes{bucket}"


class Work(NamedTuple):
    """The work of an action for some classes of devices.

    Attributes:
        classes: the classes that take part, ascending; it is ready once it is on all of them, and ends on all at once.
        uses: (number of the resource, nanoseconds).
        latency_ns: from when the last resource is done to when the result is there.
    """

    classes: tuple[int, ...]
    uses: tuple[tuple[int, int], ...]
    latency_ns: int = 0


@dataclass(frozen=True, slots=True)
class Resource:
    """One of some resources with equal timelines.

    Attributes:
        kind: DEVICE, a device's compute; NETWORK, its network; LINK, one direction of a link.
        devices: the ranks of the devices; none for a link.
    """

    kind: str
    members: tuple[str, ...]
    devices: tuple[int, ...] = ()


class Network(Protocol):
    """The resources of some hardware, its classes of devices, and the work of each action on them."""

    resources: tuple[Resource, ...]
    classes: tuple[tuple[int, ...], ...]
    """The ranks of the devices of each class; class i computes on resource i."""

    def works(self, action: Action) -> tuple[Work, ...]:
        """Return what an action is for each class of devices; every class is in one of them, or of its submeshes."""


class LevelNetwork:
    """The network of hardware without a topology: every device has the same timeline."""

    def __init__(self, costs: CollectiveCosts) -> None:
        mesh, hardware = costs.mesh, costs.hardware
        self.costs, self._mesh = costs, mesh
        self._exposed_share = hardware.exposed_share_on(mesh)
        ranks = tuple(range(mesh.n_devices))
        names = tuple(map(str, ranks))
        device, network = Resource(DEVICE, names, ranks), Resource(NETWORK, names, ranks)
        self.classes: tuple[tuple[int, ...], ...] = (ranks,)
        self.resources: tuple[Resource, ...] = (device, network) if self._exposed_share < 1 else (device,)

    def works(self, action: Action) -> tuple[Work, ...]:
        """Return the work of an action; see :class:`Network`."""
        if action.kind == COMPUTE:
            return (Work((0,), ((0, action.time_ns),)),)
        time_ns = action.share(self.costs.time_ns(action.kind, self._mesh, action.axes, action.n_bytes))
        if len(self.resources) == 1:
            return (Work((0,), ((0, time_ns),)),)
        exposed_ns = time_ns - int(time_ns * (1 - self._exposed_share))
        return (Work((0,), ((1, time_ns), (0, exposed_ns))),)
