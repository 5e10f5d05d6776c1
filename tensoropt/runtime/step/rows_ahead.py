"""Emit what a stage sends before its passes, and takes the gradients of after them.

That is rows that it looks up ahead for other stages: of all micro-batches when the step begins. Of a batch that is trained
at once it is also what follows from variables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial

import tensorflow as tf

from ...ir.micro_batching import MicroBatch
from ...lowering.localise import local_block
from ...lowering.operators import Values
from ...lowering.pass_chain import PassChain
from ...lowering.resharding.reshard import Resharder
from ...program.fetch import Fetch
from ...program.stage_ends import OfStep, StageEnds
from ...program.step import step_program
from ...reschedule.layout import Layout
from ...sharding.stages import Crossing
from .feed_shards import as_given, resharded
from .parts import StageView
from .stage_state import StageState
from .step_emission import Exchange, StepEmission


class SentAhead:
    """What one stage sends before its passes, computed of the whole batch.

    Attributes:
        names: the variables' tensors that get gradients by it, each with the training step.
    """

    def __init__(
        self,
        views: StageView,
        state: StageState,
        resharder: Resharder,
        micro_batches: Sequence[MicroBatch],
        crossings: Sequence[Crossing],
        variables: Mapping[str, Callable[[int], Values]],
        feeds: Mapping[str, Values],
        train_steps: Collection[str],
    ) -> None:
        """Write its program.

        Args:
            micro_batches: those of the step, which take consecutive rows; none for a batch at once.
            variables: functions that emit the values of variables, by tensor name.
            feeds: the values of what is fed, for the whole batch.
            train_steps: the names of those that the function runs.
        """
        self._views, self._state, self._resharder = views, state, resharder
        self._micro_batches, self._crossings = micro_batches, crossings
        graph = views.whole.graph
        tensors = {crossing.tensor: graph.tensors[crossing.tensor] for crossing in crossings}
        # Every rank of the stage has the rows of all micro-batches.
        self._on_every_rank = [name for name in tensors if train_steps and any(
            crossing.is_ahead for crossing in crossings if crossing.tensor == name)]  # fmt: skip
        given = dict.fromkeys((step, each.tensor) for each in crossings for step in each.steps if step in train_steps)
        sent_names = tuple(name for name in tensors if name not in self._on_every_rank)
        ends = StageEnds(sent=sent_names, given=tuple(given))
        program = step_program(
            views.whole, state.path_finder, ends=ends, given=feeds.keys(), in_buckets=resharder.joins,
            fetch=Fetch(tuple((tensors[name], False) for name in self._on_every_rank)),
            needed=graph.ancestors(tensors.values(), (), feeds.keys()),
        )  # fmt: skip
        self.names = tuple(program.gradients)
        sources: dict[str, Callable[[int], Values]] = {name: partial(as_given, values) for name, values in feeds.items()}
        exchange = Exchange(self._send_whole, self._gradient)
        self._step = StepEmission(program, views.whole, resharder, {**variables, **sources}, state, PassChain(1), exchange)

    def send(self, send: Callable[..., Values], receive: Callable[[Crossing, int, str], Values]) -> None:
        """Emit all that is sent: of rows those of the first micro-batch first.

        Args:
            send: sends a tensor, or a micro-batch's part of it, by a crossing.
            receive: receives a tensor's gradient of a micro-batch and a training step, in the layout in which that has the
                tensor.
        """
        self._send, self._receive = send, receive
        self._step.forward(0)
        rows = dict(zip(self._on_every_rank, self._step.fetched(), strict=True))
        n = len(self._micro_batches)
        if not n:
            for name, values in rows.items():
                self._send_whole(name, values)
            return
        parts = {name: [tf.split(value, n, self._dimension(name)) for value in values] for name, values in rows.items()}
        for index in range(n):
            for crossing in self._crossings:
                send(crossing, [slices[index] for slices in parts[crossing.tensor]], index)

    @cached_property
    def gradients(self) -> dict[OfStep, Values]:
        """The gradients of variables, by training step and tensor; backward passes are emitted when first asked for."""
        self._step.backward(0)
        return self._step.gradients()

    def _send_whole(self, name: str, values: Values, micro_batch: int = -1, step: str = "") -> Values:
        own = (crossing for crossing in self._crossings if crossing.tensor == name)
        return [sent for crossing in own for sent in self._send(crossing, values)]

    def _gradient(self, name: str, micro_batch: int, step: str) -> Values:
        """Emit the reception of a tensor's gradient, of all micro-batches."""
        gradients = []
        for crossing in (each for each in self._crossings if each.tensor == name and step in each.steps):
            if not self._micro_batches:
                gradients.append(self._receive(crossing, -1, step))
                continue
            parts = [self._gather_ranks(name, self._receive(crossing, batch.index, step)) for batch in self._micro_batches]
            gradients.append(self._join_micro_batches(name, parts))
        return [tf.add_n(list(parts)) for parts in zip(*gradients, strict=True)]

    def _dimension(self, name: str) -> int:
        return self._micro_batches[0].micro_batching.forms[name]

    def _gather_ranks(self, name: str, values: Values) -> Values:
        """Return the gradients of a micro-batch's rows on every rank."""
        view = self._views.per_micro_batch
        tensor = view.graph.tensors[name]
        layout = view.layout(tensor).with_partial(())
        replicated = Layout.replicated(layout.mesh, len(tensor.shape))
        return resharded(tensor, layout, replicated, values, self._resharder, self._state.path_finder)

    def _join_micro_batches(self, name: str, parts: Sequence[Values]) -> Values:
        """Return the shards of the whole batch, of what every rank has of each micro-batch."""
        tensor, view = self._views.whole.graph.tensors[name], self._views.whole
        values = [tf.concat(list(slices), self._dimension(name)) for slices in zip(*parts, strict=True)]
        layout = view.layout(tensor).with_partial(())
        if layout.is_replicated:
            return values
        ranks = self._resharder.backend.ranks
        return [local_block(value, layout, tensor.shape, rank) for rank, value in zip(ranks, values, strict=True)]
