"""A training step in slices of its batch: each slice's passes one after the other, their gradients accumulated.

What is made without the batch is made once, and resharded once to each operator that takes it: for all slices. The gradients
of a slice are taken at these resharded copies, before the next slice begins, and added up there: an accumulator has the
layout of a copy's gradient, in which sums over devices are still pending. After the last slice the accumulated gradients go
back from the copies to the parameters, by the reshardings' backward paths: once a step.

All that a slice computes waits, by control dependencies, for the accumulated gradients of the slice before. So of what the
backward pass reads there is one slice's at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..ir.graph import Tensor
from ..ir.slicing import Slice, Slicing
from ..rules.rule import Demand
from ..sharding.micro_batches import SUM
from ..sharding.strategy import StrategyView
from .local import local_block
from .model import LocalModel, back_from, gradients_of
from .operators import Values
from .schedule import put_in_order
from .table_lookups import Lookup

SCOPE = "micro_batch"
"""In whose name, with the slice's number, a slice's operators are."""
_Taken = tuple[str, Demand, str]


@dataclass(frozen=True, eq=False)
class Asked:
    """What is wanted of each slice.

    Attributes:
        operators: the names of all that run.
        fetched: tensors that the slices make, each whole or in this rank's pieces.
        lookups: by name of the lookups in tables that are updated by rows, what makes of indices and of what was found the
            update's part of a slice.
    """

    step: str
    loss: Tensor
    operators: frozenset[str]
    fetched: tuple[tuple[Tensor, bool], ...]
    lookups: Mapping[str, Callable[[LocalModel], Lookup]]


@dataclass(eq=False)
class Accumulation:
    """Emits the slices of one step.

    Attributes:
        outside: the model on the whole batch, in which all that is made without the batch has been emitted.
        view: the strategy on the graph of one slice.
        feed: per fed tensor of the batch, a function from a slice to its local values.
        order_lag: how far updates may be behind, where the backward pass has an order; else None.
    """

    outside: LocalModel
    view: StrategyView
    feed: Mapping[str, Callable[[Slice], Values]]
    order_lag: float | None = None
    lookups: dict[str, list[Lookup]] = field(default_factory=dict)
    _taken: dict[_Taken, Values] = field(default_factory=dict)
    _sums: dict[int, tf.Tensor] = field(default_factory=dict)
    _found: dict[int, Values | None] = field(default_factory=dict)
    _losses: Values = field(default_factory=list)
    _last: tuple[int, int] = (0, 0)

    @property
    def slicing(self) -> Slicing:
        slicing = self.view.graph.slicing
        assert slicing is not None
        return slicing

    def run(self, asked: Asked) -> tuple[Values, list[Values]]:
        """The losses, whole, and what was fetched; gradients are then asked of :meth:`gradients`."""
        before: list[tf.Tensor] = []
        losses: list[Values] = []
        fetched: list[list[Values]] = []
        n_devices = self.view.strategy.mesh.n_devices
        slices = [Slice(self.slicing, i, n_devices) for i in range(self.slicing.n)]
        for each in slices:
            with tf.control_dependencies([tf.group(*before)] if before else []):
                loss, found = self._run_slice(each, asked)
            losses.append(loss)
            fetched.append(found)
            accumulated = [tensor for values in self._found.values() if values for tensor in values]
            before = [*loss, *self._sums.values(), *accumulated, *(tensor for values in found for tensor in values)]
        results = [
            self._put_together(tensor, is_local, [found[k] for found in fetched], slices)
            for k, (tensor, is_local) in enumerate(asked.fetched)
        ]
        self._losses = _added(losses)
        return self._losses, results

    def _run_slice(self, which: Slice, asked: Asked) -> tuple[Values, list[Values]]:
        graph, outside = tf.compat.v1.get_default_graph(), self.outside
        start = len(graph.get_operations())
        sources = {name: feed(which) for name, feed in self.feed.items()}
        model = LocalModel(
            self.view, outside.router, outside.resharder, sources, outside.update, True, which, self._take
        )
        with tf.name_scope(f"{SCOPE}_{which.index}"):
            model.emit(set(asked.operators))
            losses = model.replicated(asked.loss, asked.step, with_gradient=True)
            found = [self._fetched(model, tensor, is_local) for tensor, is_local in asked.fetched]
            lookups = {name: lookup(model) for name, lookup in asked.lookups.items()}
        n_forward = len(graph.get_operations())
        # Of what was taken some may be for another slice alone; it has no gradient here.
        taken = {id(tensor): tensor for key, values in self._taken.items() if _has_gradient(key) for tensor in values}
        for name, lookup in lookups.items():
            self.lookups.setdefault(name, []).append(lookup)
        places = [[tensor] for tensor in taken.values()]
        gradients = gradients_of(losses, [*places, *(lookup.found for lookup in lookups.values())], places)
        model.read_remade(graph.get_operations(), n_forward)
        with tf.name_scope(f"{SCOPE}_{which.index}/accumulated"):
            for tensor, gradient in zip(taken.values(), gradients, strict=False):
                if gradient is not None:
                    known = self._sums.get(id(tensor))
                    self._sums[id(tensor)] = gradient[0] if known is None else known + gradient[0]
        for lookup, gradient in zip(lookups.values(), gradients[len(places) :], strict=True):
            self._found[id(lookup.found)] = gradient
        self._last = start, n_forward
        if self.order_lag is not None and which.index < self.slicing.n - 1:
            put_in_order(graph.get_operations()[start:], n_forward - start, self.order_lag)
        return losses, found

    def _take(self, tensor: Tensor, demand: Demand, operator: str) -> Values | None:
        """What is made once, as an operator of the slices takes it; resharded for the first of them."""
        if tensor.name in self.slicing.forms:
            return None
        key = tensor.name, demand, operator
        if key not in self._taken:
            # Not again for each slice, and not after the slice before.
            with tf.control_dependencies(None):
                self._taken[key] = self.outside.resharded(tensor, demand, operator)
        return self._taken[key]

    def gradients(self, losses: Values, places: list[Values]) -> list[Values | None]:
        """The accumulated gradients: per parameter, or where a lookup found something in one slice, that slice's."""
        if any(loss is not own for loss, own in zip(losses, self._losses, strict=True)):
            raise InputError("a loss that its optimizer scales can't be trained in micro-batches; use micro_batches=1")
        taken = {id(tensor): tensor for values in self._taken.values() for tensor in values}
        ends = [taken[key] for key in self._sums]
        reads = [values for values in places if id(values) not in self._found]
        back = iter(back_from(ends, list(self._sums.values()), reads))
        return [self._found[id(values)] if id(values) in self._found else next(back) for values in places]

    def order_end(self) -> None:
        """Give the last slice's backward pass and the updates, which have been emitted, an order."""
        start, n_forward = self._last
        if self.order_lag is not None:
            put_in_order(tf.compat.v1.get_default_graph().get_operations()[start:], n_forward - start, self.order_lag)

    # Fetches

    def _fetched(self, model: LocalModel, tensor: Tensor, is_local: bool) -> Values:
        sliced = self.view.graph.tensors[tensor.name]
        if is_local and self._lies_as_it_would(tensor):
            return model.without_sums(sliced, "fetch")
        return model.replicated(sliced, "fetch")

    def _lies_as_it_would(self, tensor: Tensor) -> bool:
        """Whether the pieces of all slices together are a rank's piece of the whole tensor."""
        dimension = self.slicing.forms[tensor.name]
        if dimension == SUM:
            return True
        split = self.view.layout(self.view.graph.tensors[tensor.name]).splits[dimension]
        n_shares = Slice(self.slicing, 0, self.view.strategy.mesh.n_devices).n_shares
        return self.view.strategy.mesh.size_of(split) == n_shares and split == tuple(sorted(split))

    def _put_together(self, tensor: Tensor, is_local: bool, values: list[Values], slices: Sequence[Slice]) -> Values:
        """A fetched tensor of the whole batch, from those of all slices."""
        dimension = self.slicing.forms[tensor.name]
        if dimension == SUM:
            return _added(values)
        joined = [tf.concat(parts, dimension) for parts in zip(*values, strict=True)]
        if is_local and self._lies_as_it_would(tensor):
            return joined
        order = np.argsort(np.concatenate([each.places(tensor.shape[dimension]) for each in slices]))
        joined = [tf.gather(value, order, axis=dimension) for value in joined]
        if not is_local:
            return joined
        layout = self.outside.view.layout(self.view.graph.tensors[tensor.name]).with_partial(())
        ranks = self.outside.resharder.backend.ranks
        return [local_block(value, layout, tensor.shape, rank) for rank, value in zip(ranks, joined, strict=True)]


def _has_gradient(key: _Taken) -> bool:
    return key[1].varying is not None


def _added(values: Sequence[Values]) -> Values:
    return [reduce(tf.add, parts) for parts in zip(*values, strict=True)]
