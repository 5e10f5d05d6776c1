"""Run on each rank steps in micro-batches by the public API, fed the full batch and by each rank's share."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from helpers import zoo
from helpers.strategies import assert_close

import tensoropt


def main() -> None:
    session = tensoropt.init(hardware="v100-1x4", seed=1)
    processes = session.processes
    rank, size = processes.rank, processes.size
    built = zoo.mlp(tensoropt, batch=16)
    train = tensoropt.AdamOptimizer(0.01).minimize(built.loss)
    plan = tensoropt.find_strategy(parallelism=size, force={"MatMul": {"n": size}}, micro_batches=4)
    assert plan.micro_batches == 4 and "4 micro-batches" in plan.summary()
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan)
    full = {key: values[0] for key, values in built.inputs.items()}
    own = slice(16 // size * rank, 16 // size * (rank + 1))
    shares = {key: tensoropt.local(value[own]) for key, value in full.items()}
    hidden = built.inner["hidden"]
    alone = tensoropt.run([built.loss, hidden], full)
    held = [v for entry in session.engine.state() for v in entry.variables]
    before = [variable.numpy() for variable in held]
    found, after = [], []
    for feeds in (full, shares):
        found.append([tensoropt.run([train, built.loss, hidden], feeds)[1:] for _ in range(3)])
        after.append([variable.numpy() for variable in held])
        for variable, value in zip(held, before, strict=True):
            variable.assign(value)
    for got, expected in zip(found[0][0], alone, strict=True):
        assert_close(got, expected, 1e-12, "the first step against a run without slices")
    for by_share, whole in zip(found[1], found[0], strict=True):
        for got, expected in zip(by_share, whole, strict=True):
            assert_close(got, expected, 1e-12, "a step with local feeds")
    for got, expected in zip(after[1], after[0], strict=True):
        assert_close(np.asarray(got), np.asarray(expected), 1e-12, "a variable")
    if rank == 0:
        print(f"local feeds are full feeds on {size} ranks")


if __name__ == "__main__":
    main()
