"""How long searches take and what they find: recorded models and synthetic problems, a process each for its peak memory.

    python tests/benchmarks/search.py [--seconds 5] [--devices 4,8] [NAME ...]

Seconds are for recording and importing, for costs, and for the search; the compiled code is loaded before.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from models import DIGITS, SMALL_VGG, BenchmarkModel
from tabulate import tabulate

from tensoropt.ft import Budget, Edge, Frontier, Node, Problem, search

HARDWARE = "v100-2x8"
HEADERS = ("model", "devices", "nodes", "edges", "states", "points", "result", "record s", "costs s", "search s", "peak MB")


def transformer(tf: Any, variable: Any, layers: int) -> Any:
    """Post-norm blocks with a mask and normalisation in its elementary operators."""
    batch, length, width, heads, vocabulary = 16, 64, 256, 8, 1000
    words = tf.compat.v1.placeholder(tf.int64, [batch, length])
    nexts = tf.compat.v1.placeholder(tf.int64, [batch, length])
    mask = tf.compat.v1.placeholder(tf.float32, [batch, 1, length, length])
    x = tf.gather(variable("words", [vocabulary, width]), words) + variable("places", [length, width])

    def normalised(values: Any, name: str) -> Any:
        mean, variance = tf.nn.moments(values, [-1], keepdims=True)
        scale, shift = variable(f"{name}/scale", [width]), variable(f"{name}/shift", [width])
        return tf.nn.batch_normalization(values, mean, variance, shift, scale, 1e-5)

    def projected(values: Any, name: str, size: int) -> Any:
        weights = variable(name, [int(values.shape[-1]), size])
        return tf.reshape(tf.matmul(tf.reshape(values, [batch * length, -1]), weights), [batch, length, size])

    for layer in range(layers):
        parts = [tf.reshape(projected(x, f"{layer}/{k}", width), [batch, length, heads, -1]) for k in "qkv"]
        query, key, value = (tf.transpose(part, [0, 2, 1, 3]) for part in parts)
        mixed = tf.matmul(tf.nn.softmax(tf.matmul(query, key, transpose_b=True) * 0.2 + mask), value)
        mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [batch, length, width])
        x = normalised(x + projected(mixed, f"{layer}/out", width), f"{layer}/first")
        inner = tf.nn.relu(projected(x, f"{layer}/up", 4 * width) + variable(f"{layer}/bias", [4 * width]))
        x = normalised(x + projected(inner, f"{layer}/down", width), f"{layer}/second")
    logits = tf.matmul(tf.reshape(x, [batch * length, width]), variable("logits", [width, vocabulary]))
    labels = tf.reshape(nexts, [-1])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def residual_network(tf: Any, variable: Any, blocks: int, fused: bool) -> Any:
    """Residual blocks with batch normalisation, in one operator or in its elementary ones."""
    x = tf.compat.v1.placeholder(tf.float32, [32, 32, 32, 3])
    labels = tf.compat.v1.placeholder(tf.int64, [32])

    def layer(values: Any, name: str) -> Any:
        values = tf.nn.conv2d(values, variable(f"{name}/kernel", [3, 3, int(values.shape[-1]), 32]), 1, "SAME")
        scale, shift = variable(f"{name}/scale", [32]), variable(f"{name}/shift", [32])
        if fused:
            return tf.compat.v1.nn.fused_batch_norm(values, scale, shift, epsilon=1e-3)[0]
        mean, variance = tf.nn.moments(values, [0, 1, 2])
        return tf.nn.batch_normalization(values, mean, variance, shift, scale, 1e-3)

    x = tf.nn.relu(layer(x, "stem"))
    for block in range(blocks):
        x = tf.nn.relu(layer(tf.nn.relu(layer(x, f"{block}/a")), f"{block}/b") + x)
    logits = tf.matmul(tf.reduce_mean(x, [1, 2]), variable("logits", [32, 10]))
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def _of_benchmark(model: BenchmarkModel, batch: int) -> Callable[[Any, Any], Any]:
    def build(tf: Any, variable: Any) -> Any:
        images = tf.compat.v1.placeholder(tf.float32, [batch, *model.image])
        return model.build(tf, variable, images, tf.compat.v1.placeholder(tf.int64, [batch]))

    return build


RECORDED: dict[str, Callable[[Any, Any], Any]] = {
    "digits": _of_benchmark(DIGITS, 256),
    "vgg": _of_benchmark(SMALL_VGG, 64),
    "resnet-4": lambda tf, variable: residual_network(tf, variable, 4, True),
    "resnet-2-elementary": lambda tf, variable: residual_network(tf, variable, 2, False),
    "transformer-1": lambda tf, variable: transformer(tf, variable, 1),
    "transformer-2": lambda tf, variable: transformer(tf, variable, 2),
}


def synthetic(n_nodes: int, n_states: int, block: int, limit: int) -> Problem:
    """A chain, with an edge around every ``block`` nodes if that is not 0; random costs, half the rows and columns equal."""
    rng = np.random.default_rng(0)
    nodes = tuple(Node(f"n{i}", *rng.integers(0, limit, (2, n_states))) for i in range(n_nodes))
    pairs = [(i, i + 1) for i in range(n_nodes - 1)]
    pairs += [(i, i + block) for i in range(0, n_nodes - block, block)] if block else []
    edges = []
    for source, target in pairs:
        rows, columns = rng.integers(0, n_states // 2, (2, n_states))
        edges.append(Edge(source, target, *rng.integers(0, limit, (2, n_states, n_states))[:, rows][:, :, columns]))
    return Problem(nodes, tuple(edges))


SYNTHETIC: dict[str, Callable[[], Problem]] = {
    "chain, 60 of 200": lambda: synthetic(60, 200, 0, 100),
    "blocks, 121 of 20": lambda: synthetic(121, 20, 4, 1000),
    "chain, 100 of 30, all costs differ": lambda: synthetic(100, 30, 0, 10**9),
}


def problem_of(name: str, n_devices: int) -> tuple[Problem, float, float]:
    """A recorded model's problem, and the seconds for recording and for costs."""
    import tensorflow as tf

    from tensoropt.backward import analyse
    from tensoropt.costing import DeliveryCosting, OperatorCosting
    from tensoropt.importer import RecordedStep, import_graph
    from tensoropt.problem import ProblemBuilder
    from tensoropt.profiling import hardware
    from tensoropt.profiling.costs import CollectiveCosts, OperatorCosts

    start = time.perf_counter()
    with tf.Graph().as_default() as recorded:
        loss = RECORDED[name](tf, lambda name, shape: tf.compat.v1.get_variable(name, shape))
        parameters = tuple(tf.compat.v1.trainable_variables())
        train = tf.no_op(name="train")
    settings = (("learning_rate", 0.1), ("momentum", 0.9))
    graph = import_graph(recorded, [RecordedStep(train, loss, parameters, "momentum", settings, None)])
    backward = analyse(graph)
    ready = time.perf_counter()
    described = hardware.named(HARDWARE)
    mesh = described.mesh(n_devices)
    deliveries = DeliveryCosting(mesh, CollectiveCosts(described, mesh))
    costing = OperatorCosting(graph, backward, OperatorCosts(described), deliveries)
    problem = ProblemBuilder(graph, backward, costing, mesh).build().problem
    return problem, ready - start, time.perf_counter() - ready


