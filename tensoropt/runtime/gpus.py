"""Give each rank a GPU of its machine, before TensorFlow starts and takes any memory.

GPUs are asked of the driver by NVIDIA's small package ``nvidia-ml-py``: TensorFlow would start all that it lists. Each rank
reports those that ``CUDA_VISIBLE_DEVICES`` leaves it, with MPI's first exchange, and all ranks compute the same shares from
that. In the order of the ranks of a machine each takes the first GPU that it sees and no other has. Ranks that see the same
GPUs so have one each by their number on the machine, and ranks to which a batch system gave one each keep it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.errors import InputError, describe
from ..common.memory_units import memory_text
from ..common.process.tensorflow_import import import_tensorflow
from ..common.words import counted

VISIBLE, ORDER, SHARE = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TENSOROPT_SHARE_GPUS"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
PACKAGE = "nvidia-ml-py"
_DRIVER = Path("/proc/driver/nvidia/version")
_NO_SHARING = {1: "exclusive mode", 2: "a mode that prohibits computing", 3: "exclusive mode"}  # NVML's compute modes


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that a rank sees.

    Attributes:
        name: as the driver has it, such as "NVIDIA H100 80GB HBM3".
        uuid: its number, which no other GPU has.
        visible_as: how ``CUDA_VISIBLE_DEVICES`` names it.
        mode: NVML's compute mode; 0 lets several processes use it.
    """

    name: str
    uuid: str
    memory_bytes: int
    visible_as: str
    mode: int = 0

    def __str__(self) -> str:
        return f"{self.name} ({memory_text(self.memory_bytes)})"


def is_driver_here() -> bool:
    """Return whether this machine has NVIDIA's driver."""
    try:
        import pynvml
    except ImportError:
        return _DRIVER.exists()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return True


