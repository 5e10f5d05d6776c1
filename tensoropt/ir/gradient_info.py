"""Describe which tensors the backward pass of a graph reads, and which operands get a gradient."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .graph import Graph, Operator

Operand = tuple[str, int]
"""The name of an operator, and one of its input positions."""


@dataclass(frozen=True)
class Backward:
    """The operands that get a gradient in each backward pass, and the residuals that the operators' gradients read.

    Attributes:
        passes: by the name of each backward pass, "" in a body, the operands to which a gradient comes back in it.
        residual_operands: the operands that the operator's own gradient reads.
        residual_results: names of the tensors that their own producer's gradient reads.
        bodies: what the backward pass of a loop's body does, by the name of a loop that gets a gradient.
    """

    passes: Mapping[str, frozenset[Operand]] = field(hash=False)
    residual_operands: frozenset[Operand]
    residual_results: frozenset[str]
    bodies: Mapping[str, Backward] = field(default_factory=dict, hash=False)

    @cached_property
    def gradients(self) -> frozenset[Operand]:
        """The operands to which a gradient comes back in some pass."""
        return frozenset().union(*self.passes.values())

    def passes_to(self, operands: Collection[Operand]) -> frozenset[str]:
        """Return the names of the passes in which a gradient comes back to some of these operands."""
        return frozenset(name for name, gradients in self.passes.items() if not gradients.isdisjoint(operands))

    def positions(self, op: Operator) -> tuple[frozenset[int], ...]:
        """Return, for each pass that comes to an operator, the positions of the operands that get a gradient in it."""
        each = (frozenset(i for i, _ in op.operands if (op.name, i) in gradients) for gradients in self.passes.values())
        return tuple(filter(None, each))

    def reached(self, graph: Graph) -> frozenset[str]:
        """Return the names of the tensors that get a gradient: the losses, and the tensors of operands that get one."""
        losses = (backward_pass.loss.name for backward_pass in graph.backward_passes)
        operands = (graph.operators[name].operand(position).name for name, position in self.gradients)
        return frozenset((*losses, *operands))


NO_BACKWARD = Backward({}, frozenset(), frozenset())
