"""Describe which tensors the backward pass of a graph reads, and which operands get a gradient."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .graph import SOURCES, Graph


@dataclass(frozen=True, slots=True)
class Backward:
    """The operands that get a gradient, and the residuals that the operators' gradients read.

    Attributes:
        gradients: (operator, input position) of the operands to which a gradient comes back.
        residual_operands: (operator, input position) of the operands that the operator's own gradient reads.
        residual_results: names of the tensors that their own producer's gradient reads.
        bodies: what the backward pass of a loop's body does, by the name of a loop that gets a gradient.
    """

    gradients: frozenset[tuple[str, int]]
    residual_operands: frozenset[tuple[str, int]]
    residual_results: frozenset[str]
    bodies: Mapping[str, Backward] = field(default_factory=dict, hash=False)

    def reached(self, graph: Graph) -> frozenset[str]:
        """Return the names of the tensors that get a gradient: the losses, and the tensors of operands that get one."""
        losses = (backward_pass.loss.name for backward_pass in graph.backward_passes)
        operators = graph.operators
        operands = (
            tensor.name
            for name in dict.fromkeys(name for name, _ in self.gradients)
            for position, tensor in operators[name].operands
            if (name, position) in self.gradients
        )
        return frozenset((*losses, *operands))


NO_BACKWARD = Backward(frozenset(), frozenset(), frozenset())


def reached_from(graph: Graph, starts: Collection[str]) -> set[str]:
    """Return the names of the tensors that depend on the starts, and of the starts.

    Of the gradients at these some lead nowhere, since an operator has none; they are charged like others.
    """
    reached = set(starts)
    for op in graph.operators.values():
        if op.type not in SOURCES and any(tensor.name in reached for _, tensor in op.operands):
            reached.update(tensor.name for tensor in op.outputs)
    return reached
