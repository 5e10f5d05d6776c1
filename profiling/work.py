"""The work of one operator on one device: measurements are filed under it, and predictions depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One operator at the local shapes of the device that has the largest shards.

    Attributes:
        type: TensorFlow's name of the operator type; ``Variable`` is an optimizer's update of one.
        dtype: TensorFlow's name of the type it computes in.
        flops: floating-point operations of the forward pass, a multiply-add as two.
        n_bytes: read plus written by the forward pass.
        n_gradients: operands to which a gradient comes back; 0 without a backward pass.
        key: type, attributes and local shapes as text: works of equal keys cost the same. Empty where the operator can't
            be run by itself, so that nothing can be filed under it.
        gradient_bytes: read plus written by the backward pass; None: ``n_bytes`` for each gradient.
    """

    type: str
    dtype: str
    flops: int
    n_bytes: int
    n_gradients: int = 0
    key: str = ""
    gradient_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.flops < 0 or self.n_bytes < 0:
            raise ValueError(f"an operator of {self.flops} operations and {self.n_bytes} bytes: expected at least 0 of each")


@dataclass(frozen=True, slots=True)
class Measured:
    """A work that was timed.

    Attributes:
        forward_us: the forward pass's lower quartile on the slowest rank.
        backward_us: the backward pass's lower quartile on the slowest rank; 0 without a backward pass.
        spread: from the lower to the upper quartile of the repeats, over the lower; the larger of both ways.
    """

    work: WorkItem
    forward_us: float
    backward_us: float
    spread: float

    @property
    def time_us(self) -> float:
        return self.forward_us + self.backward_us


@dataclass(frozen=True)
class MeasuredOperators:
    """The operators that a search knows better than from their hardware's rates.

    Attributes:
        measured: the operators that were timed, by the key of their work.
        is_cautious: whether the others are assumed to be slower than predicted, as much as the slowest of nine in ten of
            their class are. Of many operators a search finds those that are predicted too fast; its answer shouldn't
            have any of them.
    """

    measured: Mapping[str, Measured] = field(default_factory=dict)
    is_cautious: bool = False


NOTHING_KNOWN = MeasuredOperators()
