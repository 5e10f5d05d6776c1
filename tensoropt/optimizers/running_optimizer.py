"""The protocol by which an engine runs an optimizer.

A :class:`RunningOptimizer` is made from an :class:`..ir.optimizer.Optimizer`, which is a value. It holds the optimizer's
variables for the ranks of one process and emits the update of their shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..reschedule.layout import Layout
from ..reschedule.mesh import Mesh

if TYPE_CHECKING:
    import tensorflow as tf

    from ..ir.graph import Tensor
    from ..lowering.operators import Values
    from ..lowering.variables import StateEntry
    from ..sharding.resharding import Resharding


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """The parameters of a training step, on the ranks of this process.

    Attributes:
        names: the names of the variable operators.
        tensors: the parameters' values, with their global shapes.
        layouts: where their shards are.
        mesh: the devices of the stage, which may have none of the parameters.
        ranks: the ranks that this process builds.
        variables: for each parameter its shards, in the order of ``ranks``.
    """

    step: str
    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    layouts: tuple[Layout, ...]
    mesh: Mesh
    ranks: tuple[int, ...]
    variables: tuple[Sequence[tf.Variable], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Emission:
    """The functions with which an update is emitted into the graph that is being built.

    Attributes:
        read: returns the local values of a parameter that the loss was computed from, by the parameter's index.
        gradients: for each parameter its gradient's local values; or, for one that is updated by rows, the gradients of the
            rows that each of its lookups found, on every rank. None for one that no loss depends on.
        indices: for each parameter that is updated by rows, the indices of each of its lookups, on every rank; empty for
            others.
        reshard: returns local values after a resharding.
        replicated: returns a recorded tensor's global value on every rank.
    """

    read: Callable[[int], Values]
    gradients: Sequence[Sequence[Values | None]]
    indices: Sequence[Sequence[Values]]
    reshard: Callable[[Resharding, Values], Values]
    replicated: Callable[[Tensor], Values]


@dataclass(frozen=True, slots=True, eq=False)
class PendingUpdate:
    """An update whose gradients are emitted.

    Attributes:
        sums: on each rank of this process, sums over the parameters of one stage, which are to be added up over all stages;
            None where the update needs none.
        apply: emits the update, given the sums over all stages.
    """

    sums: Values | None
    apply: Callable[[Values | None], None]


class RunningOptimizer(Protocol):
    """An optimizer's variables and updates on the ranks of one process."""

    learning_rate: Any
    """The current learning rate.

    Assigning a number sets it on all ranks of this process, so every rank must assign the same. Raises InputError where it
    can't be set.
    """

    @property
    def iterations(self) -> int:
        """Return how many updates have been made."""

    def state(self) -> tuple[StateEntry, ...]:
        """Return the optimizer's variables, in a fixed order."""

    def reset(self) -> None:
        """Give the optimizer's variables their first values again, for the parameters as they are now."""

    def finish(self) -> None:
        """Do what is done when training ends: nothing, but for optimizers of Keras."""
        return

    def scaled(self, losses: Values) -> Values:
        """Return the losses of which gradients are taken, given the model's (replicated, one for each rank)."""
        return losses

    def train(self, emission: Emission) -> PendingUpdate:
        """Return the update by the gradients, after emitting the sums over them that it needs."""
