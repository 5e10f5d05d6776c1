"""Cases of operators that scatter, search, rearrange, resize or draw; see :mod:`.cases`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from .case import FLOAT, Case, Input, Static, bools, case, f, f32, ints, positive, ties

# There are 32-bit kernels only; an error of 64 roundings is more than sums of some ten elements make.
SINGLE = {"tolerance": 64 * float(np.finfo(np.float32).eps)}


def array_cases() -> list[Case]:
    return _scattering() + _segments() + _searching() + _rearranging() + _matrices() + _resizing() + _random()


def _scattering() -> list[Case]:
    rows, elements = ints(3, 1, low=0), ints(3, 2, low=0)
    cases = [
        case("ScatterNd", rows, f(3, 7), Static([5, 7])),
        case("ScatterNd/elements", elements, f(3), Static([5, 6])),
        case("ScatterNd/matrix of rows", ints(2, 3, 1, low=0), f(2, 3, 2), Static([5, 2])),
        case("ScatterNd/whole numbers", rows, ints(3, 2), Static([5, 2])),
    ]
    for kind in ("Add", "Sub", "Update", "Max", "Min"):
        name = f"TensorScatter{kind}"
        different = Distinct((3, 1), 0, 5, np.int32)
        cases += [case(name, f(5, 7), different, f(3, 7)), case(f"{name}/elements", f(5), different, f(3))]
    return [*cases, case("TensorScatterAdd/some twice", f(5, 2), rows, f(3, 2))]


def _segments() -> list[Case]:
    segments = ints(7, low=0, high=3)
    cases = []
    for kind in ("Sum", "Max", "Min", "Prod"):
        name, values = f"UnsortedSegment{kind}", positive if kind == "Prod" else f
        cases += [
            case(name, values(7, 2), segments, Static(3)),
            case(f"{name}/matrix of segments", values(2, 3, 2), ints(2, 3, low=0), Static(5)),
            case(f"{name}/some left out", values(7), ints(7, low=-1, high=3), Static(3)),
        ]
    empty = f(0)
    counted = {"differentiable": False}
    return [
        *cases,
        case("UnsortedSegmentSum/whole numbers", ints(7, 2), segments, Static(3)),
        case("DenseBincount", ints(7, low=0), Static(5), empty, **counted),
        case("DenseBincount/weights", ints(7, low=0), Static(5), f(7), **counted),
        case("DenseBincount/rows", ints(3, 5, low=0), Static(5), f(3, 5), **counted),
        case("DenseBincount/rows without weights", ints(3, 5, low=0), Static(5), empty, binary_output=True, **counted),
        case("DenseBincount/whole numbers", ints(7, low=0), Static(5), ints(0)),
        case("Bincount", ints(7, low=0), Static(5), f(7), **counted),
    ]


def _searching() -> list[Case]:
    ascending = Sorted((3, 5))
    return [
        case("TopKV2", f(3, 5), Static(2)),
        case("TopKV2/ties", ties(2, 3, 5), Static(3)),
        case("TopKV2/vector", f(5), Static(2)),
        case("InTopKV2", f32(3, 5), ints(3, low=0), Static(2)),
        case("LowerBound", ascending, f(3, 2)),
        case("UpperBound", ascending, f(3, 2)),
        case("ReverseSequence", f(3, 5, 2), ints(3, low=1, high=6), seq_dim=1, batch_dim=0),
        case("ReverseSequence/batch behind", f(5, 2, 3), ints(3, low=1, high=6), seq_dim=0, batch_dim=2),
    ]


def _rearranging() -> list[Case]:
    squares = {"block_size": 2}
    return [
        case("ReverseV2", f(3, 5, 2), Static([1])),
        case("ReverseV2/two axes", f(3, 5, 2), Static([-1, 0])),
        case("ReverseV2/no axis", f(3, 5), Static(np.zeros(0, np.int32))),
        case("ReverseV2/whole numbers", ints(3, 5), Static([0])),
        case("Roll", f(3, 5), Static(2), Static(1)),
        case("Roll/two axes", f(3, 5, 2), Static([1, -1]), Static([0, -1])),
        case("Fill", Static([3, 5]), f()),
        case("Fill/whole numbers", Static([3]), ints()),
        case("SpaceToDepth", f(3, 4, 6, 2), **squares),
        case("SpaceToDepth/uneven", f(2, 6, 2, 1), **squares),
        case("DepthToSpace", f(3, 2, 3, 8), **squares),
        case("SpaceToBatchND", f(3, 4, 2), Static([2]), Static([[1, 1]])),
        case("SpaceToBatchND/one of two", f(2, 3, 4, 3), Static([1, 2]), Static([[0, 0], [0, 2]])),
        case("BatchToSpaceND", f(6, 3, 2), Static([2]), Static([[1, 0]])),
        case("BatchToSpaceND/nothing", f(3, 2, 5), Static([1]), Static([[0, 0]])),
        case("ExtractImagePatches", f(3, 4, 5, 2), ksizes=[1, 2, 2, 1], strides=[1, 2, 1, 1], rates=[1, 1, 1, 1],
             padding="VALID"),
    ]


def _matrices() -> list[Case]:
    definite, whole = Definite((3, 2, 2)), Static(0)
    diagonal = (Static(0), Static(-1), Static(-1))
    cases = [case(f"MatrixBandPart/{low} below, {high} above", f(2, 3, 5), Static(low), Static(high))
             for low, high in ((-1, 0), (0, -1), (1, 2), (0, 0))]
    return [
        case("MatrixBandPart", f(5, 7), Static(-1), Static(0)),
        *cases,
        case("MatrixBandPart/bool", bools(5, 5), Static(-1), Static(0)),
        case("MatrixDiagV3", f(3, 5), *diagonal, Static(0.0, FLOAT)),
        case("MatrixDiagV3/filled", f(3, 5), Static(1), Static(-1), Static(-1), Static(2.0, FLOAT)),
        case("MatrixDiagV3/two diagonals", f(3, 2, 5), Static([0, 1]), Static(-1), Static(-1), Static(0.0, FLOAT)),
        case("MatrixDiagPartV3", f(3, 5, 2), whole, Static(0.0, FLOAT)),
        case("MatrixDiagPartV3/two diagonals", f(3, 5, 5), Static([-1, 0]), Static(1.5, FLOAT)),
        case("MatrixSetDiagV3", f(3, 5, 2), f(3, 2), whole),
        *(case(kind, definite) for kind in ("Cholesky", "MatrixInverse", "MatrixDeterminant", "LogMatrixDeterminant")),
        case("MatrixSolve", definite, f(3, 2, 5)),
        case("MatrixSolve/adjoint", definite, f(3, 2, 1), adjoint=True),
        case("MatrixTriangularSolve", definite, f(3, 2, 5)),
        case("MatrixTriangularSolve/upper", Definite((2, 2)), f(2, 3), lower=False),
        case("MatrixTriangularSolve/broadcast", Definite((2, 2)), f(3, 2, 5)),
    ]


def _resizing() -> list[Case]:
    image, size = f32(3, 4, 5, 2), Static([7, 3])
    cases = []
    for kind in ("ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor"):
        cases += [case(kind, image, size, half_pixel_centers=True, **SINGLE)]
        cases += [case(f"{kind}/corners aligned", image, size, align_corners=True, **SINGLE)]
    shift = [1, 0, 0.5, 0, 1, -0.25, 0, 0]
    warp = {"interpolation": "BILINEAR", "fill_mode": "CONSTANT", **SINGLE}
    boxes = Input((5, 4), 0.0, 1.0, np.float32)
    of_image = ints(5, low=0, high=3)
    return [
        *cases,
        case("ResizeArea", image, size, differentiable=False, **SINGLE),
        case("ScaleAndTranslate", image, size, Input((2,), 0.5, 2.0, np.float32), f32(2), kernel_type="triangle",
             antialias=True, **SINGLE),
        case("ImageProjectiveTransformV3", image, Near((3, 8), shift), size, Static(0.0, np.float32), **warp),
        case("ImageProjectiveTransformV3/one for all", image, Near((1, 8), shift), size, Static(1.0, np.float32), **warp),
        case("CropAndResize", image, boxes, of_image, Static([2, 3]), **SINGLE),
        case("CropAndResize/filled", image, boxes, of_image, Static([2, 3]), extrapolation_value=1.0, **SINGLE),
        case("LRN", f32(3, 4, 5, 2), **SINGLE),
    ]


def _random() -> list[Case]:
    """Small results; :mod:`.test_random` has larger ones, of other types."""
    key, counter = Input((1,), 0, 99, np.uint64), Input((2,), 0, 99, np.uint64)
    shape, philox, seeds = Static([3, 5]), Static(1), {"seed": 7, "seed2": 11, "differentiable": False}
    low, high = ints(low=0, high=3), ints(low=50, high=60)
    plain = {"differentiable": False, "dtype": tf.float64}
    kinds = ("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2")
    stateful = ("RandomUniform", "RandomStandardNormal", "TruncatedNormal")
    return [
        *(case(kind, shape, key, counter, philox, **plain) for kind in kinds),
        case("StatelessRandomUniformIntV2", shape, key, counter, philox, low, high),
        case("StatelessRandomUniformFullIntV2", shape, key, counter, philox, dtype=tf.int64),
        case("StatelessRandomGetKeyCounter", ints(2, low=0, dtype=np.int64)),
        *(case(kind, shape, dtype=tf.float64, **seeds) for kind in stateful),
        case("RandomUniformInt", shape, low, high, **seeds),
        case("RandomShuffle", f(5, 3, 2), **seeds),
        case("RandomShuffle/vector", f(5), **seeds),
        case("Multinomial", f(3, 5), Static(2), **seeds),
        case("StatelessMultinomial", f(3, 5), Static(2), ints(2, low=0), differentiable=False),
        case("RandomGamma", Static([3]), positive(5), seed=7, seed2=11),
        case("StatelessRandomGammaV3", shape, key, counter, philox, positive(5), differentiable=False),
        case("RandomPoissonV2", Static([3]), positive(5), dtype=tf.float64, **seeds),
        case("StatelessRandomBinomial", shape, ints(2, low=0), positive(5), Input((5,), 0.1, 0.9), dtype=tf.float64,
             differentiable=False),
    ]


@dataclass(frozen=True, slots=True)
class Distinct(Input):
    """Whole numbers from 0, none of them twice."""

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        return rng.permutation(int(self.high))[: self.shape[0]].reshape(self.shape).astype(self.dtype)


@dataclass(frozen=True, slots=True)
class Sorted(Input):
    """Rows in ascending order."""

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        return np.sort(rng.uniform(self.low, self.high, self.shape))


@dataclass(frozen=True, slots=True)
class Definite(Input):
    """Matrices that are symmetric and far from singular."""

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        matrices = rng.normal(size=self.shape)
        return matrices @ np.swapaxes(matrices, -1, -2) + 2 * np.eye(self.shape[-1])


@dataclass(frozen=True, slots=True)
class Near(Input):
    """Rows near a given one, in multiples of 2^-10: summands of them are exact, in 32 bits too."""

    low: Any = ()
    dtype: Any = np.float32

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        return (np.asarray(self.low) + rng.integers(-10, 11, self.shape) / 1024).astype(np.float32)
