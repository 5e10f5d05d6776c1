"""Training steps by TensorOpt's plans, by Horovod, and without communication, in turn in one run.

    tensoropt run -n 2 tests/benchmarks/versus_horovod.py [--models vgg16,rnn] [--rounds 20] [--budget 30s]
    tests/benchmarks/two_machines.sh tests/benchmarks/versus_horovod.py

One thread per rank. In each round each way runs one step, which all ranks begin together; the slowest rank counts. "Bound"
trains on the rank's share of the batch in plain TensorFlow and never communicates. "Horovod" is the same with an averaging
all-reduce of each gradient, which Horovod may merge; the column is empty where Horovod isn't installed (``make horovod``).
Horovod runs only during its own steps, and its first step of each round isn't timed: its thread asks the other ranks a
thousand times a second what there is to do, which over TCP slows down other steps by up to a half. Ratios are medians of the
ratios round by round, with quartiles: how many times as fast as Horovod, or as the bound where there is no Horovod.

"By hand" is VGG16 as a person would split it with mpi4py (``hybrid.py``): convolutions by batch, dense layers by columns.
"All cores" is plain TensorFlow on the whole batch in one process, which has the cores of all ranks of its machine and runs
after the others: that column's ratios are of medians.

All train by momentum, on the same synthetic batches from the same first values; the last column is how far their losses
differ.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if "--alone" not in sys.argv:
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
import tensorflow as tf
from hybrid import hybrid_vgg16
from tabulate import tabulate

from tensoropt import zoo
from tensoropt.plan.plan import Plan
from tensoropt.profiling.compute import time_s
from tensoropt.program.fetch import Fetch
from tensoropt.runtime.execute import MPI
from tensoropt.runtime.execution import execute
from tensoropt.runtime.measuring.local_hardware import hardware_here, prepared_processes
from tensoropt.runtime.measuring.synthetic_batch import synthetic_batch
from tensoropt.runtime.ranks import Processes
from tensoropt.runtime.step.functions import Feed
from tensoropt.search.candidates.plan_points import frontier_of_whole
from tensoropt.search.frontiers.find_frontier import find_baseline
from tensoropt.search.options import mini_time
from tensoropt.search.request import Request, assumptions
from tensoropt.tools.offline import record
from tensoropt.tools.recorded import Recorded
from tensoropt.tuning.profile_guided import MeasuredSearch, opened_store, parse_budget

v1 = tf.compat.v1
Step = Callable[[], float]
LEARNING_RATE, MOMENTUM = 0.01, 0.9
WARM_STEPS = 3
HOROVOD, HYBRID, ALL_CORES = "Horovod", "by hand", "all cores"
TITLES = ("mini_time", "data parallel", HOROVOD, HYBRID, "bound", ALL_CORES)


def heavy_vgg16(batch: int, image: int = 64, classes: int = 1000) -> tf.Tensor:
    """Return the loss of VGG16 without its last pooling, as is usual for small images: one dense layer has 134 of 277 MB."""
    x = v1.placeholder(tf.float32, [batch, image, image, 3], name="images")
    labels = v1.placeholder(tf.int32, [batch], name="labels")
    for block, (n_layers, width) in enumerate(zip((2, 2, 3, 3, 3), (64, 128, 256, 512, 512), strict=True), 1):
        for layer in range(1, n_layers + 1):
            kernel = v1.get_variable(f"conv_{block}_{layer}/kernel", [3, 3, x.shape[-1], width])
            bias = v1.get_variable(f"conv_{block}_{layer}/bias", [width], initializer=v1.zeros_initializer())
            x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
        if block < 5:
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.reshape(x, [batch, int(np.prod(x.shape[1:]))])
    for number, width in enumerate((4096, 4096, classes), 1):
        weights = v1.get_variable(f"dense_{number}/weights", [x.shape[-1], width])
        bias = v1.get_variable(f"dense_{number}/bias", [width], initializer=v1.zeros_initializer())
        x = tf.nn.bias_add(tf.matmul(x, weights), bias)
        x = tf.nn.relu(x) if number < 3 else x
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x))


MODELS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "heavy_vgg16": (heavy_vgg16, {"batch": 8}),
    "vgg16": (zoo.find("vgg16"), {"batch": 32, "image": 64}),
    "wide_resnet": (zoo.find("wide_resnet"), {"batch": 32, "widening": 10}),
    "transformer": (
        zoo.find("transformer"),
        {"batch": 16, "length": 64, "layers": 2, "width": 512, "heads": 8, "vocabulary": 8192},
    ),
    "transformer_s": (
        zoo.find("transformer_s"),
        {"batch": 16, "length": 32, "layers": 2, "width": 512, "heads": 8, "vocabulary": 32768},
    ),
    "rnnlm": (zoo.find("rnnlm"), {"batch": 32, "steps": 8, "layers": 2, "hidden": 1024, "vocabulary": 10000}),
}


N_POOLS = {"heavy_vgg16": 4, "vgg16": 5}


@dataclass(frozen=True)
class Column:
    """One way to train.

    Attributes:
        step: takes a step and returns this rank's loss; every rank must call it.
        losses: the loss of the whole batch, by step.
    """

    title: str
    step: Step
    seconds: list[float]
    losses: list[float]

    def run(self, processes: Processes) -> float:
        """Take a step; return the slowest rank's seconds."""
        processes.barrier()
        started = time.perf_counter()
        loss = self.step()
        seconds = processes.gather_max(time.perf_counter() - started)
        self.losses.append(float(np.mean(processes.gather(loss))))
        return seconds


