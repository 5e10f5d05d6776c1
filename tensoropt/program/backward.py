"""Write the backward pass of a step as tasks: the forward pass backwards.

Operators, reshardings and shared copies come in the reverse of the order in which the forward pass made them, so that each
comes after all that it feeds, and collectives of all ranks keep one order. Gradients that arrive at one site are summed two
at a time, as soon as both are there. Small gradients that only have to be summed over devices are put together in buckets,
each of which is sent when it is full or when the pass is over: only updates wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence

from ..ir.gradient_info import Operand
from ..ir.graph import SOURCES, Operator
from ..ir.micro_batching import MicroBatch
from ..reschedule.layout import Axes
from ..sharding.consumers import LOSS
from ..sharding.resharding import BUCKET_BYTES
from .gradient_flow import GradientFlow
from .residuals import Residuals
from .tasks import BACKWARD, COMPUTE, GRADIENT, OPERAND, OPERATOR, RESHARD, RESULT, RETURNED, SHARED, SUM, Site, Task, Value


class BackwardPass:
    """The backward passes of one forward pass, written one after the other; what is made again is made once for all.

    Attributes:
        tasks: the tasks written so far.
        arrived: the sums of gradients that have arrived so far and that no task has taken, by their place.
        aliases: operands that are what was made again itself, without a resharding.
    """

    def __init__(self, flow: GradientFlow, micro_batch: MicroBatch | None = None, uses_buckets: bool = True) -> None:
        """Begin without tasks; ``uses_buckets`` says whether small gradients are summed together."""
        self.flow, self.view, self.path_finder, self.micro_batch = flow, flow.view, flow.path_finder, micro_batch
        self.uses_buckets = uses_buckets and not flow.is_whole
        self.tasks: list[Task] = []
        self.arrived: dict[Site, Value] = {}
        self._residuals = Residuals(self.flow, self.tasks)
        self.aliases = self._residuals.aliases
        self._n_arrived: dict[Site, int] = {}
        self._buckets: dict[tuple[Axes, str], dict[Site, Value]] = {}
        self._index = 0

    def run(self, forward: Sequence[Site], starts: Collection[str], seeds: Mapping[Site, Value], number: int) -> list[Task]:
        """Write a backward pass; return its tasks.

        Args:
            forward: the operators, operands and shared copies in the order in which the forward pass made them.
            starts: names of the tensors with respect to which gradients are taken.
            seeds: the gradients that the pass begins with, by their place.
            number: that of the pass, which its gradients have.
        """
        n_before = len(self.tasks)
        self._index = number
        self._n_arrived.clear()
        wanted = self.view.differentiated(number)
        for site, value in seeds.items():
            # That of a result is of a tensor that another stage uses.
            self._arrive(site if site.kind == RESULT else self.flow.goes_to(site), value)
        for site in reversed(forward):
            if site.kind == OPERATOR:
                op = self.view.graph.operators[site.name]
                if op.updates is None and op.type not in SOURCES and not any(tensor.name in starts for tensor in op.outputs):
                    self._through(op, wanted)
            elif site in self.arrived and not self._accumulates(site):
                self._return(site)
        for key in tuple(self._buckets):
            self._send_back(self._buckets.pop(key))
        return self.tasks[n_before:]

    def _gradient(self, site: Site, version: str = GRADIENT) -> Value:
        return Value(site, version, backward_pass=self._index)

    def _accumulates(self, site: Site) -> bool:
        """Return whether a gradient stays at a site, where it is accumulated over micro-batches."""
        if site.kind != OPERAND or site.position == LOSS or self.micro_batch is None:
            return False
        return self.view.accumulates(self.view.graph.operators[site.name], site.position)

    def _through(self, op: Operator, wanted: Container[Operand]) -> None:
        """Write the gradient of an operator, if one of its results has a gradient that leads on."""
        sites = [Site(RESULT, tensor.name) for tensor in op.outputs]
        gradients = tuple((i, self.arrived.pop(site)) for i, site in enumerate(sites) if site in self.arrived)
        if not gradients:
            return
        reads = tuple(self._residuals.reads_of(op, tuple(value for _, value in gradients)))
        takes = None if self.micro_batch is None else self.micro_batch.takes
        positions = [i for i, _ in op.operands if (op.name, i) in wanted and (takes is None or takes(op.name, i))]
        if not positions:
            return
        writes = tuple(self._gradient(Site(OPERAND, op.name, position)) for position in positions)
        self.tasks.append(Task(COMPUTE, BACKWARD, Site(OPERATOR, op.name), reads, writes, gradients))
        for value in writes:
            self._arrive(value.site if self._accumulates(value.site) else self.flow.goes_to(value.site), value)

    def _return(self, site: Site) -> None:
        """Write the way back of a gradient through the resharding to an operand or to a shared copy."""
        gradient = self.arrived.pop(site)
        if self.flow.is_whole:
            self._send_back({site: gradient})
            return
        tensor, resharding = self.flow.resharded(site)
        paths = self.path_finder.paths(resharding)
        if paths.backward is None:
            return
        if paths.shares_bucket and self.uses_buckets:
            (step,) = paths.backward.steps
            key = step.group_axes, tensor.dtype
            self._buckets.setdefault(key, {})[site] = gradient
            if sum(map(self._bytes, self._buckets[key])) >= BUCKET_BYTES:
                self._send_back(self._buckets.pop(key))
        else:
            self._send_back({site: gradient})

    def _bytes(self, site: Site) -> int:
        """Return the bytes of the largest shard of a gradient that waits in a bucket."""
        tensor, resharding = self.flow.resharded(site)
        return math.prod(resharding.source.largest_local_shape(tensor.shape)) * tensor.item_bytes

    def _send_back(self, gradients: Mapping[Site, Value]) -> None:
        """Write the way back of gradients through the reshardings to these sites, in one task."""
        returned = tuple(self._gradient(site, RETURNED) for site in gradients)
        stream = self._stream(returned[0].site)
        self.tasks.append(Task(RESHARD, BACKWARD, returned[0].site, tuple(gradients.values()), returned, stream=stream))
        for value in returned:
            tensor = self.flow.resharded_tensor(value.site)
            is_shared = value.site.kind == SHARED
            self._arrive(Site(RESULT, tensor.name) if is_shared else self.flow.produced_at(tensor), value)

    def _stream(self, site: Site) -> str:
        """Return the stream of the task that brings a gradient back through the resharding to a site."""
        is_overlappable = self.flow.resharded_tensor(site).name in self.view.graph.made_of_variables
        path = None if self.flow.is_whole else self.path_finder.paths(self.flow.resharded(site)[1]).backward
        return self.flow.stream(path, is_overlappable)

    def _arrive(self, site: Site, gradient: Value) -> None:
        """Add a gradient to the one that has arrived at a site before, if there is one."""
        before = self.arrived.get(site)
        if before is not None:
            self._n_arrived[site] = self._n_arrived.get(site, 1) + 1
            total = self._gradient(site)._replace(n_summed=self._n_arrived[site])
            self.tasks.append(Task(SUM, BACKWARD, site, (before, gradient), (total,)))
            gradient = total
        self.arrived[site] = gradient
