"""The actions that are timed to learn how fast one device computes, through TensorFlow or through NumPy alone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .python_calls import keep_thread_state

Action = Callable[[], Any]
Call = tuple[int, Callable[[Any], Any]]
"""The number of float32 numbers of its input, and the function that is called.

The function gets an array, or a tensor of the graph that is being built and to which it adds operators.
"""

STREAM_BYTES = 1 << 24
"""The bytes of the array that bandwidth is measured with: more than the second level of cache, as a layer's tensors are."""
_CHAIN = 300
"""The operators that the longer chain has more than the shorter one."""
EVICTING_BYTES = 1 << 23
"""A pass over so much memory evicts all else from the second level of cache, as a step's compute does."""
_CALLBACKS = 10
"""The calls into Python in a chain."""
TIMES_CACHE = 2
"""The size of the array that evicts the last level of cache, over that of the cache."""
USUAL_CACHE_BYTES, MOST_CACHE_BYTES = 1 << 25, 1 << 26
"""The size of the last level of cache where it isn't known, and the most that a rank evicts. If the cache is larger, each of
the ranks that share it evicts a part."""
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class Chain:
    """Two actions: ``many()`` runs ``more`` operators more than ``few()``, so the difference of their times is theirs."""

    few: Action
    many: Action
    more: int


@dataclass(frozen=True, slots=True)
class Beside:
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


CLOSE, APART = Beside(8, 4), Beside(512, EVICTING_BYTES)
"""The compute between collectives that follow each other within a few tens of microseconds, as those of one operator do; and
that between collectives which find nothing of the last one in the caches, as after a convolution's gradients."""


class Engine(Protocol):
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

    def callbacks(self, beside: Beside) -> Chain | None:
        """Return chains without and with calls from the engine into Python; None where collectives need no such call."""
        ...

    def among(self, calls: Sequence[Call], is_early: bool, beside: Beside) -> Action:
        """Return an action that makes an array for each call and hands it over in Python, one call after the other.

        Args:
            is_early: make all arrays before the first call, else each just before its own.
            beside: the compute before each call.
        """
        ...

    def among_emitted(self, calls: Sequence[Call], is_early: bool, beside: Beside) -> Callable[[], np.ndarray]:
        """Return a function like :meth:`among` whose calls are operators of its graph; it returns the seconds of each call.

        Raises:
            ValueError: the engine has no graphs.
        """
        ...

    def beside(self, call: Action | Call | None, n_products: int) -> Action | None:
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

        return Chain(chain(1), chain(_CHAIN + 1), _CHAIN)

    def callbacks(self, beside: Beside) -> Chain | None:
        return None

    def among(self, calls: Sequence[Call], is_early: bool, beside: Beside) -> Action:
        other = np.ones(beside.n_numbers, np.float32)
        square = np.full((beside.extent, beside.extent), 0.5, np.float32)

        def run() -> None:
            arrays = [np.ones(count, np.float32) for count, _ in calls] if is_early else []
            for number, (count, call) in enumerate(calls):
                np.matmul(square, square)
                other.sum()
                call(arrays[number] if is_early else np.ones(count, np.float32))

        return run

    def among_emitted(self, calls: Sequence[Call], is_early: bool, beside: Beside) -> Callable[[], np.ndarray]:
        raise ValueError("collectives that are operators of a graph need an engine with graphs, got NumPy")

    def beside(self, call: Action | Call | None, n_products: int) -> Action | None:
        return None


