"""Find what a captured function does with text and lookup tables: it runs on a batch before the step that takes the batch.

Text, tables, and shapes that follow from text can't be sharded, and no gradient goes through them. So the operators behind
them are taken out of the model. What they give to the model's operators is fed instead of what the user gives. Each rank
runs them on its share of a batch, hence they must compute each sample by itself (:mod:`.by_sample`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from ...common.errors import InputError
from ...common.reach import reached
from ..gradient_function import copy_operator
from .by_sample import TABLE_TYPES, first_that_mixes
from .effects import is_of_text
from .flatten import Flattener


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """The operators that run on a batch before the step.

    Attributes:
        placeholders: those of what the user gives.
        operators: the operators in order, checks of values included.
        results: the tensors that are fed to the model, given ones included.
        tables: the handles of lookup tables, by the names of their placeholders.
    """

    placeholders: tuple[tf.Tensor, ...]
    operators: tuple[tf.Operation, ...]
    results: tuple[tf.Tensor, ...]
    tables: Mapping[str, Any]

    def __call__(self, leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return what is fed to the model for a batch of known shapes: to bind them would take .1 to .3 ms."""
        return self._function.inference_fn.call_flat(*leaves, *self._function.captured_inputs)

    @cached_property
    def _function(self) -> Any:
        """The function on any number of samples, with the numbers that the model's own batch size has led to."""
        signature = [tf.TensorSpec([None, *t.shape[1:]] if t.shape.rank else [], t.dtype) for t in self.placeholders]
        # Not called as a tf.function, which warns where a program has several of these.
        return tf.function(self.emit, autograph=False).get_concrete_function(*signature)

    @property
    def result_of_one_size(self) -> tf.Tensor | None:
        """A result that this gives for batches of one size alone; None if there is none."""
        try:
            results = self._function.structured_outputs
        except ValueError:  # shapes don't fit together
            return self.results[-1]
        pairs = zip(self.results, results, strict=True)
        return next((one for one, other in pairs if other.shape.rank and other.shape[0] is not None), None)

    def emit(self, *leaves: tf.Tensor) -> list[tf.Tensor]:
        """Add the operators to the graph that is built; return what is fed to the model."""
        tensors: dict[str, Any] = dict(self.tables)
        tensors.update(zip((placeholder.name for placeholder in self.placeholders), leaves, strict=True))
        for op in self.operators:
            results = copy_operator(op, [tensors[tensor.name] for tensor in op.inputs])
            tensors.update({tensor.name: result for tensor, result in zip(op.outputs, results, strict=True)})
        return [tensors[tensor.name] for tensor in self.results]


