"""Splits that would be right and that no rule offers: ``python tests/rules/missing.py``.

For each case, two blocks and three: every way to give each operand whole, split in a dimension, or in summands, and the
operator as TensorFlow evaluates it on each block alone. Where the blocks' results, put together along a dimension or added
up, are the whole result for two draws of the operands, the split is right; what the rule offers is taken away. Only values
are compared, with one axis and without collectives: what needs these is not found here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    # What can't be right is mostly refused by a kernel, which would be said each time.
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.path.insert(0, str(Path(__file__).parents[1]))

import tensorflow as tf
from rules.case import Case
from rules.cases import CASES
from rules.validate import channels_first, session, truth_of

from tensoropt.ir.graph import Tensor
from tensoropt.lowering import operators
from tensoropt.reschedule.layout import Layout, block_bounds
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.configs import configs
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import interface_of

WHOLE, SUMMANDS = "-", "+"

EVEN = "right only where a block happens to end between two windows or strides, which depends on the number of blocks"
# Why a rule doesn't offer these, by case.
REASONS = {
    "StridedSlice/every second": EVEN,
    "MaxPool/over channels": "windows over batch or channels are never split: no model was seen to have them",
    "Einsum/trace": "an equation that repeats a letter within a term is replicated",
    "SoftmaxCrossEntropyWithLogits/broadcast": "TensorFlow has no gradient for labels that are broadcast",
    "PadV2/nothing": "linear only where nothing is padded at all",
    **dict.fromkeys(
        [f"{kind}{form}" for kind in ("Xdivy", "Xlog1py", "Xlogy") for form in ("", "/extents of 1", "/missing dimension")],
        "not linear where both operands are 0",
    ),
    **dict.fromkeys(
        ("MulNoNan", "MulNoNan/extents of 1", "MulNoNan/missing dimension"), "not linear where the first operand is NaN"
    ),
    "CheckNumerics": "what is checked is the sum: its summands may be no numbers where it is one",
    "NextAfter": "the next number is nearer than what counts as equal here",
    **dict.fromkeys(
        ("TensorScatterAdd", "TensorScatterAdd/elements", "TensorScatterAdd/some twice", "TensorScatterSub",
         "TensorScatterSub/elements"),
        "one axis would be given to a factor and to a linear operand at once",
    ),
    "ExtractImagePatches": EVEN,
    "CropAndResize/filled": "right only where no box reaches out of its image",
    **dict.fromkeys(("RandomGamma", "RandomPoissonV2"), "here one operator draws block after block"),
    "Select/scalar": "right only for one value of the condition",
}


@dataclass(frozen=True, slots=True)
class Split:
    """The split of each operand and result: ``-`` unsplit, ``+`` in summands, a number for a split dimension."""

    operands: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.operands)} -> {', '.join(self.results)}"


def offered(case: Case, n: int) -> set[Split]:
    """The splits that the rule offers with one axis."""
    rule = rule_of(case.op)
    interfaces = [interface_of(rule, config) for config in configs(rule, Mesh.of(n))]
    return {
        Split(
            tuple(_text(sharding.layout) for sharding in one.operands if sharding is not None),
            tuple(_text(layout) for layout in one.results),
        )
        for one in interfaces
    }


def _text(layout: Layout) -> str:
    split = [str(dimension) for dimension, axes in enumerate(layout.splits) if axes]
    return split[0] if split else SUMMANDS if layout.partial else WHOLE


def missing(case: Case, n: int) -> list[Split]:
    """Right splits into n blocks that the rule doesn't offer."""
    known = offered(case, n)
    found = [split for split in _Blocks(case, n).right() if split not in known]
    if not found:
        return []
    again = set(_Blocks(replace(case, label=f"{case.label} again"), n).right())
    return [split for split in found if split in again]


