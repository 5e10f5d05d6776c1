"""Hold every kind of step by TensorFlow's or Horovod's operators against the simulation; the first argument says whose."""

from __future__ import annotations

import math
import os
import random
import socket
import sys
import time
from contextlib import nullcontext
from functools import partial
from itertools import product

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from helpers.gpu_kernels import without_kernel
from mpi4py import MPI
from oracles.layouts import all_layouts, all_pairs
from oracles.shards import scatter
from oracles.steps import legal_steps
from runtime.collectives.collectives_worker import BytesOnly, all_subsets

from tensoropt.common.errors import TensorOptError
from tensoropt.costs.collective_workspace import in_graph_bytes
from tensoropt.lowering.resharding.in_graph import GraphBackend
from tensoropt.lowering.resharding.path_callbacks import CollectiveRequest
from tensoropt.profiling.trace import traced_step
from tensoropt.reschedule.halo import LOWEST, ZERO, HaloStep, Window
from tensoropt.reschedule.layout import Layout, Shape
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import Path
from tensoropt.reschedule.rank_steps import rank_step
from tensoropt.reschedule.simulate import simulate, simulate_all_reduce
from tensoropt.reschedule.steps import COMMUNICATING
from tensoropt.runtime.collectives import tensorflow_server
from tensoropt.runtime.collectives.tensorflow import TensorFlowCollectives, chain_checked

COMM = MPI.COMM_WORLD
RANK = COMM.rank
SUMMED = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.uint8, np.uint32, np.complex64]
MOVED = [*SUMMED, np.bool_, np.int8, np.uint64, np.complex128]


def agree(text: str) -> None:
    assert len(set(COMM.allgather(text))) == 1, text


def check_paths(backend: GraphBackend, cases: list[tuple[Path, list[np.ndarray]]], reduction: str = "sum") -> None:
    """All in one graph; ``cases`` are paths with the pieces of all ranks. Of many each fourth will do, but for ``all``."""
    cases, emitter = cases[:: 4 if len(cases) > 30 and "all" not in sys.argv else 1], backend.emitter()

    def body(*shards: tf.Tensor) -> list[tf.Tensor]:
        given = zip(cases, shards, strict=True)
        return [emitter.emit(path, [shard], CollectiveRequest("a/test", "", reduction))[0] for (path, _), shard in given]

    # Extents are unknown, as those of uneven blocks are.
    signature = [tf.TensorSpec([None] * shards[0].ndim, shards[0].dtype) for _, shards in cases]
    function = tf.function(body, input_signature=signature, autograph=False)
    results = function(*(tf.constant(shards[RANK], shards[RANK].dtype) for _, shards in cases))
    for (path, shards), result in zip(cases, results, strict=True):
        if reduction == "max":
            expected = simulate_all_reduce(shards, backend.mesh, path.steps[0].axes, "max")[RANK]
        else:
            expected = simulate(path, shards)[RANK]
        got = result.numpy()
        assert got.dtype == expected.dtype and got.shape == expected.shape, f"{path} {got.dtype}"
        assert got.tobytes() == expected.tobytes(), f"{path}: rank {RANK} got {got}, expected {expected}"


def shards_of(path: Path, seed: int, dtype: type) -> list[np.ndarray]:
    """Small whole numbers, whose sums are exact in any order."""
    values = np.random.default_rng(seed).integers(0, 4, path.shape).astype(dtype)
    return scatter(values, path.source)


def check_every_step(backend: GraphBackend, shape: Shape) -> set[str]:
    cases = []
    for layout in all_layouts(backend.mesh, shape):
        for step in legal_steps(layout, shape):
            if step.communicates:
                path = Path(layout, step.target, (step,), shape)
                cases.append((path, shards_of(path, len(cases), np.float32)))
    check_paths(backend, cases)
    return {path.steps[0].kind for path, _ in cases}


def check_random_paths(backend: GraphBackend, shape: Shape, count: int) -> None:
    pairs, chooser, cases = all_pairs(backend.mesh, shape, 4, BytesOnly()), random.Random(3), []
    while len(cases) < count:
        i, j = chooser.randrange(len(pairs.layouts)), chooser.randrange(len(pairs.layouts))
        path = pairs.path(i, j)
        if path.communicates:
            sums = path.source.partial or path.target.partial
            dtype = (SUMMED if sums else MOVED)[len(cases) % len(SUMMED if sums else MOVED)]
            cases.append((path, shards_of(path, len(cases), dtype)))
    check_paths(backend, cases)