@contextmanager
def started_horovod(column: Column, processes: Processes) -> Iterator[None]:
    """Horovod at work for its own column, warmed up; for others nothing happens."""
    if column.title != HOROVOD:
        yield
        return
    import horovod.tensorflow as hvd

    hvd.init()
    column.run(processes)
    yield
    hvd.shutdown()


def tensoropt_step(plan: Plan, recorded: Recorded, processes: Processes, collectives: str = MPI) -> Step:
    """A training step by a plan."""
    engine = execute(plan, recorded.model, recorded.first_values(), processes, collectives).engine
    graph = recorded.model.graph
    fetch = Fetch(tuple((step.loss, False) for step in graph.train_steps.values()), tuple(graph.train_steps))
    feeds = {Feed(tensor, False): value for tensor, value in synthetic_batch(graph).items()}
    return lambda: float(engine.run(fetch, feeds)[0][0])


def plain_step(
    function: Callable[..., Any],
    sizes: Mapping[str, Any],
    recorded: Recorded,
    processes: Processes,
    reduced: Callable[[Any], Any] = lambda gradient: gradient,
) -> Step:
    """Return a training step in plain TensorFlow on this rank's share of the batch; ``reduced`` maps each gradient."""
    share = sizes["batch"] // processes.size
    with tf.Graph().as_default() as graph:
        loss = function(**{**sizes, "batch": share})
        variables = v1.trainable_variables()
        gradients = [reduced(gradient) for gradient in tf.gradients(loss, variables)]
        optimizer = v1.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM)
        train = optimizer.apply_gradients(zip(gradients, variables, strict=True))
        session = v1.Session(config=v1.ConfigProto(intra_op_parallelism_threads=1))
        session.run(v1.global_variables_initializer())
        first_value = recorded.first_values()
        for variable in variables:
            variable.load(first_value(variable.op.name), session)
        mine = slice(processes.rank * share, (processes.rank + 1) * share)
        feeds = {
            graph.get_tensor_by_name(tensor.name): value[mine]
            for tensor, value in synthetic_batch(recorded.model.graph).items()
        }
        run = session.make_callable([loss, train], feed_list=list(feeds))
    values = list(feeds.values())
    return lambda: float(run(*values)[0])


def alone(name: str, rounds: int) -> list[float]:
    """Return seconds of steps in plain TensorFlow on the whole batch, with all cores that this process may use."""
    function, sizes = MODELS[name]
    with tf.Graph().as_default() as graph:
        loss = function(**sizes)
        train = v1.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM).minimize(loss)
        session = v1.Session()
        session.run(v1.global_variables_initializer())
        recorded = record(lambda: function(**sizes), name, "momentum")
        fed = synthetic_batch(recorded.model.graph)
        run = session.make_callable([loss, train], feed_list=[graph.get_tensor_by_name(tensor.name) for tensor in fed])
    seconds = [time_s(lambda: run(*fed.values())) for _ in range(WARM_STEPS + rounds)]
    return seconds[WARM_STEPS:]


def all_cores(name: str, rounds: int, processes: Processes) -> list[float]:
    """:func:`alone` in a process of its own, while all ranks sleep; every rank must call it."""
    here = processes.hosts[processes.rank]
    everyone = zip(processes.hosts, processes.gather(sorted(os.sched_getaffinity(0))), strict=True)
    cores = {core for host, its_cores in everyone if host == here for core in its_cores}
    with tempfile.TemporaryDirectory() as folder:
        done = Path(processes.broadcast(folder)) / "seconds.json"
        if processes.rank == 0:
            bare = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "TF_NUM_")
            environment = {key: value for key, value in os.environ.items() if not key.startswith(bare)}
            command = [sys.executable, __file__, "--alone", name, "--rounds", str(rounds)]
            mine = os.sched_getaffinity(0)
            os.sched_setaffinity(0, cores)
            told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
            os.sched_setaffinity(0, mine)
            done.write_text(told.splitlines()[-1])
            done.rename(done.with_suffix(".done"))
        while not done.with_suffix(".done").exists():
            time.sleep(0.05)
        seconds: list[float] = json.loads(done.with_suffix(".done").read_text())
        processes.barrier()
    return seconds


