"""Compare stages of equally many devices with stages of any numbers: the predicted step, and what the choice costs.

    python tests/benchmarks/submeshes.py [--stages 2,3,4] [MODEL[:SIZE=N,...]@CLUSTER ...]

Cuts and devices are chosen as a search does, with each operator split as it is fastest, in 8 micro-batches;
no frontier is searched. Where the number of devices can't be divided, there are no equal stages. CPU seconds are of the cuts
alone, with the operators' times.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tabulate import tabulate

from tensoropt import zoo
from tensoropt.common.errors import InputError
from tensoropt.plan.cuts import Cut, balanced
from tensoropt.plan.stage_times import TimesBySize
from tensoropt.plan.submeshes import Choices, choices, equal_blocks
from tensoropt.profiling.hardware import Hardware, named
from tensoropt.sharding.model import Model
from tensoropt.tools.offline import record

DEFAULT = (
    "vgg16@v100-1x4", "transformer:layers=2@v100-1x4", "rnnlm@v100-1x4", "nmt@v100-1x4", "vgg16@v100-2x4",
    "transformer:layers=2@v100-2x4", "transformer:layers=2@v100-1x6", "rnnlm@v100-1x6",
)  # fmt: skip
HEADERS = ("model", "stages", "equal", "CPU s", "any", "devices", "CPU s", "saves")


def timed(model: Model, hardware: Hardware, allowed: Choices, n: int) -> tuple[Cut, float]:
    """Return a cut, and the CPU seconds that it took to choose it."""
    start = time.process_time()
    found = balanced(model, hardware, allowed, TimesBySize(model, hardware, n))
    return found, time.process_time() - start


def row(case: str, model: Model, hardware: Hardware, count: int) -> list[str]:
    """Return a line of the table."""
    devices, n = hardware.n_devices, 8
    equal = equal_blocks(hardware, devices, count)
    cells, equal_us = ["none", ""], None
    if equal is not None:
        found, cpu_s = timed(model, hardware, [[block] for block in equal], n)
        equal_us = found.time_us
        cells = [f"{equal_us / 1e3:,.1f} ms", f"{cpu_s:.1f}"]
    found, cpu_s = timed(model, hardware, choices(hardware, devices, count), n)
    sizes = "+".join(map(str, found.sizes))
    saves = "" if equal_us is None else f"{1 - found.time_us / equal_us:.1%}"
    return [case, str(count), *cells, f"{found.time_us / 1e3:,.1f} ms", sizes, f"{cpu_s:.1f}", saves]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL[:SIZE=N,...]@CLUSTER", default=DEFAULT)
    parser.add_argument("--stages", default="2,3,4")
    given = parser.parse_args()
    rows = []
    for case in given.cases:
        name, _, cluster = case.partition("@")
        model, hardware = record(zoo.sized(name), name).model, named(cluster)
        for count in map(int, given.stages.split(",")):
            try:
                rows.append(row(case, model, hardware, count))
            except InputError as error:
                rows.append([case, str(count), str(error)[:60], *[""] * (len(HEADERS) - 3)])
            print(tabulate(rows[-1:], HEADERS, disable_numparse=True), flush=True)
    print(f"\n{tabulate(rows, HEADERS, disable_numparse=True)}")


if __name__ == "__main__":
    main()