def verdict(found: Frontier) -> str:
    return "exact" if found.exact else f"gap {found.median_gap:.2%}, worst {found.worst_gap:.2%}"


def row(case: tuple[str, int, float]) -> list[str]:
    name, n_devices, seconds = case
    with contextlib.suppress(ImportError):
        import tensoropt.ft.compiled  # noqa: F401
    search(synthetic(40, 20, 4, 1000))
    problem, recording, costs = problem_of(name, n_devices) if n_devices else (SYNTHETIC[name](), 0.0, 0.0)
    start = time.perf_counter()
    found = search(problem, budget=Budget(seconds=seconds))
    took = time.perf_counter() - start
    states = sum(node.n_states for node in problem.nodes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    numbers = [len(problem.nodes), len(problem.edges), states, len(found)]
    times = [f"{value:.2f}" for value in (recording, costs, took)]
    return [name, str(n_devices or ""), *map(str, numbers), verdict(found), *times, f"{peak:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*RECORDED, *SYNTHETIC], metavar="NAME")
    parser.add_argument("--devices", default="4")
    parser.add_argument("--seconds", type=float, default=Budget().seconds)
    given = parser.parse_args()
    devices = [int(count) for count in given.devices.split(",")]
    cases = [(name, n, given.seconds) for name in given.names for n in (devices if name in RECORDED else [0])]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = pool.map(row, cases, chunksize=1)
    print(tabulate(rows, HEADERS, disable_numparse=True, colalign=("left", *["right"] * 5, "left", *["right"] * 4)))


if __name__ == "__main__":
    main()
