"""A save that is cut short leaves the checkpoint that was there; what is no checkpoint, or another model's, is refused."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import tensorflow as tf
from runtime.checkpoint.states import ALONE, Logical, assert_values, entries, replicated

from tensoropt.common.errors import InputError, TensorOptError
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.checkpoint import location, read_metadata, restore, save, saving

MESH = Mesh.of(2)
RANKS = range(2)
VARIABLES = [Logical("w", (50, 3)), Logical("b", (3,)), Logical("half", (4,), "float16")]


def state_of(value: float | None = None, variables: list[Logical] = VARIABLES):
    made = entries(variables, replicated(variables, MESH), RANKS)
    for held in made:
        for shard in held.variables:
            if value is not None:
                shard.assign(tf.fill(held.shape, tf.cast(value, held.dtype)))
    return made


def saved_value(prefix: str) -> float:
    """The value that all elements of all variables have; AssertionError if they differ."""
    state = state_of(0)
    restore(prefix, state, ALONE)
    values = {value for held in state for shard in held.variables for value in np.ravel(shard.numpy()).tolist()}
    (value,) = values
    return value


class CutShort(BaseException):
    """Stands for a kill: nothing that would tidy up runs after it."""


def cut_at(count: int) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Wraps functions so that the call of that number, of all together, ends the save before it does anything."""
    calls = [0]

    def wrap(function: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object) -> object:
            calls[0] += 1
            if calls[0] == count:
                raise CutShort
            return function(*args)

        return counted

    return wrap


@pytest.mark.parametrize("ending", [None, "number"])
def test_a_save_that_is_cut_short_anywhere_leaves_a_whole_checkpoint(tmp_path: Path, ending: str | None) -> None:
    """Cut before each sync, rename and removal in turn: what is there is the old checkpoint or the new one, whole."""
    prefix = save(tmp_path / "ckpt", state_of(1.0), ALONE, number=1 if ending else None)
    seen, value = [], 1.0
    for count in range(1, 100):
        wrap = cut_at(count)
        try:
            with (
                patch.object(location, "make_safe", wrap(location.make_safe)),
                patch.object(saving, "make_safe", wrap(saving.make_safe)),
                patch.object(Path, "replace", wrap(Path.replace)),
                patch.object(location, "_unlink", wrap(location._unlink)),
                patch.object(location.CheckpointLocation, "discard", lambda self: None),
            ):
                save(tmp_path / "ckpt", state_of(value + 1), ALONE, number=count + 1 if ending else None, max_to_keep=1)
        except CutShort:
            latest = tf.train.latest_checkpoint(tmp_path)
            assert latest is not None and (ending or latest == prefix)
            value = saved_value(latest)
            seen.append(value)
            continue
        break
    assert len(seen) >= 8 and seen == sorted(seen)
    # The next save tidies up what was left behind.
    last = save(tmp_path / "ckpt", state_of(99.0), ALONE, number=100 if ending else None, max_to_keep=1)
    assert saved_value(last) == 99.0
    if not ending:
        n_files = read_metadata(last).n_files
        assert len(list(tmp_path.iterdir())) == n_files + 2, "more than the data files, the index and the list"


def test_saving_again_and_again_in_the_same_place(tmp_path: Path) -> None:
    for value in range(5):
        assert save(tmp_path / "ckpt", state_of(value), ALONE) == str(tmp_path / "ckpt")
        assert saved_value(str(tmp_path)) == value
        assert len(list(tmp_path.iterdir())) == read_metadata(tmp_path).n_files + 2


def test_a_plain_checkpoint_in_that_place_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        tf.train.Checkpoint(w=tf.Variable(1.0)).write(str(tmp_path / "ckpt"))
        save(tmp_path / "ckpt", state_of(2.0), ALONE)
        assert saved_value(str(tmp_path / "ckpt")) == 2.0


def test_the_newest_are_kept_and_listed_as_tensorflow_does(tmp_path: Path) -> None:
    prefixes = [save(tmp_path / "ckpt", state_of(n), ALONE, number=n, max_to_keep=2) for n in (3, 7, 20)]
    assert tf.train.latest_checkpoint(tmp_path) == prefixes[-1] == str(tmp_path / "ckpt-20")
    assert list(tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths) == prefixes[1:]
    assert not list(tmp_path.glob("ckpt-3.*"))
    assert [saved_value(prefix) for prefix in prefixes[1:]] == [7, 20]
    moved = tmp_path.rename(tmp_path.with_name("elsewhere"))
    assert saved_value(str(moved)) == 20


def test_a_prefix_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert saved_value(save("ckpt", state_of(4.0), ALONE)) == 4.0
    assert tf.train.latest_checkpoint(".") == "./ckpt"


