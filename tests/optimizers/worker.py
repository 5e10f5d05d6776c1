"""Train on each rank by Keras optimizers and real collectives, for ``test_ranks.py``.

Every rank computes one device's numbers itself; a rank that finds a difference raises, which ends all ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tensorflow as tf
from helpers.strategies import assert_close, feeds_of
from mpi4py import MPI
from optimizers.models import case_of
from optimizers.test_keras import CASES
from optimizers.test_rows import CASES as ROWS
from oracles.shards import gather

from tensoropt.lowering.resharding.backends import CommunicatingBackend
from tensoropt.lowering.resharding.reshard import Collective
from tensoropt.profiling.collective_tables import device_partitions
from tensoropt.program.fetch import Fetch
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.rule import Config
from tensoropt.runtime.collectives.mpi import MpiCommunicator

COMM = MPI.COMM_WORLD


def _split_by_rows(config: Config) -> bool:
    """A table, or a lookup in it."""
    return not {"d0", "rows"}.isdisjoint(config.assignment)


def check(name: str, mesh: Mesh, communicator: MpiCommunicator) -> None:
    digests: list[str] = []

    def agree(digest: str, log: Sequence[Collective]) -> None:
        digests.append(digest)

    by_rows = name == "rows"
    case = case_of("lookups", ROWS["adam-clipnorm"]) if by_rows else case_of(*CASES[name])
    backend = CommunicatingBackend(mesh, COMM.rank, communicator)
    engine = case.engine(mesh, len(name), backend, _split_by_rows if by_rows else None)
    if by_rows:
        layout = next(entry.layout for entry in engine.state() if entry.key == "table")
        assert layout.splits[0], "the table isn't split by rows"
    engine.states[0].agree = agree
    fetch = Fetch(((case.graph.tensors[case.loss], False),), ("train",))
    for batch, expected in zip(case.batches, case.expected.losses, strict=True):
        ((loss,),) = engine.run(fetch, feeds_of(case.graph, batch))
        assert_close(loss, expected, 1e-10, "the loss")
    state = engine.state()
    by_rank = COMM.allgather((digests, [entry.variables[0].numpy() for entry in state]))
    assert all(digest == by_rank[0][0] for digest, _ in by_rank), "the ranks' graphs differ in structure"
    kept = iter(case.expected.optimizer_variables)
    for n, entry in enumerate(state):
        whole = gather([held[n] for _, held in by_rank], entry.layout, entry.shape)
        expected = case.expected.variables[entry.key] if entry.step is None else next(kept)[1]
        assert_close(whole, expected, 1e-10, entry.key)


def main(names: list[str]) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    mesh = Mesh.of(COMM.size)
    communicator = MpiCommunicator(COMM, mesh)
    communicator.prepare(device_partitions(mesh))
    for name in names:
        check(name, mesh, communicator)
    if COMM.rank == 0:
        print(f"{len(names)} optimizers on {COMM.size} ranks")


if __name__ == "__main__":
    main(sys.argv[1:])
