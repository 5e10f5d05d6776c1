"""A step's error advises about labels and indices only where the kernel speaks of them."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tensoropt.common.errors import InputError
from tensoropt.ir.graph import Graph
from tensoropt.runtime.failures.step_errors import RefusedValues


@pytest.mark.parametrize(
    ("message", "about_indices"),
    [("indices[0,1] = 12 is not in [0, 12)", True),
     ("Received a label value of 9 which is outside the valid range of [0, 4).", True),
     ("loss is not finite : Tensor had NaN values", False),
     ("assertion failed: [Condition x >= 0 did not hold element-wise:]", False)],
)  # fmt: skip
def test_only_an_error_about_indices_has_advice_about_them(message: str, about_indices: bool) -> None:
    with pytest.raises(InputError) as raised, RefusedValues(Graph({}, {}, {})):
        raise tf.errors.InvalidArgumentError(None, None, message)
    assert message.rstrip(".") in str(raised.value)
    assert ("labels and indices from 0" in str(raised.value)) is about_indices