def test_a_save_that_the_system_refuses_in_the_middle_of_a_file(tmp_path: Path) -> None:
    """A limit on the length of files ends the save: the sentence names the file and its bytes, and nothing is left of it."""
    large = [Logical("large", (1 << 18,))]
    prefix = save(tmp_path / "ckpt", state_of(1.0), ALONE)
    before = sorted(tmp_path.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, hard))
    try:
        with pytest.raises(TensorOptError, match=r"got 'File too large' for file '.*/rank-00000-.*' of 524288 bytes"):
            save(tmp_path / "ckpt", state_of(variables=large), ALONE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert saved_value(prefix) == 1.0 and sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("prefix", "sentence"),
    [("/proc/nowhere/ckpt", "checkpoint '/proc/nowhere/ckpt' can't be saved: got .* for '/proc/nowhere'"),
     ("gs://bucket/ckpt", "a checkpoint's prefix is a path: got 'gs://bucket/ckpt', expected folder/name"),
     ("run/", "a checkpoint's prefix is a path: got 'run/'")],
)  # fmt: skip
def test_places_that_cannot_be_written(prefix: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        save(prefix, state_of(), ALONE)


def test_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="metadata must be JSON: got 'Object of type ndarray is not JSON serializable'"):
        save(tmp_path / "ckpt", state_of(), ALONE, {"rate": np.ones(2)})
    with pytest.raises(InputError, match="max_to_keep counts checkpoints: got 0, expected 1 or more"):
        save(tmp_path / "ckpt", state_of(), ALONE, max_to_keep=0)
    with pytest.raises(InputError, match="got two variables 'model/w'"):
        save(tmp_path / "ckpt", state_of(variables=[VARIABLES[0]] * 2), ALONE)
    assert not list(tmp_path.iterdir())


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no checkpoint '.*/none': expected a file '.*/none.index'"):
        restore(tmp_path / "none", state_of(), ALONE)
    with pytest.raises(InputError, match="names no checkpoint"):
        restore(tmp_path, state_of(), ALONE)
    (tmp_path / "text.index").write_text("no checkpoint at all, but quite a few words of plain text" * 3)
    with pytest.raises(InputError, match="is damaged or not a checkpoint"):
        restore(tmp_path / "text", state_of(), ALONE)
    tf.train.Checkpoint(w=tf.Variable(1.0)).write(str(tmp_path / "plain"))
    with pytest.raises(InputError, match="wasn't saved by TensorOpt"):
        restore(tmp_path / "plain", state_of(), ALONE)
    save(tmp_path / "ckpt", state_of(), ALONE, number=5)
    with pytest.raises(InputError, match=r"Its folder has '.*/ckpt-5'"):
        restore(tmp_path / "ckpt", state_of(), ALONE)


def test_a_missing_file_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    prefix = save(tmp_path / "ckpt", state_of(1.0), ALONE)
    for file in sorted(tmp_path.glob("ckpt.data-*")):
        whole = file.read_bytes()
        file.unlink()
        state = state_of(2.0)
        with pytest.raises(InputError, match=f"ckpt.* (isn't whole|is damaged).*({file.name}|No such file)"):
            restore(prefix, state, ALONE)
        assert all((shard.numpy() == 2.0).all() for held in state for shard in held.variables)
        file.write_bytes(whole)
    assert saved_value(prefix) == 1.0


def test_damage_anywhere_in_the_values_is_found(tmp_path: Path) -> None:
    """A bit that flipped, and a file that was cut off, in each of the data files."""
    prefix = save(tmp_path / "ckpt", state_of(1.0), ALONE)
    for file in sorted(tmp_path.glob("ckpt.data-*")):
        whole = file.read_bytes()
        for damaged in (bytes([whole[0] ^ 1]) + whole[1:], whole[: len(whole) // 2]):
            file.write_bytes(damaged)
            with pytest.raises(InputError, match="is damaged or not a checkpoint"):
                restore(prefix, state_of(), ALONE)
        file.write_bytes(whole)
    assert saved_value(prefix) == 1.0


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [([Logical("w", (50, 4)), *VARIABLES[1:]],
      r"got variable 'model/w' as float32\[50, 3\], expected 'model/w' as float32\[50, 4\]"),
     ([Logical("w", (50, 3), "float64"), *VARIABLES[1:]], r"as float32\[50, 3\], expected 'model/w' as float64\[50, 3\]"),
     ([*VARIABLES, Logical("c", (2,))], r"got no variable 'model/c', expected 'model/c' as float32\[2\]"),
     (VARIABLES[:2], r"got variable 'model/half' as float16\[4\], expected no such variable")],
)  # fmt: skip
def test_another_model_is_refused_before_anything_is_changed(tmp_path: Path, variables, sentence: str) -> None:
    prefix = save(tmp_path / "ckpt", state_of(1.0), ALONE)
    state = state_of(2.0, variables)
    with pytest.raises(InputError, match=sentence):
        restore(prefix, state, ALONE)
    assert all((shard.numpy() == 2.0).all() for held in state for shard in held.variables)


def test_weights_load_without_the_optimizer(tmp_path: Path) -> None:
    slot = Logical("train/w/momentum", (50, 3), step="train")
    prefix = save(tmp_path / "ckpt", state_of(variables=[*VARIABLES, slot]), ALONE)
    state = state_of(0)
    restore(prefix, state, ALONE)
    assert_values(VARIABLES, state, RANKS)
    with pytest.raises(InputError, match="got no variable 'optimizer/train/w/velocity'"):
        restore(prefix, state_of(variables=[Logical("train/w/velocity", (50, 3), step="train")]), ALONE)
