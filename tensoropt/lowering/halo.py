"""Lower operators with windows on all elements that their windows cover: see :mod:`..reschedule.halo`.

Where a config splits a dimension along which windows slide, the operand is exchanged first, so that each rank has all
elements that its windows cover, padding included. The operator then runs without padding of its own, and computes the rank's
block of results.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf

from ..ir.graph import Operator
from ..reschedule.layout import Layout
from ..rules.rule import Rule
from .localise import local_constant

AVERAGES = ("AvgPool", "AvgPool3D")


def of_frames(op: Operator) -> Operator:
    """Return the operator as it runs on the elements that its windows cover: without padding."""
    attrs = dict(op.attrs, padding="VALID")
    if "explicit_paddings" in attrs:
        attrs["explicit_paddings"] = []
    return replace(op, attrs=attrs)


def averages(rule: Rule, layout: Layout, rank: int, value: tf.Tensor) -> tf.Tensor:
    """Return the averages that TensorFlow defines, which don't count padding, from averages that count filled zeros as well.

    Args:
        layout: that of the result.
        value: a rank's averages over windows, filled zeros counted.
    """
    factors = np.ones((), np.float64)
    for dim, names in enumerate(rule.results[0]):
        window = rule.halos.get(names[0]) if names else None
        dim_factors = np.ones(1) if window is None else window.size / np.array(window.real_counts())
        factors = factors * dim_factors.reshape([-1 if i == dim else 1 for i in range(len(rule.results[0]))])
    if (factors == 1).all():
        return value
    # Each rank takes its shard of the factors. A dimension along which they are the same has extent 1 and isn't split.
    splits = tuple(axes if factors.shape[dim] > 1 else () for dim, axes in enumerate(layout.splits))
    shard = local_constant(factors, Layout(layout.mesh, splits), factors.shape, rank, tf.float64)
    return value * tf.cast(shard, value.dtype)
