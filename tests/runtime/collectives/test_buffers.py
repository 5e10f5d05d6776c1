"""Memory for collectives: aligned for TensorFlow, and kept by the C library unless the user decides otherwise."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from tensoropt.runtime.collectives.receive_buffers import ALIGNMENT, aligned_empty, keep_freed_memory


@pytest.mark.parametrize("shape", [(), (3,), (5, 7)])
@pytest.mark.parametrize("dtype", [np.bool_, np.float16, np.float64])
def test_buffers_start_on_the_boundary(shape: tuple[int, ...], dtype: type) -> None:
    buffer = aligned_empty(shape, dtype)
    assert buffer.ctypes.data % ALIGNMENT == 0
    assert (buffer.shape, buffer.dtype) == (shape, np.dtype(dtype))
    assert buffer.flags.c_contiguous


def test_freed_memory_is_kept_unless_the_user_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda parameter, n_bytes: calls.append((parameter, n_bytes)))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    keep_freed_memory()
    assert calls == [(-3, 32 << 20)]


def test_a_library_without_mallopt_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: asked.append(name) or SimpleNamespace())
    keep_freed_memory()
    assert asked == [None]
