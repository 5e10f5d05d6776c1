"""Compute the cost of a composite operator's body from the costs of its operators."""

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
    """Costs of the single operators of a body, by config."""

    @property
    def saved(self) -> frozenset[str]:
        """The names of the tensors that some gradient reads."""
        ...

    def mem_bytes(self, op: Operator, rule: Rule, config: Config, interface: Interface) -> int: ...

    def compute_time_ns(self, op: Operator, rule: Rule, config: Config, interface: Interface) -> int: ...

    def backward_time_ns(self, op: Operator, rule: Rule, config: Config, interface: Interface) -> int: ...


@dataclass(frozen=True)
class BodyCosting:
    """The costs of a composite operator's body, by the composite operator's config.

    Attributes:
        composition: the composite operator with its body's operators and their rules.
        parts: the costs of the body's operators, by which tensors the body's gradients read.
        is_differentiated: whether a gradient comes back to an operand of the composite operator.
    """

    composition: Composition
    parts: PartCosts
    is_differentiated: bool

    def saved_bytes(self, config: Config) -> int:
        """Return the bytes that a loop saves of its trips for its backward pass, and of its constants.

        Tensors that no trip changes are saved outside of the loop, and a custom gradient saves nothing but its operands.
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
            if tensor.name in self.parts.saved:
                local = composition.input_layout(tensor, config).largest_local_shape(tensor.shape)
                each_trip += math.prod(local) * tensor.item_bytes
        return once + form.trips * each_trip

    def time_ns(self, config: Config) -> int:
        """Return the compute time of forward and backward pass; a custom gradient's is all backward."""
        return self._of_trips(self.parts.compute_time_ns, config)

    def backward_ns(self, config: Config) -> int:
        """Return the part of :meth:`time_ns` that is the backward pass."""
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
