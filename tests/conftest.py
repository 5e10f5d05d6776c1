"""Fixtures and options that all tests share."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from helpers import kept
from hypothesis import settings

# On a CPU only oneDNN's allocator reports to TensorFlow's profiler, and TensorFlow has it off without AVX-512 unless asked.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# TensorFlow's notices about its build would hide what a test prints.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# No test depends on what was measured before it; processes that tests start inherit this.
os.environ["TENSOROPT_CACHE"] = "off"
# Ranks of tests are CPUs, and models are small: NCCL's buffers would be most of each peak.
os.environ["TENSOROPT_COLLECTIVES"] = "mpi"
# A search that may have workers starts them ahead; tests of workers ask for them.
os.environ["TENSOROPT_WORKERS"] = "1"
# What commands say isn't mixed with how far they are, where the machine is slow.
os.environ["TENSOROPT_QUIET"] = "1"

# Recorded graphs are many objects that refer to each other: as often as Python looks for those that nobody needs any more,
# a sixth of the time goes into it.
gc.set_threshold(50_000, 10, 10)

# Other work on the machine must not fail a property. Each run draws other examples.
settings.register_profile("some", deadline=None, max_examples=30)
settings.register_profile("all", deadline=None)


@pytest.fixture(scope="module", autouse=True)
def _no_recording_stays_open() -> Iterator[None]:
    """A session that a module leaves unbuilt would leave its graph the default one for the next."""
    yield
    session = sys.modules.get("tensoropt.session.session")
    if session is not None and session._current is not None:
        session._current._recording.close()


@pytest.fixture(autouse=True)
def _emits_what_gpus_have(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse functions with an operator that has no kernel for GPUs, unless it is meant for the host."""
    if request.path.parent.name in ("models", "keras_layers", "one_device", "optimizers", "composite"):
        from helpers.gpu_kernels import without_kernel

        from tensoropt.runtime import engine

        def checked(function: Any, *others: Any, made: type = engine.BuiltFunction) -> Any:
            assert not list(without_kernel(function.graph))
            return made(function, *others)

        monkeypatch.setattr(engine, "BuiltFunction", checked)


@pytest.fixture(scope="session", autouse=True)
def _interruptions_arrive() -> None:
    """A shell starts what runs in its background with interruptions ignored, which would hold for all that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


MOST_FROZEN = 1_500_000
"""So many objects may be left out of the search for garbage before what is none any more is looked for among them."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what is imported by now out of all searches for garbage."""
    gc.collect()
    gc.freeze()
    session.config.stash[FROZEN] = gc.get_freeze_count()


FROZEN = pytest.StashKey[int]()


@pytest.fixture(scope="module", autouse=True)
def _memory_given_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect what :func:`graphs_as_built` left out of the search for garbage: workers grew to 9 GB otherwise."""
    yield
    stash = request.config.stash
    if gc.get_freeze_count() > stash[FROZEN] + MOST_FROZEN:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        stash[FROZEN] = gc.get_freeze_count()


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


AS_BUILT = {
    "accumulate", "composite", "execution", "keras_layers", "models", "optimizers", "pipeline", "random_models", "remat",
    "session", "trainer",
}  # fmt: skip
"""Folders whose graphs run a few times: the graph optimizer is on between processes, and in some tests of one_device."""


@pytest.fixture(autouse=True)
def _graphs_as_built(request: pytest.FixtureRequest) -> None:
    if request.path.parent.name in AS_BUILT:
        request.getfixturevalue("graphs_as_built")


@pytest.fixture(scope="session")
def everything(request: pytest.FixtureRequest) -> bool:
    """Whether ``--all`` is given: for loops in tests, where parameters would be too many."""
    return bool(request.config.getoption("--all"))


def pytest_configure(config: pytest.Config) -> None:
    if kept.FOLDER not in os.environ:
        config.add_cleanup(kept.open_folder())
    settings.load_profile("all" if config.getoption("--all") else "some")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="leave nothing out: all seeds, configs and models; hours")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests that start ranks, which need the cores for themselves, and leave out what only ``--all`` holds.

    Of two workers the first begins with the first test that is left, the second with the one in the middle. The rules, which
    search nothing, come there: the first compiles the search meanwhile, which the second then finds on disk.
    """
    large = [] if config.getoption("--all") else [item for item in items if item.get_closest_marker("large")]
    if large:
        config.hook.pytest_deselected(items=large)
        items[:] = [item for item in items if not item.get_closest_marker("large")]
    for item in items:
        if isinstance(item, pytest.Function) and _starts_processes(item):
            item.add_marker(pytest.mark.ranks)
    yield  # what the command line's marks leave out goes
    rules = [item for item in items if item.path.parent == RULES]
    others = [item for item in items if item.path.parent != RULES]
    middle = len(items) // 2
    items[:] = others[:middle] + rules + others[middle:]


RULES = Path(__file__).with_name("rules")
REQUIRED = os.environ.get("TENSOROPT_REQUIRE", "").split(",")
"""What must be there: its tests fail without it. What isn't named and isn't there is told at the end instead."""


def _lacks_browser() -> bool:
    return "browser" not in REQUIRED and shutil.which("chromium") is None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the tests in a browser where there is none."""
    return True if collection_path.name == "browser" and _lacks_browser() else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out, and what to install for it."""
    if _lacks_browser() and config.getoption("markexpr") != "ranks":
        terminalreporter.write_line("left out: tests/report/browser, which needs Chromium: apt-get install chromium")


STARTING = {"run_ranks", "run_command", "child_environment"}


def _starts_processes(item: pytest.Function) -> bool:
    """Return whether a test, or what it calls in its module, or a fixture of its, has functions of helpers/mpirun.py."""
    fixtures = (found[-1].func for found in item._fixtureinfo.name2fixturedefs.values())
    waiting, seen = [item.function, *fixtures], set()
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        names = _names(function.__code__)
        if names & STARTING:
            return True
        called = map(function.__globals__.get, names)
        waiting += [each for each in called if isinstance(each, FunctionType) and each.__module__ == function.__module__]
    return False


def _names(code: CodeType) -> set[str]:
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)
