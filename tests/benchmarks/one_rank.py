"""Compare a training step on one rank with plain TensorFlow, which it must not be slower than.

    python tests/benchmarks/one_rank.py [--models digits,vgg16] [--rounds 60]

Models of ``versus_horovod.py`` run at its batches and by the plan of ``mini_time``, whose operators aren't measured: with
one device there is nothing to choose.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import versus_horovod
from harness import alternate, plain_step, ratio, ratio_interval, tensoropt_step
from models import DIGITS, SMALL_VGG
from tabulate import tabulate

from tensoropt.runtime.measuring.local_hardware import hardware_here, prepared_processes
from tensoropt.search.options import mini_time
from tensoropt.search.request import Request, assumptions
from tensoropt.tools.offline import record

SMALL = {"digits": DIGITS, "small_vgg": SMALL_VGG}


def steps_of(name: str, batch: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return a step of TensorOpt and one of plain TensorFlow."""
    if name in SMALL:
        return tensoropt_step(SMALL[name], batch), plain_step(SMALL[name], batch)
    function, sizes = versus_horovod.MODELS[name]
    recorded = record(lambda: function(**sizes), name, "momentum")
    processes = prepared_processes()
    hardware = hardware_here(processes)
    plan = mini_time(Request(recorded.model, hardware, None, assumed=assumptions(hardware, recorded.model)), 1)
    plain = versus_horovod.plain_step(function, sizes, recorded, processes)
    return versus_horovod.tensoropt_step(plan, recorded, processes), plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(SMALL), help=f"of {', '.join([*SMALL, *versus_horovod.MODELS])}")
    parser.add_argument("--batch", type=int, default=64, help="of the small models")
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models.split(","):
        timed, reference = alternate(steps_of(name, arguments.batch), arguments.rounds)
        rows.append([name, str(timed), str(reference), ratio(timed, reference), ratio_interval(timed, reference)])
    print(tabulate(rows, ["model", "TensorOpt, one rank", "plain TensorFlow", "ratio (quartiles)", "95 % of the median"]))


if __name__ == "__main__":
    main()
