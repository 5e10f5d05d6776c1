"""Collectives by Horovod's operators, between processes. Where Horovod isn't installed only CI insists on them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
from helpers.large import first
from helpers.mpirun import ROOT, run_ranks

from tensoropt.common.errors import InputError
from tensoropt.runtime.collectives import horovod

HERE = Path(__file__).parent
EXECUTION_WORKER = ROOT / "tests" / "execution" / "worker.py"
LATE = ROOT / "tests" / "runtime" / "late_rank.py"
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None and "CI" not in os.environ, reason="Horovod isn't installed: make horovod"
)
YIELDING = {"OMPI_MCA_mpi_yield_when_idle": "1"}
"""As for ranks of a script: Horovod's thread must leave the core to the rank's other threads while it waits."""
BEGINS = r"rank 0 has waited for \d+ s in a run with \d+ collectives, the first \w+\(a\) of .* for \w+, in run at \S+: "


@needs_horovod
@pytest.mark.parametrize("n_ranks", first(1, [4, 2, 3]))
def test_every_step_is_the_simulation_s(n_ranks: int, everything: bool) -> None:
    """Uneven blocks, every dtype, halos, maxima; 4 ranks are two axes, which together are one, and by --all also one."""
    arguments = ["horovod", *["all"] * everything]
    result = run_ranks(n_ranks, "-m", "mpi4py", HERE / "operators_worker.py", *arguments, timeout=240, env=YIELDING)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"every step on {n_ranks} ranks" in result.stdout


@needs_horovod
@pytest.mark.parametrize(
    ("n_ranks", "case", "count"), first(1, [(3, "broadcasting", 1), (4, "windows", 1), (4, "models", 3), (2, "models", 6)])
)
def test_random_strategies_give_one_device_numbers(n_ranks: int, case: str, count: int) -> None:
    result = run_ranks(n_ranks, "-m", "mpi4py", EXECUTION_WORKER, case, count, "horovod", timeout=240, env=YIELDING)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count} strategies, " in result.stdout


@needs_horovod
def test_local_feeds() -> None:
    result = run_ranks(4, "-m", "mpi4py", ROOT / "tests" / "execution" / "feeding_worker.py", "horovod", timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "local feeds are full feeds on 4 ranks" in result.stdout


@pytest.mark.alone
@needs_horovod
@pytest.mark.parametrize(
    ("does", "said"),
    first(2, [
        ("leave", "rank 0 waits in a collective for rank 1, which has ended"),
        ("sleep", rf"{BEGINS}rank 1 hasn't come to it and has been in the user's code at late_rank.py:\d+ for \d+ s\. All"),
        ("stop", rf"{BEGINS}rank 1 hasn't answered for \d+ s; it was last known in run at late_rank.py:\d+\. All"),
    ]),
)
def test_a_rank_that_does_not_come_is_named(does: str, said: str) -> None:
    """Left to itself, Horovod would end on all ranks as soon as it does on one."""
    environment = {"TENSOROPT_TIMEOUT": "3", "TENSOROPT_COLLECTIVES": "horovod"}
    result = run_ranks(3, LATE, does, "0", timeout=60, env=environment)
    assert result.returncode == 1
    assert len(re.findall(f"tensoropt: {said}", result.stderr)) == 1, result.stderr
    assert "Traceback" not in result.stderr


def a_horovod(folder: Path, built_for: str | None = None, code: str = "") -> Path:
    """A package of its name."""
    package = folder / "horovod"
    (package / "tensorflow").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "tensorflow" / "__init__.py").write_text(code)
    if built_for is not None:
        (package / "metadata.json").write_text(json.dumps({"tensorflow": built_for}))
    return folder


@pytest.mark.parametrize(
    ("make", "said"),
    [(lambda folder: a_horovod(folder), "built for another TensorFlow: got unknown, expected"),
     (lambda folder: a_horovod(folder, "2.3.4"), f"another TensorFlow: got 2.3.4, expected {tf.__version__}."),
     (lambda folder: a_horovod(folder, tf.__version__, "raise OSError('libmpi.so.12: cannot open it')"),
      "Horovod can't be loaded: got libmpi.so.12: cannot open"),
     (lambda folder: a_horovod(folder, tf.__version__, "mpi_built = lambda: False"), "built without MPI")],
)  # fmt: skip
def test_a_horovod_that_fits_nothing_here_is_refused(
    make: Callable[[Path], Path], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "horovod"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(make(tmp_path))
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        horovod.load_horovod()
    assert "make horovod" in str(caught.value)
    monkeypatch.setattr(horovod, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs Horovod: got none in this environment\. Make it with make horovod"):
        horovod.load_horovod()
    for name in [name for name in sys.modules if name.split(".")[0] == "horovod"]:
        monkeypatch.delitem(sys.modules, name)


def test_two_mpi_libraries_are_seen(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    lines = ("/usr/lib/libmpi.so.12", "/venv/lib/libmpi.so.40", "/venv/lib/libmpi.so.40", "/usr/lib/libmpifort.so", "[heap]")
    maps.write_text("".join(f"7f00-7f01 r-xp 00000000 08:01 123     {path}\n" for path in lines))
    assert horovod.mpi_libraries(maps) == ["/usr/lib/libmpi.so.12", "/venv/lib/libmpi.so.40"]
    assert horovod.mpi_libraries(tmp_path / "none") == []


def test_one_that_fits_nothing_here_ends_all_ranks_with_one_sentence(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": f"{a_horovod(tmp_path, '2.3.4')}:{ROOT}", "TENSOROPT_COLLECTIVES": "horovod"}
    result = run_ranks(2, LATE, "nothing", "0", timeout=120, env=environment)
    assert result.returncode == 2
    assert result.stderr.count("tensoropt: Horovod was built for another TensorFlow") == 1, result.stderr
    assert "Traceback" not in result.stderr
