"""What an unchanged script does besides training happens once, and what can't be trained on ranks ends with a sentence."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from helpers.fast_links import on_fast_links
from helpers.mpirun import child_environment, forked, run_command, run_ranks

from tensoropt.common.errors import InputError
from tensoropt.common.process.imports import around_import
from tensoropt.runtime.ranks import Processes
from tensoropt.tools.cli.runs.run import _is_for_ranks, ranks_by_default
from tensoropt.unchanged import effects, script
from tensoropt.unchanged.effects import SharedInput, Tagged

TENSOROPT = [sys.executable, "-m", "tensoropt"]
Done = subprocess.CompletedProcess[str]
ON_TWO = json.dumps({"cluster": "v100-1x2"})
MODEL = """
import keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
"""


def run(folder: Path, source: str, *arguments: str, n_ranks: int = 2, options: str = ON_TWO, **env: str) -> Done:
    """Run a script as ``tensoropt run`` does, on ranks that have imported TensorFlow."""
    script = folder / "train.py"
    script.write_text(source)
    return run_ranks(n_ranks, "-m", "tensoropt.unchanged", options, script, *arguments, env={"TENSOROPT_QUIET": "0", **env})


def last_line(done: Done) -> str:
    return next(line for line in done.stderr.splitlines() if re.match("tensoropt: (?!plan|time|memory|after)", line))


ONCE = """
import logging, os, random, sys; logging.warning("logged"), print("a bar", file=sys.stderr)
import numpy as np
import tensorflow as tf
print("arguments", sys.argv[1:], __name__, os.environ.get("TF_CONFIG"))
class Counts(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        with open("epochs.txt", "a") as file:
            file.write(f"{epoch}\\n")
checkpoint = tf.train.Checkpoint(model=model)
for refused in (tf.distribute.TPUStrategy, checkpoint.save, tf.train.CheckpointManager(checkpoint, "ckpt", 1).save):
    try:
        refused("here")
    except Exception as error:
        print("refused", error)
class Order(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            print("first", logs["loss"])
x, y = np.random.normal(size=(128, 4)), np.random.normal(size=(128, 2))
noisy = tf.data.Dataset.from_tensors((x, y)).map(lambda x, y: (x + tf.random.normal([], dtype=x.dtype), y))
model.compile(keras.optimizers.SGD(0.0), "mse")  # whose losses tell only which samples a batch has
drawn = tf.data.Dataset.random().take(1).map(lambda n: (x + tf.cast(n, x.dtype) / 2.0**31, y))
for data in (dict(x=x, y=y, batch_size=4), dict(x=noisy), dict(x=drawn), dict(x=x, y=y, batch_size=4)):
    model.fit(**data, epochs=2, verbose=0, callbacks=[Order()])
tf.random.set_seed(1)
model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[Order()])
with tf.distribute.MirroredStrategy().scope():
    model.compile("sgd", "mse")
x, y = np.random.normal(size=(8, 4)), np.random.normal(size=(8, 2))
model.fit(x, y, batch_size=4, epochs=2, verbose=2, callbacks=[Counts()])
model.train_on_batch(x[:4], y[:4])
model.save("model.keras")
print("drawn", random.random(), np.random.random(), float(tf.random.uniform([])))
print("loaded", keras.models.load_model("model.keras").get_weights()[0].shape)
leave = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: sys.exit(3))
try:
    model.fit(x, y, verbose=0, callbacks=[leave])
except SystemExit:
    model.fit(x, y, verbose=0, callbacks=[leave])
