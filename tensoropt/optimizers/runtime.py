"""An optimizer as an engine runs it.

Of an :class:`..ir.optimizer.Optimizer`, which is a value, :func:`.start.start` makes a :class:`RunningOptimizer`, which
holds the optimizer's variables for the ranks of one process and emits the update of their pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..reschedule.layout import Layout

if TYPE_CHECKING:
    import tensorflow as tf

    from ..ir.graph import Tensor
    from ..lowering.operators import Values
    from ..lowering.table_lookups import Lookup
    from ..lowering.variables import StateEntry
    from ..sharding.resharding import Resharding


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """The parameters of a training step, on the ranks of this process.

    Attributes:
        step: the training step's name.
        names: of the variable operators.
        tensors: their values, whole.
        layouts: where their pieces are.
        ranks: those that this process builds.
        variables: per parameter the pieces, in the order of ``ranks``.
    """

    step: str
    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    layouts: tuple[Layout, ...]
    ranks: tuple[int, ...]
    variables: tuple[Sequence[tf.Variable], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Emission:
    """What emits an update into the graph that is being built.

    Attributes:
        reads: per parameter the local values that the loss was computed from.
        lookups: per parameter that is updated by rows, what its lookups found; empty for others.
        reshard: brings local values along a resharding.
        replicated: a recorded tensor, whole on every rank.
        gradients: of losses, per places where they are taken the local values, or None.
    """

    reads: Sequence[Values]
    lookups: Sequence[Sequence[Lookup]]
    reshard: Callable[[Resharding, Values], Values]
    replicated: Callable[[Tensor], Values]
    gradients: Callable[[Values, list[Values]], list[Values | None]]


class RunningOptimizer(Protocol):
    """An optimizer's variables and updates on the ranks of one process."""

    learning_rate: Any
    """As it is now; assigning a number sets it on all ranks of this process, so every rank must assign the same.

    Raises InputError where it can't be set.
    """

    @property
    def iterations(self) -> int:
        """How many updates have been made."""
        ...

    def state(self) -> tuple[StateEntry, ...]:
        """The optimizer's variables, in a fixed order."""
        ...

    def reset(self) -> None:
        """Give the optimizer's variables their first values again, for the parameters as they are now."""
        ...

    def train(self, losses: Values, emission: Emission) -> None:
        """Emit gradients of the losses (whole, one per rank) and the update by them."""
        ...

