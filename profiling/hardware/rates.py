"""Rates of operators, and the circumstances of a measurement: what a hardware file holds besides its device and links."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from . import checks
from .frozen import FrozenMapping


@dataclass(frozen=True, slots=True)
class OperatorRate:
    """The time of one way (forward, backward) of a class of operators: an overhead plus times per 10^9 flops and 10^9 bytes.

    Attributes:
        spread: the median relative error of the model on the operators that it was fitted to.
    """

    overhead_us: float
    us_per_gflop: float
    us_per_gb: float
    spread: float = 0.0
    samples: int = 1

    def __post_init__(self) -> None:
        checks.set_numbers(self, "", dict.fromkeys((*_NUMBERS, "spread"), ("a number of at least 0", 0)))
        if not self.overhead_us + self.us_per_gflop + self.us_per_gb > 0:
            raise checks.fail("overhead_us, us_per_gflop, us_per_gb", 0, "at least one above 0: nothing takes no time")
        object.__setattr__(self, "samples", checks.positive_integer(self.samples, "samples", "a positive whole number"))

    def time_us(self, flops: float, n_bytes: float) -> float:
        return self.overhead_us + (self.us_per_gflop * flops + self.us_per_gb * n_bytes) / 1e9


MEASURED_COLLECTIVES = ("mpi", "tensorflow", "horovod")


@dataclass(frozen=True, slots=True)
class Origin:
    """The circumstances in which a hardware was measured.

    Attributes:
        date: of the measurement, ``2026-11-21``.
        tensorflow: TensorFlow's version; empty if another engine measured.
        threads: TensorFlow's threads within an operator; 0 for as many as there are cores.
        is_complete: whether all was measured, rather than the part that was done before an interruption.
        is_quick: whether it was measured in seconds.
        collectives: the implementation of the measured collectives, ``mpi``, ``tensorflow`` or ``horovod``.
        is_by_nccl: whether TensorFlow's ran by NCCL, between GPUs.
    """

    date: str
    tensorflow: str
    threads: int
    is_complete: bool = True
    is_quick: bool = False
    collectives: str = "mpi"
    is_by_nccl: bool = False

    def __post_init__(self) -> None:
        checks.text(self.date, "measured.date")
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError:
            raise checks.fail("measured.date", self.date, "a date such as 2026-11-21") from None
        if not isinstance(self.tensorflow, str):
            raise checks.fail("measured.tensorflow", self.tensorflow, "a version, empty if it computed nothing")
        checks.number(self.threads, "measured.threads", "a number of threads, 0 for all", least=0)
        for name in ("is_complete", "is_quick", "is_by_nccl"):
            if not isinstance(getattr(self, name), bool):
                raise checks.fail(f"measured.{name}", getattr(self, name), "true or false")
        if self.collectives not in MEASURED_COLLECTIVES:
            raise checks.fail("measured.collectives", self.collectives, "'mpi', 'tensorflow' or 'horovod'")

    def age_days(self, today: datetime.date) -> int:
        return (today - datetime.date.fromisoformat(self.date)).days


Rates = Mapping[str, Mapping[str, Mapping[str, OperatorRate]]]
"""Rates by class of operators or operator type, dtype, and way (``forward``, ``backward``)."""

NO_RATES: Rates = FrozenMapping({})
WAYS = FORWARD, BACKWARD = "forward", "backward"
_TYPE = re.compile(r"[A-Z][A-Za-z0-9]*")
_NUMBERS = ("overhead_us", "us_per_gflop", "us_per_gb")
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
"""The classes, whose operators work at about one rate each, with their operator types."""
CLASSES = (*_TYPES, "elementwise")
_CLASS_OF = {name: of_class for of_class, names in _TYPES.items() for name in names.split()}


def class_of(operator_type: str) -> str:
    """Return the class of an operator type; one that isn't listed is elementwise: it moves bytes."""
    return _CLASS_OF.get(operator_type, "elementwise")


def rates_from_json(value: object) -> Rates:
    """Read the result of :func:`rates_to_json`.

    Raises:
        HardwareError: a field is missing, unknown, negative or impossible.
    """

    def of_ways(table: object, path: str) -> FrozenMapping[OperatorRate]:
        ways = checks.fields(table, path, (), WAYS)
        return FrozenMapping({way: _rate(ways[way], f"{path}.{way}") for way in ways})

    def of_dtypes(table: object, path: str) -> FrozenMapping[FrozenMapping[OperatorRate]]:
        dtypes = checks.mapping(table, path, "an object from dtype to ways")
        return FrozenMapping({dtype: of_ways(ways, f"{path}.{dtype}") for dtype, ways in dtypes.items()})

    classes = checks.mapping(value, "operators", "an object from classes of operators, or operator types, to dtypes")
    for name in classes:
        if name not in CLASSES and not _TYPE.fullmatch(name):
            expected = f"a class of operators ({', '.join(CLASSES)}) or TensorFlow's name of an operator type"
            raise checks.fail("operators", name, expected)
    return FrozenMapping({name: of_dtypes(dtypes, f"operators.{name}") for name, dtypes in classes.items()})


def _rate(value: object, path: str) -> OperatorRate:
    numbers = checks.fields(value, path, _NUMBERS, ("spread", "samples"))
    try:
        return OperatorRate(**numbers)
    except checks.HardwareError as error:
        raise checks.HardwareError(f"{path}.{error}") from None


def rates_to_json(rates: Rates) -> dict[str, Any]:
    return {
        name: {dtype: {way: asdict(rate) for way, rate in ways.items()} for dtype, ways in dtypes.items()}
        for name, dtypes in rates.items()
    }
