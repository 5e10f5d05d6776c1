"""What the inside of a composite operator costs, from what its parts cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..ir.body import FORM, LOOP, LoopForm
from ..ir.graph import CONSTANT, Operator
from ..rules.composition import Composition
from ..rules.rule import Config, Interface, Rule


class PartCosts(Protocol):
    """Costs of single operators of a body, by config."""

    @property
    def kept(self) -> frozenset[str]:
        """Names of the tensors that some gradient reads."""
        ...

    def mem_bytes(self, op: Operator, rule: Rule, config: Config, seen: Interface) -> int: ...

    def compute_time_ns(self, op: Operator, rule: Rule, config: Config, seen: Interface) -> int: ...

    def backward_time_ns(self, op: Operator, rule: Rule, config: Config, seen: Interface) -> int: ...


@dataclass(frozen=True)
class BodyCosting:
    """Attributes:
    parts: what the operators of the body cost, as its gradients have it.
    is_differentiated: whether a gradient comes back to an operand of the whole.
    """

    composition: Composition
    parts: PartCosts
    is_differentiated: bool

    def kept_bytes(self, config: Config) -> int:
        """What a loop keeps of its trips for its backward pass, and its constants; tensors that no trip changes are kept
        outside, and a custom gradient keeps nothing but its operands.
        """
        composition = self.composition
        if composition.op.type != LOOP:
            return 0
        form: LoopForm = composition.op.attrs[FORM]
        once = each_trip = 0
        for op in composition.body.operators:
            found = self.parts.mem_bytes(op, composition.rules[op.name], *composition.inner(op, config))
            if op.type == CONSTANT:
                once += found
            else:
                each_trip += found
        for tensor in composition.body.inputs[: form.first_invariant]:
            if tensor.name in self.parts.kept:
                local = composition.input_layout(tensor, config).largest_local_shape(tensor.shape)
                each_trip += math.prod(local) * tensor.item_bytes
        return once + form.trips * each_trip

    def time_ns(self, config: Config) -> int:
        """Compute, forward and backward; that of a custom gradient is all backward."""
        return self._of_trips(self.parts.compute_time_ns, config)

    def backward_ns(self, config: Config) -> int:
        """The part of :meth:`time_ns` that is the backward pass."""
        is_loop = isinstance(self.composition.op.attrs[FORM], LoopForm)
        return self._of_trips(self.parts.backward_time_ns if is_loop else self.parts.compute_time_ns, config)

    def _of_trips(self, time_ns: Callable[[Operator, Rule, Config, Interface], int], config: Config) -> int:
        composition = self.composition
        form = composition.op.attrs[FORM]
        if not isinstance(form, LoopForm) and not self.is_differentiated:
            return 0
        trips = form.trips if isinstance(form, LoopForm) else 1
        return trips * sum(
            time_ns(op, composition.rules[op.name], *composition.inner(op, config)) for op in composition.body.operators
        )
