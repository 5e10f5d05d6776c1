"""How long it takes from ``parallelize`` to the end of the second step, and the memory of a step, beside plain Keras.

    python tests/benchmarks/startup.py [--models efficientnet_b0,gpt2,vit] [--ranks 2] [--cached]

Each model is trained by a new process of plain Keras, then by ``--ranks`` new ranks, all with one thread. A model's first
line is plain Keras: ``compile`` and two steps. The numbers are seconds by the clock, and in brackets the processor time of
the slowest rank, which other work on the machine doesn't lengthen much. The ranks start with an empty cache; with
``--cached`` they start with the cache that a start before has filled.

The peak is that of a traced step: its tensors by TensorFlow's profiler, the buffers of collectives, and the variables of
model and optimizer; the largest of all ranks.

``gpt2`` needs Keras Hub: run it in the environment that ``make test-hub`` makes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
import numpy as np
import tensorflow as tf
from tabulate import tabulate

import tensoropt
from tensoropt.profiling.trace import MemoryEvent, traced_step
from tensoropt.runtime import execution
from tensoropt.runtime.collectives.timed import TimedCommunicator
from tensoropt.runtime.launch.mpirun import mpirun_command, rank_environment

N_TRACED = 3
PART = "part of start-up: "
Made = tuple[keras.Model, Any, Any, Any]


def efficientnet_b0() -> Made:
    model = keras.applications.EfficientNetB0(weights=None)
    return model, "sparse_categorical_crossentropy", *images(8)


def gpt2() -> Made:
    """Return GPT-2's base of 12 layers, which predicts the next word; sequences may have any length."""
    from keras_hub.models import GPT2Backbone

    backbone = GPT2Backbone(50257, 12, 12, 768, 3072)
    logits = backbone.token_embedding(backbone.output, reverse=True)
    words = np.random.default_rng(0).integers(0, 50257, (4, 65)).astype("int32")
    x = {"token_ids": words[:, :-1], "padding_mask": np.ones((4, 64), "int32")}
    model = keras.Model(backbone.input, logits)
    return model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), x, words[:, 1:]


def vit() -> Made:
    """Return the ViT of this project's tests at the size of ViT-B/16."""
    from models import sequences

    model = sequences.vit(224, 16, sequences.Size(0, 0, 768, 12, 12), 1000)
    return model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), *images(4)


def images(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 224, 224, 3)).astype("float32"), rng.integers(0, 1000, n)


MODELS: dict[str, Callable[[], Made]] = {"efficientnet_b0": efficientnet_b0, "gpt2": gpt2, "vit": vit}


class Stages:
    """Seconds of this process's stages, by the clock and of processor time; stages may be nested."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        clock, processor = time.perf_counter(), time.process_time()
        yield
        before = self.seconds.get(name, (0.0, 0.0))
        took = time.perf_counter() - clock, time.process_time() - processor
        self.seconds[name] = before[0] + took[0], before[1] + took[1]


def measured(name: str, parallel: bool) -> dict[str, Any]:
    """Start training a model; return the seconds and bytes that it took in this process."""
    keras.utils.set_random_seed(0)
    model, loss, x, y = MODELS[name]()
    optimizer, stages = keras.optimizers.Adam(1e-4), Stages()
    followed = followed_collectives()
    with stages.stage("all"):
        with stages.stage("parallelize"):
            if parallel:
                trained = tensoropt.parallelize(model, optimizer, loss, batch_size=len(y))
            else:
                trained = model
                model.compile(optimizer, loss, jit_compile=False)
        for number in (1, 2):
            with stages.stage(f"step {number}"):
                trained.train_on_batch(x, y)
    for each in followed:
        each.follows_memory = True
    traces = []
    for _ in range(N_TRACED):
        traces.append(traced_step(lambda: trained.train_on_batch(x, y), lambda: taken(followed)).peak_bytes)
    if parallel:
        state = sum(each.nbytes for each in shards(trained))
    else:
        variables = (*model.variables, *optimizer.variables)
        state = sum(math.prod(each.shape) * tf.as_dtype(each.dtype).size for each in variables)
    workspace = sum(each.workspace_bytes for each in followed)
    return {"seconds": stages.seconds, "peak_bytes": statistics.median(traces) + state + workspace, "state_bytes": state}


def followed_collectives() -> list[TimedCommunicator]:
    """Return a list to which the communicators of engines made from now on are added; they can record their memory."""
    made, followed = execution.communicating, []

    def communicating(*arguments: Any) -> Any:
        backend, *others = made(*arguments)
        assert backend.overlappable is None, "collectives of two chains aren't followed here"
        followed.append(TimedCommunicator(backend.communicator))
        return replace(backend, communicator=followed[-1]), *others

    execution.communicating = communicating
    return followed


def taken(followed: list[TimedCommunicator]) -> tuple[MemoryEvent, ...]:
    return tuple(event for each in followed for event in each.take_memory())


def shards(trainer: Any) -> Iterator[np.ndarray]:
    for entry in trainer.ranks.execution.engine.state():
        yield from (variable.numpy() for variable in entry.variables)


def run(name: str, ranks: int, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Start processes that measure a model; return what each measured. ``ranks=0`` is plain Keras."""
    program = [__file__, "--measure", name]
    command = mpirun_command(ranks, program) if ranks else [sys.executable, *program, "--plain"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    found = [json.loads(line.partition(PART)[2]) for line in done.stdout.splitlines() if line.startswith(PART)]
    if done.returncode or len(found) != max(1, ranks):
        sys.exit(done.stdout + done.stderr)
    return found


def both(seconds: tuple[float, float]) -> str:
    return f"{seconds[0]:.1f} ({seconds[1]:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="default %(default)s")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cached", action="store_true", help="fill the cache by a start that isn't counted")
    parser.add_argument("--measure", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        found = measured(given.measure, not given.plain)
        # In one write, so that ranks' lines don't mix.
        sys.stdout.write(PART + json.dumps(found) + "\n")
        sys.stdout.flush()
        return
    rows = []
    for name in given.models.split(","):
        with tempfile.TemporaryDirectory() as cache:
            variables = {**os.environ, "TENSOROPT_CACHE": cache, "TF_NUM_INTRAOP_THREADS": "1", "TENSOROPT_QUIET": "1"}
            environment = rank_environment(variables, as_root=os.geteuid() == 0)
            plain = run(name, 0, environment)
            for _ in range(1 + given.cached):
                parallel = run(name, given.ranks, environment)
        for title, processes in (("plain Keras", plain), (f"{given.ranks} ranks", parallel)):
            slowest = {
                key: tuple(max(each["seconds"][key][i] for each in processes) for i in (0, 1))
                for key in processes[0]["seconds"]
            }
            told = [both(slowest[key]) for key in ("all", "parallelize", "step 1", "step 2")]
            peak, state = (max(each[key] for each in processes) / 1e6 for key in ("peak_bytes", "state_bytes"))
            rows.append([name, title, *told, f"{peak:.1f}", f"{state:.1f}"])
    headers = ["model", "by", "to the second step, s", "parallelize", "first step", "second step", "peak, MB", "variables"]
    print(tabulate(rows, headers))


if __name__ == "__main__":
    main()
