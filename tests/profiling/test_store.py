"""The store of measured operators: kept between runs, shared by ranks, and never in the way when it can't be used."""

import os
import pwd
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from helpers.mpirun import child_environment
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.profiling.store import FILE, Store, cache_folder
from tensoropt.profiling.work import Measured, WorkItem

HERE = "a device, TensorFlow 2.21"


def measured(key: str, forward_us: float = 3.0) -> Measured:
    return Measured(WorkItem("MatMul", "float32", 2 * 8**3, 768, 2, key), forward_us, 2 * forward_us, 0.1)


def opened(path: Path, said: list[str], environment: str = HERE, patience_s: float = 0.05) -> Store:
    return Store(path, environment, said.append, patience_s)


@pytest.fixture
def said() -> list[str]:
    return []


def test_what_was_measured_is_there_in_the_next_run(tmp_path, said):
    path, kept = tmp_path / "caches" / FILE, ({"a": measured("a", 4.0), "b": measured("b")}, {"plan": (0.25, 0.3)})
    with closing(opened(path, said)) as store:
        store.add([measured("a"), measured("b")])
        store.add([measured("a", 4.0)])
        store.add_step_s("plan", 0.2, 0.3)
        store.add_step_s("plan", 0.25, 0.3)
        assert (store.measured, store.step_s) == kept
    with closing(opened(path, said)) as store:
        assert (store.measured, store.step_s) == kept
    with closing(opened(path, said, "a device, TensorFlow 2.22")) as store:
        assert (store.measured, store.step_s) == ({}, {})
    assert said == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e9))))
def test_the_last_measurement_of_a_key_counts(added):
    store = Store(None, HERE)
    for key, forward_us in added:
        store.add([measured(key, forward_us)])
    assert {key: each.forward_us for key, each in store.measured.items()} == dict(added)


def test_ranks_write_at_the_same_time(tmp_path):
    code = (
        "import sys; from pathlib import Path; from tensoropt.profiling.store import Store; "
        "from tensoropt.profiling.work import Measured, WorkItem\n"
        "store = Store(Path(sys.argv[1]), 'here')\n"
        "for i in range(40):\n"
        "    store.add([Measured(WorkItem('Relu', 'float32', 1, 2, 0, f'{sys.argv[2]} {i}'), 1.0, 0.0, 0.0)])"
    )
    path, env = tmp_path / FILE, child_environment()
    ranks = [subprocess.Popen([sys.executable, "-c", code, path, str(rank)], env=env, stderr=subprocess.PIPE, text=True)
             for rank in range(3)]
    assert [rank.communicate(timeout=60)[1] for rank in ranks] == [""] * 3
    with closing(Store(path, "here")) as store:
        assert len(store.measured) == 3 * 40


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def another_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")


@pytest.mark.parametrize(
    ("harm", "why"),
    [(cut, "malformed|not a database"), (lambda path: path.write_text("no database, but long" * 50), "not a database"),
     (another_version, "version 7, expected 4")],
)  # fmt: skip
def test_a_broken_store_is_set_aside_and_rebuilt(tmp_path, said, harm, why):
    path = tmp_path / FILE
    with closing(opened(path, said)) as store:
        store.add([measured(str(i)) for i in range(2_000)])
    harm(path)
    with closing(opened(path, said)) as store:
        assert len(said) == 1 and re.search(why, said[0])
        assert "is broken" in said[0] and "a new one begun" in said[0]
        assert store.measured == {}
        store.add([measured("a")])
    with closing(opened(path, said)) as store:
        assert list(store.measured) == ["a"]
    assert len(said) == 1
    assert len(list(tmp_path.glob(f"{FILE}.broken-*"))) == 1


def test_a_locked_store_is_done_without_and_said_so_once(tmp_path, said):
    path = tmp_path / FILE
    with closing(opened(path, said)) as store:
        store.add([measured("a")])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            store.add([measured("b")])
            store.add([measured("c")])
    assert set(store.measured) == {"a", "b", "c"}
    assert len(said) == 1 and "isn't kept for later runs" in said[0] and "locked" in said[0]
    with closing(opened(path, said)) as store:
        assert set(store.measured) == {"a"}


@pytest.fixture
def folder_of_a_user(tmp_path) -> Iterator[Path]:
    """A folder in which permissions count: root may write everywhere, so root becomes nobody meanwhile."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    nobody = pwd.getpwnam("nobody").pw_uid
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, nobody, -1)
        os.seteuid(nobody)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)


def test_a_read_only_store_is_read(folder_of_a_user, said):
    path = folder_of_a_user / FILE
    with closing(opened(path, said)) as store:
        store.add([measured("a")])
    path.chmod(0o400)
    folder_of_a_user.chmod(0o500)
    with closing(opened(path, said)) as store:
        store.add([measured("b")])
        assert set(store.measured) == {"a", "b"}
    assert len(said) == 1 and "can't be used" in said[0]


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path, said):
    (tmp_path / "file").write_text("")
    store = opened(tmp_path / "file" / FILE, said)
    store.add([measured("a")])
    assert set(store.measured) == {"a"}
    assert len(said) == 1 and "can't be used (" in said[0]


def test_the_environment_says_where_the_store_is():
    assert cache_folder({"TENSOROPT_CACHE": "off"}) is None
    assert cache_folder({"TENSOROPT_CACHE": "/data", "XDG_CACHE_HOME": "/x"}) == Path("/data")
    assert cache_folder({"TENSOROPT_CACHE": "", "XDG_CACHE_HOME": "/x"}) == Path("/x/tensoropt")
    assert cache_folder({}) == Path.home() / ".cache" / "tensoropt"
