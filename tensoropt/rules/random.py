"""Random operators. Where a result is split each rank draws its own block: see :mod:`..lowering.ops.random`."""

from __future__ import annotations

from ..ir.graph import Operator
from .registry import op_rule
from .rule import Dims, Rule, make_rule

# These draw each element by itself, from a key or from a seed attribute.
FROM_KEY = (
    "StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessTruncatedNormalV2 StatelessRandomUniformIntV2 "
    "StatelessRandomUniformFullIntV2"
).split()
FROM_SEED = "RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt".split()
# About what one element costs: a tenth of Philox's ten rounds of two products and six other steps for four numbers.
_FLOPS = 20.0


def _whole(op: Operator) -> tuple[Dims | None, ...]:
    return tuple(None if tensor is None else ((),) * len(tensor.shape) for tensor in op.inputs)


def _by_element(op: Operator) -> Rule:
    dims = tuple((f"d{i}",) for i in range(len(op.result.shape)))
    return make_rule(op, _whole(op), (dims,), flops_per_point=_FLOPS)


@op_rule(*FROM_KEY, static=(0, 3))
def from_key(op: Operator) -> Rule:
    return _by_element(op)


@op_rule(*FROM_SEED, static=(0,))
def from_seed(op: Operator) -> Rule:
    return _by_element(op)


@op_rule("StatelessRandomGetKeyCounter")
def key_and_counter(op: Operator) -> Rule:
    """Three numbers from two: the same on every rank, without anything to split."""
    return make_rule(op, _whole(op), tuple(((),) * len(tensor.shape) for tensor in op.outputs))


@op_rule("RandomShuffle")
def shuffle(op: Operator) -> Rule:
    """The first dimension is shuffled, all others go along: with equal seeds they do so alike on every rank."""
    dims: Dims = ((), *((f"d{i}",) for i in range(1, len(op.result.shape))))
    return make_rule(op, (dims,), (dims,))


@op_rule("Multinomial", "StatelessMultinomial", static=(1,))
@op_rule("RandomGamma", "RandomPoissonV2", "StatelessRandomBinomial", static=(0,))
@op_rule("StatelessRandomGammaV3", static=(0, 3))
def from_one_stream(op: Operator) -> str:
    return f"{op.type} draws its elements one after the other, each taking as many numbers as it happens to need"
