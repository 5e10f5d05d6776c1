"""Ranks of which one sleeps, is stopped, fails, fetches, or does nothing, as the first argument says, ahead of a step.

The third says how many ranks the plan is for, by default two of at least three.
"""

import os
import signal
import sys
import time

import numpy as np
from hurrying import hurry

import tensoropt

SIGNALS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL, "terminate": signal.SIGTERM}


def main() -> None:
    n_ranks = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    session = tensoropt.init(hardware=f"v100-1x{max(3, n_ranks)}")
    x = tensoropt.placeholder(tensoropt.float32, [12, 6], name="x")
    weights = tensoropt.get_variable("weights", [6, 4])
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.matmul(x, weights)))
    train = tensoropt.GradientDescentOptimizer(0.1).minimize(loss)
    plan = tensoropt.find_strategy("mini_time", parallelism=n_ranks, force={"MatMul": {"m": n_ranks}})
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan)
    if sys.argv[1] not in ("raise", "exit"):  # others would be missed before all have said whether they fail alike
        hurry(2)
    for number in range(3):
        if number == 2 and session.processes.rank == 1 and sys.argv[1] != "nothing":
            if sys.argv[1] == "leave":
                return
            if sys.argv[1] in SIGNALS:
                os.kill(os.getpid(), SIGNALS[sys.argv[1]])
            if sys.argv[1] == "raise":
                raise ValueError("boom")
            if sys.argv[1] == "exit":
                sys.exit(3)
            if sys.argv[1] == "fetch":
                tensoropt.run(loss, feed_dict={x: np.ones((12, 6), np.float32)})
            time.sleep(120)
        tensoropt.run([train, loss], feed_dict={x: np.ones((12, 6), np.float32)})
        time.sleep(float(sys.argv[2]))
    print("done")


main()
