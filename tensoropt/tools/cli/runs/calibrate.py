"""Run ``mpirun -n N tensoropt calibrate``: measure these devices and the links between them, and write a hardware file.

First the device and every collective over every device partition are measured briefly; then the classes of operators; then
the device and the collectives again. Only the second measurement of these counts: an idle machine that starts is faster than
one that has computed for some time, as in training (collectives took a tenth less in the first ten seconds than later, and
up to a fifth less than after minutes). After each part rank 0 writes what is known so far, so that an interruption, even one
that kills the ranks at once, leaves a usable file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ....common.errors import InputError, short
from ....common.files import check_writable, write_json
from ....common.process.tensorflow_import import import_tensorflow
from ....runtime.ranks import display_here
from ..searches.search import amount_of

if TYPE_CHECKING:
    from ....profiling.hardware import Hardware
    from ....runtime.ranks import Processes

SECONDS, QUICK_SECONDS = 240.0, 20.0
OF_FIRST, OF_COLLECTIVES = 0.1, 0.25
"""The shares of the time for the first and the second measurement of device and collectives; the rest is for operators."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "mpirun -n N tensoropt calibrate [--quick] [--output FILE]"
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--quick", action="store_true", help=f"take about {QUICK_SECONDS:g} s instead of {SECONDS:g}")
    how_long.add_argument("--seconds", metavar="S", help="take about this long")
    parser.add_argument(
        "--collectives",
        metavar="WHOSE",
        help="the collectives that plans will run by: mpi, tensorflow or horovod; default: as plans take them",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.json",
        help="the hardware file, for --cluster and cluster=; default: where tensoropt.init() looks for it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt calibrate`` and return the exit code; every rank runs it."""
    seconds = QUICK_SECONDS if arguments.quick else SECONDS
    if arguments.seconds is not None:
        seconds = amount_of(arguments.seconds, "--seconds", "number of seconds")
        if not seconds:
            raise InputError(f"--seconds takes a number of seconds above 0, got {short(arguments.seconds)}")
    import_tensorflow()
    from ....runtime.execute import EMULATED, checked_collectives
    from ....runtime.measuring.disturbance import measured_with_disturbance
    from ....runtime.measuring.local_hardware import calibrated_file, prepared_processes

    if arguments.output is not None:
        check_writable(arguments.output, "hardware file")
    collectives = checked_collectives(arguments.collectives)
    if collectives == EMULATED:
        raise InputError("emulated collectives take no time to measure: --collectives takes mpi, tensorflow or horovod")
    processes = prepared_processes()
    file = arguments.output or calibrated_file(processes, collectives)
    if file is None:
        raise InputError("TENSOROPT_CACHE=off leaves no place for the hardware file; say --output FILE.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    is_first = processes.rank == 0

    def keep(hardware: Hardware) -> None:
        if is_first:
            write_json(file, hardware.to_json(), "hardware file")

    try:
        hardware, disturbed = measured_with_disturbance(processes, lambda: _measured(processes, seconds, keep, collectives))
    except KeyboardInterrupt as error:
        measured = f"; what was measured is in '{file}'" if file.exists() else ""
        raise KeyboardInterrupt(f"calibration interrupted{measured}") from error
    if is_first:
        from ....profiling.description_text import hardware_table

        if "ranks" in hardware.provenance:
            print(f"tensoropt: {hardware.provenance['ranks']}", file=sys.stderr, flush=True)
        if disturbed.is_large:
            print(f"tensoropt: {disturbed}; calibrate again in a quiet hour", file=sys.stderr, flush=True)
        print(f"{hardware_table(hardware)}\n\nwrote {file}", flush=True)
    return 0


def _measured(processes: Processes, seconds: float, keep: Callable[[Hardware], None], collectives: str) -> Hardware:
    from ....profiling.measure import QUICK_S, Watching
    from ....runtime.measuring.local_hardware import measure_here
    from ....tuning.profile_guided import opened_store
    from ...operator_probes import Calibration

    display = display_here()
    with display.phase("collectives"):
        watching = Watching(partial(display.update, "collectives"), keep)
        hardware = measure_here(processes, seconds * OF_FIRST, watching, collectives)
    assert hardware.measured is not None
    unfinished = replace(hardware, measured=replace(hardware.measured, is_complete=False))
    store = opened_store(processes)
    with display.phase("operators"):
        deadline = time.monotonic() + seconds * (1 - OF_FIRST - OF_COLLECTIVES)
        is_quick = seconds * OF_COLLECTIVES < QUICK_S
        calibration = Calibration(processes, unfinished, store, deadline, is_quick, partial(display.update, "operators"))
        for estimate in calibration.rated():
            hardware = estimate
            keep(hardware)
    store.close()
    with display.phase("collectives again"):
        watching = Watching(partial(display.update, "collectives again"))
        again = measure_here(processes, seconds * OF_COLLECTIVES, watching, collectives)
    hardware = replace(again, operators=hardware.operators)
    keep(hardware)
    return hardware