class TensorFlowEngine:
    """The engine that computes with TensorFlow, with its threads as configured, on its first GPU if it sees one.

    The first use starts TensorFlow's runtime: threads and visible devices must be configured before.

    Raises:
        RuntimeError: eager execution is off, or a graph is the default one.
    """

    def __init__(self) -> None:
        import tensorflow as tf

        if not tf.executing_eagerly():
            raise RuntimeError("measuring needs eager execution, but a graph is the default: measure before or outside")
        self._tf = tf
        self._gpu = bool(tf.config.list_logical_devices("GPU"))
        self._device = "/GPU:0" if self._gpu else "/CPU:0"
        self.gemm_extent = 4096 if self._gpu else 512  # a GPU's rate shows only at sizes that fill it
        self.tensorflow = tf.__version__
        self.threads = tf.config.threading.get_intra_op_parallelism_threads()
        self.name = f"TensorFlow {tf.__version__}, {self.threads or 'all'} threads"

    def device_name(self) -> str:
        if not self._gpu:
            return cpu_name()
        details = self._tf.config.experimental.get_device_details(self._tf.config.list_physical_devices("GPU")[0])
        return str(details.get("device_name", "GPU"))

    def device_memory_bytes(self) -> int | None:
        if not self._gpu:
            return None
        from tensorflow.python.client import device_lib  # the only API that returns a device's limit

        return next(int(d.memory_limit) for d in device_lib.list_local_devices() if d.device_type == "GPU")

    def _synced(self, action: Action) -> Action:
        def run() -> None:
            action()
            if self._gpu:
                self._tf.test.experimental.sync_devices()

        return run

    def gemm(self, dtype: str) -> Action:
        with self._tf.device(self._device):
            left, right = (self._tf.fill((self.gemm_extent,) * 2, self._tf.cast(v, dtype)) for v in (0.5, 0.25))
        return self._synced(lambda: self._tf.matmul(left, right))

    def stream(self) -> Action:
        with self._tf.device(self._device):
            array = self._tf.ones(STREAM_BYTES // 4)
            half = self._tf.constant(0.5)
        return self._synced(lambda: self._tf.multiply(array, half))

    def _chain(self, step: Callable[[Any], Any], lengths: tuple[int, int]) -> Chain:
        tf = self._tf
        start = tf.fill((4, 4), 0.25)

        def build(length: int) -> Action:
            def body(x: Any) -> Any:
                for _ in range(length):
                    x = step(x)
                return x

            function = tf.function(body, autograph=False).get_concrete_function(start)
            return lambda: function(start).numpy()

        few, many = lengths
        return Chain(build(few), build(many), many - few)

    def operators(self) -> Chain:
        with self._tf.device(self._device):
            return self._chain(lambda x: self._tf.matmul(x, x), (1, _CHAIN + 1))

    def callbacks(self, beside: Beside) -> Chain | None:
        tf = self._tf

        def called(x: np.ndarray) -> list[np.ndarray]:
            keep_thread_state()
            return [x, x]

        def build(calls: bool) -> Action:
            def body(x: Any, other: Any) -> Any:
                for _ in range(_CALLBACKS):
                    with tf.control_dependencies([x]):
                        x = x + tf.reduce_sum(other) * 1e-30
                    if calls:
                        x = tf.numpy_function(called, [x], [tf.float32, tf.float32])[0]
                        x.set_shape(start.shape)
                return x

            function = tf.function(body, autograph=False).get_concrete_function(start, other)
            return lambda: function(start, other).numpy()

        with tf.device("/CPU:0"):
            start, other = tf.fill((4, 4), 0.25), tf.ones(beside.n_numbers)
            return Chain(build(False), build(True), _CALLBACKS)

    def among(self, calls: Sequence[Call], is_early: bool, beside: Beside) -> Action:
        tf = self._tf

        def called(number: int, array: np.ndarray, _: np.ndarray) -> np.ndarray:
            keep_thread_state()
            return calls[number][1](array)

        def take(number: int, array: Any, nothing: Any) -> tuple[Any, Any]:
            result = tf.numpy_function(partial(called, number), [array, nothing], tf.float32)
            return result[0], tf.constant(0.0, tf.float64)

        return self._among([count for count, _ in calls], is_early, beside, take)

    def among_emitted(self, calls: Sequence[Call], is_early: bool, beside: Beside) -> Callable[[], np.ndarray]:
        tf = self._tf

        def take(number: int, array: Any, nothing: Any) -> tuple[Any, Any]:
            with tf.control_dependencies([array, nothing]):
                started = tf.timestamp()
            with tf.control_dependencies([started]):
                array = tf.identity(array)
            result = calls[number][1](array)
            with tf.control_dependencies([result]):
                return result[0], tf.timestamp() - started

        function = self._among([count for count, _ in calls], is_early, beside, take)

        def run() -> np.ndarray:
            with unoptimized():  # else both clocks are read one after the other
                return function()

        return run

    def _among(
        self, counts: Sequence[int], is_early: bool, beside: Beside, take: Callable[[int, Any, Any], tuple[Any, Any]]
    ) -> Callable[[], np.ndarray]:
        """Return a function that makes arrays of the sizes ``counts`` and uses each of them by ``take``.

        ``take`` gets the array's number, the array, and a scalar that is ready when the compute beside it is done. It
        returns a number of its result and a second number. The function returns all second numbers, in one array.
        """
        tf = self._tf
        with tf.device(self._device):
            square = tf.fill((beside.extent, beside.extent), 1 / beside.extent)
            other = tf.ones(beside.n_numbers)

        def body(other: Any) -> Any:
            # TensorFlow runs an operator that depends on nothing at once, or long after: each needs an input to wait for.
            nothing, told = other[0] * 1e-30, []
            early = [tf.fill([count], 1.0) * (1 + nothing) for count in counts] if is_early else []
            with tf.control_dependencies(early):
                nothing = tf.identity(nothing)
            for number, count in enumerate(counts):
                product = tf.matmul(square * (1 + nothing), square)
                nothing = tf.reduce_sum(other * (1 + product[0, 0] * 1e-30)) * 1e-30
                array = early[number] if is_early else tf.fill([count], 1.0) * (1 + nothing)
                result, number_told = take(number, array, nothing)
                nothing = nothing + result * 1e-30
                told.append(number_told)
            with tf.control_dependencies([nothing]):
                return tf.stack(told)

        function = tf.function(body, autograph=False).get_concrete_function(other)
        return lambda: function(other).numpy()

    def beside(self, call: Action | Call | None, n_products: int) -> Action | None:
        tf = self._tf
        with tf.device(self._device):
            start = tf.fill((self.gemm_extent,) * 2, 1 / self.gemm_extent)

        def called(x: np.ndarray) -> np.ndarray:
            keep_thread_state()
            assert callable(call)
            call()
            return x

        def waited_for(first: Any) -> Any:
            if call is None:
                return first
            if callable(call):
                return tf.numpy_function(called, [first], tf.float32)
            count, emit = call
            return tf.reshape(emit(tf.fill([count], first)), [-1])[0]

        def body(x: Any) -> Any:
            first = x[0, 0]
            waited = waited_for(first)
            for _ in range(n_products):
                x = tf.matmul(x, start)
            return x[0, 0] + waited

        function = tf.function(body, autograph=False).get_concrete_function(start)
        return lambda: function(start).numpy()


@contextmanager
def unoptimized() -> Iterator[None]:
    """Run functions as they were built: TensorFlow's graph optimizer is off meanwhile."""
    import tensorflow as tf

    name = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options().get(name, False)
    tf.config.optimizer.set_experimental_options({name: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({name: before})


def cpu_name() -> str:
    """Return the processor's name as Linux has it, else ``CPU``."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return "CPU"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "CPU")


def spin(seconds: float) -> None:
    """Keep the core busy for ``seconds``, so that other work on this machine takes over the caches.

    The state of the caches after a pause is the same whether or not the rank computed in the pause: a machine's last
    level of cache is shared, on a cloud's machine with strangers. Memory that a step uses only once is found in that
    state.
    """
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass


class Evicting:
    """An action that evicts all earlier contents from the caches, also on a machine that nobody else uses."""

    def __init__(self) -> None:
        self._other = np.ones(TIMES_CACHE * cache_bytes() // 4, np.float32)

    def __call__(self) -> None:
        np.add(self._other, 1.0, out=self._other)


def cache_bytes(folder: Path = CACHES) -> int:
    """Return the bytes of the last level of cache as Linux has it, else a common size; at most ``MOST_CACHE_BYTES``."""
    found = (re.fullmatch(r"(\d+)([KM])", file.read_text().strip()) for file in folder.glob("index*/size"))
    sizes = [int(each[1]) << {"K": 10, "M": 20}[each[2]] for each in found if each is not None]
    return min(MOST_CACHE_BYTES, max(sizes, default=USUAL_CACHE_BYTES))


def time_s(action: Action) -> float:
    """Return the seconds that an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
