"""NVIDIA's driver as ``pynvml`` shows it, for machines that have none."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

GIB = 1 << 30


class NVMLError(Exception):
    """As pynvml's."""


def a_driver(n_gpus: int, name: str = "NVIDIA H100", mode: int = 0) -> ModuleType:
    """The package ``pynvml`` on a machine with so many GPUs of a name, in a compute mode."""

    def at(index: int) -> int:
        if not 0 <= index < n_gpus:
            raise NVMLError("Invalid Argument")
        return index

    def by_uuid(uuid: str) -> int:
        raise NVMLError("Not Found")

    module = ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: n_gpus,
        nvmlDeviceGetHandleByIndex=at, nvmlDeviceGetHandleByUUID=by_uuid, nvmlDeviceGetName=lambda handle: name.encode(),
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle:08d}",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80 * GIB), nvmlDeviceGetComputeMode=lambda handle: mode,
    )  # fmt: skip
    return module
