"""Measure how far a last bit carries: two training steps by plain Keras, once more from weights changed by a last bit.

    python tests/models/conditioning.py [NAME ...]

Half of the trained weights' elements, drawn at random, become the next larger number. Whatever adds in another order does as
much, so that no strategy can be held to less than what a step's gradients and variables are then off by, of each tensor's
largest magnitude.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
import numpy as np
from helpers.switches import floats

from models.catalog import APPLICATIONS, SMALL, Entry
from models.training import N_STEPS, Step, captured, distances, on_one_device, sgd

COLUMNS = ("model", *(f"step {number}" for number in range(N_STEPS)))


def steps(entry: Entry, changes: bool) -> list[Step]:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = entry.make()
    program = captured(entry, model)
    rng = np.random.default_rng(2)
    for variable in model.trainable_variables:
        value = variable.numpy()
        if changes:
            variable.assign(np.where(rng.random(value.shape) < 0.5, value, np.nextafter(value, np.inf)))
    return list(on_one_device(entry, model, sgd(), program))


def row(name: str) -> tuple[str, ...]:
    """The name, and per step the largest distance."""
    with floats("float64"):
        entry = SMALL[name]
        worst = dict.fromkeys(range(N_STEPS), 0.0)
        for each in distances(steps(entry, changes=False), steps(entry, changes=True)):
            worst[each.step] = max(worst[each.step], each.ratio)
    return (name, *(f"{ratio:.1e}" for ratio in worst.values()))


def main(names: list[str]) -> None:
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    for name in names:
        print("| " + " | ".join(row(name)) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(APPLICATIONS))
