"""Emit a training step in micro-batches.

The operators that run once come first, then the forward and backward passes of all micro-batches, then the operators after
them, then the update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import tensorflow as tf

from ..ir.graph import Operator, Tensor, TrainStep
from ..ir.micro_batching import MicroBatch
from ..lowering.gradient_accumulation import Accumulation, MicroBatchRequest
from ..lowering.model import LocalModel
from ..lowering.operators import Values
from ..lowering.pass_chain import PassChain
from ..lowering.resharding.reshard import Resharder
from ..lowering.table_lookups import Lookup
from ..optimizers.running_optimizer import PendingUpdate
from ..program.fetch import Fetch
from ..program.tasks import OPERAND, Site
from ..reschedule.layout import Layout
from ..rules.rule import OperandSharding
from ..sharding.resharding import PathFinder, resharding_of
from ..sharding.strategy import StrategyView
from .feed_shards import comes_in_micro_batches, fed_layout, rows_of, runs_in_micro_batches
from .functions import Feed
from .step_emission import Gradients

BeginUpdate = Callable[[TrainStep, LocalModel, list[list[Lookup]], Gradients], PendingUpdate]
NOTHING: Mapping[str, Values] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The tensors that a stage of a pipeline exchanges with others, by name.

    Attributes:
        loss: the loss that is minimised, in the stage that computes it; else None.
        received: those of each micro-batch that it receives and whose gradients it sends back.
        sent: those of each micro-batch that it sends.
        received_once: those that it receives once a step, and whose gradients it sends back.
    """

    loss: Tensor | None
    received: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    received_once: tuple[str, ...] = ()