"""


def test_what_a_script_prints_writes_and_leaves_with_is_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(tmp_path, MODEL + ONCE, "--n", "2", TF_CONFIG="{}", TENSOROPT_SEED="5")
    assert done.returncode == 3 and "before the others" not in done.stderr, done.stderr
    printed = done.stdout.splitlines()
    assert printed[0] == "arguments ['--n', '2'] __main__ None"
    said = [line.removeprefix("refused ") for line in printed if line.startswith("refused")]
    assert said[0].startswith("tf.distribute.TPUStrategy (train.py:17) has devices or servers of its own")
    assert said[1] == said[2] and said[1].startswith("tf.train.Checkpoint (train.py:17) would write a file on each rank")
    assert [line.split()[0] for line in printed if "drawn" in line or "loaded" in line] == ["drawn", "loaded"]
    first = [float(line.split()[1]) for line in printed if line.startswith("first")]
    assert len(first) == 10 and len(set(first[:8])) == 8 and first[8] == first[9]  # by a seed, one order for all epochs
    assert sum(line.startswith("Epoch") for line in printed) == 2
    assert (tmp_path / "epochs.txt").read_text() == "0\n1\n"
    for once in ("logged", "a bar", "has one replica", "TF_CONFIG is left", "train_on_batch (train.py:36) isn't saved"):
        assert done.stderr.count(once) == 1


def test_one_rank_leaves_a_model_that_asks_for_xla_to_keras(tmp_path: Path) -> None:
    fit = "model.compile('sgd', 'mse', jit_compile=True)\nprint(model.fit(x, x[:, 2:], verbose=0).history)"
    done = run(tmp_path, f"import keras\nkeras.utils.set_random_seed(1)\nx = keras.ops.eye(4)\n{MODEL}{fit}", n_ranks=1)
    assert done.stdout == run_command([sys.executable, *forked(tmp_path / "train.py")], timeout=60).stdout != "", done.stderr
    assert done.stderr.count("compiles a model with jit_compile=True: Keras trains the model itself") == 1


def test_one_rank_starts_without_what_a_search_loads(tmp_path: Path) -> None:
    rest = "import gc, sys\nmodel.fit(keras.ops.eye(4), keras.ops.ones((4, 2)), verbose=0)\n"
    rest += "print({'numba', 'networkx'} & set(sys.modules), gc.get_freeze_count() > 10**5)"
    (tmp_path / "train.py").write_text(MODEL + rest)
    done = run_command([*TENSOROPT, "run", "-n", "1", "-m", "train"], timeout=120, cwd=tmp_path)
    assert done.stdout == "set() True\n", done.stderr


FIT_TWICE = """
def fit():
    history = model.fit(x, x[:, 2:], batch_size=2, epochs=2, verbose=0).history
    return history, model.predict(x, verbose=0).tolist()
print(fit())
model.compile("adam", "mse")
print(fit())
"""
TWO_STEPS = """
import tensorflow as tf
optimizer = keras.optimizers.Adam(0.1)
model = keras.Sequential([keras.layers.Dense(2)])
def step(data):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(next(data)) ** 2 * tf.random.uniform([2]))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss
one, other = tf.function(step), tf.function(step)
data = iter(tf.data.Dataset.from_tensor_slices(x).repeat().batch(3))
print([round(float(each(data)), 4) for each in (one, one, other, one)], int(optimizer.iterations))
tf.train.Checkpoint(model=model, optimizer=optimizer).save("checkpoint")
"""


@pytest.mark.parametrize("rest", [FIT_TWICE, TWO_STEPS], ids=["fit", "own steps"])
def test_rank_0_goes_on_alone_where_one_device_is_as_fast(
    rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cores = "import os\nprint(len(os.sched_getaffinity(0)))"
    source = f"import keras\nkeras.utils.set_random_seed(1)\nx = keras.ops.eye(4)\n{MODEL}{rest}{cores}"
    (tmp_path / "plain.py").write_text(source)
    (tmp_path / "auto.py").write_text(f"import tensoropt\ntensoropt.auto()\n{source}")
    done = run_ranks(2, tmp_path / "auto.py", env={"TENSOROPT_QUIET": "0"})
    assert done.stdout == run_command([sys.executable, *forked(tmp_path / "plain.py")], timeout=60).stdout != "", done.stderr
    assert done.stderr.count("rank 0 goes on alone") == 1 and done.stderr.count("plan: 1 device") >= 1


OWN_LOOP = """
import tensorflow as tf
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x) ** 2)
    variables = model.trainable_variables
    model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
