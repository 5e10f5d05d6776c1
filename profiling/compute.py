"""Define the actions that are timed to learn how fast one device computes, and compute them with NumPy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Action = Callable[[], Any]
Call = tuple[int, Callable[[Any], Any]]
"""The number of float32 numbers of its input, and the function that is called.

The function gets an array, or a tensor of the graph that is being built and to which it adds operators.
"""

STREAM_BYTES = 1 << 24
"""The bytes of the array that bandwidth is measured with: more than the second level of cache, as a layer's tensors are."""
CHAIN = 300
"""The operators that the longer chain has more than the shorter one."""
EVICTING_BYTES = 1 << 23
"""A pass over so much memory evicts all else from the second level of cache, as a step's compute does."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Two actions: ``many()`` runs ``more`` operators more than ``few()``, so the difference of their times is theirs."""

    few: Action
    many: Action
    more: int


@dataclass(frozen=True, slots=True)
class ComputeBetween:
    """The compute between two calls that are timed.

    Attributes:
        extent: the number of rows of the two square matrices that are multiplied.
        n_bytes: the bytes of the array that is read after that.
    """

    extent: int
    n_bytes: int

    @property
    def n_numbers(self) -> int:
        """The number of float32 numbers in the array."""
        return self.n_bytes // 4


CLOSE, APART = ComputeBetween(8, 4), ComputeBetween(512, EVICTING_BYTES)
"""The compute between collectives that follow each other within a few tens of microseconds, as those of one operator do; and
that between collectives which find nothing of the last one in the caches, as after a convolution's gradients."""


class ComputeEngine(Protocol):
    """The interface of what computes on this rank's device. Every action ends when its work is done."""

    name: str
    gemm_extent: int
    """The number of rows of the square matrices that are multiplied."""
    tensorflow: str
    """TensorFlow's version, empty without TensorFlow."""
    threads: int
    """Threads within an operator; 0 for as many as there are cores."""

    def device_name(self) -> str: ...

    def device_memory_bytes(self) -> int | None:
        """Return the bytes of the device's own memory, None where it uses the machine's."""
        ...

    def gemm(self, dtype: str) -> Action:
        """Return an action that multiplies two square matrices."""
        ...

    def stream(self) -> Action:
        """Return an action of one elementwise operator that reads and writes :data:`STREAM_BYTES`."""
        ...

    def operators(self) -> Chain:
        """Return chains of operators that do next to nothing."""
        ...

    def callbacks(self, between: ComputeBetween) -> Chain | None:
        """Return chains without and with calls from the engine into Python; None where collectives need no such call."""
        ...

    def among(self, calls: Sequence[Call], is_early: bool, between: ComputeBetween) -> Action:
        """Return an action that makes an array for each call and hands it over in Python, one call after the other.

        Args:
            is_early: make all arrays before the first call, else each just before its own.
            between: the compute before each call.
        """
        ...

    def among_emitted(self, calls: Sequence[Call], is_early: bool, between: ComputeBetween) -> Callable[[], np.ndarray]:
        """Return a function like :meth:`among` whose calls are operators of its graph; it returns the seconds of each call.

        Raises:
            ValueError: the engine has no graphs.
        """
        ...

    def with_products(self, call: Action | Call | None, n_products: int) -> Action | None:
        """Return an action that runs products of matrices and a call of which none waits for the other.

        The products are of matrices of :meth:`gemm`'s size in float32, one after the other. The call goes into Python,
        or is operators in the graph. Return None where the engine has no such functions.
        """
        ...


class NumpyEngine:
    """The engine that computes with NumPy on the CPU: for machines without TensorFlow, and to compare the other engine with.
    """

    gemm_extent = 512
    tensorflow = ""
    threads = 0

    def __init__(self) -> None:
        self.name = f"NumPy {np.__version__}"

    def device_name(self) -> str:
        return cpu_name()

    def device_memory_bytes(self) -> int | None:
        return None

    def gemm(self, dtype: str) -> Action:
        left, right = (np.full((self.gemm_extent,) * 2, value, dtype) for value in (0.5, 0.25))
        result = np.empty_like(left)
        return lambda: np.matmul(left, right, out=result)

    def stream(self) -> Action:
        array = np.ones(STREAM_BYTES // 4, np.float32)
        return lambda: np.multiply(array, np.float32(0.5))

    def operators(self) -> Chain:
        small, result = np.full((4, 4), 0.25, np.float32), np.empty((4, 4), np.float32)

        def chain(length: int) -> Action:
            def run() -> None:
                for _ in range(length):
                    np.matmul(small, small, out=result)

            return run

        return Chain(chain(1), chain(CHAIN + 1), CHAIN)

    def callbacks(self, between: ComputeBetween) -> Chain | None:
        return None

    def among(self, calls: Sequence[Call], is_early: bool, between: ComputeBetween) -> Action:
        other = np.ones(between.n_numbers, np.float32)
        square = np.full((between.extent, between.extent), 0.5, np.float32)

        def run() -> None:
            arrays = [np.ones(count, np.float32) for count, _ in calls] if is_early else []
            for number, (count, call) in enumerate(calls):
                np.matmul(square, square)
                other.sum()
                call(arrays[number] if is_early else np.ones(count, np.float32))

        return run

    def among_emitted(self, calls: Sequence[Call], is_early: bool, between: ComputeBetween) -> Callable[[], np.ndarray]:
        raise ValueError("collectives that are operators of a graph need an engine with graphs, got NumPy")

    def with_products(self, call: Action | Call | None, n_products: int) -> Action | None:
        return None


def cpu_name() -> str:
    """Return the processor's name as Linux has it, else ``CPU``."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return "CPU"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "CPU")


def time_s(action: Action, ranks_per_core: float = 1.0) -> float:
    """Return the seconds that an action takes.

    Args:
        ranks_per_core: how many ranks compute at once on each core. Such a rank has the core in turns, and an action that is
            shorter than a turn may have all of one, but not always: so it takes its CPU time so many times at least.
    """
    start_s, busy_s = time.perf_counter(), time.process_time()
    action()
    taken_s = time.perf_counter() - start_s
    return max(taken_s, ranks_per_core * (time.process_time() - busy_s)) if ranks_per_core > 1 else taken_s
