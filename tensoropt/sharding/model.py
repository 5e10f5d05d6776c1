"""Define the model that is searched, planned and run: a graph with its gradient information."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ..common.errors import InputError
from ..ir.gradient_info import Backward
from ..ir.graph import Graph
from .micro_batches import of_micro_batches
from .strategy import Strategy, StrategyView


@dataclass(frozen=True)
class Model:
    """A graph, and which tensors its backward pass reads and gives gradients to.

    Attributes:
        placed: the devices that the script placed operators on, by name.
    """

    graph: Graph
    backward: Backward
    placed: Mapping[str, tuple[int, ...]] = field(default_factory=dict, compare=False, kw_only=True)

    def view(self, strategy: Strategy) -> StrategyView:
        return StrategyView(self.graph, strategy, self.backward)

    def in_micro_batches(self, n: int, n_devices: int = 1) -> Model:
        """Return the model of one of ``n`` micro-batches, to be searched on ``n_devices`` devices.

        Raises:
            InputError: the training step can't be taken in so many micro-batches.
        """
        return Model(of_micro_batches(self.graph.full_batch, n, n_devices), self.backward)

    def takes_micro_batches(self, n: int) -> bool:
        """Return whether a training step can be taken in ``n`` micro-batches."""
        with suppress(InputError):
            return bool(self.in_micro_batches(n))
        return False

    def smallest_micro_batches(self, n_devices: int) -> list[int]:
        """Return the most micro-batches with a sample per device, and the most of all; none where there can't be two.

        They are powers of two.
        """
        if not self.takes_micro_batches(2):
            return []
        micro_batching = self.in_micro_batches(2).graph.micro_batching
        assert micro_batching is not None
        divisors = [1 << i for i in range(1, micro_batching.batch.bit_length()) if micro_batching.batch % (1 << i) == 0]
        one_each = [n for n in divisors if micro_batching.batch // n >= n_devices]
        return list(dict.fromkeys([*one_each[-1:], *divisors[-1:]]))
