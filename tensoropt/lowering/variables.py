"""All that a run would need to go on: parameters, other variables, and the optimizers' variables, with where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from ..ir.graph import Tensor
from ..reschedule.layout import Layout, Shape
from ..sharding.local_shapes import piece_of
from .local import uniform_shape


@dataclass(frozen=True, slots=True, eq=False)
class StateEntry:
    """One logical variable, held in pieces.

    Attributes:
        key: its name, once in a state and the same whatever the strategy: the variable operator's name, or for an
            optimizer's variable ``step/name``.
        shape: the whole, logical shape.
        dtype: TensorFlow's name of it.
        layout: where its pieces are; a rank's piece is ``piece_of(layout, shape, rank)`` of the whole.
        variables: the pieces of the ranks that this process builds, in the order of ``Engine.backend.ranks``. What is
            assigned to them is what the next step reads.
        parameter: of an optimizer's variable that belongs to one parameter (a slot), that parameter's key; else None.
        step: of an optimizer's variable, the name of the training step; None for variables of the model.
    """

    key: str
    shape: Shape
    dtype: str
    layout: Layout
    variables: tuple[tf.Variable, ...]
    parameter: str | None = None
    step: str | None = None


def local_variables(
    whole: np.ndarray, tensor: Tensor, layout: Layout, ranks: Sequence[int], name: str
) -> list[tf.Variable]:
    """Variables that hold each rank's piece of a whole value."""
    made = []
    for rank in ranks:
        piece = np.ascontiguousarray(whole[piece_of(layout, tensor.shape, rank)])
        piece = piece.reshape(layout.local_shape(tensor.shape, rank))
        shape = uniform_shape(layout, tensor.shape)
        made.append(tf.Variable(piece, dtype=tensor.dtype, shape=shape, trainable=False, name=name))
    return made
