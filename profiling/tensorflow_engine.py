"""Time how fast one device computes through TensorFlow: the actions and chains of the engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .compute import CHAIN, STREAM_BYTES, Action, Call, Chain, ComputeBetween, cpu_name
from .python_calls import keep_thread_state

_CALLBACKS = 10
"""The calls into Python in a chain."""


class TensorFlowEngine:
    """The engine that computes with TensorFlow, with its threads as configured, on its first GPU if it sees one.

    The first use starts TensorFlow's runtime: threads and visible devices must be configured before. Every action ends when
    its work is done.

    Attributes:
        is_gpu: whether it computes on a GPU.
        gemm_extent: the number of rows of the square matrices that are multiplied.
        threads: threads within an operator; 0 for as many as there are cores.

    Raises:
        RuntimeError: eager execution is off, or a graph is the default one.
    """

    def __init__(self) -> None:
        import tensorflow as tf

        if not tf.executing_eagerly():
            raise RuntimeError("measuring needs eager execution, but a graph is the default: measure before or outside")
        self._tf = tf
        self.is_gpu = bool(tf.config.list_logical_devices("GPU"))
        self._device = "/GPU:0" if self.is_gpu else "/CPU:0"
        self.gemm_extent = 4096 if self.is_gpu else 512  # a GPU's rate shows only at sizes that fill it
        self.tensorflow = tf.__version__
        self.threads = _threads_within_operators(tf)
        is_tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        setting = f"TF32 {'on' if is_tf32 else 'off'}" if self.is_gpu else f"{self.threads or 'all'} threads"
        self.name = f"TensorFlow {tf.__version__}, {setting}"

    def device_name(self) -> str:
        if not self.is_gpu:
            return cpu_name()
        details = self._tf.config.experimental.get_device_details(self._tf.config.list_physical_devices("GPU")[0])
        return str(details.get("device_name", "GPU"))

    def device_memory_bytes(self) -> int | None:
        """Return the bytes of the device's own memory, None where it uses the machine's."""
        if not self.is_gpu:
            return None
        from tensorflow.python.client import device_lib  # the only API that returns a device's limit

        return next(int(d.memory_limit) for d in device_lib.list_local_devices() if d.device_type == "GPU")

    def _synced(self, action: Action) -> Action:
        def run() -> None:
            action()
            if self.is_gpu:
                self._tf.test.experimental.sync_devices()

        return run

    def gemm(self, dtype: str) -> Action:
        """Return an action that multiplies two square matrices."""
        with self._tf.device(self._device):
            left, right = (self._tf.fill((self.gemm_extent,) * 2, self._tf.cast(v, dtype)) for v in (0.5, 0.25))
        return self._synced(lambda: self._tf.matmul(left, right))

    def stream(self) -> Action:
        """Return an action of one elementwise operator that reads and writes :data:`.compute.STREAM_BYTES`."""
        with self._tf.device(self._device):
            array = self._tf.ones(STREAM_BYTES // 4)
            half = self._tf.constant(0.5)
        return self._synced(lambda: self._tf.multiply(array, half))

    def operators(self) -> Chain:
        """Return chains of operators that do next to nothing."""
        tf = self._tf

        def build(length: int) -> Action:
            def body(x: Any) -> Any:
                graph = tf.compat.v1.GraphDef()  # imported in a third of the time that calls of tf.matmul take
                for i in range(length):
                    node = graph.node.add(name=f"x{i + 1}", op="MatMul", input=[f"x{i}"] * 2)
                    node.attr["T"].type = x.dtype.as_datatype_enum
                return tf.graph_util.import_graph_def(graph, {"x0": x}, [f"x{length}:0"])[0]

            function = tf.function(body, autograph=False).get_concrete_function(start)
            return lambda: function(start).numpy()

        with tf.device(self._device):
            start = tf.fill((4, 4), 0.25)
            return Chain(build(1), build(CHAIN + 1), CHAIN)

    def callbacks(self, compute: ComputeBetween) -> Chain:
        """Return chains without and with calls from TensorFlow into Python."""
        tf = self._tf

        def called(x: np.ndarray) -> list[np.ndarray]:
            keep_thread_state()
            return [x, x]

        def build(calls_python: bool) -> Action:
            def body(x: Any, other: Any) -> Any:
                for _ in range(_CALLBACKS):
                    with tf.control_dependencies([x]):
                        x = x + tf.reduce_sum(other) * 1e-30
                    if calls_python:
                        x = tf.numpy_function(called, [x], [tf.float32, tf.float32])[0]
                        x.set_shape(start.shape)
                return x

            function = tf.function(body, autograph=False).get_concrete_function(start, other)
            return lambda: function(start, other).numpy()

        with tf.device("/CPU:0"):
            start, other = tf.fill((4, 4), 0.25), tf.ones(compute.n_numbers)
            return Chain(build(False), build(True), _CALLBACKS)

    def among(self, calls: Sequence[Call], is_early: bool, compute: ComputeBetween) -> Action:
        """Return an action that makes an array for each call and hands it over in Python, one call after the other.

        Args:
            is_early: make all arrays before the first call, else each just before its own.
            compute: the compute before each call.
        """

        def take(number: int, array: Any, zero: Any) -> tuple[Any, Any]:
            return self.called(calls[number][1], array, zero)[0], self._tf.constant(0.0, self._tf.float64)

        return self._among([count for count, _ in calls], is_early, compute, take)

    def called(self, run: Callable[[np.ndarray], np.ndarray], *inputs: Any) -> Any:
        """Return the result (float32) of a call from the graph into Python, which gets the first input."""

        def called(array: np.ndarray, *_: np.ndarray) -> np.ndarray:
            keep_thread_state()
            return run(array)

        return self._tf.numpy_function(called, inputs, self._tf.float32)

    def _fence(self, *arrays: Any) -> list[Any]:
        """Return what is there once arrays are: on a GPU copies to the host, since operators end at their launch."""
        if not self.is_gpu:
            return list(arrays)
        numbers = [self._tf.reshape(array, [-1])[0] for array in arrays]
        with self._tf.device("/CPU:0"):
            return [self._tf.identity(number) for number in numbers]

    def among_emitted(self, calls: Sequence[Call], is_early: bool, compute: ComputeBetween) -> Callable[[], np.ndarray]:
        """Return a function like :meth:`among` whose calls are operators of its graph, and which returns their seconds."""
        tf = self._tf

        def take(number: int, array: Any, zero: Any) -> tuple[Any, Any]:
            with tf.control_dependencies(self._fence(array, zero)):
                start = tf.timestamp()
            with tf.control_dependencies([start]):
                array = tf.identity(array)
            result = calls[number][1](array)
            with tf.control_dependencies(self._fence(result)):
                return result[0], tf.timestamp() - start

        function = self._among([count for count, _ in calls], is_early, compute, take)

        def run() -> np.ndarray:
            with unoptimized():  # else both clocks are read one after the other
                return function()

        return run

    def _among(
        self,
        counts: Sequence[int],
        is_early: bool,
        compute: ComputeBetween,
        take: Callable[[int, Any, Any], tuple[Any, Any]],
    ) -> Callable[[], np.ndarray]:
        """Return a function that makes arrays of the sizes ``counts`` and uses each of them by ``take``.

        ``take`` gets the array's number, the array, and a scalar that is ready when the compute beside it is done. It
        returns a number of its result and a second number. The function returns all second numbers, in one array.
        """
        tf = self._tf
        with tf.device(self._device):
            square = tf.fill((compute.extent, compute.extent), 1 / compute.extent)
            other = tf.ones(compute.n_numbers)

        def body(other: Any) -> Any:
            # TensorFlow runs an operator that depends on nothing at once, or long after: each needs an input to wait for.
            zero, outputs = other[0] * 1e-30, []
            early = [tf.fill([count], 1.0) * (1 + zero) for count in counts] if is_early else []
            with tf.control_dependencies(early):
                zero = tf.identity(zero)
            for number, count in enumerate(counts):
                product = tf.matmul(square * (1 + zero), square)
                zero = tf.reduce_sum(other * (1 + product[0, 0] * 1e-30)) * 1e-30
                array = early[number] if is_early else tf.fill([count], 1.0) * (1 + zero)
                result, output = take(number, array, zero)
                zero = zero + result * 1e-30
                outputs.append(output)
            with tf.control_dependencies([zero]):
                return tf.stack(outputs)

        function = tf.function(body, autograph=False).get_concrete_function(other)
        return lambda: function(other).numpy()

    def with_products(self, call: Action | Call | None, n_products: int) -> Action:
        """Return an action that runs products of float32 matrices and a call of which none waits for the other.

        The call goes into Python, or is operators in the graph.
        """
        tf = self._tf
        with tf.device(self._device):
            start = tf.fill((self.gemm_extent,) * 2, 1 / self.gemm_extent)

        def waited_for(first: Any) -> Any:
            if call is None:
                return first
            if callable(call):
                return self.called(lambda x: (call(), x)[1], first)
            count, emit = call
            return tf.reshape(emit(tf.fill([count], first)), [-1])[0]

        def body(x: Any) -> Any:
            first = x[0, 0]
            dependency = waited_for(first)
            for _ in range(n_products):
                x = tf.matmul(x, start)
            return x[0, 0] + dependency

        function = tf.function(body, autograph=False).get_concrete_function(start)
        return lambda: function(start).numpy()


def _threads_within_operators(tf: Any) -> int:
    """Return how many threads TensorFlow has within an operator; 0 for as many as there are cores, if these are several."""
    n_threads: int = tf.config.threading.get_intra_op_parallelism_threads()
    from_environment = os.environ.get("TF_NUM_INTRAOP_THREADS", "")  # which TensorFlow goes by where nothing was asked for
    if not n_threads and from_environment.isdecimal():
        n_threads = int(from_environment)
    usable = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))  # it is Linux's
    return n_threads or int(len(usable(0)) == 1)


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
