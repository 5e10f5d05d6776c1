"""Two ranks that train a Keras model, of which one comes late or never, as the first argument says."""

import os
import signal
import sys
import time

import keras
import numpy as np
from hurrying import hurry

import tensoropt
from tensoropt.runtime.ranks import current_processes, install_error_handling
from tensoropt.trainer import parallelize

CASE = sys.argv[1]


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def slow_search(option, request, parallelism, find=parallelize.find):
    """Takes longer than the timeout, and computes."""
    until = time.monotonic() + 6
    while time.monotonic() < until:
        sum(range(10000))
    return find(option, request, parallelism)


# As if it were TensorOpt's own.
slow_search.__code__ = slow_search.__code__.replace(co_filename=parallelize.__file__)


def main() -> None:
    processes = current_processes()
    install_error_handling(processes)
    hurry(3)
    rank = processes.rank
    if CASE == "save":
        parallelize.find = slow_search
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4)])
    trainer = tensoropt.parallelize(model, "sgd", "mse", batch_size=8, cluster="v100-1x2", force={"MatMul": {"m": 2}})
    print("searched", flush=True)
    x, y = np.ones([16, 6], np.float32), np.ones([16, 4], np.float32)
    trainer.fit(x, y, shuffle=False, verbose=0)
    if CASE == "save":
        if rank == 1:
            stop()
        trainer.save(sys.argv[2])
    elif CASE == "evaluate":
        if rank == 0:
            trainer.evaluate(x, y, verbose=0)
        trainer.fit(x, y, shuffle=False, verbose=0)
    elif CASE == "data":
        trainer.fit(batches(x, y, rank), verbose=0)
    print("done")


def batches(x, y, rank):
    """What rank 0 reads for all, and hangs after the first batch."""
    yield x[:8], y[:8]
    if rank == 0:
        time.sleep(120)
    yield x[8:], y[8:]


main()
