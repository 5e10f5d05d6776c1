"""The optimizer of a training step, as a value that costs, plans and digests read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..reschedule.layout import Layout
from .tensor import Tensor


@dataclass(frozen=True, slots=True)
class ParameterUpdate:
    """An optimizer's update of one parameter, as far as costs can see it.

    Attributes:
        slots: the number of variables of the parameter's shape that the optimizer keeps for it.
        is_global: whether every device updates the global parameter, since an update of each shard would give another
            result.
        sums: (length, bytes per element) of the vectors that are added up over all devices in the step; the first parameter
            of a step has them.
        leaves_rows: whether a gradient of rows changes these rows alone, without being expanded to the parameter's shape.
    """

    slots: int
    is_global: bool = False
    sums: tuple[tuple[int, int], ...] = ()
    leaves_rows: bool = False

    def copies(self, tensor: Tensor, layout: Layout, shard_bytes: int, by_rows: bool) -> int:
        """Return the bytes that one device holds for the update.

        These are the gradient, the slots, and global copies where the update needs them.

        Args:
            by_rows: whether the gradient comes as rows, which aren't counted here.
        """
        if not self.is_global:
            return shard_bytes * (self.slots if by_rows and self.leaves_rows else 1 + self.slots)
        # The global gradient beside that of the shard, and the global parameter.
        whole = 0 if layout.is_replicated else 2 * tensor.mem_bytes
        return shard_bytes + self.slots * tensor.mem_bytes + whole


class Optimizer(Protocol):
    """The optimizer that a training step minimises with; a value, the same on every rank."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The recorded scalars that an update reads."""

    @property
    def condition(self) -> Tensor | None:
        """Return the one of them that says whether the optimizer is applied; None if it always is."""

    @property
    def takes_rows(self) -> bool:
        """Return whether the gradient of a variable that is only looked up is rows (``IndexedSlices``)."""

    @property
    def structure(self) -> str:
        """A text of all that a plan depends on: which variables are kept and what is communicated, not the numbers."""

    @property
    def numbers(self) -> str:
        """The hyperparameters' values, which must be equal on all ranks."""

    def updates(self, tensors: Sequence[Tensor]) -> tuple[ParameterUpdate, ...]:
        """Return the update of each of a training step's parameters."""

    def part(self, indices: Sequence[int]) -> Optimizer:
        """Return the optimizer of some of the parameters, given by their indices; stages of their own have the others.

        Raises:
            InputError: an update mixes parameters in a way that stages don't know.
        """

    def imported(self, convert: Callable[[Any], Tensor]) -> Optimizer:
        """Return the same optimizer with imported tensors in place of recorded ones."""
