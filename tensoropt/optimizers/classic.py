"""The optimizers of ``tf.compat.v1.train``, as values: their slots and hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.graph import Tensor
from ..ir.optimizer import ParameterUpdate

# Zeros at first, laid out as their parameter.
SLOTS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum",),
    "nesterov": ("momentum",),
    "adam": ("m", "v"),
}


@dataclass(frozen=True, slots=True)
class Classic:
    """Attributes:
    kind: one of ``SLOTS``.
    hyperparameters: numbers, or scalars of the recorded model.
    """

    kind: str
    hyperparameters: tuple[tuple[str, Any], ...] = ()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(value for _, value in self.hyperparameters if isinstance(value, Tensor))

    @property
    def takes_rows(self) -> bool:
        return True

    @property
    def structure(self) -> str:
        shown = [(key, value if isinstance(value, Tensor) else None) for key, value in self.hyperparameters]
        return f"{self.kind} {shown}"

    @property
    def numbers(self) -> str:
        return str([(key, value) for key, value in self.hyperparameters if not isinstance(value, Tensor)])

    def updates(self, tensors: Sequence[Tensor]) -> tuple[ParameterUpdate, ...]:
        # Adam's averages fade in rows that weren't found, too.
        return (ParameterUpdate(len(SLOTS[self.kind]), leaves_rows=self.kind != "adam"),) * len(tensors)

    def imported(self, convert: Callable[[Any], Tensor]) -> Classic:
        imported = (
            (key, convert(value) if hasattr(value, "op") else float(value)) for key, value in self.hyperparameters
        )
        return Classic(self.kind, tuple(imported))

    def __str__(self) -> str:
        return self.kind
