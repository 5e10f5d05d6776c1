"""Memory for collectives: NCCL's, and what the C library keeps unless the user decides otherwise."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tensoropt.costs.collective_workspace import CONNECTION_BYTES, nccl_bytes
from tensoropt.profiling.hardware import named, resolve
from tensoropt.runtime import context
from tensoropt.runtime.collectives.receive_buffers import keep_freed_memory


def test_freed_memory_is_kept_unless_the_user_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda parameter, n_bytes: calls.append((parameter, n_bytes)))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    keep_freed_memory()
    assert calls == [(-3, 32 << 20)]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())  # another library, which is left alone
    keep_freed_memory()


def test_nccl_s_buffers_are_those_that_were_reported() -> None:
    """An all-to-all of 8 H100s took 3.28 GB (NVIDIA/nccl#1685); 8 V100s have 12 channels and 2 for each pair."""

    def taken(name: str, *axes: int) -> int:
        hardware = named(name)
        return nccl_bytes(hardware.mesh(), axes or hardware.mesh().axes, hardware.levels[-1].bytes_per_s)

    assert taken("h100-1x8") - 32 * CONNECTION_BYTES == pytest.approx(3.28e9, rel=0.01)
    assert taken("v100-1x8") == (12 + 2 * 7) * CONNECTION_BYTES
    assert taken("h100-2x1") == 16 * 24 << 20 and taken("h100-2x8") == taken("h100-2x1") + 4 * 7 * CONNECTION_BYTES
    assert taken("l4-1x4") == (4 + 2 * 3) * CONNECTION_BYTES


def test_a_catalogued_cluster_is_charged_what_runs_collectives_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "launched_as", lambda: (0, 1))
    for is_running, is_by_nccl, expected in ((False, False, "mpi"), (True, False, "tensorflow"), (True, True, "nccl")):
        monkeypatch.setattr(context, "is_running", lambda: is_running)  # noqa: B023
        monkeypatch.setattr(context, "is_by_nccl", lambda: is_by_nccl)  # noqa: B023
        assert context.resolve_cluster("h100-1x8") == replace(named("h100-1x8"), run_by=expected)


def test_a_catalogued_cluster_without_ranks_has_nccl_unless_the_user_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for choice, expected in (("", "nccl"), ("tensorflow", "nccl"), ("mpi", "mpi"), ("horovod", "mpi")):
        monkeypatch.setenv("TENSOROPT_COLLECTIVES", choice)
        assert resolve("h100-1x8") == context.resolve_cluster("h100-1x8") == replace(named("h100-1x8"), run_by=expected)
