"""Saving and loading a model by all ranks, beside ``tf.train.Checkpoint`` on one process.

    tensoropt run -n 2 tests/benchmarks/checkpoint.py --folder /data

TensorOpt's checkpoint is on the disk when ``save`` returns. TensorFlow's may still be in the operating system's memory: its
time is given as it is, and with its files synced. Each round does everything once, in turn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
from harness import Timing
from tabulate import tabulate

from tensoropt.common.tensorflow_import import import_tensorflow

import_tensorflow()

import tensorflow as tf  # noqa: E402

from tensoropt.lowering.variables import StateEntry  # noqa: E402
from tensoropt.reschedule.layout import Layout  # noqa: E402
from tensoropt.reschedule.mesh import Mesh  # noqa: E402
from tensoropt.runtime.checkpoint import restore, save  # noqa: E402
from tensoropt.runtime.ranks import Processes, current_processes  # noqa: E402

SHAPE = (2048, 2048)


def state(n_variables: int, layout: Layout, rank: int) -> list[StateEntry]:
    local = layout.local_shape(SHAPE, rank)
    shards = [tf.Variable(tf.random.normal(local)) for _ in range(n_variables)]
    return [StateEntry(f"w{i}", SHAPE, "float32", layout, (shard,), (rank,)) for i, shard in enumerate(shards)]


def timed(processes: Processes, action: Callable[[], object]) -> float:
    """Return the seconds until all ranks have done it."""
    processes.barrier()
    start = time.perf_counter()
    action()
    processes.barrier()
    return time.perf_counter() - start


def plain(processes: Processes, n_variables: int, folder: Path) -> dict[str, Callable[[], object]]:
    """Make plain TensorFlow's calls on rank 0, while the others wait."""
    if processes.rank:
        return dict.fromkeys(PLAIN, lambda: None)
    checkpoint = tf.train.Checkpoint(w=[tf.Variable(tf.random.normal(SHAPE)) for _ in range(n_variables)])
    prefix = str(folder / "plain")

    def sync() -> None:
        for file in folder.glob("plain*"):
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    def save_and_sync() -> None:
        checkpoint.write(prefix)
        sync()

    actions = (lambda: checkpoint.write(prefix), save_and_sync, lambda: checkpoint.read(prefix).assert_consumed())
    return dict(zip(PLAIN, actions, strict=True))


PLAIN = tuple(f"tf.train.Checkpoint, one process: {what}" for what in ("save, not synced", "save", "load"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--variables", type=int, default=24, help="of 16.8 MB each")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    processes = current_processes()
    folder, rank = arguments.folder.absolute() / "checkpoint-benchmark", processes.rank
    folder.mkdir(exist_ok=True)
    mesh = Mesh.of(processes.size)
    actions = plain(processes, arguments.variables, folder)
    for name, splits in {"rows split": (mesh.axes, ()), "columns split": ((), mesh.axes), "replicated": ((), ())}.items():
        held, prefix = state(arguments.variables, Layout(mesh, splits), rank), str(folder / name.split()[0])
        whose = f"{processes.size} ranks, {name}"
        actions[f"{whose}: save"] = lambda held=held, prefix=prefix: save(prefix, held, processes)
        actions[f"{whose}: load"] = lambda held=held, prefix=prefix: restore(prefix, held, processes)
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for i in range(arguments.rounds + 1):
        for name, action in actions.items():
            taken = timed(processes, action)
            if i:
                seconds[name].append(taken)
    if rank == 0:
        shutil.rmtree(folder)
        megabytes = arguments.variables * np.prod(SHAPE) * 4 / 1e6
        rows = [[name, f"{megabytes / Timing(tuple(times)).median:.0f}", *_range(times)] for name, times in seconds.items()]
        print(f"{megabytes:.0f} MB, median of {arguments.rounds}")
        print(tabulate(rows, headers=["", "MB/s", "fastest s", "slowest s"]))


def _range(times: list[float]) -> list[str]:
    return [f"{min(times):.2f}", f"{max(times):.2f}"]


if __name__ == "__main__":
    main()
