"""Find dilated convolutions: on CPUs TensorFlow writes each as three operators, which become one in the imported graph.

``tf.nn.convolution`` with dilations d pads its operand, moves every d-th row and column into a batch of their own
(``SpaceToBatchND``), slides plain windows over these, and moves the results back, less what was padded to make d divide the
rows (``BatchToSpaceND``). In between the batch is not a batch that could be split. As one convolution it has the rule of all
convolutions: batch, channels, height and width. :mod:`..lowering.dilated_convolution` turns it into three operators
again, on a rank's shard.

In rows of the operand the results are those of windows with gaps over *paddings less crops* rows of padding. Where more is
cropped than was padded, or an operator has other strides, formats or consumers, the three operators are imported as they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from ..ir.graph import Operator, Tensor
from .attributes import attributes_of
from .control_flow.body_builder import OuterImporter

_FORMATS = {"Conv2D": "NHWC", "DepthwiseConv2dNative": "NHWC", "Conv3D": "NDHWC"}
Value = Callable[[tf.Tensor], "np.ndarray | None"]


@dataclass(frozen=True, eq=False)
class Dilated:
    """One dilated convolution.

    Attributes:
        batches, convolution, back: the three operators.
        rates: the dilation of each spatial dimension.
        paddings: for each spatial dimension the rows of padding before and after, in rows of the operand.
    """

    batches: tf.Operation
    convolution: tf.Operation
    back: tf.Operation
    rates: tuple[int, ...]
    paddings: tuple[tuple[int, int], ...]

    def operator(self, importer: OuterImporter) -> Operator:
        """Return the convolution with gaps that gives the result of the last of the three operators."""
        op, result = self.convolution, self.back.outputs[0]
        attributes = attributes_of(op) | {"dilations": [1, *self.rates, 1]}
        if any(sum(pair) for pair in self.paddings):
            attributes["padding"] = "SAME" if self._is_same else "EXPLICIT"
        if attributes["padding"] == "EXPLICIT":
            attributes["explicit_paddings"] = [0, 0, *(rows for pair in self.paddings for rows in pair), 0, 0]
        inputs = importer.operand(self.batches.inputs[0]), importer.operand(op.inputs[1])
        output = Tensor(result.name, tuple(result.shape.as_list()), result.dtype.base_dtype.name)
        return Operator(self.back.name, op.type, inputs, (output,), attrs=attributes, source=importer.line(op))

    @property
    def _is_same(self) -> bool:
        sizes = self.convolution.inputs[1].shape.as_list()
        spans = [(size - 1) * rate for size, rate in zip(sizes, self.rates, strict=False)]
        return all(pair == (span // 2, span - span // 2) for pair, span in zip(self.paddings, spans, strict=True))

    @property
    def can_be_one(self) -> bool:
        """Return whether attributes of one convolution of TensorFlow can express these dilations and paddings."""
        is_written = self._is_same or not any(map(sum, self.paddings)) or self.convolution.type != "Conv3D"
        return is_written and min(map(min, self.paddings)) >= 0


def find_dilated(ops: Iterable[tf.Operation], value: Value, apart: Iterable[tf.Operation]) -> dict[str, Dilated]:
    """Return the dilated convolutions among operators, by the name of the last of the three.

    Args:
        value: returns the value of a tensor that follows from constants and shapes alone, else None.
        apart: operators that must be imported as they are.
    """
    names = {op.name for op in apart}
    candidates = (_dilated(op, value) for op in ops if op.type == "BatchToSpaceND")
    return {conv.back.name: conv for conv in candidates if conv and not {conv.batches.name, conv.convolution.name} & names}


def _dilated(back: tf.Operation, value: Value) -> Dilated | None:
    convolution = back.inputs[0].op
    batches = convolution.inputs[0].op if convolution.type in _FORMATS else back
    ops = batches, convolution, back
    if batches.type != "SpaceToBatchND" or any(op.control_inputs for op in ops):
        return None
    if any(len(op.outputs[0].consumers()) != 1 for op in ops[:2]) or not _is_plain(convolution):
        return None
    shapes = [value(tensor) for tensor in (*batches.inputs[1:], *back.inputs[1:])]
    if any(shape is None for shape in shapes) or not back.outputs[0].shape.is_fully_defined():
        return None
    block, paddings, same_block, crops = (np.asarray(shape) for shape in shapes)
    n_spatial = len(_FORMATS[convolution.type]) - 2
    if len(block) > n_spatial or not np.array_equal(block, same_block):
        return None
    missing = n_spatial - len(block)
    rows = np.concatenate([paddings - crops, np.zeros((missing, 2), paddings.dtype)]).tolist()
    rates = (*block.tolist(), *[1] * missing)
    dilated = Dilated(batches, convolution, back, rates, tuple((before, after) for before, after in rows))
    return dilated if dilated.can_be_one else None


def _is_plain(op: tf.Operation) -> bool:
    """Return whether a convolution's windows have no strides, dilations or paddings, and the expected data format."""
    steps = {*op.get_attr("strides"), *op.get_attr("dilations")}
    return steps == {1} and op.get_attr("padding") == b"VALID" and op.get_attr("data_format").decode() == _FORMATS[op.type]
