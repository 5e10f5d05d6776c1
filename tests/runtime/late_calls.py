"""Two ranks that train a Keras model, of which one comes late or never, as the first argument says."""

import os
import signal
import sys
import threading
import time

import keras
import numpy as np
import tensorflow as tf
from hurrying import hurry

import tensoropt
from tensoropt.runtime.ranks import current_processes, install_error_handling
from tensoropt.tuning import asked_plan

CASE = sys.argv[1]


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def slow_search(*asked, find=asked_plan.find_answer):
    """Takes longer than the timeout, and computes."""
    until = time.monotonic() + 6
    while time.monotonic() < until:
        sum(range(10000))
    return find(*asked)


# As if it were TensorOpt's own.
slow_search.__code__ = slow_search.__code__.replace(co_filename=asked_plan.__file__)


def main() -> None:
    processes = current_processes()
    install_error_handling(processes)
    hurry(3)
    rank = processes.rank
    if CASE == "save":
        asked_plan.find_answer = slow_search
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
    elif CASE == "spin":
        types = tf.TensorSpec((8, 6)), tf.TensorSpec((8, 4))
        data = tf.data.Dataset.from_generator(lambda: spinning(x, y, rank), output_signature=types)
        trainer.fit(data, verbose=0)
    print("done")


def batches(x, y, rank):
    """Batches that rank 0 reads for all, and that hang after the first."""
    yield x[:8], y[:8]
    if rank == 0:
        time.sleep(120)
    yield x[8:], y[8:]


def spinning(x, y, rank):
    """Batches that each rank reads for itself, of which rank 1 never makes the third."""
    for _ in range(2):
        yield x[:8], y[:8]
    if rank == 1:
        threading.Thread(target=poll, daemon=True).start()
        while True:
            sum(range(10000))
    yield x[:8], y[:8]


def poll():
    """Exit in a thread, as a user's thread may."""
    while True:
        sum(range(10000))
        time.sleep(0.01)


main()
