"""Under real mpirun: save on some ranks, load on others; ranks that are killed, and disks that are full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from helpers.mpirun import run_ranks
from runtime.checkpoint.states import ALONE, assert_values, entries, replicated
from runtime.checkpoint.worker import LARGE, SMALL

from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.checkpoint import read_metadata, restore, save

WORKER = Path(__file__).with_name("worker.py")


def save_alone(prefix: Path) -> None:
    save(prefix, entries(SMALL, replicated(SMALL, Mesh.of(1)), [0]), ALONE)


def assert_it_is_there(prefix: Path) -> None:
    """All variables of SMALL have their values, for us on one process and for plain TensorFlow."""
    state = entries(SMALL, replicated(SMALL, Mesh.of(1)), [0], zero=True)
    restore(prefix, state, ALONE)
    assert_values(SMALL, state, [0])
    for variable in SMALL:
        group = "model" if variable.step is None else "optimizer"
        value = tf.train.load_variable(str(prefix), f"{group}/{variable.key}/.ATTRIBUTES/VARIABLE_VALUE")
        assert value.tobytes() == variable.value.tobytes(), variable.key


def test_saved_on_four_ranks_and_loaded_on_two_and_on_one(tmp_path: Path) -> None:
    """The model is split by a plan, replicated, and in many files; another model is refused with one sentence."""
    actions = ["plan", "replicated", "files"]
    result = run_ranks(4, WORKER, tmp_path / "ckpt", *actions, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    for action in actions:
        assert_it_is_there(tmp_path / f"ckpt-{action}")
    assert read_metadata(tmp_path / "ckpt-plan").content == {"epoch": 3}
    assert read_metadata(tmp_path / "ckpt-files").n_files > 8
    result = run_ranks(2, WORKER, tmp_path / "ckpt", *(f"load-{action}" for action in actions), "other", timeout=120)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stdout.count("done") == 2 * len(actions)
    sentence = "is of another model: got variable 'model/kernel' as float32[7, 5], expected 'model/kernel' as float32[7, 6]"
    assert result.stderr.count(sentence) == 1


def test_some_of_the_ranks(tmp_path: Path) -> None:
    """Saved by one process, loaded and saved by two of three ranks; the third has no work."""
    save_alone(tmp_path / "ckpt-alone")
    result = run_ranks(3, WORKER, tmp_path / "ckpt", "part", "load-alone", "plan", timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("plan done") == 2
    assert_it_is_there(tmp_path / "ckpt-plan")


def test_a_rank_that_is_killed_in_the_middle_leaves_the_checkpoint_that_was_there(tmp_path: Path) -> None:
    save_alone(tmp_path / "ckpt-plan")
    result = run_ranks(2, WORKER, tmp_path / "ckpt", "killed", timeout=60)
    assert result.returncode not in (0, 1, 2) and (tmp_path / ".ckpt-plan.partial").is_dir()
    assert_it_is_there(tmp_path / "ckpt-plan")
    save_alone(tmp_path / "ckpt-plan")
    assert not list(tmp_path.glob(".*")), "the next save tidies up"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, timeout=60).returncode != 0:
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=60)


def test_a_full_disk_leaves_the_checkpoint_that_was_there(small_disk: Path) -> None:
    """8 MB on a disk of 3: one sentence from all ranks, with the file and the bytes that it needed."""
    save_alone(small_disk / "ckpt-plan")
    before = sorted(os.listdir(small_disk))
    result = run_ranks(2, WORKER, small_disk / "ckpt", "large", timeout=60)
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stderr.count("can't be saved: got 'No space left on device' for file") == 1, result.stderr
    assert f"of {sum(v.value.nbytes for v in LARGE) // 2} bytes" in result.stderr
    assert "Traceback" not in result.stderr and sorted(os.listdir(small_disk)) == before
    assert_it_is_there(small_disk / "ckpt-plan")
