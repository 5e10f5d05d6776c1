"""Run on each rank random strategies of several models by real collectives, for ``test_ranks.py``.

Every rank draws the same strategies from their seeds, builds its own graph, and computes one device's numbers itself. A rank
that finds a difference raises, which ends all ranks (``python -m mpi4py``).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

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
from mpi4py import MPI

from tensoropt.lowering.resharding.backends import CommunicatingBackend
from tensoropt.lowering.resharding.in_graph import GraphBackend
from tensoropt.lowering.resharding.reshard import Backend, Collective
from tensoropt.profiling.collective_tables import device_partitions
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.collectives import outbox
from tensoropt.runtime.collectives.mpi import MpiCommunicator
from tensoropt.runtime.execute import graph_collectives
from tensoropt.runtime.ranks import current_processes
from tensoropt.sharding.strategy import StrategyView

COMM = MPI.COMM_WORLD


def backend_of(mesh: Mesh, collectives: str) -> Backend:
    """``link`` is as over a link: what only updates wait for has a chain of its own."""
    if collectives == "mpi":
        return CommunicatingBackend(mesh, COMM.rank, prepared(MpiCommunicator(COMM, mesh)))
    if collectives == "link":
        outbox.PART_BYTES = 1 << 8
        overlappable = CommunicatingBackend(mesh, COMM.rank, prepared(MpiCommunicator(COMM, mesh, gives_way=True)))
        critical = prepared(MpiCommunicator(COMM, mesh, naps=True))
        return CommunicatingBackend(mesh, COMM.rank, critical, overlappable=overlappable)
    return GraphBackend(mesh, COMM.rank, graph_collectives(collectives, current_processes(), mesh))


def prepared(communicator: MpiCommunicator) -> MpiCommunicator:
    communicator.prepare(device_partitions(communicator._mesh))
    return communicator


def check(case: str, model: zoo.Recorded, view: StrategyView, seed: int, backend: Backend) -> int:
    """Train by one strategy; the number of collectives in a step and an evaluation."""
    digests: list[str] = []
    n_collectives: list[int] = []
    in_order = isinstance(backend, CommunicatingBackend) and backend.overlappable is not None
    engine = engine_of(model, view, random_router(seed), backend, in_order)

    def agree(digest: str, log: Sequence[Collective]) -> None:
        digests.append(digest)
        n_collectives.append(len(log))

    engine.states[0].agree = agree
    train_and_check(engine, model)
    evaluate_and_check(engine, model)
    by_rank = COMM.allgather((digests, local_shards(engine)))
    assert all(digest == by_rank[0][0] for digest, _ in by_rank), "the ranks' graphs differ in structure"
    shards = {name: [held[name][0] for _, held in by_rank] for name in engine.states[0].variables}
    assert_variables(model, view, shards, 0.0 if case == "random" else EXACT)
    return sum(n_collectives)


def main(case: str, n_strategies: int, collectives: str = "mpi") -> None:
    if collectives != "tensorflow":  # whose server has started TensorFlow
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(3 if collectives == "link" else 0)
    if collectives == "horovod":
        # Its many small operators keep TensorFlow's graph optimizer busy for most of the time; feeding_worker.py has it on.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    meshes = [Mesh.of(COMM.size)] + ([Mesh.of(2, 2)] if COMM.size == 4 else [])
    backends = [backend_of(mesh, collectives) for mesh in meshes]
    functions = {
        "models": (zoo.mlp, zoo.cnn, zoo.attention), "broadcasting": (zoo.broadcasting,), "random": (zoo.noise,),
        "windows": (zoo.windows,),
    }[case]  # fmt: skip
    optimizers = tuple(zoo.HYPERPARAMETERS)
    splits = dict.fromkeys(("broadcasting", "random"), lambda config: bool(config.used_axes))
    prefers = {**splits, "windows": slides}.get(case)
    models: dict[tuple[str, str], zoo.Recorded] = {}
    n_collectives = 0
    for seed in range(n_strategies):
        function = functions[seed % len(functions)]
        optimizer = optimizers[seed // len(functions) % len(optimizers)]
        key = function.__name__, optimizer
        if key not in models:
            models[key] = zoo.record(function, optimizer)
        mesh, backend = meshes[seed % len(meshes)], backends[seed % len(meshes)]
        view = random_strategy(models[key], mesh, 1000 + seed, prefers)
        n_collectives += check(case, models[key], view, 1000 + seed, backend)
    if COMM.rank == 0:
        print(f"{n_strategies} strategies, {n_collectives} collectives on {COMM.size} ranks")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