class MicroBatchedStep:
    """The emission of a training step in micro-batches, pass by pass."""

    def __init__(
        self,
        fetch: Fetch,
        fed: Mapping[Feed, Values],
        needed: set[str],
        model: LocalModel,
        micro_batches: Sequence[MicroBatch],
        full_batch: StrategyView,
        begin_update: BeginUpdate,
        chain: PassChain,
        exchanged: Exchanged | None = None,
    ) -> None:
        """Emit what runs once a step.

        Args:
            fetch: what the function runs.
            fed: the local values of feeds, those of the batch for all micro-batches.
            needed: the names of the operators that the function runs.
            model: the model of a micro-batch's strategy, which emits what runs once.
            full_batch: the strategy on the graph of the full batch.
            begin_update: emits the gradients, and returns the update.
            chain: the passes of the rank, among which those of the step are.
            exchanged: what a stage exchanges with others; None for a model that isn't cut.
        """
        (name,) = fetch.train_steps
        self._fetch, self._fed, self._model, self._full_batch = fetch, fed, model, full_batch
        graph, micro_batching = full_batch.graph, micro_batches[0].micro_batching
        self._step = step = graph.train_steps[name]
        self._exchanged = exchanged = exchanged or Exchanged(step.loss)
        self._begin_update, self._first = begin_update, micro_batches[0]
        operators = [op for op in graph.operators.values() if op.name in needed]
        in_micro_batches = {op.name for op in operators if runs_in_micro_batches(op, micro_batching)}
        model.emit(needed - in_micro_batches - micro_batching.after)
        self._later = [op for op in operators if op.name in micro_batching.after]
        self._taken = [(t, False) for op in self._later for _, t in op.operands if t.name in micro_batching.forms]
        wanted = [each for each in fetch.tensors if each[0].name in micro_batching.forms]
        lookups = tuple(lookup for each in step.variables for lookup in graph.lookups.get(each, ()))
        assert step.loss is not None  # others aren't cut into micro-batches
        request = MicroBatchRequest(
            name,
            exchanged.loss,
            frozenset(in_micro_batches),
            tuple(dict.fromkeys([*wanted, *self._taken])),
            lookups,
            exchanged.received,
            exchanged.sent,
        )
        self._accumulation = Accumulation(model, model.view, request, self._feeds(), micro_batches, chain)
        self.forward, self.backward = self._accumulation.forward, self._accumulation.backward
        self.parameters = self._accumulation.parameters

    def _feeds(self) -> dict[str, Callable[[MicroBatch], Values]]:
        """Return, for each fed tensor of the batch, a function from a micro-batch to its local values."""
        view, resharder, first = self._model.view, self._model.resharder, self._first
        cut = {
            feed: self._divisible_shards(feed, values)
            for feed, values in self._fed.items()
            if comes_in_micro_batches(feed, (first,))
        }

        def fed_micro_batch(feed: Feed, which: MicroBatch) -> Values:
            tensor, (layout, values) = view.graph.tensors[feed.tensor.name], cut[feed]
            rows = [
                rows_of(value, layout, tensor.shape, rank, which.index)
                for rank, value in zip(resharder.backend.ranks, values, strict=True)
            ]
            return as_produced(tensor, layout, rows, view, resharder, self._model.path_finder)

        return {feed.tensor.name: partial(fed_micro_batch, feed) for feed in cut}

    def finish(
        self, given: Mapping[str, Values] = NOTHING, send_back: Callable[[str, Values], None] | None = None
    ) -> tuple[list[Values], PendingUpdate]:
        """Emit what runs after all micro-batches, and the gradients; return the values of what is fetched, and the update.

        Args:
            given: the gradients of tensors that are made once a step and that other stages use, by name.
            send_back: sends the gradient of a tensor that was received once a step.
        """
        fetch, model, accumulation = self._fetch, self._model, self._accumulation
        made = dict(zip(accumulation.request.fetched, accumulation.results(), strict=True))
        for op in self._later:
            for position, tensor in op.operands:
                if (tensor, False) in self._taken:
                    site = Site(OPERAND, op.name, position)
                    model.give({site: self._from_micro_batches(op, position, tensor, made[tensor, False])})
        model.emit({op.name for op in self._later})
        results = [
            made[tensor, is_local] if (tensor, is_local) in made else model.fetched(tensor, is_local)
            for tensor, is_local in fetch.tensors
        ]
        graph, exchanged = self._full_batch.graph, self._exchanged
        lookups = [
            [lookup for each in graph.lookups.get(variable, ()) for lookup in accumulation.lookups[each]]
            for variable in self._step.variables
        ]
        names = [graph.operators[variable].result.name for variable in self._step.variables]
        dense = [name for name, of_variable in zip(names, lookups, strict=True) if not of_variable]
        found = accumulation.gradients([*dense, *exchanged.received_once], given)
        for name in exchanged.received_once:
            assert send_back is not None
            send_back(name, found[name])
        gradients = [
            list(map(accumulation.gradient_of, of_variable)) or [found.get(name)]
            for name, of_variable in zip(names, lookups, strict=True)
        ]
        pending = self._begin_update(self._step, model, lookups, gradients)

        def apply(sums: Values | None) -> None:
            pending.apply(sums)
            accumulation.chain.end(model.record)

        return results, PendingUpdate(pending.sums, apply)

    def _divisible_shards(self, feed: Feed, values: Values) -> tuple[Layout, Values]:
        """Return a fed tensor's layout and shards such that each rank can cut its rows of each micro-batch from its shard.

        If the micro-batches don't divide each rank's share evenly, the shares are gathered.
        """
        layout = fed_layout(self._full_batch, feed)
        if not feed.is_local or self._first.n_shares == self._first.n_devices:
            return layout, values
        replicated = Layout.replicated(layout.mesh, len(feed.tensor.shape))
        resharding = resharding_of(feed.tensor, layout, OperandSharding(replicated, None))
        paths = self._model.path_finder.paths(resharding)
        return replicated, self._model.resharder.reshard(resharding, paths, values, feed.tensor.name)

    def _from_micro_batches(self, op: Operator, position: int, tensor: Tensor, made: Values) -> Values:
        """Return the operand of an operator that runs after all micro-batches, from a tensor that they all computed.

        Such a tensor is replicated on every rank.
        """
        model, view = self._model, self._model.view
        replicated = Layout.replicated(view.strategy.mesh, len(tensor.shape))
        updated = None if op.updates is None else view.graph.operators[op.updates].result
        layout = view.sharding(op, position).layout if updated is None else view.layout(updated)
        resharding = resharding_of(tensor, replicated, OperandSharding(layout, None))
        return model.resharder.reshard(resharding, model.path_finder.paths(resharding), made, op.name)


def as_produced(
    tensor: Tensor, layout: Layout, values: Values, view: StrategyView, resharder: Resharder, path_finder: PathFinder
) -> Values:
    """Reshard a fed tensor, or its part of a micro-batch, to the produced layout of the strategy."""
    if layout == view.layout(tensor):
        return values
    resharding = resharding_of(tensor, layout, OperandSharding(view.layout(tensor), None))
    return resharder.reshard(resharding, path_finder.paths(resharding), values, tensor.name)


def flat(results: Sequence[Values]) -> list[tf.Tensor]:
    """Return the values of all results, rank by rank, each as a tensor of its own."""
    return [tf.identity(value) for values in results for value in values]