def plans_of(recorded: Recorded, processes: Processes, budget: str) -> tuple[Plan, Plan]:
    """Return the fastest plan, by operators measured within a budget, and data parallelism's; every rank must call it."""
    hardware = hardware_here(processes)
    found: list[Plan] = []

    def search(known: Any) -> Plan:
        request = Request(recorded.model, hardware, None, assumed=assumptions(hardware, recorded.model), known=known)
        found[:] = [mini_time(request, processes.size)]
        return found[0]

    def on_first_rank(compute: Callable[[], Any]) -> Any:
        answer = compute() if processes.rank == 0 else None
        return processes.broadcast(None if isinstance(answer, Plan) else answer)

    with closing(opened_store(processes)) as store:
        MeasuredSearch(processes, recorded.model, search, parse_budget(budget), store).find(on_first_rank)
    both = None
    if processes.rank == 0:
        (whole,) = found[0].frontier.without_stages
        both = found[0].to_json(), frontier_of_whole(find_baseline(whole, "data-parallel")).plan(0).to_json()
    fastest, data_parallel = processes.broadcast(both)
    return Plan.from_json(fastest), Plan.from_json(data_parallel)


def columns_of(name: str, processes: Processes, arguments: argparse.Namespace) -> list[Column]:
    """Return the columns with their steps run and timed; every rank must call it."""
    function, sizes = MODELS[name]
    recorded = record(lambda: function(**sizes), name, "momentum")
    fastest, data_parallel = plans_of(recorded, processes, arguments.budget)
    steps = {
        "mini_time": tensoropt_step(fastest, recorded, processes),
        "data parallel": tensoropt_step(data_parallel, recorded, processes),
        "bound": plain_step(function, sizes, recorded, processes),
    }
    if name in N_POOLS:
        steps[HYBRID] = hybrid_vgg16(recorded, processes, N_POOLS[name], LEARNING_RATE, MOMENTUM)
    if arguments.horovod:
        import horovod.tensorflow as hvd

        hvd.init()
        averaged = partial(hvd.allreduce, op=hvd.Average)
        steps[HOROVOD] = plain_step(function, sizes, recorded, processes, averaged)
        hvd.shutdown()
    columns = [Column(title, step, [], []) for title, step in steps.items()]
    for number in range(WARM_STEPS + arguments.rounds):
        for column in columns:
            with started_horovod(column, processes):
                seconds = column.run(processes)
            if number >= WARM_STEPS:
                column.seconds.append(seconds)
    return [*columns, Column(ALL_CORES, lambda: math.nan, all_cores(name, arguments.rounds, processes), [])]


def report(name: str, columns: Sequence[Column]) -> list[str]:
    """Return a line of the table."""
    by_title = {column.title: column for column in columns}
    reference = by_title.get(HOROVOD, by_title["bound"])
    cells = [name]
    for title in TITLES:
        if title not in by_title:
            cells += ["", ""]
            continue
        low, middle, high = np.percentile(by_title[title].seconds, [25, 50, 75]) * 1e3
        if title == ALL_CORES:
            ratio = np.median(reference.seconds) * 1e3 / middle
            cells += [f"{middle:.0f} ({low:.0f} to {high:.0f})", f"{ratio:.3f}"]
            continue
        ratios = np.percentile(np.divide(reference.seconds, by_title[title].seconds), [25, 50, 75])
        cells += [f"{middle:.0f} ({low:.0f} to {high:.0f})", "{1:.3f} ({0:.3f} to {2:.3f})".format(*ratios)]
    whole = [column for column in columns if column.title not in ("bound", ALL_CORES)]
    n_steps = min(len(column.losses) for column in whole)
    trained = [column.losses[:n_steps] for column in whole]
    return [*cells, f"{np.max(np.ptp(trained, axis=0) / np.mean(trained, axis=0)):.1e}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--budget", default="30s", help="how long the search may measure operators")
    parser.add_argument("--alone", metavar="MODEL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(alone(arguments.alone, arguments.rounds)))
        return
    processes = prepared_processes()
    arguments.horovod = importlib.util.find_spec("horovod") is not None
    titles = ["model"]
    for title in TITLES:
        titles += [f"{title}: ms", "times as fast"]
    rows = []
    for name in arguments.models.split(","):
        rows.append(report(name, columns_of(name, processes, arguments)))
        if processes.rank == 0:
            print(tabulate(rows[-1:], [*titles, "losses differ by"]), flush=True)
    if processes.rank == 0:
        print(tabulate(rows, [*titles, "losses differ by"]))


if __name__ == "__main__":
    main()
