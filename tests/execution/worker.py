"""Run on each rank random strategies of several models by real collectives, for ``test_ranks.py``.

Every rank draws the same strategies from their seeds, builds its own graph, and computes one device's numbers itself. A rank
that finds a difference raises, which ends all ranks (``python -m mpi4py``).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensorflow as tf
from helpers import zoo
from helpers.strategies import (
    EXACT,
    assert_variables,
    engine_of,
    evaluate_and_check,
    local_shards,
    random_router,
    random_strategy,
    slides,
    train_and_check,
)

from tensoropt.lowering.resharding.backends import CommunicatingBackend
from tensoropt.lowering.resharding.reshard import Collective
from tensoropt.profiling.collective_tables import device_partitions
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.collectives.mpi import MpiCommunicator
from tensoropt.sharding.strategy import StrategyView

COMM = MPI.COMM_WORLD


def check(case: str, model: zoo.Recorded, view: StrategyView, seed: int, backend: CommunicatingBackend) -> int:
    """Train by one strategy; the number of collectives in a step and an evaluation."""
    digests: list[str] = []
    n_collectives: list[int] = []
    engine = engine_of(model, view, random_router(seed), backend)

    def agree(digest: str, log: Sequence[Collective]) -> None:
        digests.append(digest)
        n_collectives.append(len(log))

    engine.agree = agree
    train_and_check(engine, model)
    evaluate_and_check(engine, model)
    by_rank = COMM.allgather((digests, local_shards(engine)))
    assert all(digest == by_rank[0][0] for digest, _ in by_rank), "the ranks' graphs differ in structure"
    shards = {name: [held[name][0] for _, held in by_rank] for name in engine.variables}
    assert_variables(model, view, shards, 0.0 if case == "random" else EXACT)
    return sum(n_collectives)


def main(case: str, n_strategies: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    meshes = [Mesh.of(COMM.size)] + ([Mesh.of(2, 2)] if COMM.size == 4 else [])
    backends = []
    for mesh in meshes:
        communicator = MpiCommunicator(COMM, mesh)
        communicator.prepare(device_partitions(mesh))
        backends.append(CommunicatingBackend(mesh, COMM.rank, communicator))
    function = {"broadcasting": zoo.broadcasting, "random": zoo.noise, "windows": zoo.windows}[case]
    optimizers = tuple(zoo.HYPERPARAMETERS)
    prefers = slides if case == "windows" else lambda config: bool(config.used_axes)
    n_collectives = 0
    for seed in range(n_strategies):
        model = zoo.record(function, optimizers[seed % len(optimizers)])
        mesh, backend = meshes[seed % len(meshes)], backends[seed % len(meshes)]
        view = random_strategy(model, mesh, 1000 + seed, prefers)
        n_collectives += check(case, model, view, 1000 + seed, backend)
    if COMM.rank == 0:
        print(f"{n_strategies} strategies, {n_collectives} collectives on {COMM.size} ranks")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
