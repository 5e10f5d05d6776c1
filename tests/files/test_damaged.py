"""Whatever happens to a file: what is loaded says what the file says, or one short sentence says that it can't be."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from files.mutations import damaged
from runtime.checkpoint.states import ALONE, Logical, assert_values, entries, replicated

import tensoropt
from tensoropt.common.files import reading_value
from tensoropt.profiling.hardware import Hardware, HardwareError, named
from tensoropt.profiling.store import FILE, Store
from tensoropt.profiling.work import Measured, WorkItem
from tensoropt.report.differences import differences, differences_text
from tensoropt.report.explanation import explanation
from tensoropt.report.explanation_text import explanation_text
from tensoropt.report.pages.plan_page import report_of
from tensoropt.report.reading import read_points
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.checkpoint import restore, save

RATE = {"overhead_us": 2.5, "us_per_gflop": 30.5, "us_per_gb": 1.5, "spread": 0.5, "samples": 12}
MEASURED = {
    "collectives": {
        "all_reduce": {"a": {"bytes": [2, 4, 8], "time_us": [10.5, 10.5, 11.5], "spread": [0.5, 0.25, 0.5]}},
        "all_gather": {"ab": {"bytes": [1024, 4096], "time_us": [1.5, 2.5]}},
    },
    "operators": {"matrix product": {"float32": {"forward": RATE, "backward": RATE}}},
    "measured": {"date": "2026-11-21", "tensorflow": "2.21.0", "threads": 2, "is_complete": False, "collectives": "horovod"},
    "collective_call_us": 20.5,
    "collective_path_us": 10.5,
    "exposed_share": 0.5,
}
MOST_CHARACTERS = 500


@pytest.fixture(scope="session")
def times(everything: bool) -> int:
    """How often a file is damaged."""
    return 1000 if everything else 250


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of files are written."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def planned():
    session = tensoropt.init("v100-1x2", seed=1)
    x = tensoropt.placeholder("float32", [4, 6], name="x")
    w = tensoropt.get_variable("w", [6, 4])
    tensoropt.GradientDescentOptimizer(0.1).minimize(tensoropt.reduce_mean(tensoropt.nn.relu(tensoropt.matmul(x, w))))
    plan = tensoropt.find_strategy(force={"MatMul": {"k": 2}})
    model = session.model()
    session._recording.close()
    return plan, model


def refused_or_read(
    file: Path, whole: bytes, load: Callable[[], Any], is_json: bool, said_by: type[Exception], times: int
) -> int:
    """Load a file so often, each time damaged in another way; how often it was refused."""
    draw, refused = random.Random(file.name), 0
    for i in range(times):
        data = damaged(whole, draw, is_json)
        file.unlink(missing_ok=True)  # HDF5 would go on with a file that an error before still holds open
        file.write_bytes(data)
        try:
            load()
        except said_by as error:
            refused += 1
            sentence = str(error)
            assert len(sentence) < MOST_CHARACTERS and "\n" not in sentence, f"{i}: {sentence[:1000]}"
            sentence.encode()
        except Exception as error:
            raise AssertionError(f"mutation {i} of {file.name}: {type(error).__name__}: {error}") from error
    return refused


def says_the_same(written: Any, read: Any) -> bool:
    """Whether what was read says all that is written; what has its usual value may be left out."""
    if isinstance(written, dict) and isinstance(read, dict):
        return all(says_the_same(value, read.get(key)) for key, value in written.items())
    if isinstance(written, list) and isinstance(read, (list, tuple)):
        return len(written) == len(read) and all(map(says_the_same, written, read))
    if isinstance(written, float) and isinstance(read, float):
        return math.isclose(written, read, rel_tol=1e-12)
    return written == read or (read is None and not written) or (read is None and written == 1)


def test_damaged_plans_are_refused(planned, folder, times):
    plan, model = planned
    file = folder / "plan.json"
    plan.save(file)

    def load() -> None:
        loaded = tensoropt.load_plan(file)
        written = json.loads(file.read_bytes())
        assert all(written[key] == value for key, value in loaded.to_json().items())
        loaded.check_for(model)
        repr(loaded), loaded.stages[0].strategy, loaded.explain()

    assert refused_or_read(file, file.read_bytes(), load, True, tensoropt.InputError, times) > times // 2


def test_damaged_plans_are_explained_and_reported_or_refused(planned, folder, times):
    file = folder / "explained.json"
    planned[0].save(file)

    def load() -> None:
        plan = read_points(file)
        with reading_value("plan", file):
            explanation_text(explanation(plan.plan(0)))
            json.dumps(report_of(plan, file.name))
            differences_text(differences(plan, plan))

    assert refused_or_read(file, file.read_bytes(), load, True, tensoropt.InputError, times) > times // 4


def test_damaged_frontiers_are_refused(planned, folder, times):
    file = folder / "frontier.json"
    planned[0].frontier.save(file)
    whole = json.loads(file.read_text())
    before = tensoropt.load_frontier(file).table()

    def load() -> None:
        frontier = tensoropt.load_frontier(file)
        assert json.loads(file.read_bytes()) == whole
        assert frontier.table() == before
        repr(frontier.plan(0))

    assert refused_or_read(file, file.read_bytes(), load, True, tensoropt.InputError, times) > times // 2


@pytest.mark.parametrize("which", ["measured", "shipped"])
def test_damaged_hardware_files_are_refused(folder, which, times):
    file = folder / "hardware.json"
    of_device = json.loads(json.dumps(named("v100-2x2").to_json()))
    value = {**of_device, **MEASURED} if which == "measured" else of_device

    def load() -> None:
        hardware = Hardware.load(file)
        assert says_the_same(json.loads(file.read_bytes()), hardware.to_json())
        assert Hardware.from_json(hardware.to_json()) == hardware
        hardware.mesh()

    assert refused_or_read(file, json.dumps(value).encode(), load, True, HardwareError, times) > times // 4


def test_damaged_checkpoints_are_refused(folder, times):
    """One file of the checkpoint, which may be its list, is damaged each time."""
    mesh = Mesh.of(1)
    logicals = [Logical("kernel", (6, 4)), Logical("bias", (5,), "float16"), Logical("moment", (6, 4), step="train")]
    layouts = replicated(logicals, mesh)
    save(folder / "good" / "ckpt", entries(logicals, layouts, [0]), ALONE, {"position": {"epoch": 3}})
    run = folder / "run"
    shutil.copytree(folder / "good", run)
    state = entries(logicals, layouts, [0], zero=True)

    def load() -> None:
        assert restore(run, state, ALONE).content == {"position": {"epoch": 3}}
        assert_values(logicals, state, [0])

    load()
    files = sorted(run.iterdir())
    n = times // len(files) + 1
    for file in files:
        whole = file.read_bytes()
        assert refused_or_read(file, whole, load, False, tensoropt.InputError, n) > n // 4, file.name
        file.write_bytes(whole)


@pytest.mark.filterwarnings("ignore")  # Keras's own, of what it skips
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_damaged_keras_files_are_refused(folder, suffix, times, everything):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, name="dense")])
    where = {"collectives": "emulated", "parallelism": 1, "cluster": "v100-1x2"}
    trainer = tensoropt.parallelize(model, keras.optimizers.SGD(0.1), loss="mse", batch_size=4, **where)
    trainer.train_on_batch(np.ones([4, 3], "float32"), np.ones([4, 2], "float32"))
    file = folder / f"model{suffix}"
    trainer.save(file) if suffix == ".keras" else trainer.save_weights(file)

    def load() -> None:
        trainer.load_weights(file)

    load()
    n = times if everything else times // 2  # each takes Keras some 10 ms
    assert refused_or_read(file, file.read_bytes(), load, False, tensoropt.InputError, n) > n // 4


def test_the_list_of_checkpoints_empty_or_no_text(folder):
    mesh, logicals = Mesh.of(1), [Logical("kernel", (6, 4))]
    state = entries(logicals, replicated(logicals, mesh), [0])
    save(folder / "ckpt", state, ALONE, {})
    for content in (b"", b"\x80\xff", b"model_checkpoint_path", b'model_checkpoint_path: ""'):
        (folder / "checkpoint").write_bytes(content)
        with pytest.raises(tensoropt.InputError, match=r"the list of checkpoints '.*checkpoint' is damaged"):
            restore(folder, state, ALONE)
        restore(folder / "ckpt", state, ALONE)
        save(folder / "ckpt", state, ALONE, {}, max_to_keep=2)  # the list is made again
        restore(folder, state, ALONE)


def test_damaged_stores_are_set_aside(folder, times):
    """A store never stops a run: it is told of, and what can be read holds numbers."""
    file = folder / FILE
    works = [WorkItem("MatMul", "float32", 10 * i, 20, 1, f"key{i}") for i in range(20)]
    said: list[str] = []
    store = Store(file, "here", said.append, patience_s=0.0)
    store.add(Measured(work, 1.5, 2.5, 0.1) for work in works)
    store.add_step_s("plan", 0.5, 0.25)
    store.close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = file.read_bytes()
    draw = random.Random(3)
    for i in range(times):
        for other in folder.iterdir():
            other.unlink()
        data = damaged(whole, draw, False)
        file.write_bytes(data)
        said.clear()
        store = Store(file, "here", said.append, patience_s=0.0)
        for each in store.measured.values():
            assert np.isfinite([each.forward_us, each.backward_us, each.spread, each.work.flops, each.work.n_bytes]).all(), i
        assert np.isfinite(list(store.step_s.values())).all()
        store.close()
        assert all(len(sentence) < MOST_CHARACTERS and "\n" not in sentence for sentence in said), said
