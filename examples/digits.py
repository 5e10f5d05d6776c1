"""Handwritten digits in batches, arguments and the training log, which the examples share."""

import argparse
import json

import numpy as np
from sklearn.datasets import load_digits


def parse_arguments(description):
    """Return the arguments ``--steps``, ``--memory`` and ``--json``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="training steps (default %(default)s)")
    parser.add_argument("--memory", help="limit per device, such as 500kB; default: what is free")
    parser.add_argument("--json", metavar="FILE", help="write the training log")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    return arguments


def digit_batches(batch, n_steps):
    """Yield ``n_steps`` pairs of images [batch, 64] and one-hot classes [batch, 10], the same ones each time."""
    images, classes = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    for _ in range(n_steps):
        rows = rng.choice(len(images), batch, replace=False)
        yield (images[rows] / 16).astype(np.float32), np.eye(10, dtype=np.float32)[classes[rows]]


def write_log(arguments, losses, statistics=None, rank=0):
    """Print some losses and write the training log to the file of ``--json``, on rank 0 only."""
    if rank:
        return
    for step in sorted({0, len(losses) // 2, len(losses) - 1}):
        print(f"step {step}: loss {losses[step]:.6f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"losses": losses, **(statistics or {})}, file, indent=1)
