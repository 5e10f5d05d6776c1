"""One rank that trains by a session and by a trainer; it prints each phase that it would show instead of waiting."""

import os
from contextlib import contextmanager

import keras
import numpy as np

import tensoropt
from tensoropt.common.process import progress

RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
BATCH, CLUSTER = 8, "v100-1x2"
X, Y = np.ones((2 * BATCH, 6), np.float32), np.ones((2 * BATCH, 5), np.float32)
shown_phase = progress.Display.phase


@contextmanager
def phase(display: progress.Display, name: str):
    if display.is_shown:
        print(f"rank {RANK}: {name}", flush=True)
    with shown_phase(display, name):
        yield


progress.FIRST_S = None  # waits until the end
progress.Display.phase = phase


def session(verbose: int) -> None:
    tensoropt.init(None if verbose else CLUSTER, seed=1)
    x = tensoropt.placeholder("float32", [BATCH, 6])
    w = tensoropt.get_variable("w", [6, 5])
    loss = tensoropt.reduce_mean(tensoropt.matmul(x, w) ** 2)
    step = tensoropt.GradientDescentOptimizer(0.1).minimize(loss)
    plan = tensoropt.find_strategy(verbose=verbose)
    tensoropt.build_execution_graph(plan=plan)
    for _ in range(2):
        tensoropt.run(step, {x: X[:BATCH]})


def trainer(verbose: int) -> None:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5)])
    trainer = tensoropt.parallelize(model, "sgd", "mse", batch_size=BATCH, cluster=CLUSTER, verbose=verbose)
    trainer.fit(X, Y, batch_size=BATCH, verbose=0)


for train in (session, trainer):
    for verbose in (1, 0):
        print(f"rank {RANK}: {train.__name__} {verbose}", flush=True)
        train(verbose)
