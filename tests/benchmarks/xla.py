"""Tell whether XLA makes a rank's part of a step faster: plain TensorFlow on half the batch, with and without XLA.

    TF_NUM_INTRAOP_THREADS=1 python tests/benchmarks/xla.py [--models transformer,vgg16] [--rounds 7]

The models are those of ``versus_horovod.py``. Both run in turn in one process, with TensorFlow's graph optimizer.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

os.environ["TF_XLA_FLAGS"] = "--tf_xla_cpu_global_jit"

import tensorflow as tf
from harness import alternate, ratio
from tabulate import tabulate
from versus_horovod import LEARNING_RATE, MODELS, MOMENTUM

from tensoropt.profiling.compute import time_s
from tensoropt.runtime.synthetic_batch import synthetic_batch
from tensoropt.tools.offline import record

v1 = tf.compat.v1


def step_of(name: str, clustered: bool) -> Callable[[], object]:
    """Return a training step on half the batch."""
    function, sizes = MODELS[name]
    sizes = {**sizes, "batch": sizes["batch"] // 2}
    fed = synthetic_batch(record(lambda: function(**sizes), name, "momentum").model.graph)
    with tf.Graph().as_default() as graph:
        loss = function(**sizes)
        train = v1.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM).minimize(loss)
        config = v1.ConfigProto(intra_op_parallelism_threads=1)
        if clustered:
            config.graph_options.optimizer_options.global_jit_level = v1.OptimizerOptions.ON_2
        session = v1.Session(config=config)
        session.run(v1.global_variables_initializer())
        run = session.make_callable([loss, train], feed_list=[graph.get_tensor_by_name(tensor.name) for tensor in fed])
    return lambda: run(*fed.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="transformer,vgg16,rnnlm")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models.split(","):
        steps = [step_of(name, clustered) for clustered in (True, False)]
        first = [f"{time_s(step):.1f} s" for step in steps]
        clustered, plain = alternate(steps, arguments.rounds)
        rows.append([name, str(clustered), str(plain), ratio(clustered, plain), *first])
    print(tabulate(rows, ["model", "XLA", "without", "ratio (quartiles)", "first step, XLA", "without"]))


if __name__ == "__main__":
    main()
