"""Use the public API between processes, with shares of the batch and in micro-batches, for ``test_feeding.py``."""

from __future__ import annotations

import sys

import numpy as np
from helpers import zoo
from helpers.strategies import assert_close
from oracles.shards import gather

import tensoropt
from tensoropt.reschedule.layout import block_bounds


def main(collectives: str, micro_batches: int = 1) -> None:
    session = tensoropt.init(hardware="v100-1x4", seed=1)
    processes = session.processes
    rank, size = processes.rank, processes.size
    n_samples = 7 if micro_batches == 1 else 4 * micro_batches
    built = zoo.mlp(tensoropt, batch=n_samples)
    train = tensoropt.AdamOptimizer(0.01).minimize(built.loss)
    # Columns: what is fed by rows has to travel. The description has no parallelism of 3.
    hardware = f"v100-1x{size}" if size != 3 else "v100-3x1"
    plan = tensoropt.find_strategy(
        parallelism=size, cluster=hardware, force={"MatMul": {"n": size}}, micro_batches=micro_batches
    )
    assert plan.micro_batches == micro_batches
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan, collectives=collectives)
    graph, view = session.engine.graph, session.engine.views[0].whole
    full = {key: values[0] for key, values in built.inputs.items()}
    start, end = block_bounds(n_samples, size, rank)
    shares = {key: tensoropt.local(value[start:end]) for key, value in full.items()}
    hidden = built.inner["hidden"]

    whole = tensoropt.run([built.loss, hidden], full)
    for got, expected in zip(tensoropt.run([built.loss, hidden], shares), whole, strict=True):
        assert_close(got, expected, 1e-12, "with local feeds")
    shard = tensoropt.run(tensoropt.local(hidden), shares)
    tensor = graph.resolve(hidden.name)
    shards = processes.gather(shard)
    assert_close(gather(shards, view.layout(tensor), tensor.shape), whole[1], 1e-12, "the pieces together")

    held = [v for entry in session.engine.state() for v in entry.variables]
    before = [variable.numpy() for variable in held]
    steps = [tensoropt.run([train, built.loss, hidden], full)[1:] for _ in range(3)]
    after = [variable.numpy() for variable in held]
    for got, expected in zip(steps[0], whole, strict=True):
        assert_close(got, expected, 1e-12, "the first step")
    for variable, value in zip(held, before, strict=True):
        variable.assign(value)
    for step in steps:
        for got, expected in zip(tensoropt.run([train, built.loss, hidden], shares)[1:], step, strict=True):
            assert_close(got, expected, 1e-12, "a step with local feeds")
    for variable, value in zip(held, after, strict=True):
        assert_close(variable.numpy(), value, 1e-12, "a variable")

    x, _ = full
    try:
        tensoropt.run(built.loss, {**shares, x: tensoropt.local(np.zeros((n_samples - 1, 9)))})
    except tensoropt.InputError as error:
        assert f"expected [{end - start}, 9]: this rank's share of the batch" in str(error), error
    else:
        raise AssertionError("a share of the wrong shape was taken")
    if rank == 0:
        print(f"local feeds are full feeds on {size} ranks")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
