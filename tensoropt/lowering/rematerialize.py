"""Rematerialize operators: compute them again in the backward pass, instead of saving what they made for it.

The whole graph is built first, forward and backward. Then the operators of the backward pass are visited in order. Where one
reads what a rematerialized operator made (its result, something in between, or a copy that is cut out of it without
communication), it is made to read a second one: the TensorFlow operators that made it are copied, and before them those that
made what they need, each once. Tensors that are saved, or that have been regathered by then (:mod:`.regather`), are used as
they are.

A copy must not run before the backward pass comes to its reader, nor be merged with the operator that it is a copy of. So it
waits, by control dependencies, for the loss, and for the gradient that its reader waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from .schedule import CALLBACK, REMATERIALIZED, SHAPES, VIEWS, constant_operators, is_idle, needed_ahead

Replaced = Callable[[tf.Tensor], tf.Tensor | None]


@dataclass
class Rematerialization:
    """The operators of the graph that is being built that can be rematerialized.

    Attributes:
        losses: the operators that the backward pass begins with.
    """

    losses: list[tf.Operation] = field(default_factory=list)
    _marked: set[str] = field(default_factory=set)

    def mark(self, emitted: Sequence[tf.Operation]) -> None:
        """Mark TensorFlow operators of the forward pass as rematerializable."""
        self._marked.update(op.name for op in emitted)

    def rewire(self, operators: Sequence[tf.Operation], n_forward: int, replaced: Replaced) -> list[tf.Operation]:
        """Have the backward pass read copies of the rematerialized operators.

        Args:
            operators: all operators of the graph, in the order in which they were created; the backward pass begins at index
                ``n_forward``.
            replaced: returns the regathered tensor that replaces a tensor, or None.

        Returns:
            All operators in order, with the copies where they belong.
        """
        if not self._marked:
            return list(operators)
        return _Rewiring(operators, n_forward, self._marked, self.losses, replaced).ordered()


class _Rewiring:
    """One graph's operators, which are put in an order that includes the copies."""

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
        self.rematerialized = self._with_views(marked)
        self.copies: dict[str, list[tf.Tensor]] = {}

    def _with_views(self, marked: set[str]) -> set[str]:
        """Return the names of the marked operators and of the views of what they make, without constants."""
        rematerialized: set[str] = set()
        for op in self.operators[: self.n_forward]:
            if op.name not in self.constant and (
                op.name in marked or (op.type in VIEWS and any(tensor.op.name in rematerialized for tensor in op.inputs))
            ):
                rematerialized.add(op.name)
        return rematerialized

    def ordered(self) -> list[tf.Operation]:
        """Return all operators, each copy before its first reader, after having the readers read the copies."""
        found = list(self.operators[: self.n_forward])
        ahead = needed_ahead(self.operators, self.n_forward)
        for i, op in enumerate(self.operators[self.n_forward :], self.n_forward):
            if op.name not in ahead and op.type not in SHAPES and not is_idle(op):
                gates: list[tf.Operation] | None = None
                for position, tensor in enumerate(op.inputs):
                    if tensor.op.name in self.rematerialized and self.place[tensor.op.name] < self.n_forward:
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
        """Return the tensor that replaces a tensor for a reader, and emit copies of operators where that needs them.

        Args:
            before: the reader's index among the operators.
            gates: the operators that copies wait for.
            new: the operators emitted for the reader are appended to it.
        """
        replaced = self.replaced(tensor)
        if replaced is not None and self.place[replaced.op.name] < before:
            return replaced
        if tensor.op.name not in self.rematerialized:
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
        """Return the operands of an operator that must be rematerialized for its copy."""
        for tensor in op.inputs:
            replaced = self.replaced(tensor)
            if tensor.op.name in self.rematerialized and (replaced is None or self.place[replaced.op.name] >= before):
                yield tensor

    def _copy(self, op: tf.Operation, before: int, gates: list[tf.Operation], new: list[tf.Operation]) -> None:
        """Emit a copy of an operator and append it to ``new``; no copy is made of identities."""
        inputs = [self._operand(tensor, before) for tensor in op.inputs]
        if op.type in ("Identity", "IdentityN"):
            self.copies[op.name] = inputs
            return
        # A copy that reads one of the new copies comes after that one's gates anyway. A copy for an earlier reader doesn't
        # count: it is there already, so that reading it delays nothing.
        follows = any(tensor.op is each for tensor in inputs for each in new)
        with tf.control_dependencies([] if follows else gates):
            dtypes = [output.dtype for output in op.outputs]
            copy = op.graph.create_op(
                op.type, inputs, dtypes, attrs=dict(op.node_def.attr), name=f"{REMATERIALIZED}/{op.name}"
            )
        for output, before_it in zip(copy.outputs, op.outputs, strict=True):
            output.set_shape(before_it.shape)
        self.copies[op.name] = list(copy.outputs)
        new.append(copy)

    def _operand(self, tensor: tf.Tensor, before: int) -> tf.Tensor:
        """Return the tensor that an operator's copy reads in place of a tensor: regathered, copied, or the tensor itself."""
        replaced = self.replaced(tensor)
        if replaced is not None and self.place[replaced.op.name] < before:
            return replaced
        return self.copies[tensor.op.name][tensor.value_index] if tensor.op.name in self.rematerialized else tensor

    def _gates(self, reader: tf.Operation, place: int) -> list[tf.Operation]:
        """Return the operators of the backward pass that a reader waits for.

        If it waits for none, they are those that the nearest of its consumers, direct or indirect, waits for.

        Args:
            place: the reader's index among the operators.
        """
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
