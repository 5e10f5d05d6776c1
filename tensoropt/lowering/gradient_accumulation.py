"""Emit a training step in micro-batches, one after the other, and accumulate their gradients.

Tensors that don't depend on the batch are emitted once and resharded once for each operator that uses them: the copies serve
all micro-batches. The gradients of a micro-batch are taken at these resharded copies, before the next micro-batch begins,
and are summed there: an accumulator has the gradient layout of its copy, in which sums over devices are still partial. After
the last micro-batch the accumulated gradients go back from the copies to the parameters, along the backward paths of the
reshardings: once a step.

All that a micro-batch computes waits for the accumulated gradients of the micro-batch before (:mod:`.pass_chain`). So the
residuals of only one micro-batch are alive at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType

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
from .pass_chain import BackwardOperators, PassChain
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
        lookups: the names of the lookups in tables that are updated by rows.
        received: names of the tensors that another stage computes, and whose gradients are sent back to it.
        sent: names of the tensors that are sent to other stages.
    """

    step: str
    loss: Tensor | None
    operators: frozenset[str]
    fetched: tuple[tuple[Tensor, bool], ...]
    lookups: tuple[str, ...]
    received: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()


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
        chain: the passes of the rank, among which these are.
        lookups: by lookup name, the lookups of the micro-batches emitted so far. The update reads them.
    """

    outside: LocalModel
    view: StrategyView
    request: MicroBatchRequest
    feed: Mapping[str, Callable[[MicroBatch], Values]]
    micro_batches: Sequence[MicroBatch]
    chain: PassChain
    lookups: dict[str, list[Lookup]] = field(default_factory=dict)
    _models: dict[int, LocalModel] = field(default_factory=dict)
    _sums: dict[Site, Values] = field(default_factory=dict)
    _found: dict[int, Values | None] = field(default_factory=dict)
    _losses: dict[int, Values] = field(default_factory=dict)
    _fetched: dict[int, list[Values]] = field(default_factory=dict)
    _of_lookups: dict[int, dict[str, Lookup]] = field(default_factory=dict)

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
        which, outside, request = self.micro_batches[index], self.outside, self.request
        start = _graph().version
        with self.chain.behind():
            sources = {name: feed(which) for name, feed in self.feed.items()} | dict(received)
            model = LocalModel(
                self.view, outside.path_finder, outside.resharder, sources, outside.assign, True, outside, which
            )
            with tf.name_scope(f"{SCOPE}_{index}"):
                model.emit(set(request.operators), arriving)
                if request.loss is not None:
                    self._losses[index] = model.loss(request.step, request.loss)
                self._fetched[index] = [self._fetch(model, *each) for each in request.fetched]
                self._of_lookups[index] = {name: model.lookup(name) for name in request.lookups}
        for name, lookup in self._of_lookups[index].items():
            self.lookups.setdefault(name, []).append(lookup)
        self._models[index] = model
        results = [*self._losses.get(index, ()), *(tensor for values in self._fetched[index] for tensor in values)]
        sent = [each for name in request.sent for each in model.local(self.view.graph.tensors[name])]
        self.chain.add_forward(self, index, start, [*results, *sent])
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
        start, n_forward = self.chain.begin_backward(self, index)
        with self.chain.behind():
            graph, found = self.view.graph, {each.operator.result.name for each in self._of_lookups[index].values()}
            copies = {name for name in graph.tensors if graph.accumulates(name)}
            ends = [Site(RESULT, name) for name in request.received] if defers else None
            gradients = model.gradients_of(found | copies | set(request.received), given, ends)
            returned = {
                name: gradients.pop(site) for name in request.received if (site := Site(RESULT, name)) in gradients
            }
            self._accumulate(index, gradients)
        sent_back = [value for values in returned.values() for value in values]
        urgent = [value.op for value in sent_back]
        emitted = BackwardOperators(start, n_forward, model.record, urgent)
        self._emitted(index, emitted, not defers, sent_back)
        return returned

    def parameters(self, index: int) -> None:
        """Emit what the backward pass of a micro-batch has deferred, and add the gradients to the accumulators."""
        model, start = self._models[index], _graph().version
        with self.chain.behind():
            self._accumulate(index, model.run_deferred())
        self._emitted(index, BackwardOperators(start, start, model.record, []), True)

    def _accumulate(self, index: int, gradients: Mapping[Site, Values]) -> None:
        """Add gradients of a micro-batch to the accumulators; those of what lookups found are its own."""
        found = {Site(RESULT, each.operator.result.name): each for each in self._of_lookups[index].values()}
        with tf.name_scope(f"{SCOPE}_{index}/accumulated"):
            for site, values in gradients.items():
                if site in found:
                    self._found[id(found[site].found)] = values
                    continue
                known = self._sums.get(site)
                self._sums[site] = values if known is None else _added([known, values])

    def _emitted(self, index: int, emitted: BackwardOperators, is_last: bool, sent_back: Sequence[tf.Tensor] = ()) -> None:
        """Add a backward pass to the rank's passes.

        Args:
            is_last: whether it is the last pass of its micro-batch.
            sent_back: the gradients that it sends to other stages.
        """
        if is_last:
            del self._models[index]
            for lookup in self._of_lookups.pop(index).values():
                self._found.setdefault(id(lookup.found), None)
        self.chain.add_backward(emitted, is_last, [*self._waits_behind(index), *sent_back])

    def _waits_behind(self, index: int) -> list[tf.Tensor]:
        """Return what all that is emitted next waits for: what a micro-batch's pass has computed beside what is sent."""
        accumulated = [tensor for values in self._found.values() if values for tensor in values]
        return [
            *self._losses.get(index, ()),
            *(tensor for values in self._sums.values() for tensor in values),
            *accumulated,
            *(tensor for values in self._fetched[index] for tensor in values),
        ]

    def results(self) -> list[Values]:
        """Return the fetched values."""
        fetched = [self._fetched[each.index] for each in self.micro_batches]
        return [
            self._put_together(tensor, is_local, [found[k] for found in fetched], self.micro_batches)
            for k, (tensor, is_local) in enumerate(self.request.fetched)
        ]

    def gradients(self, names: Collection[str], given: Mapping[str, Values] = MappingProxyType({})) -> dict[str, Values]:
        """Return the accumulated gradients of tensors that are made once, brought back from their copies, by name.

        Args:
            given: the gradients of tensors that are made once a step and that other stages use, by name.
        """
        found = self.outside.gradients_of(names, given, copies=self._sums)
        return {site.name: values for site, values in found.items()}

    def gradient_of(self, lookup: Lookup) -> Values | None:
        """Return the gradient of what a lookup found in a micro-batch."""
        return self._found[id(lookup.found)]

    # Fetched tensors

    def _fetch(self, model: LocalModel, tensor: Tensor, is_local: bool) -> Values:
        """Return a fetched tensor's values of one micro-batch: shards where these can be joined locally, else global."""
        per_micro_batch = self.view.graph.tensors[tensor.name]
        return model.fetched(per_micro_batch, is_local and self._lies_as_it_would(tensor))

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


def refuse_scaled(scaled: Values, losses: Values) -> None:
    """Refuse an optimizer that scales losses.

    Raises:
        InputError: the losses that it differentiates aren't the model's own.
    """
    if any(loss is not each for loss, each in zip(scaled, losses, strict=True)):
        raise InputError(
            "a loss that its optimizer scales can't be trained in micro-batches; use micro_batches=1, without stages"
        )


def _graph() -> tf.Graph:
    """Return the graph that is being built."""
    return tf.compat.v1.get_default_graph()


def _added(values: Sequence[Values]) -> Values:
    """Return the sums, per rank, of values from several micro-batches."""
    return [reduce(tf.add, parts) for parts in zip(*values, strict=True)]
