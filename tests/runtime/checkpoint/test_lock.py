"""One run at a time saves to a prefix: another one is told who does, and what the dead leave behind holds nobody up."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from runtime.checkpoint.states import ALONE
from runtime.checkpoint.test_files import saved_value, state_of

from tensoropt.common.errors import TensorOptError
from tensoropt.runtime.checkpoint import lock, save, saving
from tensoropt.runtime.checkpoint.lock import Holder, Lock


@pytest.fixture
def sleeper() -> Iterator[int]:
    """Another process, that lives."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def hold(folder: Path, **changes: object) -> Path:
    """The lock of another process on a checkpoint in this folder, while it saves."""
    file = folder / ".ckpt.lock"
    file.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(Holder.here(), token="other", **changes))))
    (folder / ".ckpt.partial").mkdir(exist_ok=True)
    (folder / ".ckpt.partial" / "rank-00000-00000.index").touch()
    return file


def save_one(folder: Path, value: float) -> None:
    save(folder / "ckpt", state_of(value), ALONE)


def assert_refused(folder: Path, said: str) -> None:
    """The old checkpoint and the files that the other run is writing are unchanged."""
    with pytest.raises(TensorOptError, match=said) as raised:
        save_one(folder, 2)
    assert "Make room" not in str(raised.value) and "let each run save" not in str(raised.value).split(". ")[0]
    assert saved_value(str(folder / "ckpt")) == 1
    assert [file.name for file in (folder / ".ckpt.partial").iterdir()] == ["rank-00000-00000.index"]


def test_who_lives_is_named_and_who_is_dead_holds_nobody_up(tmp_path: Path, sleeper: int) -> None:
    save_one(tmp_path, 1)
    assert not list(tmp_path.glob(".*"))
    started = lock._started(sleeper)
    hold(tmp_path, pid=sleeper, started=started)
    assert_refused(tmp_path, rf"another run saves to it: got its lock '.*' held by process {sleeper} on .* since 20.*\. Let")
    gone: list[dict[str, object]] = [
        {"pid": sleeper, "started": "1"},  # its number went to another process
        {"pid": 2**22 + 1, "started": "7"},
        {},  # a save of this process that was cut short
    ]
    for value, changes in enumerate(gone, start=3):
        hold(tmp_path, **changes)
        save_one(tmp_path, value)
        assert saved_value(str(tmp_path / "ckpt")) == value
        assert not list(tmp_path.glob(".*")), changes
    odd = json.dumps({**dataclasses.asdict(Holder.here()), "token": [1]})
    for text in ("", "{", "[]", odd):
        (tmp_path / ".ckpt.lock").write_text(text)
        with patch.object(lock, "LOOK_S", 0.01):
            save_one(tmp_path, 8)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("machine", ["its-boot pid:[1]", ""])
@pytest.mark.parametrize("host", ["node7", socket.gethostname()])
def test_a_lock_of_another_machine_is_left_over_once_it_stays_as_it_is(tmp_path: Path, host: str, machine: str) -> None:
    """Also if that machine has this one's host name, or isn't known."""
    save_one(tmp_path, 1)
    file = hold(tmp_path, host=host, machine=machine, pid=12)
    done = threading.Event()

    def touch() -> None:
        while not done.wait(0.02):
            os.utime(file)

    toucher = threading.Thread(target=touch)
    toucher.start()
    with patch.multiple(lock, STALE_S=30.0, LOOK_S=0.1):
        assert_refused(tmp_path, f"held by process 12 on {host}")
    done.set()
    toucher.join()
    with patch.multiple(lock, STALE_S=0.2, LOOK_S=0.05):
        save_one(tmp_path, 2)
    assert saved_value(str(tmp_path / "ckpt")) == 2 and not list(tmp_path.glob(".*"))


def test_who_was_taken_for_dead_puts_nothing_in_place(tmp_path: Path, sleeper: int) -> None:
    """Another run takes the lock while this one's files are being written."""
    save_one(tmp_path, 1)

    def taken(*arguments: object, write: Callable[..., object] = saving._write_shards) -> object:
        result = write(*arguments)
        hold(tmp_path, pid=sleeper, started=lock._started(sleeper))
        return result

    with patch.object(saving, "_write_shards", taken), pytest.raises(TensorOptError, match=f"held by process {sleeper} on"):
        save_one(tmp_path, 2)
    assert saved_value(str(tmp_path / "ckpt")) == 1
    assert (tmp_path / ".ckpt.lock").exists(), "the other run's"


def test_only_its_holder_touches_a_lock(tmp_path: Path) -> None:
    held = Lock(tmp_path / ".ckpt.lock", "ckpt")
    held.acquire()
    own = held._read()
    assert own is not None
    for is_own in (True, False):
        if not is_own:
            hold(tmp_path)
        os.utime(held.file, (1, 1))
        held._touch(own)
        assert (held.file.stat().st_mtime > 1) is is_own
    held.release()
    assert held.file.exists(), "the other run's"


def test_one_of_many_gets_the_lock_of_the_dead(tmp_path: Path) -> None:
    """Many processes find the lock at once; without links, too."""
    for links in (True, False):
        hold(tmp_path, pid=2**22 + 1, started="7")
        locks = [Lock(tmp_path / ".ckpt.lock", "ckpt") for _ in range(8)]
        refused: list[str] = []

        def take(each: Lock, refused: list[str] = refused) -> None:
            try:
                each.acquire()
            except TensorOptError as error:
                refused.append(str(error))

        refusing = patch.object(os, "link", side_effect=OSError(lock.errno.EPERM, "no links"))
        threads = [threading.Thread(target=take, args=[each]) for each in locks]
        with patch.object(os, "link", os.link) if links else refusing:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        (holder,) = [each for each in locks if each.is_held]
        assert len(refused) == 7 and all("another run saves to it" in said for said in refused)
        holder.check()
        holder.release()
        assert not (tmp_path / ".ckpt.lock").exists()
