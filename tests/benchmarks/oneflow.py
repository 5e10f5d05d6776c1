"""Predict and run a class-split softmax and a wide-and-deep model with split tables (OneFlow, section 6.3).

    python tests/benchmarks/oneflow.py [--models face,wide_and_deep] [--sizes 360000,720000] [--cluster v100-1x8]
    tensoropt run -n 2 tests/benchmarks/oneflow.py --run [--rounds 20] [--budget 20s]

``face`` is as InsightFace's: images of 112 x 112, 512 normalised features, times a normalised matrix of classes, a margin
taken from a sample's own class (CosFace's, of which InsightFace's is a generalisation), softmax; momentum, a batch of 512.
The backbone is four normalised convolutions in place of a ResNet, so that a search takes seconds. Its sizes are numbers of
classes. ``wide_and_deep`` is that of OneFlow's comparison with HugeCTR (``OneFlow-Benchmark``,
``ClickThroughRate/WideDeepLearning``): 26 fields in a table 16 wide, 13 numbers, 7 dense layers of 1,024, two fields in a
table 1 wide; Adam, a batch of 16,384. Its sizes are vocabularies. Dropout is left out.

Predicted are data parallelism and the fastest plan that the search finds within the device's memory: S(0) and S(1) are
OneFlow's names for a split of rows and of columns. With ``--run`` both train at small sizes on the ranks at hand, one
thread each, in turn, and plain TensorFlow trains on one device before them: the last column is the largest relative
difference of their losses from those.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
import tensorflow as tf
from harness import Timing, ratio
from tabulate import tabulate
from versus_horovod import WARM_STEPS, Column, plans_of, tensoropt_step

from tensoropt.common.errors import InputError
from tensoropt.common.memory_units import memory_text
from tensoropt.ft import Budget
from tensoropt.plan.find_frontier import find_frontier
from tensoropt.plan.options import mini_time
from tensoropt.plan.plan import Plan
from tensoropt.plan.request import Request
from tensoropt.profiling.hardware import Hardware, named
from tensoropt.runtime.local_hardware import prepared_processes
from tensoropt.runtime.ranks import Processes
from tensoropt.runtime.synthetic_batch import synthetic_batch
from tensoropt.tools.offline import record
from tensoropt.tools.recorded import Recorded
from tensoropt.zoo.layers import dense, images, mean_loss, v1, weights
from tensoropt.zoo.normalised import normalised_convolution

PREDICTED = ("size", "parameters", "data parallel", "its peak", "fastest that fits", "its peak", "split in it")
MEASURED = ("model", "ranks", "split", "fastest: ms", "data parallel: ms", "times as fast", "losses differ by")
COMPARED_STEPS = 5


def face(
    classes: int, batch: int = 512, image: int = 112, widths: Sequence[int] = (64, 128, 256, 512), features: int = 512
) -> tf.Tensor:
    """Return the loss of a face recognition model."""
    x, labels = images(batch, image)
    for number, width in enumerate(widths, 1):
        x = normalised_convolution(x, 3, width, f"conv_{number}", 2)
    x = dense(tf.reshape(x, [batch, int(np.prod(x.shape[1:]))]), features, "features")
    matrix = weights("class_matrix", [features, classes])
    cosines = tf.matmul(tf.nn.l2_normalize(x, 1), tf.nn.l2_normalize(matrix, 0), name="cosines")
    # Not by tf.one_hot, whose result isn't split by classes.
    is_own = tf.cast(tf.equal(labels[:, None], tf.range(classes)), tf.float32)
    return mean_loss(64.0 * (cosines - 0.4 * is_own), labels)


def wide_and_deep(vocabulary: int, batch: int = 16384, layers: int = 7, hidden: int = 1024, width: int = 16) -> tf.Tensor:
    """Return the loss of a wide-and-deep model."""
    of_deep = v1.placeholder(tf.int32, [batch, 26], name="deep_fields")
    of_wide = v1.placeholder(tf.int32, [batch, 2], name="wide_fields")
    numbers = v1.placeholder(tf.float32, [batch, 13], name="numbers")
    clicks = v1.placeholder(tf.float32, [batch, 1], name="clicks")
    vectors = tf.gather(weights("deep_table", [vocabulary, width]), of_deep, name="deep_lookup")
    x = tf.concat([tf.reshape(vectors, [batch, 26 * width]), numbers], 1)
    for layer in range(1, layers + 1):
        x = tf.nn.relu(dense(x, hidden, f"dense_{layer}"))
    linear = tf.reduce_sum(tf.gather(weights("wide_table", [vocabulary, 1]), of_wide, name="wide_lookup"), 1)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=clicks, logits=dense(x, 1, "click") + linear))


@dataclass(frozen=True)
class Case:
    """A model, and what is predicted and run of it.

    Attributes:
        size: the parameter that is varied.
        uses: for each table its lookup or product, with the factors that are its rows and columns.
        small: the sizes that are run.
    """

    function: Callable[..., tf.Tensor]
    optimizer: str
    size: str
    sizes: tuple[int, ...]
    uses: Mapping[str, tuple[str, str, str]]
    small: Mapping[str, Any]

    def recorded(self, **sizes: Any) -> Recorded:
        return record(lambda: self.function(**sizes), self.function.__name__, self.optimizer)

    def splits(self, plan: Plan) -> str:
        """Return how the tables are split in a plan where they are used, and whether the loss is split by classes."""
        found = []
        configs = {op.name: op.config for op in plan.operators}
        for table, (user, *factors) in self.uses.items():
            degrees = [configs[user].degree(factor) for factor in factors]
            parts = [f"S({axis}) by {degree}" for axis, degree in enumerate(degrees) if degree > 1]
            held = configs[table].degree("d0") * configs[table].degree("d1")
            used = ", ".join(parts) or f"gathered from {held}"
            found.append(f"{table} {used if held > 1 else 'whole'}")
        losses = [op.config.degree("c") for op in plan.operators if op.type == "SparseSoftmaxCrossEntropyWithLogits"]
        return "; ".join(found + [f"loss by classes over {n}" if n > 1 else "loss not by classes" for n in losses])


CASES = {
    "face": Case(
        face, "momentum", "classes", tuple(90_000 << n for n in range(7) if n != 1), {"class_matrix": ("cosines", "k", "n")},
        {"classes": 40_000, "batch": 16, "image": 16, "widths": (16, 32), "features": 64},
    ),
    "wide_and_deep": Case(
        wide_and_deep, "adam", "vocabulary", tuple(3_200_000 << n for n in range(8)),
        {"deep_table": ("deep_lookup", "rows", "d1"), "wide_table": ("wide_lookup", "rows", "d1")},
        {"vocabulary": 100_000, "batch": 128, "layers": 3, "hidden": 256},
    ),
}  # fmt: skip


def predicted(case: Case, size: int, hardware: Hardware) -> tuple[list[str], bool, bool]:
    """Return a line of the table, and whether data parallelism and whether any plan fits."""
    model = case.recorded(**{case.size: size}).model
    limit = int(hardware.device.memory_bytes)
    n_bytes = sum(op.result.mem_bytes for op in model.graph.operators.values() if op.type == "Variable")
    alone = find_frontier(model, hardware, hardware.n_devices, algorithm="data-parallel")
    fits = alone.peak_bytes(0) <= limit
    cells = [f"{size:,}", memory_text(n_bytes), f"{alone.costs.time_ns[0] / 1e6:.1f} ms"]
    cells.append(memory_text(alone.peak_bytes(0)) + ("" if fits else ", too much"))
    try:
        request = Request(model, hardware, limit, budget=Budget(seconds=0), wants_frontier=False)
        plan = mini_time(request, hardware.n_devices)
    except InputError:
        return [*cells, "none", "", ""], fits, False
    assert isinstance(plan, Plan) and plan.peak_bytes is not None
    time = f"{plan.time_us / 1e3:.1f} ms" + (f", {plan.micro_batches} micro-batches" if plan.micro_batches > 1 else "")
    return [*cells, time, memory_text(plan.peak_bytes), case.splits(plan)], fits, True


def predict(name: str, sizes: Sequence[int], hardware: Hardware) -> None:
    """Print what is predicted of a model at each size."""
    rows, largest = [], [0, 0]
    for size in sizes:
        cells, *fit = predicted(CASES[name], size, hardware)
        rows.append(cells)
        largest = [max(most, size * fits) for most, fits in zip(largest, fit, strict=True)]
        print(tabulate([cells], PREDICTED, disable_numparse=True), flush=True)
    print(f"\n{name}, {CASES[name].size}, on {hardware.name}")
    print(tabulate(rows, PREDICTED, disable_numparse=True))
    print(f"the largest of these that fits: {largest[0]:,} by data parallelism, {largest[1]:,} by the search", flush=True)


def plain_losses(case: Case, recorded: Recorded) -> list[float]:
    """Return the losses of the first steps in plain TensorFlow on one device."""
    optimizers = {"momentum": lambda: v1.train.MomentumOptimizer(0.01, 0.9), "adam": v1.train.AdamOptimizer}
    with tf.Graph().as_default() as graph, v1.Session() as session:
        loss = case.function(**case.small)
        train = optimizers[case.optimizer]().minimize(loss)
        session.run(v1.global_variables_initializer())
        first_value = recorded.first_values()
        for variable in v1.trainable_variables():
            variable.load(first_value(variable.op.name), session)
        batch = synthetic_batch(recorded.model.graph).items()
        fed = {graph.get_tensor_by_name(tensor.name): value for tensor, value in batch}
        return [float(session.run([loss, train], fed)[0]) for _ in range(COMPARED_STEPS)]


def measured(name: str, processes: Processes, rounds: int, budget: str) -> list[str]:
    """Return a line of the table of steps that ran; every rank must call it."""
    case = CASES[name]
    recorded = case.recorded(**case.small)
    plans = plans_of(recorded, processes, budget)
    columns = [Column("", tensoropt_step(plan, recorded, processes), [], []) for plan in plans]
    for number in range(WARM_STEPS + rounds):
        for column in columns:
            seconds = column.run(processes)
            if number >= WARM_STEPS:
                column.seconds.append(seconds)
    if processes.rank:
        return []
    times = [Timing(tuple(column.seconds)) for column in columns]
    plain = np.array(plain_losses(case, recorded))
    apart = max(np.max(np.abs(np.array(column.losses[:COMPARED_STEPS]) / plain - 1)) for column in columns)
    cells = [name, str(processes.size), case.splits(plans[0])]
    return [*cells, *map(str, times), ratio(times[1], times[0]), f"{apart:.1e}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--sizes", help="numbers of classes or vocabularies; default: the model's own")
    parser.add_argument("--cluster", default="v100-1x8")
    parser.add_argument("--run", action="store_true", help="train on the ranks at hand instead")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--budget", default="20s", help="how long the search may measure operators")
    given = parser.parse_args()
    names = given.models.split(",")
    if not given.run:
        for name in names:
            sizes = CASES[name].sizes if given.sizes is None else [int(size) for size in given.sizes.split(",")]
            predict(name, sizes, named(given.cluster))
        return
    processes = prepared_processes()
    rows = [measured(name, processes, given.rounds, given.budget) for name in names]
    if processes.rank == 0:
        print(tabulate(rows, MEASURED, disable_numparse=True))


if __name__ == "__main__":
    main()
