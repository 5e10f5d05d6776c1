"""Scripts of TensorFlow's first version that compute with gradients give under a plan what they give in a session."""

from __future__ import annotations

import pytest
from session.updates import SCRIPTS, check


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_that_compute_with_gradients(name):
    check(name, hardware="v100-1x2", collectives="emulated")
