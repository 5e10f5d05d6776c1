"""Run on each rank random strategies in micro-batches by real collectives; see ``execution/worker.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import accumulate.models as models
import tensorflow as tf
from execution.worker import COMM, backend_of
from helpers import zoo
from helpers.strategies import assert_variables, evaluate_and_check, local_shards, random_router, train_and_check

from tensoropt.reschedule.mesh import Mesh


def main(n_strategies: int, collectives: str) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(3 if collectives == "link" else 0)
    mesh, names, optimizers = Mesh.of(COMM.size), list(models.FUNCTIONS), list(zoo.HYPERPARAMETERS)
    backend, n_collectives = backend_of(mesh, collectives), 0
    for seed in range(n_strategies):
        name, optimizer, n = names[seed % len(names)], optimizers[seed % len(optimizers)], (2, 4)[seed % 2]
        model, views = models.recorded(name, optimizer), models.random_view(name, optimizer, n, mesh, 4000 + seed)
        in_order = collectives == "link" or seed % 2 == 1
        engine = models.engine_in_micro_batches(model, views, random_router(seed), backend, in_order)
        digests: list[str] = []
        engine.agree = lambda digest, log, digests=digests: digests.append(digest)
        train_and_check(engine, model)
        evaluate_and_check(engine, model)
        by_rank = COMM.allgather((digests, local_shards(engine)))
        assert all(found == by_rank[0][0] for found, _ in by_rank), "the ranks' graphs differ in structure"
        assert_variables(model, views[0], {key: [held[key][0] for _, held in by_rank] for key in engine.variables})
        n_collectives += engine.collectives_per_step
    if COMM.rank == 0:
        print(f"{n_strategies} strategies in micro-batches, {n_collectives} collectives on {COMM.size} ranks")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
