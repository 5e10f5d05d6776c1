"""What the backward pass of a graph reads, and which operands get a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .graph import Graph


@dataclass(frozen=True, slots=True)
class Backward:
    """Attributes:
    gradients: (operator, input position) of the operands to which a gradient comes back.
    kept_operands: (operator, input position) of the operands that the operator's own gradient reads.
    kept_results: names of the tensors that their own producer's gradient reads.
    bodies: by the name of a loop to which a gradient comes back, the same of its body.
    """

    gradients: frozenset[tuple[str, int]]
    kept_operands: frozenset[tuple[str, int]]
    kept_results: frozenset[str]
    bodies: Mapping[str, Backward] = field(default_factory=dict, hash=False)

    def reached(self, graph: Graph) -> frozenset[str]:
        """Names of the tensors that get a gradient: losses, and what operands with one are."""
        losses = (step.loss.name for step in graph.train_steps.values())
        operators = graph.operators
        taken = (
            tensor.name
            for name in dict.fromkeys(name for name, _ in self.gradients)
            for position, tensor in operators[name].operands
            if (name, position) in self.gradients
        )
        return frozenset((*losses, *taken))


NO_BACKWARD = Backward(frozenset(), frozenset(), frozenset())
