"""Train a Transformer that one device couldn't hold, across as many devices as there are.

    mpirun -n 4 python examples/train_transformer.py --memory 150MB --process-memory 550MB

Two layers of an encoder and two of a decoder with 60 million parameters, trained with momentum: parameters and slots alone
are 478 MB. ``--memory`` is the plan's limit per device. ``--process-memory`` limits every process, as a container would: it
may allocate so much memory beyond what it has once TensorFlow is loaded, for plan, graph and search.

Replicated, the same model needs 589 MB, and fails under the same limit:

    tensoropt search examples/train_transformer.py:model --devices 4 --algorithm data-parallel --plan replicated.json
    mpirun -n 4 python examples/train_transformer.py --plan replicated.json --process-memory 550MB
"""

import argparse
import json
import resource
from pathlib import Path

import numpy as np
import tensorflow as tf  # noqa: F401  loaded before the limit is set, which doesn't count it

import tensoropt
from tensoropt.common.memory_units import memory_text, parse_memory

BATCH, LENGTH, VOCABULARY, LAYERS, WIDTH, HEADS = 8, 8, 1024, 2, 1024, 8


def create_model(width=WIDTH):
    """Record the model; return the mean loss of the next words and its training step."""
    loss = tensoropt.zoo.transformer(BATCH, LENGTH, LAYERS, width, HEADS, vocabulary=VOCABULARY)
    return loss, tensoropt.MomentumOptimizer(0.01, 0.9).minimize(loss)


def model():
    """Record the model for ``tensoropt search``."""
    create_model()


def limit_this_process(process_memory):
    """Limit this process to so many bytes beyond what it has; an allocation beyond that fails, as in a container."""
    status = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in status if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (int(kilobytes) * 1024 + process_memory,) * 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5, help="training steps (default %(default)s)")
    parser.add_argument("--width", type=int, default=WIDTH, help="width of the layers (default %(default)s)")
    parser.add_argument("--memory", help="the plan's limit per device, such as 150MB; default: what is free")
    parser.add_argument("--process-memory", help="limit of each process, such as 550MB; default: no limit")
    parser.add_argument("--hardware", help="to plan for instead of measuring, such as v100-1x4")
    parser.add_argument("--plan", metavar="FILE", help="use this plan instead of searching")
    parser.add_argument("--json", metavar="FILE", help="write the training log")
    arguments = parser.parse_args()

    if arguments.process_memory:
        limit_this_process(parse_memory(arguments.process_memory))
    session = tensoropt.init(hardware=arguments.hardware, seed=1)
    is_first_rank = session.processes.rank == 0
    loss, train_op = create_model(arguments.width)
    if arguments.plan:
        plan = tensoropt.load_plan(arguments.plan)
    else:
        plan = tensoropt.find_strategy("mini_time", memory=arguments.memory)
    if is_first_rank:
        print(plan.summary(), flush=True)
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan)

    words = [op.outputs[0] for op in loss.graph.get_operations() if op.type == "Placeholder"]
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(arguments.steps):
        fed = {each: rng.integers(VOCABULARY, size=each.shape) for each in words}
        losses.append(float(tensoropt.run([train_op, loss], feed_dict=fed)[1]))
        if is_first_rank:
            print(f"loss {losses[-1]:.6f}", flush=True)

    log = {"losses": losses, **session.statistics(), "plan": plan.summary()}
    if is_first_rank:
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(log, file, indent=1)
        print(f"{memory_text(log['parameter_bytes'])} of parameters, of which a device has at most "
              f"{memory_text(max(log['parameter_bytes_per_rank']))}")


if __name__ == "__main__":
    main()
