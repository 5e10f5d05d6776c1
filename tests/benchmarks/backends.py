"""Compare collectives, and steps in data parallelism, by MPI, by TensorFlow's operators and by Horovod's.

    python tests/benchmarks/backends.py [--collectives mpi,tensorflow,horovod] [--models transformer_s,vgg16]

Each in a run of two ranks of its own, as a user would start it. A collective's time is that of a function which has one:
Horovod does all at once that comes within a millisecond. Bytes are those of the whole tensor. A step is that of data
parallelism.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from tabulate import tabulate

SIZES = {"4 KiB": 1 << 12, "256 KiB": 1 << 18, "16 MiB": 1 << 24}


def measured(collectives: str, models: str, rounds: int) -> dict[str, float]:
    """Return the milliseconds of each row of the table; every rank must call it."""
    import tensorflow as tf
    from harness import alternate
    from versus_horovod import MODELS as BUILT
    from versus_horovod import tensoropt_step

    from tensoropt.lowering.resharding.reshard import Resharder
    from tensoropt.profiling.hardware import named
    from tensoropt.reschedule.layout import Layout
    from tensoropt.reschedule.path import cheapest_path
    from tensoropt.rules.rule import OperandSharding
    from tensoropt.runtime.execute import communicating
    from tensoropt.runtime.measuring.local_hardware import prepared_processes
    from tensoropt.search.candidates.plan_points import frontier_of_whole
    from tensoropt.search.frontiers.find_frontier import find_frontier
    from tensoropt.search.request import Request
    from tensoropt.sharding.resharding import PathFinder, PlainCosts, Resharding
    from tensoropt.tools.offline import record

    processes = prepared_processes()
    hardware = named(f"v100-1x{processes.size}")
    mesh, found, finder = hardware.mesh(), dict[str, float](), PathFinder(PlainCosts(), cheapest_path)
    backend, prepare = communicating(mesh, processes, collectives)
    if prepare is not None:
        prepare([mesh.axes])
    rows, columns, summed = (
        Layout(mesh, (mesh.axes, ())), Layout(mesh, ((), mesh.axes)), Layout(mesh, ((), ()), mesh.axes)
    )  # fmt: skip
    ends = {"all-reduce": (summed, Layout.replicated(mesh, 2)), "all-gather": (rows, Layout.replicated(mesh, 2)),
            "reduce-scatter": (summed, rows), "all-to-all": (rows, columns)}  # fmt: skip
    for kind, (source, target) in ends.items():
        for size, n_bytes in SIZES.items():
            shape = n_bytes // 256, 64
            resharding = Resharding(shape, 4, source, OperandSharding(target, None))
            shard = tf.ones(source.local_shape(shape, processes.rank))

            def body(x: tf.Tensor, resharding: Resharding = resharding) -> tf.Tensor:
                resharder = Resharder(backend)
                with resharder.building():
                    return resharder.reshard(resharding, finder.paths(resharding), [x], "a")[0]

            function = tf.function(body, autograph=False).get_concrete_function(shard)
            (timing,) = alternate([lambda: function(shard)], rounds if n_bytes > 1 << 20 else 10 * rounds)  # noqa: B023
            found[f"{kind}, {size}"] = timing.median * 1e3
    for name in filter(None, models.split(",")):
        function, sizes = BUILT[name]
        recorded = record(lambda function=function, sizes=sizes: function(**sizes), name, "momentum")
        request = Request(recorded.model, hardware, None, algorithm="data-parallel")
        plan = frontier_of_whole(find_frontier(request, processes.size)).plan(0)
        (timing,) = alternate([tensoropt_step(plan, recorded, processes, collectives)], max(3, rounds // 4))
        found[f"a step of {name}"] = timing.median * 1e3
    return {key: processes.gather_max(value) for key, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collectives", default="mpi,tensorflow,horovod")
    parser.add_argument("--models", default="transformer_s,vgg16")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        print(json.dumps(measured(arguments.collectives, arguments.models, arguments.rounds)))
        return
    names, found = arguments.collectives.split(","), []
    for name in names:
        run = [sys.executable, "-m", "tensoropt", "run", "-n", "2", "--collectives", name]
        options = ["--rank", "--collectives", name, "--models", arguments.models, "--rounds", str(arguments.rounds)]
        done = subprocess.run([*run, __file__, *options], stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))))
    print(tabulate([[row, *(f"{each[row]:.3g}" for each in found)] for row in found[0]], ["milliseconds", *names],
                   disable_numparse=True, colalign=("left", *["right"] * len(names))))  # fmt: skip


if __name__ == "__main__":
    main()
