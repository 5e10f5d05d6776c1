"""Emit lookups that run ahead in their table's stage: all rows when a step begins, their gradients when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from ...ir.graph import Tensor
from ...ir.micro_batching import MicroBatch
from ...lowering.localise import local_block
from ...lowering.model import LocalModel
from ...lowering.operators import Values
from ...program.tasks import RESULT
from ...reschedule.layout import Layout
from ...rules.rule import OperandSharding
from ...sharding.resharding import resharding_of
from ...sharding.stages import Crossing
from ...sharding.strategy import StrategyView


@dataclass
class RowsAhead:
    """The lookups of one stage that run ahead, on the whole batch.

    Attributes:
        model: emits the lookups.
        per_micro_batch: the strategy on the graph of one micro-batch.
        micro_batches: the micro-batches, which take consecutive rows.
        crossings: the rows, once for each stage that they are sent to.
    """

    model: LocalModel
    per_micro_batch: StrategyView
    micro_batches: Sequence[MicroBatch]
    crossings: Sequence[Crossing]

    def send(self, send: Callable[[Crossing, int, Values], None]) -> None:
        """Send the rows of all micro-batches, those of the first one first.

        Args:
            send: sends a micro-batch's rows, which every rank of the stage has.
        """
        n = len(self.micro_batches)
        parts = {}
        for name in dict.fromkeys(each.tensor for each in self.crossings):
            tensor = self._of_batch(name)
            dimension = self.micro_batches[0].micro_batching.forms[name]
            rows = self.model.fetched(tensor)
            parts[name] = [tf.split(values, n, dimension) for values in rows]
        for index in range(n):
            for crossing in self.crossings:
                send(crossing, index, [of_rank[index] for of_rank in parts[crossing.tensor]])

    def table_gradients(self, receive: Callable[[Crossing, int], Values]) -> dict[str, Values]:
        """Return the gradients of the tables, by tensor name.

        Args:
            receive: receives the gradient of a micro-batch's rows, in the layout in which micro-batches look them up.
        """
        sums: dict[str, list[Values]] = {}
        for crossing in self.crossings:
            if crossing.has_gradient:
                parts = [self._on_all_ranks(crossing.tensor, receive(crossing, each.index)) for each in self.micro_batches]
                sums.setdefault(crossing.tensor, []).append(self._joined(crossing.tensor, parts))
        return gradients_of_variables(
            self.model, {name: [tf.add_n(list(each)) for each in zip(*parts, strict=True)] for name, parts in sums.items()}
        )

    def _of_batch(self, name: str) -> Tensor:
        return self.model.view.graph.tensors[name]

    def _on_all_ranks(self, name: str, values: Values) -> Values:
        """Return a micro-batch's rows, or their gradients, on every rank."""
        tensor, mesh = self.per_micro_batch.graph.tensors[name], self.per_micro_batch.strategy.mesh
        layout = self.per_micro_batch.layout(tensor).with_partial(())
        if layout.is_replicated:
            return values
        replicated = OperandSharding(Layout.replicated(mesh, len(tensor.shape)), None)
        resharding = resharding_of(tensor, layout, replicated)
        return self.model.resharder.reshard(resharding, self.model.path_finder.paths(resharding), values, name)

    def _joined(self, name: str, parts: Sequence[Values]) -> Values:
        """Return the shards of the whole batch, of what every rank has of each micro-batch."""
        tensor, view = self._of_batch(name), self.model.view
        dimension = self.micro_batches[0].micro_batching.forms[name]
        joined = [tf.concat(list(of_rank), dimension) for of_rank in zip(*parts, strict=True)]
        layout = view.layout(tensor).with_partial(())
        if layout.is_replicated:
            return joined
        ranks = self.model.resharder.backend.ranks
        return [local_block(value, layout, tensor.shape, rank) for rank, value in zip(ranks, joined, strict=True)]


def gradients_of_variables(model: LocalModel, given: Mapping[str, Values]) -> dict[str, Values]:
    """Return the gradients of trained variables, by tensor name.

    Args:
        given: those of what a model has computed of them, by tensor name.
    """
    graph = model.view.graph
    made = graph.ancestors([graph.tensors[name] for name in given])
    variables = {op.result.name for op in graph.variables if op.is_trainable and op.name in made}
    found = model.gradients_of(variables, given) if given else {}
    return {site.name: values for site, values in found.items() if site.kind == RESULT}
