"""Run on each rank models by random strategies and real collectives, for ``test_ranks.py``."""

from __future__ import annotations

import sys
from pathlib import Path

from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensorflow as tf
from composite.models import by_branch, custom, lstm, row_scaled, with_decay, without_some
from execution.worker import backend_of, check
from helpers import zoo
from helpers.strategies import random_strategy

from tensoropt.reschedule.mesh import Mesh


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    mesh = Mesh.of(MPI.COMM_WORLD.size)
    backend = backend_of(mesh, "mpi")
    for seed, function in enumerate((lstm, custom(tf.nn.silu, row_scaled, with_decay, without_some, by_branch))):
        model = zoo.record(function, "adam")
        view = random_strategy(model, mesh, seed, lambda config: bool(config.used_axes))
        check("composite", model, view, seed, backend)


if __name__ == "__main__":
    main()