def find_preprocessing(
    flat: Flattener, placeholders: Sequence[tf.Tensor], results: Sequence[tf.Tensor], writes: Iterable[tf.Operation]
) -> Preprocessing | None:
    """Return what a captured function does with text and tables; None if it does nothing with them.

    Args:
        placeholders: those of the function's arguments.
        results: the function's results, and what its effects on the world need.
        writes: the operations by which it updates variables.

    Raises:
        InputError: it works on text and on what the model has computed together, gives text or as many elements as the text
            has, or computes a sample from others.
    """
    ancestor_names = ancestors([*(tensor.op for tensor in results), *writes])
    ops = [op for op in flat.graph.get_operations() if op.name in ancestor_names]
    of_text = {op.name for op in ops if is_of_text(op)}
    if not of_text:
        return None
    sources = [*placeholders, *(flat.graph.get_tensor_by_name(name) for name in flat.tables)]
    of_sources = reached([tensor.op for tensor in sources], lambda op: [user for t in op.outputs for user in t.consumers()])
    live = {op.name for op in of_sources}
    inside = _inside(ops, of_text, live)
    for op in ops:
        if op.name in inside and not _is_pure(op):
            culprit = next(user for user in ops if user.name in inside and op.name in ancestors([user]) and _is_shown(user))
            raise InputError(
                f"{_where(flat, culprit)} works on text, or on as many elements as a text has, and also on what the model "
                f"computes ({op.type} '{op.name}'), which can't be split over devices; do with text only what comes before "
                "the model's variables, and let each text give equally many elements, as by "
                "TextVectorization(output_sequence_length=...)"
            )
    outside = [tensor for op in ops if op.name not in inside for tensor in op.inputs]
    passed = {tensor.name for tensor in [*outside, *results] if tensor.op.name in inside and tensor.op.name in live}
    unused = {tensor.name for tensor in placeholders if tensor.op.name not in ancestor_names and tensor.dtype != tf.string}
    outside_names = {tensor.name for tensor in outside} | {tensor.name for tensor in results}
    fed = [tensor for tensor in placeholders if tensor.op.name not in inside and tensor.name in outside_names | unused]
    fed += [tensor for op in ops for tensor in op.outputs if tensor.name in passed]
    for tensor in fed:
        if tensor.dtype == tf.string or not tensor.shape.is_fully_defined():
            kind = "text" if tensor.dtype == tf.string else f"a tensor of shape {tensor.shape}, as much as a text has,"
            raise InputError(
                f"{_where(flat, tensor.op)} gives {kind} as a result of the model, which can't be split over devices; let "
                "the model give numbers of known shape, and turn them into others after predict"
            )
    run = [op for op in ops if op.name in inside and op.type != "Placeholder"]
    mixing = first_that_mixes(run, placeholders, [tensor for tensor in fed if tensor.name in passed], live, flat.by_sample)
    if mixing is not None:
        raise InputError(
            f"{_where(flat, mixing)} works on text or lookup tables, and isn't known to compute each sample by itself, "
            "as it must where each rank reads its share of a batch; do it before the model, as by dataset.map(lambda x, y: "
            "(layer(x), y)), and build the model for what it gives"
        )
    preprocessing = Preprocessing(tuple(placeholders), _with_checks(flat, run, of_text), tuple(fed), flat.tables)
    if (sized := preprocessing.result_of_one_size) is not None:
        raise InputError(
            f"{_where(flat, sized.op)} works on text or lookup tables, and for {placeholders[0].shape[0]} samples "
            "alone; take tf.shape(x)[0] instead of x.shape[0] there, so that each rank can do it for its share of a batch"
        )
    return preprocessing


def _is_shown(op: tf.Operation) -> bool:
    return not op.name.endswith("/Read/ReadVariableOp") and op.type not in ("Const", "VarHandleOp", "ReadVariableOp")


def _is_pure(op: tf.Operation) -> bool:
    """Return whether an operator's results follow from its inputs alone, also outside of the model."""
    if op.type in (*TABLE_TYPES, "Placeholder"):
        return True
    return not op.op_def.is_stateful and not any(attr.type in ("func", "list(func)") for attr in op.op_def.attr)


def _inside(ops: Sequence[tf.Operation], of_text: set[str], live: set[str]) -> set[str]:
    """Return the operators that work on text or on shapes that follow from it, and all that these need."""
    inside: set[str] = set()
    while True:
        more = [
            op
            for op in ops
            if op.name not in inside
            and (op.name in of_text or any(not t.shape.is_fully_defined() and t.op.name in inside & live for t in op.inputs))
        ]
        if not more:
            return inside
        inside |= ancestors(more)


def ancestors(ops: Iterable[tf.Operation]) -> set[str]:
    """Return the names of operators and of all that they compute their results from."""
    return {op.name for op in reached(ops, lambda op: [tensor.op for tensor in op.inputs])}


def _with_checks(flat: Flattener, run: Sequence[tf.Operation], of_text: set[str]) -> tuple[tf.Operation, ...]:
    """Return the operators and, where they have checks of values, as for words that no table has, these too."""
    names = {op.name for op in run}
    order = {op.name: op for op in flat.graph.get_operations()}
    for check in flat.checks:
        behind = ancestors(tensor.op for tensor in check.inputs)
        if behind & of_text & names and all(_is_pure(order[name]) for name in behind):
            names |= behind | {check.name}
    return tuple(op for op in order.values() if op.name in names and op.type != "Placeholder")


def _where(flat: Flattener, op: tf.Operation) -> str:
    return flat.layer_of(op.name) or f"{op.type} '{op.name}' ({flat.lines.get(op.name, 'of the model')})"