def check_memory(backend: GraphBackend) -> None:
    """The operators of a step have no more at once than is foretold, and in all not much less."""
    last, seen, sums = backend.mesh.n_devices - 1, set(), np.zeros(2)
    for shape, dtype in (((240, 64, 96), tf.float32), ((241, 63, 97), tf.bfloat16)):
        for layout in all_layouts(backend.mesh, shape):
            for step in (each for each in legal_steps(layout, shape) if each.communicates):
                largest = rank_step(step, shape, last)
                case = shape, step.kind, largest.sends_in_place
                if case not in seen:
                    taken = taken_bytes(backend, Path(layout, step.target, (step,), shape), dtype)
                    foretold = in_graph_bytes(largest, dtype.size)
                    assert taken <= foretold + (1 << 16), f"{case}: {taken} bytes, foretold {foretold}"
                    sums += taken, foretold
                seen.add(case)
    assert sums[0] > sums[1] / 2, sums


def taken_bytes(backend: GraphBackend, path: Path, dtype: tf.DType) -> int:
    """Return the most bytes that any rank has allocated at once beside a path's operand and result."""
    emitter, own = backend.emitter(), rank_step(path.steps[0], path.shape, RANK)

    def body(shard: tf.Tensor) -> tf.Tensor:
        return emitter.emit(path, [shard], CollectiveRequest("a/test", "", "sum"))[0]

    function = tf.function(body, autograph=False).get_concrete_function(tf.TensorSpec([None] * 3, dtype))
    shard = tf.zeros(own.local_shape, dtype)
    results = [function(shard)]
    COMM.barrier()
    trace = traced_step(lambda: results.append(function(shard)))
    return max(COMM.allgather(trace.peak_bytes - math.prod(own.result_shape) * dtype.size))


def check_halos(backend: GraphBackend) -> None:
    """Windows that reach into one or several other blocks, blocks of one, filled ends, both ways."""
    mesh, cases = backend.mesh, []
    for window in [Window(3, 1, 1, 1, 9, 9), Window(5, 1, 1, 2, 5, 5), Window(3, 2, 1, 0, 11, 5), Window(2, 2, 1, 0, 8, 4)]:
        shape = (2, window.extent, 3)
        for axes in all_subsets(mesh):
            if mesh.size_of(axes) > window.most_blocks:
                continue
            layout = Layout(mesh, ((), axes, ()))
            for fill in (ZERO, LOWEST):
                step = HaloStep("halo", layout, (None, window, None), fill)
                for each in (step, step.backward()):
                    if not each.communicates:
                        continue
                    path = Path(layout, layout, (each,), shape)
                    rng = np.random.default_rng(len(cases))
                    shards = [rng.integers(0, 9, extents_before(each, shape, rank)).astype(np.float64)
                              for rank in range(mesh.n_devices)]
                    cases.append((path, shards))
    assert len(cases) > 3
    check_paths(backend, cases)


def extents_before(step: HaloStep, shape: Shape, rank: int) -> Shape:
    bounds = step.layout.bounds(shape, rank) if step.kind == "halo" else step.frame(shape, rank)
    return tuple(end - start for start, end in bounds)


def check_real_numbers(backend: GraphBackend) -> None:
    """Sums hang on their order: it is the simulation's, so that replicas of other groups agree. Maxima don't."""
    cases = []
    for axes in all_subsets(backend.mesh):
        layout = Layout(backend.mesh, ((), ()), axes)
        for step in legal_steps(layout, (3, 7)):
            if step.communicates:
                values = [np.random.default_rng(rank).normal(size=(3, 7)) for rank in range(backend.mesh.n_devices)]
                cases.append((Path(layout, step.target, (step,), (3, 7)), values))
    assert {path.steps[0].kind for path, _ in cases} == {"all_reduce", "reduce_scatter"}
    if backend.collectives.in_rank_order:
        check_paths(backend, cases)
    check_paths(backend, [case for case in cases if case[0].steps[0].kind == "all_reduce"], "max")


def check_that_a_lost_chain_is_seen() -> None:
    """Two collectives that neither waits for the other, and the same in a chain, as TensorFlow runs them."""
    mesh = Mesh.of(COMM.size)
    for is_chained in (True, False):
        collectives = TensorFlowCollectives(COMM, mesh, is_chained)

        @tf.function(input_signature=[tf.TensorSpec([3])], autograph=False)
        def both(x: tf.Tensor, collectives: TensorFlowCollectives = collectives) -> list[tf.Tensor]:
            return [collectives.all_reduce(mesh.axes, x + number, "max", f"reduce{number}") for number in range(2)]

        with nullcontext() if is_chained else pytest.raises(TensorOptError), chain_checked():
            both(tf.fill([3], float(RANK)))


