"""One run at a time saves to a prefix: another one is told who does, and what the dead leave behind holds nobody up."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import patch

import pytest
from runtime.checkpoint.states import ALONE
from runtime.checkpoint.test_files import saved_value, state_of

from tensoropt.common.errors import TensorOptError
from tensoropt.common.process.lock import Lock
from tensoropt.runtime.checkpoint import save

HOLDER = "import sys, pathlib; from tensoropt.common.process.lock import Lock; lock = Lock(pathlib.Path(sys.argv[1])); "


def save_one(folder: Path, value: float) -> None:
    save(folder / "ckpt", state_of(value), ALONE)


def test_who_lives_is_named_and_who_is_dead_holds_nobody_up(tmp_path: Path) -> None:
    save_one(tmp_path, 1)
    assert not list(tmp_path.glob(".*"))
    file, theirs = tmp_path / ".ckpt.lock", tmp_path / ".ckpt.partial" / "rank-00000-00000.index"
    theirs.parent.mkdir()
    theirs.touch()
    command = [sys.executable, "-c", f"{HOLDER}print(lock.acquire(), flush=True); input()", file]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "None\n"
        with pytest.raises(TensorOptError) as refusal:
            save_one(tmp_path, 2)
        assert f"another run saves to it: got its lock '{file}' held by process {holder.pid} on " in str(refusal.value)
        assert saved_value(str(tmp_path / "ckpt")) == 1 and theirs.exists()
        holder.kill()
    assert file.exists()
    save_one(tmp_path, 3)
    assert saved_value(str(tmp_path / "ckpt")) == 3 and not list(tmp_path.glob(".*"))


def test_one_of_many_gets_the_lock_at_any_time(tmp_path: Path) -> None:
    """Locks that are released, and their files removed, while others take them."""
    path, n_holders, most, turns = tmp_path / ".ckpt.lock", 0, 0, []
    counting = threading.Lock()

    def take_often() -> None:
        nonlocal n_holders, most
        while len(turns) < 300:
            lock = Lock(path)
            if lock.acquire() is None:
                with counting:
                    n_holders += 1
                    most = max(most, n_holders)
                    turns.append(lock)
                with counting:
                    n_holders -= 1
                lock.release()

    threads = [threading.Thread(target=take_often) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (n_holders, most) == (0, 1) and len(turns) >= 300 and not path.exists()


def test_a_file_system_without_locks_keeps_nobody_from_saving(tmp_path: Path) -> None:
    with patch.object(fcntl, "flock", side_effect=OSError(errno.ENOSYS, "no locks")):
        save_one(tmp_path, 1)
    assert saved_value(str(tmp_path / "ckpt")) == 1 and not list(tmp_path.glob(".*"))
