"""Build a body: copy its operators into a graph of their own, where shapes are inferred and constants folded again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from ...ir.body import Body
from ..gradient_function import copy_custom_gradient, copy_operator, is_custom_gradient
from ..stateful import Treatment, treatment_of
from ..tracing.conditionals import CONDITIONALS, copy_conditional
from ..tracing.loops import copy_while
from ..tracing.written import LOOPS
from ..writes import value_read

Own = Callable[[tf.Operation], "list[tf.Tensor] | None"]
OuterImporter = Any
"""The importer (:mod:`..importer`, which imports this package) of the graph that contains a composite operator."""


@dataclass
class Collector:
    """A copier of operators from a source graph into a new one.

    Attributes:
        outside: the importer of the graph that contains the composite operator.
        scope: a prefix of names, which tells random operators apart.
        own: returns the results of an operator that isn't simply copied, and None for all others.
        is_differentiated: whether gradients are taken of the copy.
        copies: the copies, by the name of the source's tensor.
    """

    outside: OuterImporter
    scope: str
    own: Own = lambda op: None
    is_differentiated: bool = True
    graph: tf.Graph = field(default_factory=tf.Graph)
    inputs: list[tf.Tensor] = field(default_factory=list)
    copies: dict[str, tf.Tensor] = field(default_factory=dict)
    _lines: dict[str, str] = field(default_factory=dict)

    def input(self, shape: Sequence[int], dtype: str) -> tf.Tensor:
        """Add an input to the body and return it."""
        with self.graph.as_default():
            self.inputs.append(tf.compat.v1.placeholder(dtype, shape))
        return self.inputs[-1]

    def constant(self, value: np.ndarray, dtype: tf.DType) -> tf.Tensor:
        with self.graph.as_default():
            return tf.constant(value, dtype)

    def copy(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the copies of tensors of the source, after copying all that they need and that isn't copied yet."""
        with self.graph.as_default(), self.graph.name_scope(self.scope):
            self._copy_missing(self.copies, tensors, self.own)
        return [self.copies[tensor.name] for tensor in tensors]

    def _copy_missing(self, copies: dict[str, tf.Tensor], tensors: Sequence[tf.Tensor], own: Own) -> None:
        for op in _missing_operators(tensors, copies, own):
            results = self._copy_one(op, copies)
            copies.update({tensor.name: result for tensor, result in zip(op.outputs, results, strict=True)})

    def _copy_one(self, op: tf.Operation, copies: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        inputs = [copies[tensor.name] for tensor in op.inputs]
        if op.inputs and treatment_of(op.type) is Treatment.READ:  # the first input is the variable's value
            return [value_read(op.type, inputs[0], inputs[1:], op.node_def.attr)]
        if op.type in LOOPS:
            return copy_while(op, inputs, self._copy_function)
        if op.type in CONDITIONALS:
            return copy_conditional(op, inputs, self._copy_function)
        if is_custom_gradient(op) and not self.is_differentiated:
            return inputs
        if is_custom_gradient(op):
            return copy_custom_gradient(op, inputs, lambda tensor: copies[tensor.name])
        results = copy_operator(op, inputs)
        if results:
            self._lines[results[0].op.name] = self.outside.line(op)
        return results

    def _copy_function(self, function: Any, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        copies = {tensor.name: argument for tensor, argument in zip(function.inputs, arguments, strict=True)}
        self._copy_missing(copies, function.outputs, lambda op: None)
        return [copies[tensor.name] for tensor in function.outputs]

    def body(self, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> Body:
        """Import the copied operators as a body.

        Args:
            inputs: the body's inputs, in order.
            outputs: tensors of the new graph.
        """
        with self.graph.as_default():
            ends = [tf.identity(tensor).op for tensor in outputs]
            starts = [tf.identity(tensor).op for tensor in inputs]
        imported = self.outside.import_body(self.graph, [*ends, *starts], self._lines)
        tensors = [imported.resolve(end.outputs[0].name) for end in (*starts, *ends)]
        return Body(imported, tuple(tensors[: len(starts)]), tuple(tensors[len(starts) :]))


def _missing_operators(tensors: Sequence[tf.Tensor], copies: dict[str, tf.Tensor], own: Own) -> list[tf.Operation]:
    """Return the operators that tensors need and that aren't copied yet, in order of creation.

    The results that ``own`` gives are entered into ``copies`` on the way.
    """
    pending, names = [tensor.op for tensor in tensors if tensor.name not in copies], set()
    while pending:
        op = pending.pop()
        if op.name in names or op.outputs[0].name in copies:
            continue
        results = own(op)
        if results is not None:
            copies.update({tensor.name: result for tensor, result in zip(op.outputs, results, strict=True)})
            continue
        names.add(op.name)
        pending += [tensor.op for tensor in op.inputs if tensor.name not in copies]
    return [op for op in tensors[0].graph.get_operations() if op.name in names] if names else []
