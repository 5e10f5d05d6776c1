"""Copies that are made again in the backward pass, instead of being kept for it.

An operator whose gradient reads such a copy has its results pass through an ``IdentityN``: when their gradient comes, and
before the operator's own gradient is emitted, the copy is resharded once more. So the collectives of all ranks stay in one
order, in which each comes when the backward pass needs it; and since the gradient is an operand of the second resharding, it
can't run earlier. TensorFlow's gradient functions then still read the first copy: afterwards those of its readers in the
backward pass that come after the second resharding are made to read that (:meth:`Remaking.rewire`). They alone, so that no
cycle can arise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from ..reschedule.path import Path
from .operators import Values
from .resharding.reshard import Resharder
from .schedule import SHAPES, VIEWS, needed_ahead

_Key = tuple[str, int]


@dataclass(eq=False)
class RemadeCopy:
    """A resharded copy that isn't kept.

    Attributes:
        path: of the resharding.
        source: what was resharded; ``source_copy`` where that is such a copy as well.
        values: the copy.
        operator: for which it was resharded.
        again: the copy that was made again; None before.
    """

    path: Path
    source: Values
    source_copy: RemadeCopy | None
    values: Values
    operator: str
    again: Values | None = None


@dataclass
class Remaking:
    """Makes copies again in the graph that is being built."""

    resharder: Resharder
    _again: dict[_Key, tf.Tensor] = field(default_factory=dict)

    def before_gradient(self, copies: Sequence[RemadeCopy], results: Values) -> Values:
        """Results of an operator whose gradient reads these copies: they will be made again when a gradient comes."""

        def make(gradients: Values) -> None:
            for copy in copies:
                self._make(copy, gradients)

        return self.resharder.on_gradient(results, make)

    def _make(self, copy: RemadeCopy, gradients: Values) -> None:
        if copy.again is not None:
            return
        source = copy.source
        if copy.source_copy is not None:
            self._make(copy.source_copy, gradients)
            assert copy.source_copy.again is not None
            source = copy.source_copy.again
        copy.again = self.resharder.reshard_again(copy.path, source, copy.operator, gradients)
        for before, again in zip(copy.values, copy.again, strict=True):
            self._replace(before, again)

    def _replace(self, before: tf.Tensor, again: tf.Tensor) -> None:
        """Note what takes a tensor's place, and that of its views."""
        self._again[_key(before)] = again
        for op in before.consumers():
            if op.type not in VIEWS:
                continue
            if op.type in ("Identity", "IdentityN"):
                for place, tensor in enumerate(op.inputs):
                    if tensor is before or _key(tensor) == _key(before):
                        self._replace(op.outputs[place], again)
                continue
            inputs = [again, *op.inputs[1:]]
            dtypes = [output.dtype for output in op.outputs]
            view = again.graph.create_op(op.type, inputs, dtypes, attrs=dict(op.node_def.attr), name=op.type)
            view.outputs[0].set_shape(op.outputs[0].shape)
            self._replace(op.outputs[0], view.outputs[0])

    def replaced(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """What was made again in a tensor's place, if anything was."""
        return self._again.get(_key(tensor))

    def rewire(self, operators: Sequence[tf.Operation], n_forward: int) -> None:
        """Have the backward pass read what was made again.

        Args:
            operators: all of the graph, as they were made; the backward pass begins at the ``n_forward``-th.
        """
        if not self._again:
            return
        place = {op.name: i for i, op in enumerate(operators)}
        ahead = needed_ahead(operators, n_forward)
        for i, op in enumerate(operators[n_forward:], n_forward):
            if op.name in ahead or op.type in SHAPES:
                continue
            for position, tensor in enumerate(op.inputs):
                again = self._again.get(_key(tensor))
                if again is not None and place[again.op.name] < i:
                    op._update_input(position, again)


def _key(tensor: tf.Tensor) -> _Key:
    return tensor.op.name, tensor.value_index