def visible_gpus(environ: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Return the GPUs that this process sees, in the order of ``CUDA_VISIBLE_DEVICES``; none where there is no driver.

    Raises:
        InputError: there is a driver that TensorFlow could use, but not the package that asks it.
    """
    names = environ.get(VISIBLE)
    if (names is not None and not names.strip()) or not is_driver_here():
        return ()
    try:
        import pynvml
    except ImportError as error:
        import_tensorflow()
        import tensorflow as tf

        if not tf.test.is_built_with_cuda():
            return ()
        raise InputError(
            describe(
                "this machine has GPUs, and the package that tells which is missing",
                got=f"no {PACKAGE}",
                advice=f"pip install {PACKAGE}; or set {VISIBLE}= to compute on CPUs",
            )
        ) from error
    pynvml.nvmlInit()
    try:
        numbers = ",".join(map(str, range(pynvml.nvmlDeviceGetCount())))
        return _gpus(pynvml, [name.strip() for name in (numbers if names is None else names).split(",")])
    finally:
        pynvml.nvmlShutdown()


def _gpus(nvml: Any, names: Sequence[str]) -> tuple[Gpu, ...]:
    """Return the GPUs of these names; as for CUDA, a name of none ends the list."""
    gpus: list[Gpu] = []
    for name in names:
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else _by_uuid(nvml, name)
            uuid, memory = nvml.nvmlDeviceGetUUID(handle), int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
            try:
                mode = int(nvml.nvmlDeviceGetComputeMode(handle))
            except nvml.NVMLError:
                mode = 0  # parts of GPUs have none
            gpus.append(Gpu(_text(nvml.nvmlDeviceGetName(handle)), _text(uuid), memory, name, mode))
        except nvml.NVMLError:
            break
    return tuple(gpus)


def _by_uuid(nvml: Any, name: str) -> Any:
    """Return the GPU whose number begins so, as CUDA lets it be shortened; a part of a GPU (MIG) has its whole number."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(name):
            return handle
    return nvml.nvmlDeviceGetHandleByUUID(name)


def _text(name: str | bytes) -> str:
    """Return a name as text: older versions of the package return bytes."""
    return name.decode() if isinstance(name, bytes) else name


def shares(seen: Sequence[Sequence[Gpu]], hosts: Sequence[str], is_shared: bool) -> list[Gpu] | None:
    """Return each rank's GPU; None if no rank sees one.

    Args:
        is_shared: whether ranks may share a GPU.

    Raises:
        InputError: there are fewer GPUs than ranks on a machine, none for some ranks, or GPUs that differ.
    """
    if not any(seen):
        return None
    blind, sees = next((i for i, gpus in enumerate(seen) if not gpus), None), next(i for i, gpus in enumerate(seen) if gpus)
    if blind is not None:
        raise InputError(
            f"rank {blind} on {hosts[blind]} sees no GPU, and rank {sees} on {hosts[sees]} sees "
            f"{counted(len(seen[sees]), 'GPU')}: either all ranks have one or none; choose machines with GPUs, or set "
            f"{VISIBLE}= on all to compute on CPUs"
        )
    n_users: dict[tuple[str, str], int] = {}
    own_gpus: list[Gpu] = []
    for rank, (gpus, host) in enumerate(zip(seen, hosts, strict=True)):
        gpu = min(gpus, key=lambda item: n_users.get((host, item.uuid), 0))  # the first of those that the fewest ranks have
        if (host, gpu.uuid) in n_users and not is_shared:
            n_ranks = hosts.count(host)
            raise InputError(
                f"{counted(n_ranks, 'rank')} on {host}, but {counted(len(gpus), 'GPU')} for them: rank {rank} would share "
                f"{gpu} with another; start as many ranks as there are GPUs, or set {SHARE}=1, for trying out"
            )
        n_users[host, gpu.uuid] = n_users.get((host, gpu.uuid), 0) + 1
        own_gpus.append(gpu)
    _check_usable(own_gpus, hosts, n_users)
    return own_gpus


def _check_usable(own_gpus: Sequence[Gpu], hosts: Sequence[str], n_users: Mapping[tuple[str, str], int]) -> None:
    """Raise InputError if the driver doesn't let a rank compute on its GPU, or a GPU differs from rank 0's."""
    first = own_gpus[0]
    for rank, (gpu, host) in enumerate(zip(own_gpus, hosts, strict=True)):
        if gpu.mode == 2 or (gpu.mode and n_users[host, gpu.uuid] > 1):
            raise InputError(
                f"rank {rank} can't use {gpu} on {host}, which is in {_NO_SHARING[gpu.mode]}; give each rank one of its "
                "own, or set the default mode with nvidia-smi -c 0"
            )
        if (gpu.name, gpu.memory_bytes) != (first.name, first.memory_bytes):
            raise InputError(
                f"ranks 0 and {rank} have different GPUs: {first} on {hosts[0]} and {gpu} on {host}; plans are for "
                f"equal devices: choose equal ones with {VISIBLE}"
            )


def take(gpu: Gpu, environ: MutableMapping[str, str] = os.environ) -> None:
    """Make a GPU the only one that this process sees, and have TensorFlow take its memory as it is needed.

    NCCL's buffers come from what is left.
    """
    if VISIBLE not in environ:
        environ.setdefault(ORDER, "PCI_BUS_ID")  # the driver's order, in which they were counted
    environ[VISIBLE] = gpu.visible_as
    environ.setdefault(GROWTH, "true")


def are_shared() -> bool:
    """Return whether the user lets ranks share a GPU."""
    return os.environ.get(SHARE, "0") == "1"


def computes_on_gpu() -> bool:
    """Return whether TensorFlow, if this process has imported it, computes on a GPU."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and bool(tf.config.list_physical_devices("GPU"))


def make_deterministic() -> None:
    """Make a GPU's operators give the same bits each time, so that replicas stay equal; a variable turns it off."""
    import tensorflow as tf

    if computes_on_gpu() and os.environ.get("TENSOROPT_DETERMINISTIC", "1") != "0":
        tf.config.experimental.enable_op_determinism()
