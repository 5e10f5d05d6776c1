"""Classes of operator types: those of a class work at about one rate."""

from __future__ import annotations

_TYPES: dict[str, str] = {
    "convolution": "Conv2D Conv3D Conv2DBackpropInput Conv3DBackpropInputV2",
    "depthwise convolution": "DepthwiseConv2dNative",
    "matrix product": "MatMul BatchMatMulV2 BatchMatMulV3 BatchMatMul Einsum",
    "pooling": "MaxPool AvgPool MaxPool3D AvgPool3D",
    "reduction": "Sum Mean Max Min Prod All Any ArgMax ArgMin Cumsum",
    "softmax": "Softmax LogSoftmax SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits",
    "transcendental": "Exp Expm1 Log Log1p Tanh Sigmoid Erf Erfc Pow Sin Cos Elu Selu Softplus Softsign Sqrt Rsqrt",
    "copy": "Transpose ConcatV2 Concat Pack Unpack Slice StridedSlice Split SplitV Pad PadV2 MirrorPad Tile GatherV2 "
    "BroadcastTo ReverseV2 ResizeNearestNeighbor ResizeBilinear",
    "update": "Variable",
    "chosen by values": "ValueShaped",
}
CLASSES = (*_TYPES, "elementwise")
_CLASS_OF = {name: of_class for of_class, names in _TYPES.items() for name in names.split()}


def class_of(operator_type: str) -> str:
    """Return the class of an operator type. Operators of a class work at about one rate.

    A type that isn't listed is elementwise: it moves bytes.
    """
    return _CLASS_OF.get(operator_type, "elementwise")
