"""Emit a training step in micro-batches, one after the other, and accumulate their gradients.

Tensors that don't depend on the batch are emitted once and resharded once for each operator that uses them: the copies serve
all micro-batches. The gradients of a micro-batch are taken at these resharded copies, before the next micro-batch begins,
and are summed there: an accumulator has the gradient layout of its copy, in which sums over devices are still partial. After
the last micro-batch the accumulated gradients go back from the copies to the parameters, along the backward paths of the
reshardings: once a step.

All that a micro-batch computes waits, by control dependencies, for the accumulated gradients of the micro-batch before. So
the residuals of only one micro-batch are alive at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..ir.graph import Tensor
from ..ir.micro_batching import MicroBatch, MicroBatching
from ..program.tasks import RESULT, Place
from ..sharding.micro_batches import SUM
from ..sharding.strategy import StrategyView
from .local import local_block
from .model import LocalModel
from .operators import Values
from .order import BackwardRecord, put_in_order
from .table_lookups import Lookup

SCOPE = "micro_batch"
"""The name scope of a micro-batch's operators; the micro-batch's index is appended to it."""


@dataclass(frozen=True, eq=False)
class MicroBatchRequest:
    """A training step's requests to each of its micro-batches.

    Attributes:
        step: the name of the training step.
        loss: the tensor that the step minimises.
        operators: the names of all operators that run in a micro-batch.
        fetched: the tensors of the micro-batches that are fetched, each with whether it is fetched as this rank's shards
            (else it is global).
        lookups: for the name of each lookup in a table that is updated by rows, a function from a micro-batch's model to
            what the update needs of that micro-batch: its indices and the rows found.
    """

    step: str
    loss: Tensor
    operators: frozenset[str]
    fetched: tuple[tuple[Tensor, bool], ...]
    lookups: Mapping[str, Callable[[LocalModel], Lookup]]


@dataclass(eq=False)
class Accumulation:
    """The micro-batches of one training step, emitted one after the other with their gradients accumulated.

    Attributes:
        outside: the model on the whole batch, in which all that doesn't depend on the batch has been emitted.
        view: the strategy on the graph of one micro-batch.
        feed: for the name of each fed tensor of the batch, a function from a micro-batch to its local values.
        order_lag: for how many operators the backward pass may go on while a gradient is on its way (see :mod:`.order`);
            None where the backward pass isn't put in order.
        lookups: by lookup name, the lookups of the micro-batches emitted so far. The update reads them.
    """

    outside: LocalModel
    view: StrategyView
    feed: Mapping[str, Callable[[MicroBatch], Values]]
    order_lag: float | None = None
    lookups: dict[str, list[Lookup]] = field(default_factory=dict)
    _sums: dict[Place, Values] = field(default_factory=dict)
    _found: dict[int, Values | None] = field(default_factory=dict)
    _losses: Values = field(default_factory=list)
    _last: tuple[int, int, BackwardRecord] = field(default_factory=lambda: (0, 0, BackwardRecord()))

    @property
    def micro_batching(self) -> MicroBatching:
        """Return how the step is divided into micro-batches."""
        micro_batching = self.view.graph.micro_batching
        assert micro_batching is not None
        return micro_batching

    def run(self, request: MicroBatchRequest) -> tuple[Values, list[Values]]:
        """Emit all micro-batches; return the losses (replicated, summed over micro-batches) and the fetched values.

        The accumulated gradients are taken by :meth:`gradients` afterwards.
        """
        before: list[tf.Tensor] = []
        losses: list[Values] = []
        fetched: list[list[Values]] = []
        n_devices = self.view.strategy.mesh.n_devices
        micro_batches = [MicroBatch(self.micro_batching, i, n_devices) for i in range(self.micro_batching.n)]
        for each in micro_batches:
            with tf.control_dependencies([tf.group(*before)] if before else []):
                loss, found = self._run_micro_batch(each, request)
            losses.append(loss)
            fetched.append(found)
            accumulated = [tensor for values in self._found.values() if values for tensor in values]
            sums = [tensor for values in self._sums.values() for tensor in values]
            before = [*loss, *sums, *accumulated, *(tensor for values in found for tensor in values)]
        results = [
            self._put_together(tensor, is_local, [found[k] for found in fetched], micro_batches)
            for k, (tensor, is_local) in enumerate(request.fetched)
        ]
        self._losses = _added(losses)
        return self._losses, results

    def _run_micro_batch(self, which: MicroBatch, request: MicroBatchRequest) -> tuple[Values, list[Values]]:
        """Emit the forward and backward pass of one micro-batch and add its gradients to the accumulators.

        Returns:
            The micro-batch's losses and its fetched values.
        """
        graph, outside = tf.compat.v1.get_default_graph(), self.outside
        start = len(graph.get_operations())
        sources = {name: feed(which) for name, feed in self.feed.items()}
        model = LocalModel(
            self.view, outside.router, outside.resharder, sources, outside.update, True, which, once=self._once
        )
        with tf.name_scope(f"{SCOPE}_{which.index}"):
            model.emit(set(request.operators))
            losses = model.replicated(request.loss, request.step, with_gradient=True)
            found = [self._fetched(model, tensor, is_local) for tensor, is_local in request.fetched]
            lookups = {name: lookup(model) for name, lookup in request.lookups.items()}
        n_forward = len(graph.get_operations())
        for name, lookup in lookups.items():
            self.lookups.setdefault(name, []).append(lookup)
        gradients = model.gradients_of_copies(request.loss, losses, list(lookups))
        results = {Place(RESULT, self.view.graph.operators[name].result.name): lookup for name, lookup in lookups.items()}
        with tf.name_scope(f"{SCOPE}_{which.index}/accumulated"):
            for place, values in gradients.items():
                if place not in results:
                    known = self._sums.get(place)
                    self._sums[place] = values if known is None else _added([known, values])
        for place, lookup in results.items():
            self._found[id(lookup.found)] = gradients.get(place)
        self._last = start, n_forward, model.backward.record
        if self.order_lag is not None and which.index < self.micro_batching.n - 1:
            put_in_order(graph.get_operations(), n_forward, model.backward.record, self.order_lag, start)
        return losses, found

    def _once(self, tensor: Tensor, place: Place) -> Values | None:
        """Return an operand of a micro-batch's operator if it doesn't depend on the batch, else None.

        The resharding is emitted for the first micro-batch that needs it, and shared by the others.
        """
        if tensor.name in self.micro_batching.forms:
            return None
        # Emitted outside of the control dependencies: it is done once, and mustn't wait for the micro-batch before.
        with tf.control_dependencies(None):
            return self.outside.resharded_for(tensor, place)

    def gradients(self, losses: Values, places: list[Values]) -> list[Values | None]:
        """Return the accumulated gradients of the values in ``places``, which are parameters or what lookups found.

        A parameter's gradient is brought back from its copies. What a lookup found belongs to one micro-batch: its gradient
        is that micro-batch's.

        Raises:
            InputError: ``losses`` aren't those that :meth:`run` returned, since the optimizer scales them.
        """
        if any(loss is not own for loss, own in zip(losses, self._losses, strict=True)):
            raise InputError("a loss that its optimizer scales can't be trained in micro-batches; use micro_batches=1")
        reads = [values for values in places if id(values) not in self._found]
        back = iter(self.outside.gradients_from_copies(self._sums, reads))
        return [self._found[id(values)] if id(values) in self._found else next(back) for values in places]

    def order_end(self) -> None:
        """Put the last micro-batch's backward pass and the updates, which must have been emitted, in order."""
        start, n_forward, last = self._last
        if self.order_lag is not None:
            record = last.add(self.outside.backward.record)
            put_in_order(tf.compat.v1.get_default_graph().get_operations(), n_forward, record, self.order_lag, start)

    # Fetched tensors

    def _fetched(self, model: LocalModel, tensor: Tensor, is_local: bool) -> Values:
        """Return a fetched tensor's values of one micro-batch: shards where these can be joined locally, else global."""
        per_micro_batch = self.view.graph.tensors[tensor.name]
        if is_local and self._lies_as_it_would(tensor):
            return model.without_sums(per_micro_batch, "fetch")
        return model.replicated(per_micro_batch, "fetch")

    def _lies_as_it_would(self, tensor: Tensor) -> bool:
        """Return whether the shards of all micro-batches, joined, are this rank's shard of the tensor of the whole batch."""
        dimension = self.micro_batching.forms[tensor.name]
        if dimension == SUM:
            return True
        split = self.view.layout(self.view.graph.tensors[tensor.name]).splits[dimension]
        n_shares = MicroBatch(self.micro_batching, 0, self.view.strategy.mesh.n_devices).n_shares
        return self.view.strategy.mesh.size_of(split) == n_shares and split == tuple(sorted(split))

    def _put_together(
        self, tensor: Tensor, is_local: bool, values: list[Values], micro_batches: Sequence[MicroBatch]
    ) -> Values:
        """Return the values of a fetched tensor for the whole batch, from those of all micro-batches."""
        dimension = self.micro_batching.forms[tensor.name]
        if dimension == SUM:
            return _added(values)
        joined = [tf.concat(parts, dimension) for parts in zip(*values, strict=True)]
        if is_local and self._lies_as_it_would(tensor):
            return joined
        order = np.argsort(np.concatenate([each.places(tensor.shape[dimension]) for each in micro_batches]))
        joined = [tf.gather(value, order, axis=dimension) for value in joined]
        if not is_local:
            return joined
        layout = self.outside.view.layout(self.view.graph.tensors[tensor.name]).with_partial(())
        ranks = self.outside.resharder.backend.ranks
        return [local_block(value, layout, tensor.shape, rank) for rank, value in zip(ranks, joined, strict=True)]


def _added(values: Sequence[Values]) -> Values:
    """Return the sums, per rank, of values from several micro-batches."""
    return [reduce(tf.add, parts) for parts in zip(*values, strict=True)]
