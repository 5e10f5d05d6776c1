"""Train a small convolutional network on handwritten digits, across as many devices as there are.

    mpirun -n 2 python examples/train_digits.py

The model is written with TensorFlow's names. No line says how anything is split. The losses are those of one device.
"""

import argparse
import json
import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import tensoropt
from tensoropt.profiling.description_text import hardware_table


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="training steps (default %(default)s)")
    parser.add_argument("--batch", type=int, default=256, help="samples per step (default %(default)s)")
    parser.add_argument("--memory", help="limit per device, such as 500kB; default: what is free")
    parser.add_argument(
        "--dtype", choices=["float32", "float64"], default="float32", help="dtype of the model (default %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the training log")
    parser.add_argument("--plan", metavar="FILE", help="use this plan instead of searching")
    parser.add_argument("--save-plan", metavar="FILE", help="write the plan")
    choices = ["mpi", "tensorflow", "horovod", "emulated"]
    parser.add_argument("--collectives", choices=choices, help="what communicates (default: mpi on CPUs)")
    parser.add_argument("--parallelism", type=int, help="devices (default: as many as ranks)")
    arguments = parser.parse_args()
    if arguments.steps < 1 or arguments.batch < 1:
        parser.error(f"--steps and --batch must be at least 1, got {arguments.steps} and {arguments.batch}")
    return arguments


def create_model(images, labels):
    """Record two convolutions and two dense layers; return the mean loss and the predicted classes."""

    def dense(x, name, n_in, n_out):
        weights = tensoropt.get_variable(f"{name}/weights", [n_in, n_out], x.dtype)
        bias = tensoropt.get_variable(f"{name}/bias", [n_out], x.dtype, initializer=tensoropt.zeros_initializer())
        return tensoropt.nn.bias_add(tensoropt.matmul(x, weights), bias)

    def convolution(x, name, n_in, n_out):
        kernel = tensoropt.get_variable(f"{name}/kernel", [3, 3, n_in, n_out], x.dtype)
        bias = tensoropt.get_variable(f"{name}/bias", [n_out], x.dtype, initializer=tensoropt.zeros_initializer())
        return tensoropt.nn.relu(tensoropt.nn.bias_add(tensoropt.nn.conv2d(x, kernel, 1, "SAME"), bias))

    x = convolution(images, "conv1", 1, 32)
    x = convolution(x, "conv2", 32, 64)
    x = tensoropt.nn.max_pool2d(x, 2, 2, "VALID")
    x = tensoropt.reshape(x, [images.shape[0], 4 * 4 * 64])
    x = tensoropt.nn.relu(dense(x, "dense1", 4 * 4 * 64, 256))
    logits = dense(x, "dense2", 256, 10)
    return tensoropt.softmax_cross_entropy(labels, logits), tensoropt.argmax(logits, -1)


def accuracy(predictions, images, images_fed, labels):
    """Return the share of right predictions; the last batch is filled up with zeros."""
    batch = images.shape[0]
    n_right = 0
    for start in range(0, len(labels), batch):
        chunk = images_fed[start : start + batch]
        padded = np.zeros(images.shape, images_fed.dtype)
        padded[: len(chunk)] = chunk
        (classes,) = tensoropt.run([predictions], feed_dict={images: padded})
        n_right += int((classes[: len(chunk)] == labels[start : start + batch]).sum())
    return n_right / len(labels)


def main():
    arguments = parse_arguments()
    digits, classes = load_digits(return_X_y=True)
    pixels = (digits / 16).reshape(-1, 8, 8, 1).astype(arguments.dtype)
    train_x, test_x, train_y, test_y = train_test_split(pixels, classes, test_size=0.2, random_state=0)

    session = tensoropt.init(seed=1)
    is_first_rank = session.processes.rank == 0
    images = tensoropt.placeholder(arguments.dtype, [arguments.batch, 8, 8, 1], name="images")
    labels = tensoropt.placeholder(tensoropt.int64, [arguments.batch], name="labels")
    loss, predictions = create_model(images, labels)
    train_op = tensoropt.MomentumOptimizer(0.05, 0.9).minimize(loss)
    if arguments.plan:
        plan = tensoropt.load_plan(arguments.plan)
    else:
        plan = tensoropt.find_strategy("mini_time", memory=arguments.memory, parallelism=arguments.parallelism)
    if is_first_rank:
        print(hardware_table(session.hardware), end="\n\n")
        if plan.frontier is not None:
            print(plan.frontier.summary(), plan.frontier.table(plan.point), sep="\n\n", end="\n\n")
        print(plan, flush=True)
        if arguments.save_plan:
            plan.save(arguments.save_plan)
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan, collectives=arguments.collectives)

    rng = np.random.default_rng(0)
    losses = []
    started = time.perf_counter()
    with tqdm(range(arguments.steps), disable=not is_first_rank, unit="step", mininterval=0.25) as progress:
        for _ in progress:
            rows = rng.choice(len(train_x), arguments.batch, replace=False)
            _, value = tensoropt.run([train_op, loss], feed_dict={images: train_x[rows], labels: train_y[rows]})
            losses.append(float(value))
            rate = len(losses) * arguments.batch / (time.perf_counter() - started)
            progress.set_postfix_str(f"loss {value:.4f}, {rate:,.0f} samples/s", refresh=False)

    reached = accuracy(predictions, images, test_x, test_y)
    log = {"losses": losses, **session.statistics(), "plan": plan.summary()}
    if is_first_rank:
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(log, file, indent=1)
        print(f"test accuracy: {reached:.4f}")


if __name__ == "__main__":
    main()