step(tf.ones([8, 4]))
"""
OWN_EPOCH = """
import tensorflow as tf
@tf.function
def epoch(data):
    for _ in tf.range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(next(data)) ** 2)
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
epoch(iter(tf.data.Dataset.from_tensors(tf.ones([8, 4])).repeat()))
"""


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [("print('nothing')", 2, "the script trained no Keras model by fit or train_on_batch, so that each of 2 ranks did"),
     (OWN_EPOCH, 2, "a training step reads a dataset itself (train.py:"),
     (OWN_LOOP, 2, "the script applies an optimizer outside of a tf.function (train.py:"),
     ("model.compile('sgd', 'mse', run_eagerly=True)\nraise ValueError('mine')", 1, "")],
    ids=["no model", "own epoch", "own loop", "exception"],
)  # fmt: skip
def test_what_cant_be_trained_on_ranks_ends_with_its_line(source: str, code: int, said: str, tmp_path: Path) -> None:
    done = run(tmp_path, MODEL + source)
    assert done.returncode == code, done.stderr
    if said:
        assert last_line(done).startswith(f"tensoropt: {said}")
    else:
        assert done.stderr.count("Traceback") == 1
        assert done.stderr.count("in <module>") == 1 and done.stderr.count("ValueError: mine") == 1


def test_a_script_with_auto_that_trains_nothing_ends_with_a_sentence(tmp_path: Path) -> None:
    rest = "print(*sys.argv[1:])\nif sys.argv[1:]: exit(3)"
    (tmp_path / "train.py").write_text(f"import sys, tensoropt\ntensoropt.auto()\n{rest}")
    done = run_ranks(2, tmp_path / "train.py")
    assert done.returncode == 2 and done.stdout == "\n", done.stderr
    assert last_line(done).startswith("tensoropt: the script trained no Keras model")
    done = run_ranks(2, tmp_path / "train.py", "leaves")
    assert (done.returncode, done.stdout) == (3, "leaves\n") and "tensoropt:" not in done.stderr, done.stderr


ONE_ALONE = """
import os
import keras
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(128), keras.layers.Dense(1)])
model.compile("adam", "mse")
for step in range({n_steps}):
    if step == 65 and os.environ["OMPI_COMM_WORLD_RANK"] == "0":
        model.layers[1].bias.assign([0])
    model.train_on_batch(keras.ops.ones((32, 16)), keras.ops.ones((32, 1)))
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    model.layers[0].kernel.numpy()
"""
READS = "ranks 0 and 1 make different calls: rank 0 is in access_to_a_variable at train.py:11, rank 1 in end_script"
ASSIGNS = r"rank 0 has waited for \d+ s in values that were assigned, in train_on_batch at train.py:9: rank 1 "


@pytest.mark.parametrize(("n_steps", "code", "said"), [(1, 2, READS), (66, 1, ASSIGNS)], ids=["reads", "assigns"])
def test_a_value_that_one_rank_reads_or_assigns_is_an_error(n_steps: int, code: int, said: str, tmp_path: Path) -> None:
    done = run(tmp_path, ONE_ALONE.format(n_steps=n_steps), options=on_fast_links(tmp_path))
    assert done.returncode == code and re.search(said, done.stderr), done.stderr


@pytest.mark.parametrize(
    ("source", "is_for_ranks"),
    [("import keras", False),
     ("import tensoropt\ntensoropt.auto()", False),
     ("from tensoropt import auto", False),
     ("import tensoropt as to\nto.parallelize", True),
     ("import tensoropt\ntensoropt.auto(); tensoropt.init()", True),
     ("from tensoropt.trainer import trainer", True),
     ("def f():\n    from mpi4py import MPI", True)],
)  # fmt: skip
def test_a_script_that_was_written_for_ranks_is_told_by_its_imports(source: str, is_for_ranks: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    assert _is_for_ranks(tmp_path / "train.py") == is_for_ranks


def test_a_module_that_was_looked_for_is_noticed_when_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sought.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    around = MagicMock()
    around_import("sought", around)
    assert importlib.util.find_spec("sought") is not None and not around.called
    assert importlib.import_module("sought") and around.call_count == 1


def test_files_that_each_rank_writes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(effects, "say_once", said.append)
    tell = effects.noting_files(MagicMock(gather=lambda written, what: [written, {str(tmp_path / "a.txt"): ""}]))
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("")
    tell()
    assert "each rank has written 'a.txt' (test_scripts.py:" in said[0]


@pytest.mark.parametrize(("code", "module"), [(None, "train"), (0, "train"), (3, "train"), (0, "tensoropt.trainer.fit")])
def test_they_are_named_at_an_exit_without_an_error(code: int | None, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tell, ending = MagicMock(), {"__name__": module, "code": code}
    exec("def run_script(*_): raise SystemExit(code)", ending)
    for name, stand_in in (("start", MagicMock()), ("noting_files", lambda _: tell), ("_run", ending["run_script"])):
        monkeypatch.setattr(script, name, stand_in)
    with pytest.raises(SystemExit):
        script.main(["{}", "train.py"])
    assert tell.called == (not code and module == "train")


def test_streams_are_shared(capsys: pytest.CaptureFixture[str]) -> None:
    alone = Processes(rank=0, size=1, hosts=("here",))
    given = SharedInput(io.StringIO("one\ntwo\nthree"), alone)
    assert (given.readline(), next(given), given.read()) == ("one\n", "two\n", "three")
    with pytest.raises(InputError, match="standard input of rank 0 can't be read"):
        SharedInput(None, alone).read()
    print("a\nb", file=Tagged(sys.stdout, "[rank 1] "), flush=True)
    assert capsys.readouterr().out == "[rank 1] a\n[rank 1] b\n"


OTHER_BACKEND = "import os, sys; os.environ['KERAS_BACKEND'] = 'torch'; assert not sys.stdout.isatty(); import keras"


def started(folder: Path, source: str, *arguments: str, backend: str = "jax") -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(source)
    return run_command([*TENSOROPT, "run", *arguments], timeout=100, cwd=folder, env={"KERAS_BACKEND": backend})


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [("def f(:", 1, "SyntaxError"),
     ("import horovod.tensorflow", 2, "'train.py' imports horovod, which starts ranks of its own"),
     (OTHER_BACKEND, 2, "Keras's backend is 'torch'")],
)  # fmt: skip
def test_what_is_refused_before_the_script_trains(source: str, code: int, said: str, tmp_path: Path) -> None:
    done = started(tmp_path, source, "-n", "2", "train.py", backend="tensorflow")
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.count(said) == 1


def test_a_script_as_written_has_its_input_on_every_rank_to_its_end(tmp_path: Path) -> None:
    source = "import sys\nfrom mpi4py import MPI\nprint(MPI.COMM_WORLD.rank, sys.stdin.read().split(), sys.argv[1:])"
    (tmp_path / "train.py").write_text(source)
    command = [*TENSOROPT, "run", "--as-written", "-n", "2", "train.py", "--x"]
    where = {"cwd": tmp_path, "env": child_environment()}
    done = subprocess.run(command, input="one\ntwo", capture_output=True, text=True, timeout=60, **where)  # type: ignore[call-overload]
    assert sorted(done.stdout.splitlines()) == [f"{rank} ['one', 'two'] ['--x']" for rank in range(2)], done.stderr


def test_ranks_are_the_batch_systems_tasks_or_the_gpus_that_may_be_used(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    assert ranks_by_default({"SLURM_NTASKS": "6"}, tmp_path) == 6
    assert ranks_by_default({}, tmp_path) == 3
    assert ranks_by_default({"CUDA_VISIBLE_DEVICES": "2,0"}, tmp_path) == 2
    assert ranks_by_default({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ranks_by_default({}, tmp_path / "none") == 1


def test_or_plain_runs_what_was_refused_by_plain_keras(tmp_path: Path) -> None:
    done = started(tmp_path, "import sys\nprint('plain', sys.argv[1:])", "--or-plain", "-n", "2", "train.py", "--x")
    assert done.returncode == 0 and done.stdout == "plain ['--x']\n", done.stderr
    assert "plain Keras runs the script now" in done.stderr
