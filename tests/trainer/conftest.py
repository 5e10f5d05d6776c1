"""All that trains in this process, which is compared with plain Keras; ranks and scripts have TensorFlow's own settings."""

import pytest


@pytest.fixture(autouse=True)
def _graphs_as_built(graphs_as_built: None) -> None:
    """Leave TensorFlow's graph optimizer out."""
