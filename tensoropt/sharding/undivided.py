"""The model of a training step that runs in micro-batches even where its batch isn't divided, as steps in stages do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..ir.graph import MicroBatching
from .micro_batches import as_one_micro_batch
from .model import Model


@dataclass(frozen=True)
class MaybeUndivided(Model):
    """A training step whose batch may be one micro-batch.

    Attributes:
        like: returns how another batch of the same program is divided.
    """

    like: Callable[[], MicroBatching]

    def in_micro_batches(self, n: int, n_devices: int = 1) -> Model:
        """Return the model of one of ``n`` micro-batches; see :meth:`.model.Model.in_micro_batches`."""
        if n > 1:
            return super().in_micro_batches(n, n_devices)
        return replace(self, graph=as_one_micro_batch(self.graph, self.like()))
