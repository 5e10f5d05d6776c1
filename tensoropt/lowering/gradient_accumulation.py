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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..ir.graph import MicroBatching, Tensor
from ..ir.micro_batching import MicroBatch
from ..program.tasks import RESULT, Site
from ..sharding.micro_batches import SUM
from ..sharding.strategy import StrategyView
from .localise import local_block
from .model import Arriving, LocalModel
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
        loss: the tensor that the step minimises; None where a later stage computes it.
        operators: the names of all operators that run in a micro-batch.
        fetched: the tensors of the micro-batches that are fetched, each with whether it is fetched as this rank's shards
            (else it is global).
        lookups: for the name of each lookup in a table that is updated by rows, a function from a micro-batch's model to
            what the update needs of that micro-batch: its indices and the rows found.
        received: names of the tensors that another stage computes, and whose gradients are sent back to it.
        sent: names of the tensors that are sent to other stages.
    """

    step: str
    loss: Tensor | None
    operators: frozenset[str]
    fetched: tuple[tuple[Tensor, bool], ...]
    lookups: Mapping[str, Callable[[LocalModel], Lookup]]
    received: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()


class _ForwardOperators(NamedTuple):
    """The operators of a forward pass, by their numbers in the graph; and what they wait for."""

    micro_batch: int
    start: int
    end: int
    waits: list[tf.Tensor]


class _Backward(NamedTuple):
    """A backward pass that is to be put in order: numbers of the first operator before it and in it, and its record.

    Attributes:
        urgent: the operators whose results another stage waits for.
    """

    start: int
    n_forward: int
    record: BackwardRecord
    urgent: list[tf.Operation]


@dataclass(eq=False)
class Accumulation:
    """The micro-batches of one training step, with their gradients accumulated.

    Passes are emitted in the order in which they run. Where the backward pass of a micro-batch doesn't follow its forward
    pass at once, as in a pipeline, the residuals of several micro-batches are alive.

    Attributes:
        outside: the model on the whole batch, in which all that doesn't depend on the batch has been emitted.
        view: the strategy on the graph of one micro-batch.
        request: what is asked of each micro-batch.
        feed: for the name of each fed tensor of the batch, a function from a micro-batch to its local values.
        micro_batches: all micro-batches.
        order_lag: for how many operators the backward pass may go on while a gradient is on its way (see :mod:`.order`);
            None where the backward pass isn't put in order.
        lookups: by lookup name, the lookups of the micro-batches emitted so far. The update reads them.
    """

    outside: LocalModel
    view: StrategyView
    request: MicroBatchRequest
    feed: Mapping[str, Callable[[MicroBatch], Values]]
    micro_batches: Sequence[MicroBatch]
    order_lag: float | None = None
    lookups: dict[str, list[Lookup]] = field(default_factory=dict)
    _models: dict[int, LocalModel] = field(default_factory=dict)
    _sums: dict[Site, Values] = field(default_factory=dict)
    _found: dict[int, Values | None] = field(default_factory=dict)
    _losses: dict[int, Values] = field(default_factory=dict)
    _fetched: dict[int, list[Values]] = field(default_factory=dict)
    _of_lookups: dict[int, dict[str, Lookup]] = field(default_factory=dict)
    _total: Values = field(default_factory=list)
    _waits: list[tf.Tensor] = field(default_factory=list)
    _forward: _ForwardOperators | None = None
    _last: _Backward | None = None
    _n_backward: int = 0

    @property
    def micro_batching(self) -> MicroBatching:
        """Return how the step is divided into micro-batches."""
        return self.micro_batches[0].micro_batching

    def forward(
        self, index: int, received: Mapping[str, Values] = MappingProxyType({}), arriving: Arriving | None = None
    ) -> LocalModel:
        """Emit the forward pass of a micro-batch, behind all that was emitted before; return its model.

        Args:
            received: the local values of tensors that another stage has computed, by name.
            arriving: what is received when the pass comes to it.
        """
        which, graph, outside, request = self.micro_batches[index], _graph(), self.outside, self.request
        start = graph.version
        with self._behind():
            sources = {name: feed(which) for name, feed in self.feed.items()} | dict(received)
            model = LocalModel(
                self.view, outside.path_finder, outside.resharder, sources, outside.update, True, which, once=self._once
            )
            with tf.name_scope(f"{SCOPE}_{index}"):
                model.emit(set(request.operators), arriving)
                if request.loss is not None:
                    self._losses[index] = model.replicated(request.loss, request.step, with_gradient=True)
                self._fetched[index] = [self._fetch(model, *each) for each in request.fetched]
                self._of_lookups[index] = {name: lookup(model) for name, lookup in request.lookups.items()}
        for name, lookup in self._of_lookups[index].items():
            self.lookups.setdefault(name, []).append(lookup)
        self._models[index], self._forward = model, _ForwardOperators(index, start, graph.version, self._waits)
        results = [*self._losses.get(index, ()), *(tensor for values in self._fetched[index] for tensor in values)]
        sent = [each for name in request.sent for each in model.value(self.view.graph.tensors[name])]
        self._waits = [*results, *sent] or self._waits
        return model

    def backward(
        self, index: int, given: Mapping[str, Values] = MappingProxyType({}), defers: bool = False
    ) -> dict[str, Values]:
        """Emit the backward pass of a micro-batch, and add its gradients to the accumulators.

        Args:
            given: the gradients of tensors that other stages use, by name.
            defers: whether it ends with the gradients of what the micro-batch received; the others are those of
                :meth:`parameters`.

        Returns:
            The gradients of the tensors that the micro-batch received.
        """
        model, request = self._models[index], self.request
        forward = self._forward if self._forward is not None and self._forward.micro_batch == index else None
        self._forward = None
        # Right behind its own forward pass it waits for what that waits for.
        self._waits = self._waits if forward is None else forward.waits
        start = _graph().version
        with self._behind():
            gradients = model.gradients_of_copies(
                request.loss, self._losses.get(index, []), self._of_lookups[index], given, request.received, defers
            )
            ends = {Site(RESULT, name): name for name in request.received}
            returned = {name: gradients.pop(site) for site, name in ends.items() if site in gradients}
            self._accumulate(index, gradients)
        first, n_forward = (start, start) if forward is None else (forward.start, forward.end)
        urgent = [value.op for values in returned.values() for value in values]
        self._emitted(index, _Backward(first, n_forward, model.backward.record, urgent), not defers)
        self._waits = [*self._waits_behind(index), *(tensor for values in returned.values() for tensor in values)]
        return returned

    def parameters(self, index: int) -> None:
        """Emit what the backward pass of a micro-batch has deferred, and add the gradients to the accumulators."""
        model, start = self._models[index], _graph().version
        with self._behind():
            self._accumulate(index, model.backward.run_deferred())
        self._emitted(index, _Backward(start, start, model.backward.record, []), True)
        self._waits = self._waits_behind(index)

    def _accumulate(self, index: int, gradients: Mapping[Site, Values]) -> None:
        """Add gradients of a micro-batch to the accumulators; those of what lookups found are its own."""
        lookups = self._of_lookups[index]
        found = {Site(RESULT, self.view.graph.operators[name].result.name): each for name, each in lookups.items()}
        with tf.name_scope(f"{SCOPE}_{index}/accumulated"):
            for site, values in gradients.items():
                if site in found:
                    self._found[id(found[site].found)] = values
                    continue
                known = self._sums.get(site)
                self._sums[site] = values if known is None else _added([known, values])

    def _emitted(self, index: int, emitted: _Backward, is_last: bool) -> None:
        """Put a backward pass in order; the last one of all waits for the updates.

        Args:
            is_last: whether it is the last pass of its micro-batch.
        """
        self._last = emitted
        if is_last:
            self._n_backward += 1
            del self._models[index]
            for lookup in self._of_lookups.pop(index).values():
                self._found.setdefault(id(lookup.found), None)
        if self.order_lag is not None and self._n_backward < len(self.micro_batches):
            operators = _graph().get_operations()
            put_in_order(operators, emitted.n_forward, emitted.record, self.order_lag, emitted.start, emitted.urgent)

    def _waits_behind(self, index: int) -> list[tf.Tensor]:
        """Return what all that is emitted next waits for: what a micro-batch's pass has computed beside what is sent."""
        accumulated = [tensor for values in self._found.values() if values for tensor in values]
        return [
            *self._losses.get(index, ()),
            *(tensor for values in self._sums.values() for tensor in values),
            *accumulated,
            *(tensor for values in self._fetched[index] for tensor in values),
        ]

    @contextmanager
    def _behind(self) -> Iterator[None]:
        """Return a context in which all that is emitted runs behind the pass that was emitted before."""
        with tf.control_dependencies([tf.group(*self._waits)] if self._waits else []):
            yield

    def results(self) -> tuple[Values, list[Values]]:
        """Return the losses (replicated, summed over micro-batches; zeros without a loss) and the fetched values.

        The accumulated gradients are taken by :meth:`gradients` afterwards.
        """
        fetched = [self._fetched[each.index] for each in self.micro_batches]
        values = [
            self._put_together(tensor, is_local, [found[k] for found in fetched], self.micro_batches)
            for k, (tensor, is_local) in enumerate(self.request.fetched)
        ]
        losses = [self._losses[each.index] for each in self.micro_batches if each.index in self._losses]
        n_ranks = len(self.outside.resharder.backend.ranks)
        self._total = _added(losses) if losses else [tf.zeros([]) for _ in range(n_ranks)]
        return self._total, values

    def _once(self, tensor: Tensor, site: Site) -> Values | None:
        """Return an operand of a micro-batch's operator if it doesn't depend on the batch, else None.

        The resharding is emitted for the first micro-batch that needs it, and shared by the others.
        """
        if tensor.name in self.micro_batching.forms:
            return None
        # Emitted outside of the control dependencies: it is done once, and mustn't wait for the micro-batch before.
        with tf.control_dependencies(None):
            return self.outside.resharded_for(tensor, site)

    def gradients(
        self, losses: Values, sites: list[Values], given: Mapping[str, Values] = MappingProxyType({})
    ) -> list[Values | None]:
        """Return the accumulated gradients of the values in ``sites``, which are parameters or what lookups found.

        A parameter's gradient is brought back from its copies. What a lookup found belongs to one micro-batch: its gradient
        is that micro-batch's.

        Args:
            given: the gradients of tensors that are made once a step and that other stages use, by name.

        Raises:
            InputError: ``losses`` aren't those that :meth:`results` returned, since the optimizer scales them.
        """
        refuse_scaled(losses, self._total)
        reads = [values for values in sites if id(values) not in self._found]
        copies = self._sums | {Site(RESULT, name): values for name, values in given.items()}
        back = iter(self.outside.gradients_from_copies(copies, reads))
        return [self._found[id(values)] if id(values) in self._found else next(back) for values in sites]

    def order_end(self) -> None:
        """Put the last micro-batch's backward pass and the updates, which must have been emitted, in order."""
        assert self._last is not None
        start, n_forward, last, urgent = self._last
        if self.order_lag is not None:
            record = last.add(self.outside.backward.record)
            put_in_order(_graph().get_operations(), n_forward, record, self.order_lag, start, urgent)

    # Fetched tensors

    def _fetch(self, model: LocalModel, tensor: Tensor, is_local: bool) -> Values:
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
        order = np.argsort(np.concatenate([each.indices(tensor.shape[dimension]) for each in micro_batches]))
        joined = [tf.gather(value, order, axis=dimension) for value in joined]
        if not is_local:
            return joined
        layout = self.outside.view.layout(self.view.graph.tensors[tensor.name]).with_partial(())
        ranks = self.outside.resharder.backend.ranks
        return [local_block(value, layout, tensor.shape, rank) for rank, value in zip(ranks, joined, strict=True)]


def refuse_scaled(losses: Values, own: Values) -> None:
    """Refuse losses that an optimizer scales before it takes their gradients.

    Raises:
        InputError: the losses aren't the model's own.
    """
    if any(loss is not each for loss, each in zip(losses, own, strict=True)):
        raise InputError(
            "a loss that its optimizer scales can't be trained in micro-batches; use micro_batches=1, without stages"
        )


def _graph() -> tf.Graph:
    """Return the graph that is being built."""
    return tf.compat.v1.get_default_graph()


def _added(values: Sequence[Values]) -> Values:
    """Return the sums, per rank, of values from several micro-batches."""
    return [reduce(tf.add, parts) for parts in zip(*values, strict=True)]
