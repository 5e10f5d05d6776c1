"""What the trainer's tests share."""

from __future__ import annotations

import keras
import pytest


@pytest.fixture(scope="module")
def float64():
    """Models, losses and metrics that are made meanwhile compute in float64: what differs then is no rounding."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
