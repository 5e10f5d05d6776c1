"""Graphs run as they are built: TensorFlow's graph optimizer would take most of the time. It is on between processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensorflow as tf


@pytest.fixture(scope="package", autouse=True)
def _graphs_as_they_are_built() -> Iterator[None]:
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})
