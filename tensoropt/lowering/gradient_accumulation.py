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

from collections.abc import Callable, Mapping, Sequence
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
    _total: Values = field(default_factory=list)

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
        self._models[index] = model
        results = [*self._losses.get(index, ()), *(tensor for values in self._fetched[index] for tensor in values)]
        sent = [each for name in request.sent for each in model.value(self.view.graph.tensors[name])]
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
            gradients = model.gradients_of_copies(
                request.loss, self._losses.get(index, []), self._of_lookups[index], given, request.received, defers
            )
            ends = {Site(RESULT, name): name for name in request.received}
            returned = {name: gradients.pop(site) for site, name in ends.items() if site in gradients}
            self._accumulate(index, gradients)
        sent_back = [value for values in returned.values() for value in values]
        urgent = [value.op for value in sent_back]
        emitted = BackwardOperators(start, n_forward, model.backward.record, urgent)
        self._emitted(index, emitted, not defers, sent_back)
        return returned

    def parameters(self, index: int) -> None:
        """Emit what the backward pass of a micro-batch has deferred, and add the gradients to the accumulators."""
        model, start = self._models[index], _graph().version
        with self.chain.behind():
            self._accumulate(index, model.backward.run_deferred())
        self._emitted(index, BackwardOperators(start, start, model.backward.record, []), True)

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

    def _emitted(
        self, index: int, emitted: BackwardOperators, is_last: bool, sent_back: Sequence[tf.Tensor] = ()
    ) -> None:
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
