"""One rank of the tests of wrong input under mpirun.

mpirun -n 2 inputs_worker.py wrong      refusals; then a label that one rank alone has
mpirun -n 2 inputs_worker.py "too late" computes with a recorded tensor after the build
mpirun -n 2 inputs_worker.py thread     wrong input in a thread of each rank, while the rank itself goes on
"""

from __future__ import annotations

import sys
import threading
import time

import keras
import numpy as np

import tensoropt

BATCH = 8


def wrong_input() -> None:
    classes = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4)])
    trainer = tensoropt.parallelize(model, "sgd", classes, batch_size=BATCH, cluster="v100-1x2")
    try:
        trainer.load(None)
    except tensoropt.InputError as error:
        print(f"refused: {error}", flush=True)
    x = np.random.default_rng(1).normal(size=(BATCH, 5)).astype(np.float32)
    trainer.fit(x, np.array([0] * (BATCH - 1) + [4]), verbose=0)


def too_late() -> None:
    tensoropt.init("v100-1x2", seed=1)
    x = tensoropt.placeholder("float32", [BATCH, 6])
    w = tensoropt.get_variable("w", [6, 4])
    loss = tensoropt.reduce_mean(tensoropt.matmul(x, w) ** 2)
    tensoropt.GradientDescentOptimizer(0.1).minimize(loss)
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy())
    tensoropt.run(loss * 2, {x: np.ones((BATCH, 6), np.float32)})


def in_a_thread() -> None:
    tensoropt.init("v100-1x2", seed=1)
    threading.Thread(target=lambda: tensoropt.load_plan("no/such/plan")).start()
    time.sleep(120)
    print("went on", flush=True)


if __name__ == "__main__":
    {"wrong": wrong_input, "too late": too_late, "thread": in_a_thread}[sys.argv[1]]()
