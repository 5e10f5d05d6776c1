"""Find the hardware of this run: calibrated by ``tensoropt calibrate`` before, if that still holds, else measured now."""

from __future__ import annotations

import datetime
import hashlib
import logging
import os
import sys
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path

import tensorflow as tf

from ...common.errors import InputError
from ...common.process.progress import NOT_SHOWN, Display
from ...common.process.watchdog import CRITICAL, tell_of
from ...profiling.available_memory import available_memory_bytes
from ...profiling.collective_tables import device_partitions
from ...profiling.hardware import Hardware, HardwareError
from ...profiling.measure import Watching, measure
from ...profiling.measuring_ranks import MeasuringProcess
from ...profiling.store import cache_folder
from ...profiling.tensorflow_engine import TensorFlowEngine
from ...reschedule.mesh import Level, Mesh
from ..execute import EMULATED, HOROVOD, MPI, TENSORFLOW, checked_collectives
from ..failures.process_limit import bound_allocators
from ..ranks import Processes, cores_of_a_rank, current_processes, install_error_handling
from .disturbance import LASTING, Disturbance, measured_with_disturbance

logger = logging.getLogger("tensoropt")
MEASUREMENT_BUDGET_S = 1.0
LONE_BUDGET_S = 0.2  # of a device that is alone, for which there is less to choose from
COLLECTIVE_METHODS = ("prepare", "all_gather", "all_to_all", "reduce_scatter", "all_reduce")
MOST_DAYS = 7
"""A calibration older than this many days isn't used automatically: drivers, neighbours and links change."""


def prepared_processes() -> Processes:
    """Return the ranks of this run, with errors handled together and each rank limited to its share of cores and memory."""
    processes = current_processes()
    install_error_handling(processes)
    _limit_threads(processes)
    bound_allocators()
    return processes


def _limit_threads(processes: Processes) -> None:
    """Limit TensorFlow's threads, since ranks of one machine share its cores. A number that the user has set stays."""
    if processes.local_size == 1 or "TF_NUM_INTRAOP_THREADS" in os.environ:
        return
    if tf.config.threading.get_intra_op_parallelism_threads() == 0:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(cores_of_a_rank(processes.local_size))
        except RuntimeError:
            logger.info("TensorFlow has started already; its threads stay as they are")


def hardware_here(processes: Processes, collectives: str = MPI, display: Display = NOT_SHOWN) -> Hardware:
    """Return the ranks' hardware: from a fresh calibration if there is one, else measured quickly. Every rank calls it.

    Args:
        collectives: ``mpi``, ``tensorflow`` or ``horovod``. Emulated collectives take no time of their own, and are treated
            like MPI's.
        display: shows how far a measurement is, and whether other work disturbed it.
    """
    calibrated = _calibrated(processes, collectives)
    if calibrated is not None:
        return calibrated
    budget_s = LONE_BUDGET_S if processes.is_alone else MEASUREMENT_BUDGET_S
    watching = Watching(partial(display.update, "measurement of the collectives"))

    def measured() -> tuple[Hardware, Disturbance]:
        return measured_with_disturbance(processes, lambda: measure_here(processes, budget_s, watching, collectives))

    hardware, disturbance = measured()
    if not disturbance.is_large:
        return hardware
    calibration = _calibrated(processes, collectives, most_days=sys.maxsize)
    if calibration is not None and calibration.measured is not None:
        display.say(f"{disturbance}; the calibration of {calibration.measured.date} is used instead")
        return calibration
    if disturbance.waited <= LASTING:
        hardware, disturbance = min((hardware, disturbance), measured(), key=lambda pair: sum(astuple(pair[1])))
    if disturbance.is_large:
        display.say(f"{disturbance}; plans may differ from run to run, until tensoropt calibrate measures in a quiet hour")
    return hardware


def measure_here(
    processes: Processes, budget_s: float, watching: Watching | None = None, collectives: str = MPI
) -> Hardware:
    """Measure the devices and links of all ranks. Every rank must call it.

    Raises:
        InputError: TensorFlow's or Horovod's collectives are asked for but unavailable.
    """
    levels = Level("machine", processes.machines), Level("device", processes.devices_per_machine)
    if processes.is_alone:
        return measure(levels, MeasuringProcess(), budget_s, watching=watching)
    from ..collectives.mpi import MpiCommunicator
    from ..collectives.tensorflow_server import is_by_nccl
    from .collective_ops import emitted_by

    mesh = Mesh(levels)
    naps = all(processes.gather(processes.naps))
    communicator = MpiCommunicator(processes.comm, mesh, processes.begin_collective, naps)
    tell_of(communicator, processes.waiting[CRITICAL], COLLECTIVE_METHODS)
    communicator.prepare(device_partitions(mesh))
    per_core = processes.ranks_per_core
    place = MeasuringProcess(communicator, processes.rank, processes.local_size, per_core, processes.broadcast)
    if collectives in (TENSORFLOW, HOROVOD):
        place = replace(place, collectives=collectives, emitted=emitted_by(collectives, processes, mesh))
        place = replace(place, is_by_nccl=collectives == TENSORFLOW and is_by_nccl())
    measured = measure(levels, place, budget_s, watching=watching)
    communicator.free()
    return measured


