"""Predict operators that weren't measured: a model for each class of operators, fitted to those that were.

The time of one way (forward, backward) is ``overhead + flops / rate + bytes / bandwidth``, per class, dtype and way. It
is a sum and not the roofline's maximum, since no kernel overlaps one with the other entirely, and least squares then has
one answer. The fit is of *relative* errors, ``minimise sum (predicted / measured - 1)^2`` with no coefficient below 0
(:func:`fitted`), so that small operators count as much as large ones. The backward pass of k gradients is assumed to do
k times the forward pass's flops, and to move its bytes as often, except of what reads a part of a tensor.

In a class with fewer than :data:`FEWEST_TO_FIT` measurements, predictions without measurements are scaled by the median
of measured over predicted (:func:`scaled`). Hardware files hold fitted models (``operators``), so that a machine that
was calibrated once is predicted elsewhere.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .hardware import OperatorRate, Rates
from .hardware.frozen import freeze
from .hardware.rates import BACKWARD, FORWARD, NO_RATES, class_of
from .work import Measured, WorkItem

FEWEST_TO_FIT = 6

Key = tuple[str, str, str]
"""Class (or operator type, where the hardware has rates of it), dtype, way."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The flops, bytes and time of one way (forward or backward) of a measured work."""

    flops: float
    n_bytes: float
    time_us: float


def key_of(operator_type: str, dtype: str, way: str, rates: Rates = NO_RATES) -> Key:
    """Return by what an operator's time one way is predicted: its type, where ``rates`` has that dtype and way of it, or
    its class.
    """
    is_rated = way in rates.get(operator_type, {}).get(dtype, {})
    return operator_type if is_rated else class_of(operator_type), dtype, way


def samples_of(measured: Iterable[Measured], rates: Rates = NO_RATES) -> dict[Key, list[Sample]]:
    """Return the samples of both ways of all measured works, by :func:`key_of`."""
    groups: dict[Key, list[Sample]] = {}
    for m in measured:
        work = m.work
        for way, time_us in ((FORWARD, m.forward_us), (BACKWARD, m.backward_us if work.n_gradients else 0)):
            if time_us > 0:
                sample = Sample(*amounts(work, way), time_us)
                groups.setdefault(key_of(work.type, work.dtype, way, rates), []).append(sample)
    return groups


def fitted(samples: Sequence[Sample]) -> OperatorRate:
    """Return the model of least squared relative error; its ``spread`` is the median of the relative errors that remain.

    Raises:
        ValueError: no samples, or one that took no time.
    """
    if not samples or min(sample.time_us for sample in samples) <= 0:
        raise ValueError("a model is fitted to at least one sample, and to times above 0")
    from scipy.optimize import nnls  # takes half a second to import

    times = np.array([sample.time_us for sample in samples])
    features = np.array([(1.0, sample.flops, sample.n_bytes) for sample in samples])
    rows = features / times[:, None]
    # Columns are scaled to one size, since flops are counted in millions and the overhead is one.
    size = np.maximum(np.linalg.norm(rows, axis=0), np.finfo(float).tiny)
    coefficients = nnls(rows / size, np.ones(len(samples)))[0] / size
    errors = np.abs(features @ coefficients / times - 1)
    overhead_us, us_per_flop, us_per_byte = (float(value) for value in coefficients)
    return OperatorRate(overhead_us, us_per_flop * 1e9, us_per_byte * 1e9, float(np.median(errors)), len(samples))


def scaled(samples: Sequence[Sample], predicted_us: Sequence[float]) -> float:
    """Return the factor for predictions that were made without samples: the median of measured over predicted, 1 without
    any.
    """
    ratios = [sample.time_us / guess for sample, guess in zip(samples, predicted_us, strict=True) if guess > 0]
    return statistics.median(ratios) if ratios else 1.0


def fit_all(measured: Iterable[Measured]) -> Rates:
    """Return the models of all classes with enough measurements, by class, dtype and way as a hardware file holds them."""
    models: dict[str, dict[str, dict[str, OperatorRate]]] = {}
    for (of_class, dtype, way), samples in sorted(samples_of(measured).items()):
        if len(samples) >= FEWEST_TO_FIT:
            models.setdefault(of_class, {}).setdefault(dtype, {})[way] = fitted(samples)
    return freeze(models)


def amounts(work: WorkItem, way: str) -> tuple[float, float]:
    """Return the flops and bytes of one way (forward or backward) of an operator."""
    if way == FORWARD:
        return work.flops, work.n_bytes
    n_bytes = work.n_bytes * work.n_gradients if work.gradient_bytes is None else work.gradient_bytes
    return work.flops * work.n_gradients, n_bytes
