"""Hold many configs of a rule in arrays, and derive from them, for all configs together, what :mod:`.rule` does for one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..ir.graph import Operator, Tensor
from ..reschedule.cheapest.layout_numbers import IDLE, PARTIAL, LayoutNumbers
from ..reschedule.orders import Ints, Mask
from .rule import NONE, Config, Dims, Interface, Rule
from .shardings import Shardings


@dataclass(frozen=True, eq=False)
class ConfigArrays:
    """K configs of a rule.

    Attributes:
        assignments: int[K, axes], the number in ``names`` of the factor or linear group that each axis is assigned to.
    """

    rule: Rule
    configs: tuple[Config, ...]
    names: tuple[str, ...]
    assignments: np.ndarray
    _degrees: dict[str, Ints] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, rule: Rule, configs: Sequence[Config]) -> ConfigArrays:
        """Return the configs, of one mesh and at least one, as arrays."""
        names = (NONE, *rule.extents, *(f"+{group}" for group in range(len(rule.linear))))
        number = {name: i for i, name in enumerate(names)}
        assignments = np.array([[number[name] for name in config.assignment] for config in configs], np.int16)
        return cls(rule, tuple(configs), names, assignments.reshape(len(configs), -1))

    def __len__(self) -> int:
        return len(self.configs)

    def has(self, name: str) -> Mask:
        """Return which axes are assigned to a factor or a linear group, bool[K, axes]."""
        mask: Mask = self.assignments == self.names.index(name)
        return mask

    def degree(self, name: str) -> Ints:
        """Return the number of blocks into which a factor is split, int64[K]."""
        if name not in self._degrees:
            sizes = np.array(self.configs[0].mesh.sizes, np.int64)
            self._degrees[name] = np.where(self.has(name), sizes, 1).prod(axis=1, dtype=np.int64)
        return self._degrees[name]

    def splits_any(self, names: Iterable[str]) -> Mask:
        """Return whether some axis is assigned to one of the names, bool[K]."""
        numbers = [self.names.index(name) for name in names]
        mask: Mask = np.isin(self.assignments, numbers).max(axis=1, initial=False)
        return mask

    def local_points(self) -> Ints:
        """Return how many points of the product of all factors the device with the largest blocks computes, int64[K]."""
        blocks = [-(-extent // self.degree(name)) for name, extent in self.rule.extents.items()]
        if self.rule.points is not math.prod:
            of_configs = np.reshape(blocks, (len(blocks), len(self))).T.tolist()  # also where there are no factors
            return np.array([self.rule.points(tuple(degrees)) for degrees in of_configs])
        return np.prod([np.ones(len(self), np.int64), *blocks], axis=0)

    def are_exchanged(self) -> Mask:
        """Return whether each config needs a halo exchange (:meth:`.Rule.exchanged`), bool[K]."""
        mask = np.zeros(len(self), bool)
        for name, window in self.rule.halos.items():
            degrees = self.degree(name)
            for degree in np.unique(degrees).tolist():
                if degree > 1 and not window.tiles(degree):
                    mask[degrees == degree] = True
        return mask

    def distinct_in(self, names: Iterable[str]) -> tuple[list[int], Ints]:
        """Return the index of the first of each kind of configs that are equal in these factors, and each one's kind."""
        numbers = [self.names.index(name) for name in names]
        rows = np.where(np.isin(self.assignments, numbers), self.assignments, 0)
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return first.tolist(), kind.reshape(-1)


class Interfaces(Sequence[Interface]):
    """The interfaces of an operator in K configs: see :func:`.rule.interface_of`.

    Attributes:
        operands: per input its operand shardings; None for a static input.
        results: per result the numbers of its produced layouts, int64[K].
    """

    def __init__(self, arrays: ConfigArrays, numbers: LayoutNumbers) -> None:
        self.numbers, self._n_configs = numbers, len(arrays)
        rule = arrays.rule
        groups = [f"+{group}" for group in range(len(rule.linear))]
        bits = 1 << np.arange(numbers.n_axes, dtype=np.int64)
        axes = np.where(arrays.assignments != 0, bits, 0).sum(axis=1, dtype=np.int64)

        def operand(position: int, dims: Dims) -> Shardings:
            partial = [group for group, positions in zip(groups, rule.linear, strict=True) if position in positions]
            layouts = numbers.of_places(_places(arrays, dims, partial), len(dims))
            return Shardings(numbers, layouts, axes & ~numbers.used_axes(layouts))

        self.operands = tuple(None if dims is None else operand(i, dims) for i, dims in enumerate(rule.operands))
        self.results = tuple(
            numbers.of_places(_places(arrays, dims, [*groups, *summed]), len(dims))
            for dims, summed in zip(rule.results, rule.summed, strict=True)
        )

    def of_operands(self, op: Operator) -> Iterator[tuple[int, Tensor, Shardings]]:
        """Yield the position of each tensor operand, the tensor, and its operand shardings."""
        for position, tensor in op.operands:
            shardings = self.operands[position]
            assert shardings is not None
            yield position, tensor, shardings

    def __len__(self) -> int:
        return self._n_configs

    def __getitem__(self, index: int) -> Interface:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return Interface(
            tuple(None if shardings is None else shardings[index] for shardings in self.operands),
            tuple(self.numbers.layout(int(layouts[index])) for layouts in self.results),
        )


def _places(arrays: ConfigArrays, dims: Dims, partial: Iterable[str]) -> np.ndarray:
    """Return the places of the axes (:mod:`..reschedule.cheapest.layout_numbers`) of a tensor, int16[K, axes].

    Args:
        dims: the factors of each of the tensor's dimensions; a dimension's axes come by factor, then in ascending order.
        partial: the factors and linear groups whose axes it is partial over.
    """
    n_configs, n_axes = arrays.assignments.shape
    places = np.full((n_configs, n_axes), IDLE, np.int16)
    for dim, names in enumerate(dims):
        n_before = np.zeros((n_configs, 1), np.int16)
        for name in names:
            is_there = arrays.has(name)
            position = np.cumsum(is_there, axis=1, dtype=np.int16) + (n_before - 1)
            places = np.where(is_there, dim * n_axes + position, places)
            n_before = n_before + is_there.sum(axis=1, dtype=np.int16, keepdims=True)
    for name in partial:
        places[arrays.has(name)] = PARTIAL
    return places