def calibrated_file(processes: Processes, collectives: str = MPI) -> Path | None:
    """Return the file of these ranks' calibration by these collectives; None if there is no cache."""
    folder = cache_folder()
    if folder is None:
        return None
    hosts = hashlib.sha256(" ".join(processes.hosts).encode()).hexdigest()[:8]
    suffix = f"-{collectives}" if collectives in (TENSORFLOW, HOROVOD) else ""
    return folder / "hardware" / f"{processes.machines}x{processes.devices_per_machine}-{hosts}{suffix}.json"


def _calibrated(processes: Processes, collectives: str, most_days: int = MOST_DAYS) -> Hardware | None:
    file, hardware = calibrated_file(processes, collectives), None
    if processes.rank == 0 and file is not None and file.exists():
        try:
            hardware = Hardware.load(file)
            reason = why_stale(hardware, datetime.date.today(), most_days)
        except HardwareError as error:
            reason = str(error)
        if reason:
            logger.info("the calibration '%s' isn't used: %s", file, reason)
            hardware = None
    hardware = processes.broadcast(hardware)
    return None if hardware is None else with_memory_now(hardware, processes)


def with_memory_now(hardware: Hardware, processes: Processes) -> Hardware:
    """Return hardware with the memory that is free now, of which a measurement before says nothing; every rank calls it."""
    device_bytes = TensorFlowEngine().device_memory_bytes()
    free_bytes = available_memory_bytes(processes.local_size) if device_bytes is None else device_bytes
    least_bytes = -processes.gather_max(-free_bytes)
    return replace(hardware, device=replace(hardware.device, memory_bytes=int(least_bytes)))


def why_stale(hardware: Hardware, today: datetime.date, most_days: int = MOST_DAYS) -> str:
    """Return why a calibration doesn't hold for this machine now; empty if it does."""
    origin = hardware.measured
    if origin is None or not origin.is_complete:
        return "it is not complete"
    if origin.age_days(today) > most_days:
        return f"it is {origin.age_days(today)} days old"
    return changes_since(hardware, is_run_here=True)


def changes_since(hardware: Hardware, is_run_here: bool, collectives: str | None = None) -> str:
    """Return what has changed since a hardware was measured; empty if nothing has, or if it wasn't measured.

    Args:
        is_run_here: whether a plan for it will run on this machine, so that the device matters too.
        collectives: the collectives of that run, if they matter as well; else None.
    """
    origin = hardware.measured
    if origin is None:
        return ""
    changes = []
    if origin.tensorflow and origin.tensorflow != tf.__version__:
        changes.append(f"it was measured with TensorFlow {origin.tensorflow}, this is {tf.__version__}")
    if is_run_here:
        engine = TensorFlowEngine()
        if hardware.device.name != engine.device_name():
            changes.append(f"its device is {hardware.device.name!r}, this one {engine.device_name()!r}")
        elif origin.threads != engine.threads:
            then, now = (threads or "all" for threads in (origin.threads, engine.threads))
            changes.append(f"it was measured with {then} threads, this process has {now}")
        if collectives not in (None, EMULATED, origin.collectives):
            changes.append(f"its collectives are by {origin.collectives}, these by {collectives}")
    return "; ".join(changes)


def warning_of(hardware: Hardware, is_strict: bool, is_run_here: bool = False) -> str:
    """Return a sentence on what has changed since a hardware was measured; empty if nothing has.

    Raises:
        InputError: something has, and ``is_strict``.
    """
    warning = changes_since(hardware, is_run_here, checked_collectives(None))
    if not warning:
        return ""
    if is_strict:
        raise InputError(
            f"hardware {hardware.name}: {warning}; measure it again with tensoropt calibrate, or leave out --strict"
        )
    return f"hardware {hardware.name}: {warning}; its costs may be off: tensoropt calibrate measures again"
