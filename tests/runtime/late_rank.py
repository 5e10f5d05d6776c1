"""Ranks of which one sleeps, is stopped, fetches, leaves, or does nothing, as the first argument says, ahead of a step."""

import os
import signal
import sys
import time

import numpy as np
from hurrying import hurry

import tensoropt


def main() -> None:
    session = tensoropt.init(hardware="v100-1x3")
    x = tensoropt.placeholder(tensoropt.float32, [8, 6], name="x")
    weights = tensoropt.get_variable("weights", [6, 4])
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.matmul(x, weights)))
    train = tensoropt.GradientDescentOptimizer(0.1).minimize(loss)
    plan = tensoropt.find_strategy("mini_time", parallelism=2, force={"MatMul": {"m": 2}})
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan)
    hurry(2)
    for number in range(3):
        if number == 2 and session.processes.rank == 1 and sys.argv[1] != "nothing":
            if sys.argv[1] == "leave":
                return
            if sys.argv[1] == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if sys.argv[1] == "fetch":
                tensoropt.run(loss, feed_dict={x: np.ones((8, 6), np.float32)})
            time.sleep(120)
        tensoropt.run([train, loss], feed_dict={x: np.ones((8, 6), np.float32)})
        time.sleep(float(sys.argv[2]))
    print("done")


main()
