"""What all tests share."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# TensorFlow's notices about its build would hide what a test prints.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# No test depends on what was measured before it; processes that tests start inherit this.
os.environ["TENSOROPT_CACHE"] = "off"
# What commands say isn't mixed with how far they are, where the machine is slow.
os.environ["TENSOROPT_QUIET"] = "1"

# Other work on the machine must not fail a property.
settings.register_profile("tensoropt", deadline=None)
settings.load_profile("tensoropt")


@pytest.fixture(scope="module", autouse=True)
def _no_recording_stays_open() -> Iterator[None]:
    """A session that a module leaves unbuilt would leave its graph the default one for the next."""
    yield
    session = sys.modules.get("tensoropt.session.session")
    if session is not None and session._current is not None:
        session._current._recording.close()


@pytest.fixture(scope="session", autouse=True)
def _interruptions_arrive() -> None:
    """A shell starts what runs in its background with interruptions ignored, which would hold for all that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def float64() -> Iterator[None]:
    """Keras layers made meanwhile compute in float64, so that differences are no rounding."""
    from helpers.switches import floats

    with floats("float64"):
        yield


@pytest.fixture
def graphs_as_built() -> Iterator[None]:
    """See :func:`switches.graphs_as_built`."""
    from helpers.switches import graphs_as_built

    with graphs_as_built():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-models", action="store_true", help="hold every model of tests/models, at full depth: an hour")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that start ranks are marked: their tests need the cores for themselves."""
    for item in items:
        module = getattr(item, "module", None)
        if hasattr(module, "run_ranks") or hasattr(module, "run_command"):
            item.add_marker(pytest.mark.ranks)
