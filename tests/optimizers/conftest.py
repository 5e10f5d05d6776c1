"""What the optimizers' tests share: emulated graphs are large and run a few times, so they aren't optimised."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import tensorflow as tf


@pytest.fixture(scope="module", autouse=True)
def _graphs_as_they_are_built() -> Iterator[None]:
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    gc.disable()
    yield
    gc.enable()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})
