"""One recorded operator per case: every operator type that has a rule, several where its attributes matter.

Inputs can't pass by luck: they are random, no two dimensions of a tensor have the same extent where they needn't, extents
don't divide (3, 5, 7 over 2 and 3), and each stays inside the domain in which the operator and its gradient are smooth,
except where ties are meant.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tensoropt.rules.elementwise import OF_OPERAND, OF_RESULT

from .array_cases import array_cases
from .case import FLOAT, Case, Input, SpecialValues, Static, away, bools, case, complexes, f, ints, positive, ties
from .image_cases import image_cases


def _elementwise() -> list[Case]:
    smooth = (
        "Abs Asinh Atan Cos Cosh Elu Erf Erfc Exp Expm1 LeakyRelu Relu Relu6 Selu Sigmoid Sin Sinh Softplus Softsign "
        "Square Tanh Neg ZerosLike OnesLike StopGradient Sign Ceil Floor Rint Round Identity BesselI0 BesselI0e BesselI1 "
        "BesselI1e"
    ).split()
    cases = [case(kind, f(3, 5)) for kind in smooth]
    cases += [case(kind, f(3, 5), differentiable=False) for kind in ("PreventGradient", "Snapshot")]
    cases += [case(kind, away(3, 5)) for kind in "Acos Asin Atanh Erfinv Ndtri Tan".split()]
    cases += [case(kind, positive(3, 5)) for kind in "Digamma Inv Lgamma Log Log1p Reciprocal Rsqrt Sqrt".split()]
    cases += [case("Acosh", f(3, 5, low=1.3, high=4))]
    cases += [case(f"{kind}/special values", SPECIAL) for kind in ("IsFinite", "IsInf", "IsNan")]
    cases += [case("Invert", ints(3, 5)), case("LogicalNot", bools(3, 5))]
    cases += [case("Abs/whole numbers", ints(3, 5)), case("Neg/whole numbers", ints(5, 3))]
    cases += [case("Relu/three dimensions", f(3, 1, 5)), case("Exp/scalar", f())]
    cases += [
        case("CheckNumerics", f(3, 5), message="here"),
        case("Bucketize", f(3, 5), boundaries=[-1.0, 0.0, 1.5]),
        case("Bitcast", ints(3, 5), type=tf.uint32),
        case("Bitcast/smaller numbers", ints(3, 5), type=tf.int16),
        case("Cast", f(3, 5), DstT=tf.float64),
        case("Cast/to whole numbers", f(3, 5), DstT=tf.int32),
        case("Cast/from whole numbers", ints(3, 5), DstT=tf.float64),
        case("Cast/to bool", ints(3, 5, low=-1, high=2), DstT=tf.bool),
        case("Cast/from bool", bools(3, 5), DstT=tf.float64),
    ]
    return cases


SPECIAL = SpecialValues((3, 5))

_BROADCASTS: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("", (3, 5), (3, 5)), ("/extents of 1", (3, 1), (1, 5)), ("/missing dimension", (5,), (3, 5)),
)  # fmt: skip


def _binary() -> list[Case]:
    cases = []
    for kind in "Atan2 Maximum Minimum SquaredDifference Add AddV2 Sub Mul".split():
        cases += [case(kind + what, f(*left), f(*right)) for what, left, right in _BROADCASTS]
    for kind in "Pow RealDiv Div DivNoNan MulNoNan Xdivy Xlog1py Xlogy".split():
        cases += [case(kind + what, positive(*left), positive(*right)) for what, left, right in _BROADCASTS]
    for kind in "FloorDiv FloorMod".split():
        cases += [case(kind + what, f(*left), positive(*right)) for what, left, right in _BROADCASTS[:2]]
    for kind in "Igamma Igammac".split():
        cases += [case(kind + what, positive(*left), positive(*right)) for what, left, right in _BROADCASTS[:2]]
    cases += [case("Zeta", f(3, 1, low=1.5, high=3), positive(5))]
    cases += [case("IgammaGradA", positive(3, 5), positive(3, 5), differentiable=False)]
    cases += [case("Polygamma", Input((3, 1), 1, 5, whole=True), positive(5))]
    cases += [case("Betainc", positive(3, 5), positive(3, 5), away(3, 5))]
    # TensorFlow has no gradient for these.
    cases += [case(kind, f(3, 1), positive(5), differentiable=False) for kind in ("Mod", "TruncateMod", "NextAfter")]
    cases += [case("TruncateDiv", ints(3, 1), ints(5, low=1))]
    for kind in "Greater GreaterEqual Less LessEqual Equal NotEqual".split():
        cases += [case(kind + what, ties(*left), ties(*right)) for what, left, right in _BROADCASTS[1:]]
    cases += [case(kind, ints(3, 1), ints(5, low=0)) for kind in ("LeftShift", "RightShift")]
    cases += [case(kind, ints(3, 1), ints(5)) for kind in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")]
    cases += [case(kind, bools(3, 1), bools(5)) for kind in ("LogicalAnd", "LogicalOr")]
    cases += [
        case("AddV2/three dimensions", f(2, 1, 5), f(3, 1)),
        case("AddV2/whole numbers", ints(3, 5), ints(5)),
        case("Mul/whole numbers", ints(3, 1), ints(1, 5)),
        case("Mul/scalar", f(3, 5), f()),
        case("Mul/three dimensions", f(2, 3, 1), f(3, 5)),
        case("FloorMod/whole numbers", ints(3, 5), ints(5, low=1)),
        case("Maximum/ties", ties(3, 5), ties(3, 5)),
        case("DivNoNan/zeros", f(3, 5), ties(3, 5)),
        case("AddN", (f(3, 5), f(3, 5), f(3, 5))),
        case("AddN/one", (f(3, 5),)),
        case("BiasAdd", f(3, 2, 5), f(5), data_format="NHWC"),
        case("BiasAdd/channels first", f(2, 5, 3, 2), f(5), data_format="NCHW"),
        case("BiasAdd/matrix", f(3, 5), f(5)),
        case("ClipByValue", f(3, 5), f(low=-1, high=-0.5), f(low=0.5, high=1)),
        case("ClipByValue/limits by element", f(3, 5), f(3, 5, low=-1, high=-0.5), f(3, 5, low=0.5, high=1)),
        case("SelectV2", bools(3, 5), f(3, 5), f(3, 5)),
        case("SelectV2/condition is broadcast", bools(3, 1), f(3, 5), f(5)),
        case("SelectV2/branches are broadcast", bools(3, 5), f(1, 5), f()),
        case("SelectV2/whole numbers", bools(5), ints(3, 5), ints(3, 1)),
        case("Select", bools(3, 5), f(3, 5), f(3, 5)),
        case("Select/by row", bools(3), f(3, 5), f(3, 5)),
        case("Select/scalar", bools(), f(3, 5), f(3, 5)),
    ]
    return cases


def _complex() -> list[Case]:
    """Parts, transforms, and what has another gradient for complex numbers than for real ones."""
    x = complexes(3, 5)
    cases = [case(kind, x, Tout=tf.float64) for kind in ("Real", "Imag", "ComplexAbs", "Angle")]
    cases += [
        case("Conj", x),
        case("Complex", f(3, 5), f(3, 5), Tout=tf.complex128),
        case("Complex/parts are broadcast", f(3, 1), f(5), Tout=tf.complex128),
        case("Mul/complex", complexes(3, 1), complexes(5)),
        case("RealDiv/complex", complexes(3, 5), complexes(5)),
        case("Square/complex", x),
        case("Exp/complex", x),
        case("Sum/complex", x, Static([1])),
        case("Mean/complex", x, Static([0]), keep_dims=True),
        case("Cast/to complex", f(3, 5), DstT=tf.complex128),
        case("Cast/from complex", x, DstT=tf.float64),
        case("MatMul/complex", complexes(3, 5), complexes(5, 2), transpose_b=False),
        case("BatchMatMulV2/complex, both adjoint", complexes(3, 5, 3), complexes(3, 2, 5), adj_x=True, adj_y=True),
        case("Einsum/complex", (complexes(3, 5), complexes(5, 2)), equation="ij,jk->ik"),
        case("Transpose/complex", x, Static([1, 0])),
    ]
    for n, name in ((1, ""), (2, "2D"), (3, "3D")):
        shape = (3, 5, 2, 4)[3 - n :]
        cases += [case(f"{kind}{name}", complexes(*shape)) for kind in ("FFT", "IFFT")]
        cases += [case(f"{kind}{name}/two others", complexes(3, *shape)) for kind in ("FFT", "IFFT")] if n < 3 else []
        graded = {"differentiable": n < 3}
        lengths, half = shape[1:], (*shape[:-1], shape[-1] // 2 + 1)
        cases += [
            case(f"RFFT{name}", f(*shape), Static(lengths), Tcomplex=tf.complex128, **graded),
            case(f"IRFFT{name}", complexes(*half), Static(lengths), Treal=tf.float64, **graded),
        ]
    return cases


def _products() -> list[Case]:
    cases = [
        case("MatMul", f(3, 5), f(5, 7)),
        case("MatMul/left transposed", f(5, 3), f(5, 7), transpose_a=True),
        case("MatMul/right transposed", f(3, 5), f(7, 5), transpose_b=True),
        case("MatMul/both transposed", f(5, 3), f(7, 5), transpose_a=True, transpose_b=True),
        case("MatMul/even", f(4, 6), f(6, 2)),
        case("MatMul/one row", f(1, 5), f(5, 3)),
        case("MatMul/whole numbers", ints(3, 5), ints(5, 7)),
        case("Einsum", (f(3, 5), f(5, 7)), equation="ij,jk->ik"),
        case("Einsum/batch", (f(2, 3, 5), f(2, 7, 5)), equation="bqd,bkd->bqk"),
        case("Einsum/heads", (f(3, 5), f(5, 2, 3)), equation="nd,dhe->hne"),
        case("Einsum/one operand", (f(3, 5, 2),), equation="abc->ca"),
        case("Einsum/scalar result", (f(3, 5), f(3, 5)), equation="ij,ij->"),
        case("Einsum/outer product", (f(3), f(5)), equation="i,j->ij"),
        case("Einsum/sum on one side", (f(3, 5), f(3)), equation="ij,i->i"),
        case("Einsum/ellipsis", (f(2, 3, 5), f(5, 7)), equation="...ij,jk->...ik"),
        case("Einsum/ellipsis is broadcast", (f(2, 1, 3), f(5, 3, 7)), equation="...j,...jk->...k"),
        case("Einsum/ellipsis behind", (f(3, 5, 2), f(5, 7)), equation="ab...,bc->ca..."),
        case("Einsum/trace", (f(3, 3),), equation="ii->"),
    ]
    for kind in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        extra = {"Tout": tf.float64} if kind == "BatchMatMulV3" else {}
        cases += [
            case(kind, f(2, 3, 5), f(2, 5, 7), **extra),
            case(f"{kind}/both transposed", f(3, 5, 3), f(3, 7, 5), adj_x=True, adj_y=True, **extra),
        ]
    cases += [
        case("BatchMatMulV2/two batch dimensions", f(2, 3, 2, 5), f(2, 3, 5, 3)),
        case("BatchMatMulV2/broadcast", f(3, 1, 2, 5), f(1, 2, 5, 3)),
        case("BatchMatMulV2/missing batch", f(3, 5), f(2, 5, 3)),
        case("BatchMatMulV2/right transposed", f(2, 3, 5), f(7, 5), adj_y=True),
        case("BatchMatMulV2/extents of 1", f(3, 1, 5), f(3, 5, 1)),
    ]
    return cases


def _reductions() -> list[Case]:
    cases = []
    for kind in ("Sum", "Mean", "Max", "Min", "Prod", "EuclideanNorm"):
        values = (f, positive)[kind in ("Prod", "EuclideanNorm")]
        cases += [
            case(kind, values(3, 5), Static([0])),
            case(f"{kind}/negative axis", values(3, 5), Static([-1])),
            case(f"{kind}/kept", values(3, 5), Static([1]), keep_dims=True),
            case(f"{kind}/all", values(3, 5), Static([0, 1])),
            case(f"{kind}/outer two", values(2, 5, 3), Static([0, 2])),
            case(f"{kind}/scalar axis", values(3, 5), Static(0)),
        ]
    for kind in ("Max", "Min"):
        cases += [
            case(f"{kind}/ties", ties(3, 5), Static([-1])),
            case(f"{kind}/ties over all, kept", ties(3, 5), Static([0, 1]), keep_dims=True),
            case(f"{kind}/whole numbers", ints(3, 5), Static([1])),
        ]
    cases += [
        case("Sum/whole numbers", ints(3, 5), Static([1])),
        case("Sum/over nothing", f(3, 5), Static(np.zeros(0, np.int32))),
        case("Mean/whole numbers", ints(3, 5, high=40), Static([1])),
        case("Mean/kept, all", f(3, 5), Static([0, 1]), keep_dims=True),
        case("Prod/whole numbers", ints(3, 5), Static([0])),
        case("All", bools(3, 5), Static([1])),
        case("Any", bools(3, 5), Static([0]), keep_dims=True),
        case("ArgMax", f(3, 5, 2), Static(1)),
        case("ArgMax/ties", ties(3, 5), Static(-1)),
        case("ArgMin", f(3, 5), Static(0), output_type=tf.int32),
        case("L2Loss", f(3, 5)),
        *(case(kind, f(3, 5), Static(1)) for kind in ("Cumprod", "CumulativeLogsumexp")),
        case("Cumprod/exclusive and reverse", positive(3, 2, 5), Static(-2), exclusive=True, reverse=True),
        case("Cumsum", f(3, 5), Static(1)),
        case("Cumsum/exclusive", f(3, 5), Static(-2), exclusive=True),
        case("Cumsum/reverse", f(3, 5), Static(-1), reverse=True),
        case("Cumsum/exclusive and reverse", f(3, 2, 5), Static(0), exclusive=True, reverse=True),
    ]
    return cases


def _moving() -> list[Case]:
    reshapes = {
        "merge": ((3, 5), (15,)), "merge, even": ((6, 5), (30,)), "split": ((30, 2), (6, 5, 2)),
        "merge behind": ((3, 4, 5), (3, 20)), "regroup": ((4, 3), (2, 6)),
        "regroup upwards": ((2, 6, 5), (4, 3, 5)), "heads": ((3, 2, 6), (6, 3, 2)),
        "new extents of 1": ((3, 5), (3, 1, 5, 1)), "extents of 1 away": ((1, 3, 1, 5), (3, 5)),
        "to scalar": ((1, 1), ()), "nothing": ((3, 5), (3, 5)), "flatten images": ((3, 2, 2, 3), (3, 12)),
    }  # fmt: skip
    cases = [case(f"Reshape/{what}", f(*a), Static(np.array(b, np.int32))) for what, (a, b) in reshapes.items()]
    cases += [
        case("Reshape/whole numbers", ints(6, 5), Static([30])),
        case("ExpandDims", f(3, 5), Static(1)),
        case("ExpandDims/negative axis", f(3, 5), Static(-1)),
        case("Squeeze", f(3, 1, 5, 1)),
        case("Squeeze/one of two", f(3, 1, 5, 1), squeeze_dims=[1]),
        case("Squeeze/block of 1 stays", f(2, 1, 3), squeeze_dims=[1]),
        case("Transpose", f(3, 5), Static([1, 0])),
        case("Transpose/three dimensions", f(2, 3, 5), Static([2, 0, 1])),
        case("Transpose/bool", bools(3, 5), Static([1, 0])),
        case("BroadcastTo", f(3, 1), Static([2, 3, 5])),
        case("BroadcastTo/scalar", f(), Static([3, 5])),
        case("BroadcastTo/nothing", f(3, 5), Static([3, 5])),
        case("Tile", f(3, 5), Static([2, 1])),
        case("Tile/all", f(3, 5), Static([2, 3])),
        case("Tile/extent of 1", f(1, 5), Static([3, 1])),
        case("ConcatV2", (f(3, 5), f(3, 2)), Static(1)),
        case("ConcatV2/negative axis", (f(3, 5), f(2, 5), f(1, 5)), Static(-2)),
        case("ConcatV2/whole numbers", (ints(3, 5), ints(3, 2)), Static(1)),
        case("Pack", (f(3, 5), f(3, 5), f(3, 5)), axis=1),
        case("Pack/negative axis", (f(3, 5), f(3, 5)), axis=-1),
        case("Pack/scalars", (f(), f(), f()), axis=0),
        case("Unpack", f(3, 2, 5), num=2, axis=1),
        case("Unpack/negative axis", f(5, 3), num=3, axis=-1),
        case("Split", Static(1), f(3, 6), num_split=3),
        case("Split/negative axis", Static(-2), f(4, 3), num_split=2),
        case("SplitV", f(3, 7), Static([2, 5]), Static(1), num_split=2),
        case("SplitV/rest", f(7, 3), Static([2, -1, 1]), Static(0), num_split=3),
        case("Pad", f(3, 5), Static([[1, 0], [0, 0]])),
        case("Pad/all", f(3, 5), Static([[1, 2], [0, 1]])),
        case("PadV2", f(3, 5), Static([[0, 0], [2, 1]]), Static(1.5, FLOAT)),
        case("PadV2/zeros", f(3, 5), Static([[0, 1], [0, 0]]), Static(0.0, FLOAT)),
        case("PadV2/nothing", f(3, 5), Static([[0, 0], [0, 0]]), Static(1.5, FLOAT)),
        case("MirrorPad", f(3, 5), Static([[0, 0], [2, 1]]), mode="REFLECT"),
        case("MirrorPad/symmetric", f(3, 5), Static([[1, 2], [0, 0]]), mode="SYMMETRIC"),
        case("Slice", f(3, 5, 7), Static([0, 1, 0]), Static([3, 3, 7])),
        case("Slice/rest", f(3, 5), Static([1, 0]), Static([-1, -1])),
        case("Slice/whole numbers", ints(3, 5), Static([0, 2]), Static([3, 2])),
    ]
    return cases + _strided_slices() + _lookups()


def _strided_slices() -> list[Case]:
    def sliced(what: str, given: Input, begin: list[int], end: list[int], strides: list[int], **masks: int) -> Case:
        return case(f"StridedSlice/{what}", given, Static(begin), Static(end), Static(strides), **masks)

    return [
        sliced("rows", f(5, 3), [1], [4], [1]),
        sliced("whole by numbers", f(3, 5, 2), [0, -5, 0], [3, 5, 9], [1, 1, 1]),
        sliced("columns", f(3, 5), [0, 1], [0, 4], [1, 1], begin_mask=1, end_mask=1),
        sliced("new axis", f(3, 5), [0, 0, 1], [0, 0, 4], [1, 1, 1], begin_mask=1, end_mask=1, new_axis_mask=2),
        sliced("shrink", f(3, 5, 2), [0, 2], [0, 3], [1, 1], begin_mask=1, end_mask=1, shrink_axis_mask=2),
        sliced("shrink first", f(3, 5), [1], [2], [1], shrink_axis_mask=1),
        sliced("ellipsis", f(3, 2, 5), [0, 1], [0, 4], [1, 1], ellipsis_mask=1),
        sliced("ellipsis and shrink", f(3, 2, 5), [1, 0, 2], [2, 0, 3], [1, 1, 1], ellipsis_mask=2, shrink_axis_mask=5),
        sliced("ellipsis and new axis", f(3, 5), [0, 0], [0, 0], [1, 1], ellipsis_mask=1, new_axis_mask=2),
        sliced("new axis, ellipsis, backwards", f(3, 2, 5), [0, 0, -1], [0, 0, -6], [1, 1, -1],
               new_axis_mask=1, ellipsis_mask=2),
        sliced("every second", f(5, 7), [0, 0], [0, 0], [1, 2], begin_mask=3, end_mask=3),
        sliced("backwards", f(5, 3), [0, 0], [0, 0], [-1, 1], begin_mask=3, end_mask=3),
        sliced("whole numbers", ints(3, 5), [0, 1], [0, 3], [1, 1], begin_mask=1, end_mask=1),
    ]


def _lookups() -> list[Case]:
    index = ints(3, low=0, high=5, dtype=np.int64)
    return [
        case("GatherV2", f(5, 7), index, Static(0)),
        case("GatherV2/matrix of indices", f(5, 3), ints(2, 3, low=0), Static(0)),
        case("GatherV2/middle axis", f(2, 5, 3), index, Static(1)),
        case("GatherV2/negative axis", f(3, 5), ints(2, low=0), Static(-1)),
        case("GatherV2/scalar index", f(5, 3), ints(low=0), Static(0)),
        case("GatherV2/whole numbers", ints(5, 3), index, Static(0)),
        case("GatherV2/bool", bools(5, 3), index, Static(0)),
        case("GatherV2/within a batch", f(3, 5), ints(3, 2, low=0), Static(1), batch_dims=1),
        case("GatherV2/within a batch, last axis", f(3, 2, 5), ints(3, 2, low=0), Static(2), batch_dims=-1),
        case("GatherV2/each index in its batch", f(2, 3, 5), ints(2, 3, low=0), Static(-1), batch_dims=2),
        case("GatherNd", f(5, 7), ints(3, 1, low=0)),
        case("GatherNd/elements", f(5, 5, 2), ints(3, 2, low=0)),
        case("GatherNd/elements of a matrix", f(5, 5), ints(2, 3, 2, low=0)),
        case("GatherNd/whole numbers", ints(5, 3), ints(3, 1, low=0)),
        case("OneHot", ints(5, low=0), Static(5), Static(1.0, FLOAT), Static(0.0, FLOAT), axis=-1),
        case("OneHot/first axis", ints(5, 3, low=0), Static(4), Static(2.0, FLOAT), Static(-1.0, FLOAT), axis=0),
        case("OneHot/middle axis", ints(5, 3, low=0), Static(4), Static(1, np.int32), Static(0, np.int32), axis=1),
    ]


def _gradients() -> list[Case]:
    cases = [case(kind, positive(3, 5), f(3, 5)) for kind in OF_RESULT]
    return cases + [case(kind, f(3, 5), f(3, 5), differentiable=kind != "SoftsignGrad") for kind in OF_OPERAND]


def _softmaxes() -> list[Case]:
    distribution = Input((3, 5), 0.1, 1.0, is_distribution=True)
    cases = []
    for kind in ("Softmax", "LogSoftmax"):
        cases += [case(kind, f(3, 5)), case(f"{kind}/three dimensions", f(2, 3, 5))]
        cases += [case(f"{kind}/large", f(3, 7, low=-900, high=900)), case(f"{kind}/ties", ties(3, 7))]
    sparse = "SparseSoftmaxCrossEntropyWithLogits"
    return [
        *cases,
        case("SoftmaxCrossEntropyWithLogits", f(3, 5), distribution),
        case("SoftmaxCrossEntropyWithLogits/labels that are no distribution", f(5, 7), f(5, 7)),
        case("SoftmaxCrossEntropyWithLogits/broadcast", f(3, 5), Input((1, 5), 0.1, 1.0, is_distribution=True),
             differentiable=False),
        case(sparse, f(5, 7), ints(5, low=0, high=7)),
        case(f"{sparse}/long labels", f(3, 5), ints(3, low=0, dtype=np.int64)),
    ]


CASES: tuple[Case, ...] = tuple(
    _elementwise() + _binary() + _complex() + _products() + image_cases() + _reductions() + _moving() + _softmaxes()
    + _gradients() + array_cases()
)
