"""Write the backward pass of a step as tasks: the forward pass backwards.

Operators, reshardings and shared copies come in the reverse of the order in which the forward pass made them, so that each
comes after all that it feeds, and collectives of all ranks keep one order. Gradients that arrive at one place are summed two
at a time, as soon as both are there. Small gradients that only have to be summed over devices are put together in buckets,
each of which is sent when it is full or when the pass is over: only updates wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from ..ir.graph import SOURCES, Operator, Tensor
from ..ir.micro_batching import MicroBatch
from ..reschedule.layout import Axes
from ..sharding.consumers import LOSS, Consumer, step_sharding
from ..sharding.resharding import BUCKET_BYTES, Resharding, Router
from ..sharding.strategy import StrategyView
from .gradient_flow import GradientFlow, operand_of
from .residuals import Residuals
from .tasks import BACKWARD, COMPUTE, GRADIENT, OPERAND, OPERATOR, RESHARD, RESULT, RETURNED, SHARED, SUM, Place, Task, Value


class BackwardPass:
    """The backward passes of one forward pass, written one after the other; what is made again is made once for all.

    Attributes:
        tasks: the tasks written so far.
        arrived: the sums of gradients that have arrived so far and that no task has taken, by their place.
        aliases: operands that are what was made again itself, without a resharding.
    """

    def __init__(
        self,
        view: StrategyView,
        router: Router,
        micro_batch: MicroBatch | None = None,
        in_buckets: bool = True,
    ) -> None:
        self.view, self.router, self.micro_batch, self.in_buckets = view, router, micro_batch, in_buckets
        self.flow = GradientFlow(view, router)
        self.tasks: list[Task] = []
        self.arrived: dict[Place, Value] = {}
        self._residuals = Residuals(self.flow, self.tasks)
        self.aliases = self._residuals.aliases
        self._n_arrived: dict[Place, int] = {}
        self._buckets: dict[tuple[Axes, str], dict[Place, Value]] = {}
        self._losses: dict[str, Tensor] = {}
        self._index = -1

    def run(
        self, forward: Sequence[Place], starts: Collection[str], given: Mapping[Place, Value], losses: Mapping[str, Tensor]
    ) -> list[Task]:
        """Write a backward pass; return its tasks.

        Args:
            forward: the operators, operands and shared copies in the order in which the forward pass made them.
            starts: names of the tensors with respect to which gradients are taken.
            given: the gradients that the pass begins with, by their place.
            losses: the loss of each training step, by the name that its operand has.
        """
        n_before, self._losses = len(self.tasks), dict(losses)
        self._index += 1
        self._n_arrived.clear()
        reached = self._reached(starts)
        for place, value in given.items():
            if place.kind == RESULT:  # of a tensor that another stage uses
                self._arrive(place, value)
                continue
            tensor, resharding = self.resharded(place)
            self._arrive(self.flow.produced_at(tensor) if self.router.route(resharding).is_free else place, value)
        for place in reversed(forward):
            if place.kind == OPERATOR:
                op = self.view.graph.operators[place.name]
                if op.updates is None and op.type not in SOURCES and not any(tensor.name in starts for tensor in op.outputs):
                    self._through(op, reached)
            elif place in self.arrived and not self._accumulates(place):
                self._return(place)
        for key in tuple(self._buckets):
            self._send(key)
        return self.tasks[n_before:]

    def _gradient(self, place: Place, version: str = GRADIENT) -> Value:
        """Return the gradient at a place in this pass."""
        return Value(place, version, backward_pass=self._index)

    def _reached(self, starts: Collection[str]) -> set[str]:
        """Return the names of the tensors that depend on the starts, and of the starts.

        Of the gradients at these some lead nowhere, since an operator has none; they are charged like others.
        """
        reached = set(starts)
        for op in self.view.graph.operators.values():
            if op.type not in SOURCES and any(tensor.name in reached for _, tensor in op.operands):
                reached.update(tensor.name for tensor in op.outputs)
        return reached

    def _accumulates(self, place: Place) -> bool:
        """Return whether a gradient stays at a place, where it is accumulated over micro-batches."""
        if place.kind != OPERAND or place.position == LOSS or self.micro_batch is None:
            return False
        return self.flow.accumulates(self.view.graph.operators[place.name], place.position)

    def _through(self, op: Operator, reached: Collection[str]) -> None:
        """Write the gradient of an operator, if one of its results has a gradient that leads on."""
        places = [Place(RESULT, tensor.name) for tensor in op.outputs]
        gradients = tuple((i, self.arrived.pop(place)) for i, place in enumerate(places) if place in self.arrived)
        if not gradients:
            return
        reads = tuple(self._residuals.reads_of(op, tuple(value for _, value in gradients)))
        wanted = [i for i, tensor in op.operands if self._is_wanted(op, i, tensor, reached)]
        if not wanted:
            return
        made = tuple(self._gradient(Place(OPERAND, op.name, position)) for position in wanted)
        self.tasks.append(Task(COMPUTE, BACKWARD, Place(OPERATOR, op.name), reads, made, gradients))
        for position, value in zip(wanted, made, strict=True):
            self._arrive(value.place if self._accumulates(value.place) else self.flow.goes_to(op, position), value)

    def _is_wanted(self, op: Operator, position: int, tensor: Tensor, reached: Collection[str]) -> bool:
        """Return whether a gradient leads on from an operand."""
        is_taken = self.micro_batch is None or self.micro_batch.takes(op.name, position)
        return is_taken and (op.name, position) in self.view.gradients and tensor.name in reached

    def _return(self, place: Place) -> None:
        """Write the way back of a gradient through the resharding to an operand or to a shared copy."""
        tensor, resharding = self.resharded(place)
        gradient, route = self.arrived.pop(place), self.router.route(resharding)
        if route.backward is None:
            return
        if route.in_bucket and self.in_buckets:
            (step,) = route.backward.steps
            key = step.group_axes, tensor.dtype
            self._buckets.setdefault(key, {})[place] = gradient
            if sum(map(self._bytes, self._buckets[key])) >= BUCKET_BYTES:
                self._send(key)
        else:
            self._send_back({place: gradient})

    def _bytes(self, place: Place) -> int:
        """Return the bytes of the largest shard of a gradient that waits in a bucket."""
        tensor, resharding = self.resharded(place)
        return math.prod(resharding.source.largest_local_shape(tensor.shape)) * tensor.item_bytes

    def _send(self, key: tuple[Axes, str]) -> None:
        """Write the sum over devices of all gradients in a bucket."""
        self._send_back(self._buckets.pop(key))

    def _send_back(self, gradients: Mapping[Place, Value]) -> None:
        """Write the way back of gradients through the reshardings to these places, in one task."""
        returned = tuple(self._gradient(place, RETURNED) for place in gradients)
        tensor, resharding = self.resharded(returned[0].place)
        stream = self.flow.stream(self.router.route(resharding).backward, tensor.name in self.view.graph.made_of_variables)
        self.tasks.append(
            Task(RESHARD, BACKWARD, returned[0].place, tuple(gradients.values()), returned, stream=stream)
        )
        for value in returned:
            tensor, _ = self.resharded(value.place)
            is_shared = value.place.kind == SHARED
            self._arrive(Place(RESULT, tensor.name) if is_shared else self.flow.produced_at(tensor), value)

    def resharded(self, place: Place) -> tuple[Tensor, Resharding]:
        """Return the tensor that is resharded to an operand or to a shared copy, and the resharding."""
        view = self.view
        if place.kind == SHARED:
            tensor = view.graph.tensors[place.name]
            return tensor, view.shared_resharding(tensor, view.strategy.shared[place.name])
        if place.position == LOSS:
            tensor = self._losses[place.name]
            return tensor, view.resharding(tensor, step_sharding(view.strategy.mesh, tensor, Consumer(place.name, LOSS)))
        op = view.graph.operators[place.name]
        tensor = operand_of(op, place.position)
        return tensor, view.resharding(tensor, view.sharding(op, place.position))

    def _arrive(self, place: Place, gradient: Value) -> None:
        """Add a gradient to the one that has arrived at a place before, if there is one."""
        before = self.arrived.get(place)
        if before is not None:
            self._n_arrived[place] = self._n_arrived.get(place, 1) + 1
            total = self._gradient(place)._replace(n_summed=self._n_arrived[place])
            self.tasks.append(Task(SUM, BACKWARD, place, (before, gradient), (total,)))
            gradient = total
        self.arrived[place] = gradient
