"""Time what a rank receives from one that computes meanwhile, or that waits while the receiver computes: does it move?

    tests/benchmarks/two_machines.sh tests/benchmarks/messages.py [--megabytes 0.5,1,2,4]

One rank sends so many bytes at once, in the packets of stages, and the other receives them with naps, as stages do; one of
them doesn't call MPI for 0.3 seconds. Medians of five turns, beside what the bytes take at 1 Gb/s.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from tabulate import tabulate

from tensoropt.runtime.mpi_start import started_mpi

AWAY_S, TURNS = 0.3, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="0.5,1,2,4")
    given = parser.parse_args()
    comm = started_mpi().COMM_WORLD
    from tensoropt.runtime.collectives.outbox import wait
    from tensoropt.runtime.pipeline.messages import packets

    rows = []
    for away in ("sender", "receiver"):
        for megabytes in map(float, given.megabytes.split(",")):
            array, seconds = np.zeros(int(megabytes * 2**20), np.uint8), []
            for _ in range(TURNS):
                wait([comm.Ibarrier()])
                if comm.rank == 0:
                    requests = [comm.Isend(packet, 1, 5) for packet in packets(array)]
                    time.sleep(AWAY_S * (away == "sender"))
                    wait(requests)
                    continue
                time.sleep(AWAY_S * (away == "receiver"))
                started_s = time.perf_counter()
                wait([comm.Irecv(packet, 0, 5) for packet in packets(array)])
                seconds.append(time.perf_counter() - started_s)
            if comm.rank == 1:
                at_rate_ms = megabytes * 2**20 * 8 / 1e9 * 1e3
                rows.append([away, megabytes, f"{np.median(seconds) * 1e3:.1f} ms", f"{at_rate_ms:.1f} ms"])
    if comm.rank == 1:
        print(tabulate(rows, ["doesn't call MPI", "MiB", "receiver waits", "at 1 Gb/s"]))


if __name__ == "__main__":
    main()
