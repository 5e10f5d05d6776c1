"""Hold many operand shardings (OperandSharding) in arrays; one becomes an object only when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from ..reschedule.cheapest.layout_numbers import LayoutNumbers
from ..reschedule.orders import Ints, axes_of_mask, mask_of_axes
from .rule import OperandSharding

NO_GRADIENT = -1


class Shardings(Sequence[OperandSharding]):
    """A sequence of operand shardings of one tensor.

    Attributes:
        layouts: the number of each one's layout.
        unreduced: the axes over which the gradient comes back partial, as bits; NO_GRADIENT where none comes back.
    """

    def __init__(
        self, numbers: LayoutNumbers, layouts: Ints, unreduced: Ints, objects: dict[int, OperandSharding] | None = None
    ) -> None:
        self.numbers, self.layouts, self.unreduced = numbers, layouts, unreduced
        self._objects = {} if objects is None else objects  # those that were asked for, by their codes

    @classmethod
    def of(cls, numbers: LayoutNumbers, shardings: Iterable[OperandSharding]) -> Shardings:
        """Return the sequence of some operand shardings."""
        items = list(shardings)
        unreduced = [NO_GRADIENT if s.unreduced is None else mask_of_axes(s.unreduced) for s in items]
        return cls(numbers, numbers.of(s.layout for s in items), np.array(unreduced, np.int64))

    @classmethod
    def of_codes(cls, numbers: LayoutNumbers, codes: Ints) -> Shardings:
        """Return the sequence of the operand shardings that have these :attr:`codes`."""
        return cls(numbers, codes >> numbers.n_axes + 1, (codes & (2 << numbers.n_axes) - 1) - 1)

    @cached_property
    def codes(self) -> Ints:
        """One number for each operand sharding: equal if they are equal."""
        codes: Ints = (self.layouts << self.numbers.n_axes + 1) + (self.unreduced + 1)
        return codes

    @cached_property
    def has_gradient(self) -> bool:
        """Whether, in one of these shardings at least, a gradient of the operand comes back."""
        return bool((self.unreduced != NO_GRADIENT).any())

    def as_copies(self, with_gradient: bool) -> Shardings:
        """Return each as that of a shared copy: see :func:`..sharding.consumers.as_copy`."""
        no_gradients = np.full_like(self.unreduced, NO_GRADIENT)
        return Shardings(self.numbers, self.layouts, np.maximum(self.unreduced, 0) if with_gradient else no_gradients)

    def in_numbers(self, numbers: LayoutNumbers) -> Shardings:
        """Return the same sequence by other numbers of the layouts of an equal mesh."""
        return self if numbers is self.numbers else Shardings.of(numbers, self)

    def __len__(self) -> int:
        return len(self.layouts)

    def __getitem__(self, index: int) -> OperandSharding:  # type: ignore[override]
        code = int(self.codes[index])
        if code not in self._objects:
            unreduced = int(self.unreduced[index])
            axes = None if unreduced == NO_GRADIENT else axes_of_mask(unreduced)
            self._objects[code] = OperandSharding(self.numbers.layout(int(self.layouts[index])), axes)
        return self._objects[code]

    def at(self, indices: Ints) -> Shardings:
        return Shardings(self.numbers, self.layouts[indices], self.unreduced[indices], self._objects)


def first_seen(codes: Ints, axis: int | None = None) -> tuple[Ints, Ints]:
    """Return the index of the first of each kind of equal codes (rows if ``axis`` is 0), in their order; each one's kind."""
    _, first, kind = np.unique(codes, axis=axis, return_index=True, return_inverse=True)
    in_order = np.argsort(first)
    number = np.empty_like(in_order)
    number[in_order] = np.arange(len(in_order))
    return first[in_order], number[kind.reshape(-1)]
