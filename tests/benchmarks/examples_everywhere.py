"""Run every example on 1 to 6 devices, emulated and real, at its least memory, in the middle and without a limit.

    python tests/benchmarks/examples_everywhere.py [--examples digits,listing1] [--devices 1,2,3] [--steps 5]

Plans are searched for modelled V100s, once for each number of devices, and run by emulated ranks and by real ones. Printed
is how far the losses are, relative to the largest, from those of one device without a limit; the exit code is 1 where that
is more than rounding, or where a run fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from tensoropt.runtime.launch.mpirun import mpirun_command, rank_environment

ROOT = Path(__file__).resolve().parents[2]
LIMITS = ("none", "middle", "least")
TIMEOUT_S = 1800


@dataclass(frozen=True)
class Example:
    """An example, and how near its losses must be.

    Attributes:
        train: trains by a plan (one that is found, where it is None) for so many steps; returns the plan and the losses.
        tolerance: of losses, relative to the largest. In float32 another order of sums may turn a ReLU the other way.
    """

    train: Callable[[str, str, Any, int], tuple[Any, list[float]]]
    tolerance: float


def digits(hardware: str, collectives: str, plan: Any, n_steps: int) -> tuple[Any, list[float]]:
    import tensoropt

    example = importlib.import_module("train_digits")
    tensoropt.init(hardware=hardware, seed=1)
    images = tensoropt.placeholder("float64", [256, 8, 8, 1], name="images")
    labels = tensoropt.placeholder(tensoropt.int64, [256], name="labels")
    loss, _ = example.create_model(images, labels)
    train_op = tensoropt.MomentumOptimizer(0.05, 0.9).minimize(loss)

    def batch(rng: np.random.Generator) -> dict[Any, np.ndarray]:
        return {images: rng.random((256, 8, 8, 1)), labels: rng.integers(10, size=256)}

    return _recorded(loss, train_op, batch, collectives, plan, n_steps)


def listing1(hardware: str, collectives: str, plan: Any, n_steps: int) -> tuple[Any, list[float]]:
    import tensoropt

    example = importlib.import_module("listing1")
    tensoropt.init(hardware=hardware, seed=1)
    images = tensoropt.placeholder(tensoropt.float32, [example.BATCH, 64])
    labels = tensoropt.placeholder(tensoropt.float32, [example.BATCH, 10])
    loss = example.create_model(images, labels)
    train_op = example.training(loss)

    def batch(rng: np.random.Generator) -> dict[Any, np.ndarray]:
        classes = np.eye(10, dtype=np.float32)[rng.integers(10, size=example.BATCH)]
        return {images: rng.random((example.BATCH, 64), np.float32), labels: classes}

    return _recorded(loss, train_op, batch, collectives, plan, n_steps)


def transformer(hardware: str, collectives: str, plan: Any, n_steps: int) -> tuple[Any, list[float]]:
    import tensoropt

    example = importlib.import_module("train_transformer")
    tensoropt.init(hardware=hardware, seed=1)
    loss, train_op = example.create_model(width=64)
    words = [op.outputs[0] for op in loss.graph.get_operations() if op.type == "Placeholder"]

    def batch(rng: np.random.Generator) -> dict[Any, np.ndarray]:
        return {each: rng.integers(example.VOCABULARY, size=each.shape) for each in words}

    return _recorded(loss, train_op, batch, collectives, plan, n_steps)


def keras(hardware: str, collectives: str, plan: Any, n_steps: int) -> tuple[Any, list[float]]:
    import keras as library

    import tensoropt

    library.utils.clear_session()  # Keras counts up the names of layers, which plans hold.
    library.config.set_floatx("float64")
    library.config.set_dtype_policy("float64")
    trainer = tensoropt.parallelize(
        importlib.import_module("train_keras").create_model(dropout=0.0),
        optimizer=library.optimizers.AdamW(3e-3),
        loss=library.losses.SparseCategoricalCrossentropy(from_logits=True),
        batch_size=128,
        cluster=hardware,
        collectives=collectives,
        plan=plan,
    )
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(n_steps):
        x, y = rng.random((128, 8, 8, 1)), rng.integers(10, size=128)
        losses += trainer.fit(x, y, batch_size=128, verbose=0).history["loss"]
    return trainer.plan, losses


def _recorded(
    loss: Any, train_op: Any, batch: Callable[..., dict[Any, Any]], collectives: str, plan: Any, n_steps: int
) -> tuple[Any, list[float]]:
    import tensoropt

    plan = plan or tensoropt.find_strategy("mini_time")
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan, collectives=collectives)
    rng = np.random.default_rng(0)
    losses = [float(tensoropt.run([train_op, loss], feed_dict=batch(rng))[1]) for _ in range(n_steps)]
    return plan, losses


EXAMPLES = {
    "listing1": Example(listing1, 1e-5),
    "digits": Example(digits, 1e-9),
    "transformer": Example(transformer, 1e-5),
    "keras": Example(keras, 1e-9),
}


def worker(name: str, n_devices: int, n_steps: int, folder: Path, collectives: str) -> None:
    """Run the example by all plans, which emulated ranks search and write for the real ones; write the losses."""
    import tensoropt
    from tensoropt.runtime.ranks import current_processes

    example, hardware = EXAMPLES[name], f"v100-1x{n_devices}"
    found: dict[str, Any] = {}

    def run(limit: str, plan: Any) -> Any:
        plan, losses = example.train(hardware, collectives, plan, n_steps)
        found[limit] = {"losses": losses, "memory": plan.sum_bytes, "split": plan.n_split_operators}
        return plan

    def write() -> None:
        if current_processes().rank == 0:
            (folder / f"{name}_{n_devices}_{collectives}.json").write_text(json.dumps(found))

    files = {limit: folder / f"{name}_{n_devices}_{limit}.json" for limit in LIMITS}
    if collectives == "emulated":
        fastest = run("none", None)
        fastest.save(files["none"])
        frontier = fastest.frontier
        least = frontier.peak_bytes(frontier.least_point())
        most = frontier.peak_bytes(frontier.fastest_within(None))
        for limit, n_bytes in (("middle", (least + most) // 2), ("least", least)):
            frontier.at(n_bytes).save(files[limit])
    for limit in LIMITS:
        if limit not in found:
            try:
                run(limit, tensoropt.load_plan(files[limit]))
            except Exception as error:
                # On real ranks an exception on one rank ends all.
                if collectives != "emulated":
                    raise
                found[limit] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        write()


def result(name: str, n_devices: int, n_steps: int, folder: Path, collectives: str) -> dict[str, Any]:
    """Run a worker process, or one on each rank, and return its losses or its error for each limit."""
    program = [__file__, "--worker", name, str(n_devices), str(n_steps), str(folder), collectives]
    command = mpirun_command(n_devices, ["-m", "mpi4py", *program]) if collectives == "mpi" else [sys.executable, *program]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "examples")))
    environment = {**os.environ, "PYTHONPATH": paths, "TENSOROPT_CACHE": "off", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment = rank_environment(environment, as_root=os.geteuid() == 0)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        error = f"no end after {TIMEOUT_S} s"
    else:
        lines = [line for line in done.stderr.splitlines() if "Error:" in line or line.startswith("tensoropt:")]
        error = (lines or done.stderr.splitlines() or ["no output"])[-1]
    file = folder / f"{name}_{n_devices}_{collectives}.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    return {limit: found.get(limit, {"error": error}) for limit in LIMITS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", default=",".join(EXAMPLES), help="default: %(default)s")
    parser.add_argument("--devices", default="1,2,3,4,5,6", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=5, help="of training (default %(default)s)")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        name, n_devices, n_steps, folder, collectives = arguments.worker
        worker(name, int(n_devices), int(n_steps), Path(folder), collectives)
        return 0
    rows, is_off = [], False
    cases = [(name, int(n)) for name in arguments.examples.split(",") for n in arguments.devices.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        alone = {name: result(name, 1, arguments.steps, folder, "emulated")["none"] for name in dict(cases)}
        for name, n_devices in tqdm(cases, unit="case"):
            started = time.perf_counter()
            found = [result(name, n_devices, arguments.steps, folder, kind) for kind in ("emulated", "mpi")]
            for limit in LIMITS:
                told = [_difference(each[limit], alone[name], EXAMPLES[name].tolerance) for each in found]
                is_off |= any(what.startswith("!") for what in told)
                emulated = found[0][limit]
                rows.append((name, n_devices, limit, emulated.get("memory"), emulated.get("split"), *told))
                tqdm.write(" ".join(map(str, rows[-1])))
            tqdm.write(f"{name} on {n_devices}: {time.perf_counter() - started:.0f} s")
    headers = ("example", "devices", "limit", "memory per device", "split operators", "emulated", "real")
    print(tabulate(rows, headers, tablefmt="github", intfmt=","))
    return int(is_off)


def _difference(found: dict[str, Any], alone: dict[str, Any], tolerance: float) -> str:
    """The distance of losses from one device's; an exclamation mark before it where that is too far, or an error."""
    if "error" in found or "error" in alone:
        return f"! {found.get('error', alone.get('error'))}"
    expected = np.array(alone["losses"])
    off = np.max(np.abs(np.array(found["losses"]) - expected)) / np.max(np.abs(expected))
    return f"{off:.0e}" if off <= tolerance else f"! off by {off:.0e}"


if __name__ == "__main__":
    sys.exit(main())
