"""Operators that are computed again in the backward pass, instead of keeping what they made for it.

The whole graph is built first, forward and backward. Then, in the order of the backward pass, each of its operators that
reads what such an operator made, be it the result, something in between, or a copy that is cut out of it without
communication, is made to read a second one: the operators of TensorFlow that made it are copied, and before them those that
made what they need, each once. What is kept, or was made again by then (:mod:`.regather`), they take as it is.

A copy must not run before the backward pass comes to its reader, nor be merged with the operator that it is a copy of. So it
waits, by control dependencies, for the loss, and for the gradient that its reader waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from .schedule import AGAIN, CALLBACK, SHAPES, VIEWS, constant_operators, is_idle, needed_ahead

Replaced = Callable[[tf.Tensor], tf.Tensor | None]


@dataclass
class Recomputing:
    """Which operators of the graph that is being built can be computed again.

    Attributes:
        losses: what the backward pass begins with.
    """

    losses: list[tf.Operation] = field(default_factory=list)
    _marked: set[str] = field(default_factory=set)

    def mark(self, emitted: Sequence[tf.Operation]) -> None:
        """These operators, of the forward pass, can be computed again."""
        self._marked.update(op.name for op in emitted)

    def rewire(self, operators: Sequence[tf.Operation], n_forward: int, replaced: Replaced) -> list[tf.Operation]:
        """Have the backward pass read what is computed again.

        Args:
            operators: all of the graph, as they were made; the backward pass begins at the ``n_forward``-th.
            replaced: what was made again in a tensor's place, if anything was.

        Returns:
            All operators, the new ones where they belong.
        """
        if not self._marked:
            return list(operators)
        return _Rewiring(operators, n_forward, self._marked, self.losses, replaced).ordered()


class _Rewiring:
    """One graph's operators, being ordered again."""

    def __init__(
        self,
        operators: Sequence[tf.Operation],
        n_forward: int,
        marked: set[str],
        losses: Sequence[tf.Operation],
        replaced: Replaced,
    ) -> None:
        self.operators, self.n_forward, self.losses, self.replaced = operators, n_forward, losses, replaced
        self.constant = constant_operators(operators)
        self.place = {op.name: i for i, op in enumerate(operators)}
        self.again = self._with_views(marked)
        self.copies: dict[str, list[tf.Tensor]] = {}

    def _with_views(self, marked: set[str]) -> set[str]:
        """Views of what is computed again are views of that."""
        again: set[str] = set()
        for op in self.operators[: self.n_forward]:
            if op.name not in self.constant and (
                op.name in marked or (op.type in VIEWS and any(tensor.op.name in again for tensor in op.inputs))
            ):
                again.add(op.name)
        return again

    def ordered(self) -> list[tf.Operation]:
        found = list(self.operators[: self.n_forward])
        ahead = needed_ahead(self.operators, self.n_forward)
        for i, op in enumerate(self.operators[self.n_forward :], self.n_forward):
            if op.name not in ahead and op.type not in SHAPES and not is_idle(op):
                gates: list[tf.Operation] | None = None
                for position, tensor in enumerate(op.inputs):
                    if tensor.op.name in self.again and self.place[tensor.op.name] < self.n_forward:
                        if gates is None:
                            gates = [*self.losses, *self._gates(op, i)]
                        new: list[tf.Operation] = []
                        op._update_input(position, self._copied(tensor, i, gates, new))
                        found += new
            found.append(op)
        return found

    def _copied(
        self, tensor: tf.Tensor, before: int, gates: list[tf.Operation], new: list[tf.Operation]
    ) -> tf.Tensor:
        """What takes a tensor's place, for a reader at a place; what that adds to the graph is appended to ``new``."""
        replaced = self.replaced(tensor)
        if replaced is not None and self.place[replaced.op.name] < before:
            return replaced
        if tensor.op.name not in self.again:
            return tensor
        pending = [tensor.op]
        while pending:
            op = pending[-1]
            needed = [each.op for each in self._needed(op, before) if each.op.name not in self.copies]
            if op.name not in self.copies and needed:
                pending += needed
                continue
            pending.pop()
            if op.name not in self.copies:
                self._copy(op, before, gates, new)
        return self.copies[tensor.op.name][tensor.value_index]

    def _needed(self, op: tf.Operation, before: int) -> Iterator[tf.Tensor]:
        """The operands of an operator that must be computed again for its copy."""
        for tensor in op.inputs:
            replaced = self.replaced(tensor)
            if tensor.op.name in self.again and (replaced is None or self.place[replaced.op.name] >= before):
                yield tensor

    def _copy(self, op: tf.Operation, before: int, gates: list[tf.Operation], new: list[tf.Operation]) -> None:
        inputs = [self._operand(tensor, before) for tensor in op.inputs]
        if op.type in ("Identity", "IdentityN"):
            self.copies[op.name] = inputs
            return
        # What was made again for a reader before is there already, and nothing to wait for.
        follows = any(tensor.op is each for tensor in inputs for each in new)
        with tf.control_dependencies([] if follows else gates):
            dtypes = [output.dtype for output in op.outputs]
            copy = op.graph.create_op(
                op.type, inputs, dtypes, attrs=dict(op.node_def.attr), name=f"{AGAIN}/{op.name}"
            )
        for output, before_it in zip(copy.outputs, op.outputs, strict=True):
            output.set_shape(before_it.shape)
        self.copies[op.name] = list(copy.outputs)
        new.append(copy)

    def _operand(self, tensor: tf.Tensor, before: int) -> tf.Tensor:
        replaced = self.replaced(tensor)
        if replaced is not None and self.place[replaced.op.name] < before:
            return replaced
        return self.copies[tensor.op.name][tensor.value_index] if tensor.op.name in self.again else tensor

    def _gates(self, reader: tf.Operation, place: int) -> list[tf.Operation]:
        """What a reader at a place waits for of the backward pass, or who takes its result does."""
        followers, seen = [reader], {reader.name}
        while followers:
            op = followers.pop(0)
            sources = [*(t.op for t in list(op.inputs)[op.type == CALLBACK :]), *op.control_inputs]
            gates = [
                each
                for each in sources
                if self.n_forward <= self.place.get(each.name, -1) < place and each.name not in self.constant
            ]
            if gates:
                return list(dict.fromkeys(gates))
            for output in op.outputs:
                for consumer in output.consumers():
                    if consumer.name not in seen and consumer.name in self.place:
                        seen.add(consumer.name)
                        followers.append(consumer)
        return []