@dataclass
class _Blocks:
    case: Case
    n: int

    @cached_property
    def ways(self) -> list[list[str]]:
        """Per operand, how it may be given; one without elements has only one way."""
        return [[WHOLE, *self._forms(tensor)] if 0 not in tensor.shape else [WHOLE] for _, tensor in self.case.op.operands]

    def right(self) -> Iterator[Split]:
        """The ways that give the whole result, offered or not."""
        op, truth = self.case.op, truth_of(self.case).results
        with tf.Graph().as_default(), channels_first(), session() as running:
            operands = [tf.compat.v1.placeholder(tensor.dtype) for _, tensor in op.operands]
            # A target shape is that of a block.
            target = tf.compat.v1.placeholder(tf.int32, [None])
            statics = dict(op.statics) | ({1: target} if op.type in ("Reshape", "BroadcastTo") else {})
            remaining = iter(operands)
            results = operators.raw_operator(
                op, [statics[i] if t is None else next(remaining) for i, t in enumerate(op.inputs)]
            )
            for way, shape in product(list(product(*self.ways))[1:], self._targets()):
                per_block = self._values(way)
                if not all(self._hold_a_window(values) for values in per_block):
                    continue
                try:
                    blocks = [
                        running.run(results, {target: shape, **dict(zip(operands, values, strict=True))})
                        for values in per_block
                    ]
                except (tf.errors.OpError, ValueError):
                    continue
                yield from self._outcomes(way, blocks, truth)

    def _hold_a_window(self, operands: list[np.ndarray]) -> bool:
        """Whether a pool without padding has a result: TensorFlow's kernel for three dimensions divides by its extents."""
        attrs = self.case.op.attrs
        if "ksize" not in attrs or attrs.get("padding") != "VALID":
            return True
        image = operands[0]
        return all(extent >= size for extent, size in zip(image.shape, attrs["ksize"], strict=False))

    def _targets(self) -> list[tuple[int, ...]]:
        """The shapes that a block of the result may have, where the operator is told."""
        op, shape = self.case.op, self.case.op.result.shape
        if op.type not in ("Reshape", "BroadcastTo"):
            return [()]
        parts = [d for d, extent in enumerate(shape) if extent % self.n == 0]
        return [shape, *((*shape[:d], shape[d] // self.n, *shape[d + 1 :]) for d in parts)]

    def _values(self, way: tuple[str, ...]) -> list[list[np.ndarray]]:
        rng = np.random.default_rng(self.case.seed + 3)
        per_operand = []
        for how, value in zip(way, self.case.values, strict=True):
            if how == WHOLE:
                per_operand.append([value] * self.n)
            elif how == SUMMANDS:
                parts = [rng.normal(size=value.shape).astype(value.dtype) for _ in range(self.n - 1)]
                per_operand.append([*parts, (value - sum(parts)).astype(value.dtype)])
            else:
                bounds = [block_bounds(value.shape[int(how)], self.n, i) for i in range(self.n)]
                per_operand.append([np.take(value, range(*b), int(how)) for b in bounds])
        return [list(values) for values in zip(*per_operand, strict=True)]

    def _outcomes(self, way: tuple[str, ...], blocks: list[list[np.ndarray]], truth: list[np.ndarray]) -> Iterator[Split]:
        options = [
            [how for how in self._forms(tensor) if _is_whole(how, [block[k] for block in blocks], truth[k])]
            for k, tensor in enumerate(self.case.op.outputs)
        ]
        for results in product(*options):
            yield Split(way, results)

    def _forms(self, tensor: Tensor) -> list[str]:
        return [*(str(d) for d, extent in enumerate(tensor.shape) if extent >= self.n), *[SUMMANDS] * tensor.is_float]


def _is_whole(how: str, blocks: list[np.ndarray], truth: np.ndarray) -> bool:
    """Whether blocks make up the whole result."""
    if how == SUMMANDS:
        if any(block.shape != truth.shape for block in blocks):
            return False
        # The maximum of nothing is the lowest number, which has no double; results that TensorFlow leaves unwritten are any.
        with np.errstate(over="ignore", invalid="ignore"):
            together = sum(blocks[1:], blocks[0])
    else:
        d = int(how)
        for i, block in enumerate(blocks):
            start, end = block_bounds(truth.shape[d], len(blocks), i)
            if block.shape != (*truth.shape[:d], end - start, *truth.shape[d + 1 :]):
                return False
        together = np.concatenate(blocks, d)
    if np.issubdtype(truth.dtype, np.inexact):
        tolerance = 1e-5 if truth.dtype == np.float32 else 1e-9
        return bool(np.allclose(together, truth, rtol=tolerance, atol=tolerance, equal_nan=True))
    return bool(np.array_equal(together, truth))


def table() -> list[tuple[str, str, str]]:
    """Per case with missing splits: its name, these, and why."""
    rows = []
    for case in CASES:
        found = dict.fromkeys(str(split) for n in (2, 3) for split in missing(case, n))
        if found:
            rows.append((case.label, "; ".join(found), REASONS.get(case.label, "no reason is known")))
    return rows


if __name__ == "__main__":
    for label, splits, why in table():
        print(f"{label:42} {splits:60} {why}")