def check_what_nccl_is_given(backend: GraphBackend) -> None:
    """Each reduce-scatter as one operator, built and not run: CPUs have no kernel."""
    mesh, request = backend.mesh, CollectiveRequest("a/test", "")
    by_nccl = GraphBackend(mesh, RANK, TensorFlowCollectives(COMM, mesh, True, True, in_order=False))
    for shape, axes in product([(4, 12), (5, 7)], all_subsets(mesh)):
        for step in [each for each in legal_steps(Layout(mesh, ((), ()), axes), shape) if each.kind == "reduce_scatter"]:
            with tf.Graph().as_default() as graph:
                value = tf.compat.v1.placeholder(tf.bfloat16, shape)
                by_nccl.emitter().emit(Path(step.source, step.target, (step,), shape), [value], request)
            (one,) = [op for op in graph.get_operations() if op.type.startswith("Collective")]
            assert one.type == "CollectiveReduceScatterV2" and one.inputs[0].dtype == tf.float32, one
            assert not without_kernel(graph), one


def check_pauses(backend: GraphBackend, n_steps: int) -> None:
    """Sums over rows, columns and all ranks, and in a chain messages between two halves; ranks pause before each of them."""
    mesh, drawn, collectives = backend.mesh, random.Random(RANK), backend.collectives

    def pause(value: np.ndarray) -> np.ndarray:
        time.sleep(drawn.choice([0, 0, 1e-3, 3e-3]))
        return value

    groups, other, received = all_subsets(mesh) * 3, (RANK + COMM.size // 2) % COMM.size, []

    def message(number: int, sent: np.ndarray) -> list[np.ndarray]:
        if (other > RANK) == (number % 2 == 0):
            COMM.send(pause(sent), other, number)
        else:
            received.append((COMM.recv(source=other, tag=number) == sent + other - RANK).all())
        return []

    def body(x: tf.Tensor) -> list[tf.Tensor]:
        results = []
        for i, axes in enumerate(groups):
            each = tf.ensure_shape(tf.numpy_function(pause, [x + i], tf.float32), [4])
            results.append(collectives.all_reduce(axes, each, "max", f"reduce{i}"))
            if collectives._is_chained:
                collectives.call(partial(message, i), [each], [])
        return results

    function = tf.function(body, autograph=False).get_concrete_function(tf.TensorSpec([4]))
    for step in range(n_steps):
        results = function(tf.fill([4], float(RANK + step)))
        for number, (axes, result) in enumerate(zip(groups, results, strict=True)):
            assert (result.numpy() == max(mesh.group(axes, RANK)) + step + number).all(), (step, axes)
    assert all(received) and bool(received) == collectives._is_chained


def start_server() -> None:
    """Start TensorFlow's server, of which the last rank finds its first port taken."""
    with socket.socket() as taken:
        if COMM.size - 1 == RANK:
            taken.bind(("", 0))
            taken.listen()
            free, ports = tensorflow_server.free_port, iter([taken.getsockname()[1]])
            tensorflow_server.free_port = lambda: next(ports, None) or free()
        os.environ["TENSOROPT_COLLECTIVES"] = "tensorflow"
        tensorflow_server.start_if_asked()
    assert tensorflow_server.is_running()


def backends(mesh: Mesh, everything: bool) -> list[GraphBackend]:
    """By Horovod's operators; or by TensorFlow's, without order or in one chain, with sums in the order of ranks or not."""
    if sys.argv[1] == "horovod":
        from tensoropt.runtime.collectives.horovod import HorovodCollectives

        return [GraphBackend(mesh, RANK, HorovodCollectives(COMM, mesh, agree))]
    orders = [(False, True), (True, True), (True, False)] if everything else [(COMM.size == 4, True)]
    return [GraphBackend(mesh, RANK, TensorFlowCollectives(COMM, mesh, a, in_order=b)) for a, b in orders]


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    if sys.argv[1] == "tensorflow":
        start_server()
        check_that_a_lost_chain_is_seen()
    # All that is held in one graph would keep TensorFlow's graph optimizer busy for most of the time.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    as_one, as_two = [Mesh.of(COMM.size)], [Mesh.of(2, 2)] * (COMM.size == 4)
    everything = "all" in sys.argv
    meshes = as_one + as_two if everything else as_two or as_one
    for backend in [each for mesh in meshes for each in backends(mesh, everything)]:
        if sys.argv[1] == "tensorflow":
            check_what_nccl_is_given(backend)
        kinds = set()
        for shape in [(5, 7), (4, 8), (7,)] if everything else [(5, 7)]:
            kinds |= check_every_step(backend, shape)
        assert kinds == set(COMMUNICATING), kinds
        for shape in [(5, 7), (3, 4, 6)]:
            check_random_paths(backend, shape, 40 if everything else 10)
        check_halos(backend)
        check_real_numbers(backend)
        if backend.collectives.in_rank_order and sys.argv[1] == "tensorflow" and COMM.size == 3:
            check_memory(backend)
        if everything and backend.mesh.sizes == (2, 2) and backend.collectives.in_rank_order:
            check_pauses(backend, 1000)
    if RANK == 0:
        print(f"every step on {COMM.size} ranks")


if __name__ == "__main__":
    sys.exit(main())
