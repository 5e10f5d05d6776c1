"""Describe an operator's work on the device that has the largest shards, as profiling files it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

from ..ir.body import COMPOSITES
from ..ir.graph import SOURCES, Operator
from ..reschedule.layout import Shape
from ..rules.rule import Config, Interface, Rule
from ..sharding.resharding import halo_resharding

# Attributes that don't change how long an operator takes, and static inputs that hold global shapes.
_WITHOUT_EFFECT = frozenset("seed seed2 container shared_name loaded trainable name".split())
_SHAPES = {"Reshape": 1, "BroadcastTo": 1, "Fill": 0, "Conv2DBackpropInput": 0, "Slice": 2}
_LONGEST = 64


def largest_operand_shapes(op: Operator, rule: Rule, config: Config, interface: Interface) -> list[Shape]:
    """Return, for each tensor operand, the shape of the largest shard that the operator reads.

    Where windows overlap blocks, that is the shape of all that a block's windows cover.
    """
    shapes = []
    for position, tensor in op.operands:
        if position == 0 and rule.exchanged(config):
            halo = halo_resharding(op, rule, config, with_gradient=False).halo
            assert halo is not None
            shapes.append(halo.largest_local_shape(tensor.shape))
        else:
            shapes.append(interface.operand(position).layout.largest_local_shape(tensor.shape))
    return shapes


def key_of(op: Operator, rule: Rule, config: Config, interface: Interface, points: int, positions: Sequence[int]) -> str:
    """Return the key that measurements of the work are filed under, or an empty text if it can't be timed by itself.

    Args:
        interface: the operator's interface in this config.
        points: how many points of the product of all factors the device computes.
        positions: of the operands to which a gradient comes back.
    """
    if op.type in SOURCES or op.type in COMPOSITES:
        return ""
    shards = zip(op.operands, largest_operand_shapes(op, rule, config, interface), strict=True)
    shapes = [f"{tensor.dtype}{list(shape)}" for (_, tensor), shape in shards]
    if rule.exchanged(config):
        shapes.append("all that windows cover")
    if rule.points is not math.prod:  # the operands alone don't tell how much is drawn
        shapes.append(f"{points} points")
    inner = "".join(f" {name}/{config.degree(name)}" for name in sorted(rule.inner) if config.degree(name) > 1)
    return f"{op.type}({', '.join(shapes)}){inner} to {list(positions)} {attributes_key(op)}"


@lru_cache(maxsize=1 << 10)
def attributes_key(op: Operator) -> str:
    """Return the attributes and static inputs of an operator as short text.

    The text tells operators of one type and equal shapes apart.
    """
    if op.type in SOURCES:
        return ""
    attrs = [f"{key}={value}" for key, value in sorted(op.attrs.items())
             if not key.startswith("_") and key not in _WITHOUT_EFFECT]
    statics = [
        f"{position}:{value.tolist() if value.size <= _LONGEST else hashlib.sha256(value.tobytes()).hexdigest()[:16]}"
        for position, value in sorted(op.statics.items())
        if _SHAPES.get(op.type) != position
    ]
    return " ".join([*attrs, *statics])
