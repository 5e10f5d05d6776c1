"""A recorded model with a tied table and a penalty, trained under a plan with stages: prints losses as JSON on rank 0.

With a folder in ``CHECKPOINT`` it goes on from the checkpoint there, or saves one after two steps where there is none.
With ``OTHER_FETCH`` in the environment rank 1 fetches something else; with ``FAULT`` it is killed, stopped, sleeps or ends
before its third step. Under ``mpi`` each rank feeds its share of the batch in the second step, and all of it in others.

    python tests/pipeline/train.py STAGES MICRO_BATCHES SCHEDULE COLLECTIVES PARALLELISM [PLAN]
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import numpy as np

import tensoropt
from tensoropt.reschedule.layout import block_bounds
from tensoropt.runtime.checkpoint import restore, save
from tensoropt.runtime.step import messages
from tensoropt.search.candidates import candidate as candidates
from tensoropt.search.stages.cuts import Cut
from tensoropt.sharding.stages import Stages

BATCH, WORDS, WIDTH = 16, 200, 24


def loss_of(words: object, targets: object) -> object:
    table = tensoropt.get_variable("table", [WORDS, WIDTH], tensoropt.float64, tensoropt.random_normal_initializer(seed=1))
    hidden = tensoropt.reduce_mean(tensoropt.gather(table, words), axis=1)
    penalty = tensoropt.constant(0.0, tensoropt.float64)
    for layer in range(4):
        initializer = tensoropt.random_normal_initializer(0.0, 0.2, seed=2 + layer)
        weights = tensoropt.get_variable(f"weights_{layer}", [WIDTH, WIDTH], tensoropt.float64, initializer)
        hidden = hidden + tensoropt.tanh(tensoropt.matmul(hidden, weights))
        penalty = penalty + 1e-3 * tensoropt.reduce_sum(tensoropt.square(weights))
    logits = tensoropt.matmul(hidden, table, transpose_b=True)
    each = tensoropt.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    return tensoropt.reduce_mean(each) + penalty


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda: time.sleep(600), "end": lambda: sys.exit(0),
}  # fmt: skip


def main() -> None:
    stages, micro_batches, schedule, collectives, parallelism, *file = sys.argv[1:]
    session = tensoropt.init(seed=5, hardware="v100-1x4" if collectives == "emulated" else None)
    if collectives == "mpi":
        # So small that these tensors go in several.
        messages.PACKET_BYTES = 256
    if stages != "1":
        # So that rows of the table cross, wherever a step would be fastest.
        candidates.balanced = lambda choices, times, *_: Cut(
            Stages(times.whole, ("Tanh_1",)), tuple(blocks[0] for blocks in choices), 0.0
        )
        candidates.least_memory = lambda *_: None
    words = tensoropt.placeholder(tensoropt.int32, [BATCH, 5])
    targets = tensoropt.placeholder(tensoropt.int32, [BATCH])
    loss = loss_of(words, targets)
    train = tensoropt.AdamOptimizer(0.01).minimize(loss)
    wanted = {} if stages == "1" else {"stages": int(stages), "schedule": schedule}
    plan = tensoropt.find_strategy(parallelism=int(parallelism), micro_batches=int(micro_batches), verbose=0, **wanted)
    if file:
        if session.processes.rank == 0:
            plan.save(file[0])
        session.processes.broadcast(0)
        plan = file[0]
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan, collectives=collectives)
    rng, losses, folder = np.random.default_rng(7), [], os.environ.get("CHECKPOINT")
    processes = session.execution.processes
    begin = restore(folder, session.engine.state(), processes).content["step"] if folder and os.listdir(folder) else 0
    for step in range(4):
        if step == 2 and session.processes.rank == 1 and "FAULT" in os.environ:
            print(f"fault at {time.time()}", flush=True)
            FAULTS[os.environ["FAULT"]]()
        feeds = {words: rng.integers(0, WORDS, (BATCH, 5)), targets: rng.integers(0, WORDS, BATCH)}
        if step < begin:
            continue
        if collectives == "mpi" and step == 1:
            start, end = block_bounds(BATCH, processes.size, processes.rank)
            feeds = {key: tensoropt.local(value[start:end]) for key, value in feeds.items()}
        is_other = "OTHER_FETCH" in os.environ and session.processes.rank == 1
        value = tensoropt.run([loss] if is_other else [loss, train], feed_dict=feeds)[0]
        losses.append(float(value))
        if folder and not begin and step == 1:
            save(f"{folder}/ckpt", session.engine.state(), processes, {"step": 2})
    evaluated = float(tensoropt.run(loss, feed_dict=feeds))
    shards = processes.gather(tensoropt.run(tensoropt.local(loss), feeds))
    assert {float(shard) for shard in shards if shard is not None} == {evaluated}
    assert any(shard is None for shard in shards) == (stages != "1" and collectives == "mpi")
    if session.processes.rank == 0:
        print(json.dumps({"losses": losses, "evaluated": evaluated, "plan": session.plan.brief()}), flush=True)


if __name__ == "__main__":
    main()
