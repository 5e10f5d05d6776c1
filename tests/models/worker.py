"""What each rank does in ``test_ranks.py``: models trained by ``tensoropt.parallelize``, held to plain Keras."""

from __future__ import annotations

import sys
from pathlib import Path

from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
import numpy as np

import tensoropt
from models.catalog import SMALL
from models.training import floats

N_STEPS = 20
TOLERANCE = 1e-9


def train(name: str) -> tuple[list[float], list[float], str]:
    """The losses of 20 steps on one batch, by a plan and by plain Keras, and a line about the plan."""
    entry = SMALL[name]
    keras.utils.set_random_seed(1)
    model = entry.make()
    inputs, labels = entry.batch(0)
    x = inputs if len(inputs) > 1 else inputs[0]
    options = {"epochs": N_STEPS, "batch_size": entry.batch_size, "shuffle": False, "verbose": 0}
    trainer = tensoropt.parallelize(
        model, keras.optimizers.SGD(0.003), entry.loss, batch_size=entry.batch_size, cluster=f"v100-1x{MPI.COMM_WORLD.size}"
    )
    found = trainer.fit(x, labels, **{key: value for key, value in options.items() if key != "batch_size"})
    model.compile(keras.optimizers.SGD(0.003), entry.loss, jit_compile=False)
    expected = model.fit(x, labels, **options)
    return found.history["loss"], expected.history["loss"], trainer.plan.summary()


def main(names: list[str]) -> None:
    with floats("float64"):
        for name in names:
            found, expected, summary = train(name)
            off = np.max(np.abs(np.subtract(found, expected))) / np.max(np.abs(expected))
            assert len(found) == N_STEPS and expected[0] != expected[-1]
            assert off <= TOLERANCE, f"{name}: losses {found} differ from {expected}"
            if MPI.COMM_WORLD.rank == 0:
                print(f"{name}: {N_STEPS} losses are one device's, off by {off:.1g}; {summary}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
