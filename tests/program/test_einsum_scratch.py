"""The scratch memory of Einsum, against TensorFlow's profiler."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tensoropt.profiling.trace import traced_step
from tensoropt.program.memory.einsum_scratch import einsum_scratch_bytes, equation_of_gradient

SIZES = {"b": 4, "h": 4, "q": 64, "k": 128, "d": 96, "e": 64}
SCORES, VALUES = "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd"
EQUATIONS = [
    SCORES,
    VALUES,
    *(equation_of_gradient(each, position) for each in (SCORES, VALUES) for position in (0, 1)),
    "bqhd,de->bqhe",
    "bqhd,de->beqh",
    "bqhd,ed->bqhe",
    "bqd,bke->bkqde",
    "bqhd,bkhd->bhk",
]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_scratch_of_einsum_equals_the_profilers(equation: str) -> None:
    taken, made = equation.split("->")
    *operands, result = (tf.ones([SIZES[label] for label in labels]) for labels in (*taken.split(","), made))

    def step() -> None:
        tf.einsum(equation, *operands)

    step()
    sizes = [4 * int(tf.size(operand)) for operand in operands]
    n_bytes = 4 * int(tf.size(result))
    foretold = n_bytes + einsum_scratch_bytes(equation, sizes, n_bytes)
    # Small tensors can't be seen: some results.
    assert traced_step(step).peak_bytes == pytest.approx(foretold, rel=0.01, abs=2**14)
