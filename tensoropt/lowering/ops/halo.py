"""Operators with windows, on what the windows of their blocks cover: see :mod:`...reschedule.halo`.

Where a config splits a dimension along which windows slide, the operand is first exchanged so that each rank has all that
its windows cover, padding included. The operator then runs without padding of its own, and makes the rank's block.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf

from ...ir.graph import Operator
from ...reschedule.layout import Layout
from ...rules.rule import Rule
from ..local import local_constant

AVERAGES = ("AvgPool", "AvgPool3D")


def of_frames(op: Operator) -> Operator:
    """The operator as it runs on what its windows cover: nothing is padded any more."""
    attrs = dict(op.attrs, padding="VALID")
    if "explicit_paddings" in attrs:
        attrs["explicit_paddings"] = []
    return replace(op, attrs=attrs)


def averages(rule: Rule, layout: Layout, rank: int, value: tf.Tensor) -> tf.Tensor:
    """An average over windows, from one that counts filled zeros as well: TensorFlow counts what isn't padding only."""
    factors = np.ones((), np.float64)
    for dim, names in enumerate(rule.results[0]):
        window = rule.halos.get(names[0]) if names else None
        of_dim = np.ones(1) if window is None else window.size / np.array(window.real_counts())
        factors = factors * of_dim.reshape([-1 if i == dim else 1 for i in range(len(rule.results[0]))])
    if (factors == 1).all():
        return value
    # One piece of the factors a rank; where they are the same along a dimension they have extent 1 and aren't split.
    splits = tuple(axes if factors.shape[dim] > 1 else () for dim, axes in enumerate(layout.splits))
    piece = local_constant(factors, Layout(layout.mesh, splits), factors.shape, rank, tf.float64)
    return value * tf.cast(piece, value.dtype)
