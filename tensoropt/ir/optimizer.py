"""An optimizer as a training step has it: a value, which costs, plans and digests ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..reschedule.layout import Layout

if TYPE_CHECKING:
    import tensorflow as tf

    from .graph import Tensor


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
