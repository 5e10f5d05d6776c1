"""What Keras warns of by itself where a trainer is compared with it."""

import pytest

KERAS_SAYS = (
    ".shuffle=True. was passed",  # of every dataset and generator that its fit is given
    "__array__ implementation doesn't accept",  # of its own variables, where it reads and writes files and sets rates
    "Your input ran out of data",  # of a generator that doesn't tell its length
)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Ignore what Keras warns of by itself."""
    for text in KERAS_SAYS:
        item.add_marker(pytest.mark.filterwarnings(f"ignore:{text}"))
