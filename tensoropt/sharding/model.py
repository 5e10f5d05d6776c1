"""A graph together with what its backward pass does: what is searched, planned and run."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.gradient_info import Backward
from ..ir.graph import Graph
from .micro_batches import of_slices
from .strategy import Strategy, StrategyView


@dataclass(frozen=True)
class Model:
    """A graph and what its backward pass does."""

    graph: Graph
    backward: Backward

    def view(self, strategy: Strategy) -> StrategyView:
        """A strategy on this graph."""
        return StrategyView(self.graph, strategy, self.backward.gradients, self.backward.kept_operands)

    def in_slices(self, n: int, n_devices: int = 1) -> Model:
        """The same at one of ``n`` slices of its batch; to be searched on so many devices.

        Raises:
            InputError: the training step can't be taken in so many.
        """
        return Model(of_slices(self.graph.whole, n, n_devices), self.backward)
