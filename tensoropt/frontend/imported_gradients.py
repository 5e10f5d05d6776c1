"""Import gradients that the recorded graph computes with, and say where TensorFlow's gradients go in the imported graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import tensorflow as tf

from ..common.errors import InputError
from ..ir.graph import GRADIENT, Differentiated, Gradients, Operator, Tensor
from .connected import differentiated
from .gradient_function import GradientFunction
from .recorded_graph import RecordedGradients, RecordedStep


@dataclass
class ImportedGradients:
    """The gradients of one recorded graph.

    Attributes:
        gradients: those that the graph computes with, by name.
        custom: the traced gradient functions of custom gradients, by operator name.
        aliases: recorded tensor names that mean another tensor.
        line: returns the line of the user's code that made an operator.
    """

    recorded: tf.Graph
    gradients: Mapping[str, RecordedGradients]
    custom: Mapping[str, GradientFunction]
    aliases: Mapping[str, str]
    line: Callable[[tf.Operation], str]
    _of: dict[str, tuple[str, str]] = field(default_factory=dict)
    _sources: dict[str, dict[str, str]] = field(default_factory=dict)
    _passed: dict[tuple[str, tuple[str, ...]], Differentiated] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for gradients in self.gradients.values():
            pairs = zip(gradients.results, gradients.variables, strict=True)
            self._of.update((gradient.op.name, (gradients.name, variable)) for gradient, variable in pairs)

    def __contains__(self, name: str) -> bool:
        """Return whether an operator of this name stands for a gradient."""
        return name in self._of

    def operator(self, op: tf.Operation, result: Tensor) -> Operator:
        """Return the imported operator of a gradient, given the one that stands for it."""
        name, variable = self._of[op.name]
        attributes = {"of": name, "at": self._sources_of(self.gradients[name])[variable]}
        return Operator(op.name, GRADIENT, (), (result,), {}, attributes, variable, source=self.line(op))

    def imported(self, operand: Callable[[tf.Tensor], Tensor]) -> dict[str, Gradients]:
        """Return the gradients in terms of the imported graph; ``operand`` returns a tensor's counterpart there."""
        return {
            name: Gradients(name, operand(gradients.loss), tuple(self._sources_of(gradients).values()))
            for name, gradients in self.gradients.items()
        }

    def differentiated(
        self, steps: Iterable[RecordedStep], operators: Mapping[str, Operator], tensors: Mapping[str, Tensor]
    ) -> Differentiated | None:
        """Return the imported tensors and operands to which TensorFlow gives a gradient; None if none are taken.

        Operators that are imported as another type are left out.
        """
        losses = [(step.loss, step.variables) for step in steps]
        losses += [(gradients.loss, gradients.variables) for gradients in self.gradients.values()]
        reaches = [self._connected(loss, variables) for loss, variables in losses if loss is not None]
        if not reaches:
            return None
        reached = (name for reach in reaches for name in reach.tensors if not self._is_read_late(name, reach))
        names = {self.aliases.get(name, name) for name in reached}
        operands: dict[str, frozenset[int]] = {}
        for reach in reaches:
            for name, indices in reach.operands.items():
                imported = operators.get(name)
                if imported is None or imported.updates is not None:
                    continue
                if imported.type == self.recorded.get_operation_by_name(name).type:
                    operands[name] = operands.get(name, frozenset()) | indices
        return Differentiated(frozenset(names & tensors.keys()), operands)

    def _connected(self, loss: tf.Tensor, variables: tuple[str, ...]) -> Differentiated:
        """Return the recorded tensors and operands to which TensorFlow gives a gradient of a loss."""
        key = loss.name, variables
        if key not in self._passed:
            self._passed[key] = differentiated(loss, variables, self.custom)
        return self._passed[key]

    def _sources_of(self, gradients: RecordedGradients) -> dict[str, str]:
        """Return, for each variable of gradients, the operator at whose value they are taken: a read after an update, say.

        Raises:
            InputError: they are taken at values from before and after an update.
        """
        if gradients.name in self._sources:
            return self._sources[gradients.name]
        reach, sources = self._connected(gradients.loss, gradients.variables), self._sources.setdefault(gradients.name, {})
        for variable in gradients.variables:
            handle = self.recorded.get_operation_by_name(variable).outputs[0]
            readers = [op for op in handle.consumers() if op.name in reach.operands]
            late = [op.outputs[0].name for op in readers if op.control_inputs]
            names = {self.recorded.get_tensor_by_name(self.aliases.get(name, name)).op.name for name in late}
            names |= {variable} if len(late) < len(readers) else set()
            if len(names) > 1:
                raise InputError(
                    f"gradients of {gradients.loss.op.name} ({self.line(gradients.loss.op)}) are taken with respect to "
                    f"'{variable}' as it was before and as it is after an update; take them by two tapes, one for each"
                )
            sources[variable] = names.pop() if names else variable
        return sources

    def _is_read_late(self, name: str, reach: Differentiated) -> bool:
        """Return whether a tensor is a variable's handle, of which gradients are taken at values read after an update."""
        tensor = self.recorded.get_tensor_by_name(name)
        if tensor.op.type != "VarHandleOp":
            return False
        readers = [op for op in tensor.consumers() if op.name in reach.operands]
        return bool(readers) and all(op.control_inputs for op in readers)
