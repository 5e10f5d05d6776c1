"""Time ``find_strategy`` by measured operators: cold, with nothing measured, and warm, in a process after that.

    python tests/benchmarks/find_strategy.py [--ranks 2] [--models vgg16,rnn] [--budget 60s]

The models are those of ``cost_error.py``. Each begins with an empty store: ``tensoropt calibrate --quick`` measures the
machine, and the ranks are started twice. The time is that of the call, on the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

RANK = "--as-rank"


def as_rank(name: str, budget: str) -> None:
    """Record, find a strategy, and print how long that took."""
    from cost_error import MODELS

    import tensoropt
    from tensoropt import zoo

    session = tensoropt.init()
    function, sizes = MODELS[name]
    loss = getattr(zoo, function)(**sizes)
    tensoropt.MomentumOptimizer(0.01, 0.9).minimize(loss)
    session.processes.barrier()
    started = time.perf_counter()
    plan = tensoropt.find_strategy("mini_time", profile_budget=budget)
    seconds = session.processes.gather_max(time.perf_counter() - started)
    if session.processes.rank == 0:
        print(json.dumps({"seconds": seconds, "time_us": plan.time_us, **plan.assumed["operators"]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", default="vgg16,wide_resnet,transformer,rnn")
    parser.add_argument("--budget", default="60s")
    arguments = parser.parse_args()
    from tabulate import tabulate

    from tensoropt.runtime.mpirun import mpirun_command, rank_environment

    rows = []
    for name in arguments.models.split(","):
        found = []
        with tempfile.TemporaryDirectory() as folder:
            environment = rank_environment(os.environ, as_root=os.geteuid() == 0)
            environment |= {"TENSOROPT_CACHE": folder, "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}

            def run(*program: str, environment: dict[str, str] = environment) -> str:
                command = mpirun_command(arguments.ranks, program)
                return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout

            run("-m", "tensoropt", "calibrate", "--quick")
            for _ in ("cold", "warm"):
                found.append(json.loads(run(__file__, RANK, name, arguments.budget).splitlines()[-1]))
        cold, warm = found
        measured = f"{cold['measured']} of {cold['measured'] + cold['predicted']}"
        rows.append([name, cold["seconds"], warm["seconds"], measured, cold["measured_time_percent"]])
        print(f"{name}: cold {cold['seconds']:.1f} s, warm {warm['seconds']:.2f} s", flush=True)
    titles = ("model", "cold s", "warm s", "operators of the plan measured", "% of their time")
    print(tabulate(rows, titles, floatfmt=("", ".1f", ".2f", "", ".1f")))


if __name__ == "__main__":
    if RANK in sys.argv:
        as_rank(*sys.argv[sys.argv.index(RANK) + 1 :])
    else:
        main()
