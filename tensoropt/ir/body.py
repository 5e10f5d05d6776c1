"""The bodies of composite operators (loops and custom gradients), how an operator calls its body, and which are views."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from .graph import Graph, Operator, Tensor

LOOP, CUSTOM_GRADIENT = "Loop", "CustomGradient"
COMPOSITES = (LOOP, CUSTOM_GRADIENT)
VALUE_SHAPED = "ValueShaped"  # operators between which tensors pass whose shapes depend on values; its body is a Definition
BODY, FORM = "body", "form"  # attributes of composite operators


@dataclass(frozen=True, eq=False)
class Body:
    """A graph with inputs and outputs.

    Attributes:
        graph: the body's operators; the body's inputs are placeholders in it.
        inputs: the results of those placeholders.
        outputs: tensors of the graph; one tensor may be an output twice.
    """

    graph: Graph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators that the outputs need, in topological order, without the inputs' placeholders."""
        names = self.graph.ancestors(self.outputs) - {self.graph.producers[tensor.name].name for tensor in self.inputs}
        return tuple(op for op in self.graph.operators.values() if op.name in names)

    @cached_property
    def digest(self) -> str:
        """A hash that is equal for bodies that compute the same, whatever their tensors are called."""
        numbers = {tensor.name: (-1, i) for i, tensor in enumerate(self.inputs)}
        lines: list[object] = [(tensor.shape, tensor.dtype) for tensor in self.inputs]
        for index, op in enumerate(self.operators):
            attrs = sorted((key, str(value)) for key, value in op.attrs.items() if not key.startswith("_"))
            inputs = [tensor and numbers[tensor.name] for tensor in op.inputs]
            statics = [(i, value.tobytes()) for i, value in sorted(op.statics.items())]
            lines.append((op.type, attrs, inputs, statics, [(tensor.shape, tensor.dtype) for tensor in op.outputs]))
            numbers.update({tensor.name: (index, k) for k, tensor in enumerate(op.outputs)})
        lines.append([numbers[tensor.name] for tensor in self.outputs])
        return hashlib.sha256(repr(lines).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return self.digest


@dataclass(frozen=True, slots=True)
class Definition:
    """The body of an operator that isn't split, as TensorFlow's serialized graph definition.

    Attributes:
        inputs: the names of the placeholders of its operands.
        inside_bytes: the most that the tensors inside take, for memory.
        made_bytes: what the operators inside write, for time: with the longest extent of an operand where values decide.
        made_flops: what they do, likewise.
    """

    graph: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    inside_bytes: int
    made_bytes: int
    made_flops: int

    def __repr__(self) -> str:
        return hashlib.sha256(repr((self.graph, self.inputs, self.outputs)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class LoopForm:
    """The way in which a loop calls its body.

    The loop's operands are stacks, initial states and invariants, in this order. The body's inputs are the same, with one
    element of each stack in place of the stack. The body's outputs are items and the next states; the loop's results are the
    stacks of the items, and the final states. Items that are in a stack before the first trip are further operands.

    Attributes:
        trips: how often the body runs.
        reads: for each stack, the index of the element that each trip reads.
        writes: for each item, the index in its stack that each trip writes; where two trips write one index, the later
            stays.
        lengths: for each item, the length of its stack.
        starts: for each further operand, the item whose stack it is in, and its index there.
    """

    trips: int
    reads: tuple[tuple[int, ...], ...]
    n_states: int
    writes: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    starts: tuple[tuple[int, int], ...]

    @property
    def first_invariant(self) -> int:
        return len(self.reads) + self.n_states


@dataclass(frozen=True, slots=True)
class GradientForm:
    """The way in which a body computes the gradient of tensors that pass through an operator unchanged.

    The body's inputs are the gradients of the results, then operands; its outputs are gradients of operands.

    Attributes:
        passed: for each result, the index of the operand that passes through.
        reads: for each further input of the body, the index of the operand that it is.
        into: for each output of the body, the index of the operand whose gradient it is; gradients of one operand are added
            up.
    """

    passed: tuple[int, ...]
    reads: tuple[int, ...]
    into: tuple[int, ...]


ALIASES = frozenset("Reshape ExpandDims Squeeze Identity StopGradient Snapshot PreventGradient".split())


def viewed_operand(op: Operator, name: str) -> Tensor | None:
    """Return the operand of which an operator's result ``name`` is a view, or None if it isn't a view."""
    if op.type == CUSTOM_GRADIENT:
        passed = op.attrs[FORM].passed[[tensor.name for tensor in op.outputs].index(name)]
        return op.inputs[passed]
    return op.operands[0][1] if op.type in ALIASES else None
