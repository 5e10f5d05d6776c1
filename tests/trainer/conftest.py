"""All that trains in this process, which is compared with plain Keras; ranks and scripts have TensorFlow's own settings."""

import pytest

KERAS_SAYS = (
    ".shuffle=True. was passed",  # of every dataset and generator that its fit is given
    "__array__ implementation doesn't accept",  # of its own variables, where it reads and writes files and sets rates
    "Your input ran out of data",  # of a generator that doesn't tell its length
)


@pytest.fixture(autouse=True)
def _graphs_as_built(graphs_as_built: None) -> None:
    """Leave TensorFlow's graph optimizer out."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Ignore what Keras warns of by itself."""
    for text in KERAS_SAYS:
        item.add_marker(pytest.mark.filterwarnings(f"ignore:{text}"))
