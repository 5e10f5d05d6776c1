"""Rules of random operators. Ranks draw what covers their blocks of one device's numbers: :mod:`..lowering.ops.random`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from ..ir.graph import Operator
from ..reschedule.layout import Shape
from .rearranging import all_but
from .registry import op_rule
from .rule import Rule, make_rule, own_dims, replicated_rule

# These draw each element independently, from a key or from a seed attribute.
FROM_KEY = (
    "StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessTruncatedNormalV2 StatelessRandomUniformIntV2 "
    "StatelessRandomUniformFullIntV2"
).split()
FROM_SEED = "RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt".split()
RANDOM = frozenset([*FROM_KEY, *FROM_SEED])
# Drawing one more run takes about as long as drawing so many more elements, and makes the graph larger.
_RUN_ELEMENTS, _MOST_RUNS = 8192, 64
# The approximate cost of an element: Philox takes ten rounds of two products and six other operations for four numbers,
# which is 20 operations for each.
_FLOPS = 20.0


def rows_drawn(local: Shape, shape: Shape) -> int:
    """Return the dimension whose whole rows a rank draws, to cut its block from them.

    For each index of the dimensions before, it draws one run of consecutive elements: its rows of this dimension.

    Args:
        local: the largest shape of a block; at least one dimension, which needn't be split.
    """
    innermost = max((i for i, n in enumerate(local) if n < shape[i]), default=0)
    possible = [i for i in range(innermost + 1) if math.prod(local[:i]) <= _MOST_RUNS]
    return min(possible, key=lambda i: math.prod(local[:i]) * _RUN_ELEMENTS + _elements(local, shape, i))


def _elements(local: Shape, shape: Shape, rows: int) -> int:
    return math.prod(local[: rows + 1]) * math.prod(shape[rows + 1 :])


def _n_drawn(shape: Shape, local: Shape) -> int:
    """Return how many elements a rank draws from a key for a block of this shape."""
    return _elements(local, shape, rows_drawn(local, shape)) if shape else 1


@op_rule(*FROM_KEY, static=(0, 3))
@op_rule(*FROM_SEED, static=(0,))
def drawn(op: Operator) -> Rule:
    operands = replicated_rule(op, "").operands
    rule = make_rule(op, operands, (own_dims(len(op.result.shape)),), flops_per_point=_FLOPS)
    return replace(rule, points=partial(_n_drawn, op.result.shape))


@op_rule("StatelessRandomGetKeyCounter")
def key_and_counter(op: Operator) -> Rule:
    """Return the rule of key and counter: three numbers from two, equal on every rank, with nothing to split."""
    return replicated_rule(op, "")


@op_rule("RandomShuffle")
def shuffle(op: Operator) -> Rule:
    """Return the rule of a shuffle along the first dimension.

    All other dimensions can be split: with equal seeds every rank shuffles in the same way.
    """
    return all_but(op, [0], ())


@op_rule("Multinomial", "StatelessMultinomial", static=(1,))
@op_rule("RandomGamma", "RandomPoissonV2", "StatelessRandomBinomial", static=(0,))
@op_rule("StatelessRandomGammaV3", static=(0, 3))
def from_one_stream(op: Operator) -> str:
    return f"{op.type} draws its elements one after the other, each taking as many numbers as it happens to need"
