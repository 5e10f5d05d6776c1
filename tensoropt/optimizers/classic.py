"""The optimizers of ``tf.compat.v1.train``, as values, without TensorFlow: searches send them to processes that have none.

Names and defaults are those of ``tf.compat.v1.train``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..ir.graph import Tensor
from ..ir.optimizer import ParameterUpdate

# The names of a parameter's slots, by kind of optimizer. Slots start as zeros, in the parameter's layout.
SLOTS: dict[str, tuple[str, ...]] = {"sgd": (), "momentum": ("momentum",), "nesterov": ("momentum",), "adam": ("m", "v")}


@dataclass(frozen=True, slots=True)
class Classic:
    """An optimizer of ``tf.compat.v1.train``, as a value.

    Attributes:
        kind: one of ``SLOTS``.
        hyperparameters: pairs of a name and a number, or a scalar of the recorded model.
    """

    kind: str
    hyperparameters: tuple[tuple[str, Any], ...] = ()
    condition: ClassVar[None] = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the recorded scalars that are hyperparameters."""
        return tuple(value for _, value in self.hyperparameters if isinstance(value, Tensor))

    @property
    def takes_rows(self) -> bool:
        """Return True: all of these optimizers can update by rows."""
        return True

    @property
    def structure(self) -> str:
        """Return, as text, all that a plan depends on: the kind and which hyperparameters are recorded, not the numbers."""
        hyperparameters = [(key, value if isinstance(value, Tensor) else None) for key, value in self.hyperparameters]
        return f"{self.kind} {hyperparameters}"

    @property
    def numbers(self) -> str:
        """Return, as text, the hyperparameters that are numbers."""
        return str([(key, value) for key, value in self.hyperparameters if not isinstance(value, Tensor)])

    def updates(self, tensors: Sequence[Tensor]) -> tuple[ParameterUpdate, ...]:
        """Return what the optimizer does with each parameter, as far as costs can see."""
        # Adam's averages decay in rows that weren't looked up, too.
        return (ParameterUpdate(len(SLOTS[self.kind]), leaves_rows=self.kind != "adam"),) * len(tensors)

    def part(self, indices: Sequence[int]) -> Classic:
        """Return the same optimizer: it updates each parameter by itself."""
        return self

    def imported(self, convert: Callable[[Any], Tensor]) -> Classic:
        """Return the same optimizer with imported tensors in place of recorded ones."""
        values = ((key, convert(value) if hasattr(value, "op") else float(value)) for key, value in self.hyperparameters)
        return Classic(self.kind, tuple(values))

    def __str__(self) -> str:
        return self.kind
