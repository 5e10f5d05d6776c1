"""Train a model on each rank by ``tensoropt.parallelize`` and print its losses, for ``test_ranks.py``."""

from __future__ import annotations

import json
import sys
from typing import Any

import keras
from helpers.switches import floats

import tensoropt
from models.catalog import SMALL

N_STEPS = 20
RATE = 0.003
# Over images of 32 ResNet50's gradients are large: by 1e-5 and more a last bit of weights grows up to a hundredfold a step.
RATES = {"ResNet50": 1e-7}


def prepared(name: str) -> tuple[keras.Model, keras.optimizers.Optimizer, dict[str, Any]]:
    """A model with the same weights in every process, its optimizer, and what ``fit`` takes: an epoch is a step."""
    entry = SMALL[name]
    keras.utils.set_random_seed(1)
    model = entry.make()
    inputs, labels = entry.batch(0)
    data = {"x": inputs if len(inputs) > 1 else inputs[0], "y": labels}
    return model, keras.optimizers.SGD(RATES.get(name, RATE)), {**data, "epochs": N_STEPS, "shuffle": False, "verbose": 0}


def main(name: str, memory: str) -> None:
    # The test's process takes the above from here, and is no rank.
    from mpi4py import MPI

    ranks = MPI.COMM_WORLD
    entry = SMALL[name]
    with floats("float64"):
        model, optimizer, given = prepared(name)
        wanted = {"batch_size": entry.batch_size, "memory": memory, "cluster": f"v100-1x{ranks.size}"}
        trainer = tensoropt.parallelize(model, optimizer, entry.loss, **wanted)
        losses = trainer.fit(**given).history["loss"]
    assert ranks.allgather(losses) == [losses] * ranks.size, "ranks have different losses"
    if ranks.rank == 0:
        print(json.dumps({"losses": losses, "split": trainer.plan.n_split_operators}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
