"""Find operators with an effect on the world, such as prints and assertions, and the values that they need.

They run after the program that has them, on the global values that it returns for them beside its results. Thus they run as
often as on one device, also where the program runs in micro-batches, in stages, or computes something again. Texts are made
of the values only then. An effect in a branch needs the branch's condition, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import tensorflow as tf

from ...common.errors import InputError
from ...common.reach import reached
from ...common.source_lines import source_line
from ..gradient_function import copy_operator
from ..stateful import TABLE_TYPES, Treatment, treatment_of
from .conditionals import CONDITIONALS
from .written import CALLS, functions_of

CHECKS = ("Assert", "CheckNumerics", "CheckNumericsV2")
MOST_SHOWN = 100
"""An assertion that fails shows tensors with at most this many elements."""


@dataclass(frozen=True, eq=False)
class Effect:
    """An operator with an effect on the world.

    Attributes:
        where: the operator and its line, for messages.
        is_check: whether it only checks values, as every rank does.
        needs: the tensors that it needs, in the graph of the captured function.
        conditions: it has the effect only if needed tensors, by their positions, have these truth values.
        emit: emits it into the default graph, given the values of what it needs.
    """

    where: str
    is_check: bool
    needs: tuple[tf.Tensor, ...]
    conditions: Mapping[int, bool]
    emit: Callable[[Sequence[tf.Tensor]], None]

    def needed_in(self, graph: tf.Graph) -> list[tf.Tensor]:
        """Return the tensors of a graph that it needs."""
        return [tensor for tensor in self.needs if tensor.graph is graph]

    def under(self, condition: tf.Tensor, needs: Sequence[tf.Tensor]) -> Effect:
        """Return the effect where a condition holds.

        Args:
            needs: what the effect needs, as tensors of the graph that has the condition.
        """
        conditions = {0: True, **{position + 1: value for position, value in self.conditions.items()}}
        needs = (condition, *needs)
        return replace(self, needs=needs, conditions=conditions, emit=lambda values: self.emit(values[1:]))

    def is_out(self, values: Sequence[Any]) -> bool:
        """Return whether it has no effect for these values of what it needs, of which unknown ones are None."""
        return any(values[at] is not None and bool(values[at]) is not value for at, value in self.conditions.items())

    @cached_property
    def _function(self) -> Any:
        @tf.function(autograph=False)
        def function(*values: tf.Tensor) -> None:
            self.emit(values)

        return function.get_concrete_function(*(tf.TensorSpec(need.shape, need.dtype) for need in self.needs))

    def __call__(self, values: Sequence[Any]) -> None:
        """Have the effect, for these values of what it needs."""
        self._function(*(tf.constant(value, need.dtype) for value, need in zip(values, self.needs, strict=True)))


def has_effects(graph: Any) -> bool:
    """Return whether a traced function, or one that it calls, has operators with an effect on the world."""
    functions = (inner for op in graph.get_operations() for inner, _ in functions_of(op))
    own = (treatment_of(op.type) is Treatment.EFFECT for op in graph.get_operations())
    return any(own) or any(map(has_effects, functions))


def is_of_text(op: tf.Operation) -> bool:
    """Return whether an operator works on text or lookup tables."""
    return op.type in TABLE_TYPES or any(tensor.dtype == tf.string for tensor in (*op.inputs, *op.outputs))


def is_check_of_text(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> bool:
    """Return whether an operator checks what follows from text or lookup tables: it runs before the step, with those."""
    return op.type == "Assert" and any(map(is_of_text, reached([inputs[0].op], lambda op: [t.op for t in op.inputs])))


def takes_resource(op: tf.Operation) -> bool:
    """Return whether an operator may take a resource that is no variable: a table, or what a summary is written to."""
    return op.type in (*TABLE_TYPES, *CALLS, *CONDITIONALS) or treatment_of(op.type) is Treatment.EFFECT


def effect_of(op: tf.Operation, inputs: Sequence[tf.Tensor], resources: Mapping[str, Any]) -> Effect:
    """Return an operator's effect.

    Args:
        inputs: the counterparts of its inputs in the graph that is built.
        resources: those that the function uses, by the names of their placeholders in that graph.

    Raises:
        InputError: it needs something that is no number.
    """
    where = f"{op.type} '{op.name}' ({source_line(op)})"
    if op.type == "Assert":
        inputs = [inputs[0], *map(_shown, inputs[1:])]
    elif op.type in CHECKS:
        inputs = [tf.reduce_all(tf.math.is_finite(inputs[0]))]
    inputs = list(map(_outermost, inputs))
    texts, needs = _behind_texts(inputs, resources, where)
    by_itself = {needs.index(inputs[0]): False} if op.type in CHECKS else {}

    def emit(values: Sequence[tf.Tensor]) -> None:
        by_key = {_key(tensor): value for tensor, value in zip(needs, values, strict=True)}

        def value(tensor: tf.Tensor) -> Any:
            return resources[tensor.name] if tensor.dtype == tf.resource else by_key[_key(tensor)]

        for maker in texts:
            results = copy_operator(maker, [value(_outermost(tensor)) for tensor in maker.inputs])
            by_key.update((_key(tensor), result) for tensor, result in zip(maker.outputs, results, strict=True))
        if op.type in CHECKS[1:]:
            message = op.get_attr("message").decode()
            tf.raw_ops.Assert(condition=value(inputs[0]), data=[f"{message} : Tensor had Inf or NaN values"])
        else:
            copy_operator(op, list(map(value, inputs)))

    return Effect(where, op.type in CHECKS, tuple(needs), by_itself, emit)


def _shown(tensor: tf.Tensor) -> tf.Tensor:
    """Return what an assertion that fails shows of a tensor: a text in place of a large one, which would be gathered."""
    shape = tensor.shape
    if tensor.dtype == tf.string or (shape.is_fully_defined() and prod(shape) <= MOST_SHOWN):
        return tensor
    return tf.constant(f"(a tensor of shape {shape})")


def _behind_texts(
    inputs: Sequence[tf.Tensor], resources: Mapping[str, Any], where: str
) -> tuple[list[tf.Operation], list[tf.Tensor]]:
    """Return the operators that make texts for an effect, in their order, and the tensors that these and the effect need."""
    texts: dict[Any, tf.Operation] = {}
    needs: dict[Any, tf.Tensor] = {}

    def visit(tensor: tf.Tensor) -> None:
        op = tensor.op
        if tensor.dtype == tf.string and not op.op_def.is_stateful and op.type != "Placeholder":
            for operand in op.inputs:
                visit(_outermost(operand))
            texts[_key(tensor)] = op
        elif tensor.dtype == tf.resource and tensor.name in resources:
            return
        elif tensor.dtype in (tf.string, tf.resource, tf.variant):
            raise InputError(
                f"{where} can't be recorded: it has an effect on the world, and needs a {tensor.dtype.name} that isn't "
                f"known outside of the step ({op.type} '{op.name}'); return from the step the numbers that it needs, and do "
                "it outside, as in a callback"
            )
        elif not tensor.shape.is_fully_defined():
            raise InputError(
                f"{where} can't be recorded: it has an effect on the world, and needs {op.type} '{op.name}' of shape "
                f"{tensor.shape}, as much as values decide; give it a reduced value, or one of known shape"
            )
        else:
            needs[_key(tensor)] = tensor

    for tensor in inputs:
        visit(tensor)
    return list(texts.values()), list(needs.values())


def _key(tensor: tf.Tensor) -> tuple[int, str]:
    return id(tensor.graph), tensor.name


def _outermost(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor outside that a tensor of a function stands for; others as they are."""
    while tensor.op.type == "Placeholder":
        outside = next((outer for outer, inner in getattr(tensor.graph, "captures", ()) if inner is tensor), None)
        if outside is None or not hasattr(outside, "op"):
            return tensor
        tensor = outside
    return tensor
