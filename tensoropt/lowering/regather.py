"""Regather copies in the backward pass, instead of saving them for it.

The results of an operator whose gradient reads such a copy pass through an ``IdentityN``. When their gradient comes, and
before the operator's own gradient is emitted, the copy is resharded once more. So the collectives of all ranks stay in one
order, in which each comes when the backward pass needs it. Since the gradient is an operand of the second resharding, it
can't run earlier. TensorFlow's gradient functions still read the first copy. Afterwards (:meth:`Regathering.rewire`) its
readers in the backward pass are made to read the second one, but only readers that come after the second resharding, so that
no cycle can arise.
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
class RegatheredCopy:
    """A resharded copy that is regathered in the backward pass.

    Attributes:
        path: the resharding's path.
        source: the values that were resharded.
        source_copy: the copy whose values ``source`` are, where that copy is regathered as well; else None.
        values: the copy, as made in the forward pass.
        operator: the operator that it was resharded for.
        regathered: the regathered copy; None until it has been emitted.
    """

    path: Path
    source: Values
    source_copy: RegatheredCopy | None
    values: Values
    operator: str
    regathered: Values | None = None


@dataclass
class Regathering:
    """The regathering of copies in the graph that is being built."""

    resharder: Resharder
    _regathered: dict[_Key, tf.Tensor] = field(default_factory=dict)

    def before_gradient(self, copies: Sequence[RegatheredCopy], results: Values) -> Values:
        """Return an operator's results behind a hook that regathers copies when the results' gradient comes.

        Args:
            copies: the copies that the operator's gradient reads.
        """

        def make(gradients: Values) -> None:
            for copy in copies:
                self._make(copy, gradients)

        return self.resharder.on_gradient(results, make)

    def _make(self, copy: RegatheredCopy, gradients: Values) -> None:
        """Emit the resharding of a copy once more, after that of the copy that it is made from, unless that is done."""
        if copy.regathered is not None:
            return
        source = copy.source
        if copy.source_copy is not None:
            self._make(copy.source_copy, gradients)
            assert copy.source_copy.regathered is not None
            source = copy.source_copy.regathered
        copy.regathered = self.resharder.regather(copy.path, source, copy.operator, gradients)
        for before, regathered in zip(copy.values, copy.regathered, strict=True):
            self._replace(before, regathered)

    def _replace(self, before: tf.Tensor, regathered: tf.Tensor) -> None:
        """Note the regathered tensor that replaces a tensor, and emit and note the replacements of the tensor's views."""
        self._regathered[_key(before)] = regathered
        for op in before.consumers():
            if op.type not in VIEWS:
                continue
            if op.type in ("Identity", "IdentityN"):
                for place, tensor in enumerate(op.inputs):
                    if tensor is before or _key(tensor) == _key(before):
                        self._replace(op.outputs[place], regathered)
                continue
            inputs = [regathered, *op.inputs[1:]]
            dtypes = [output.dtype for output in op.outputs]
            view = regathered.graph.create_op(op.type, inputs, dtypes, attrs=dict(op.node_def.attr), name=op.type)
            view.outputs[0].set_shape(op.outputs[0].shape)
            self._replace(op.outputs[0], view.outputs[0])

    def replaced(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Return the regathered tensor that replaces a tensor, or None."""
        return self._regathered.get(_key(tensor))

    def rewire(self, operators: Sequence[tf.Operation], n_forward: int) -> None:
        """Have the backward pass read the regathered copies.

        Args:
            operators: all operators of the graph, in the order in which they were created; the backward pass begins at index
                ``n_forward``.
        """
        if not self._regathered:
            return
        place = {op.name: i for i, op in enumerate(operators)}
        ahead = needed_ahead(operators, n_forward)
        for i, op in enumerate(operators[n_forward:], n_forward):
            if op.name in ahead or op.type in SHAPES:
                continue
            for position, tensor in enumerate(op.inputs):
                regathered = self._regathered.get(_key(tensor))
                if regathered is not None and place[regathered.op.name] < i:
                    op._update_input(position, regathered)


def _key(tensor: tf.Tensor) -> _Key:
    """Return a tensor's operator and index among the operator's results."""
    return tensor.op.name, tensor.value_index
