"""An optimizer as a training step has it, and as an engine runs it.

An :class:`Optimizer` is a value: what costs, plans and digests ask. ``start`` makes of it a :class:`RunningOptimizer`, which
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
    from ..lowering.variables import StateEntry
    from ..sharding.resharding import Delivery
    from .sparse import Lookup


@dataclass(frozen=True, slots=True)
class ParameterUpdate:
    """What an optimizer does with one parameter, as far as costs can see.

    Attributes:
        slots: variables of the parameter's shape that are kept beside it.
        is_whole: whether every device updates the whole parameter, since its update is not that of its pieces.
        sums: (length, bytes per element) of the vectors that are added up over all devices in the step; they stand with
            the first parameter of a step.
        leaves_rows: whether a gradient of rows changes these rows alone, without becoming a whole gradient.
    """

    slots: int
    is_whole: bool = False
    sums: tuple[tuple[int, int], ...] = ()
    leaves_rows: bool = False

    def copies(self, tensor: Tensor, layout: Layout, piece_bytes: int, by_rows: bool) -> int:
        """Bytes that one device holds for the update: the gradient, slots, and whole copies where the update needs them.

        Args:
            by_rows: whether the gradient comes as rows, which aren't counted here.
        """
        if not self.is_whole:
            return piece_bytes * (self.slots if by_rows and self.leaves_rows else 1 + self.slots)
        # Beside the piece's gradient the whole one, and the whole parameter.
        whole = 0 if layout.is_replicated else 2 * tensor.mem_bytes
        return piece_bytes + self.slots * tensor.mem_bytes + whole


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
        deliver: brings local values along a delivery.
        replicated: a recorded tensor, whole on every rank.
        gradients: of losses, per places where they are taken the local values, or None.
    """

    reads: Sequence[Values]
    lookups: Sequence[Sequence[Lookup]]
    deliver: Callable[[Delivery, Values], Values]
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


class Optimizer(Protocol):
    """What a training step minimises with; a value, the same on every rank."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The recorded scalars that an update takes."""
        ...

    @property
    def takes_rows(self) -> bool:
        """Whether the gradient of a variable that is only looked up is rows (``IndexedSlices``)."""
        ...

    @property
    def structure(self) -> str:
        """All that a plan depends on: what is kept and what is communicated, not the numbers."""
        ...

    @property
    def numbers(self) -> str:
        """The hyperparameters' values, which must be equal on all ranks."""
        ...

    def updates(self, tensors: Sequence[Tensor]) -> tuple[ParameterUpdate, ...]:
        """What becomes of each of a training step's parameters."""
        ...

    def imported(self, convert: Callable[[tf.Tensor], Tensor]) -> Optimizer:
        """The same with imported tensors in place of recorded ones."""
        ...

    def start(self, shards: Shards) -> RunningOptimizer: ...
