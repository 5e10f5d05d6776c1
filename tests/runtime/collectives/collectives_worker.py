"""Hold every kind of step between real processes against the simulation, for ``test_collectives.py``.

``mpirun -n 4 python -m mpi4py tests/runtime/collectives/collectives_worker.py time`` prints times instead, beside MPI's own.
"""

from __future__ import annotations

import math
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import combinations

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI
from oracles.layouts import all_layouts, all_pairs
from oracles.shards import scatter
from oracles.steps import legal_steps

from tensoropt.common.process.watchdog import ChainState
from tensoropt.costs import collective_workspace as workspace
from tensoropt.costs.collective_workspace import workspace_bytes
from tensoropt.reschedule import rank_steps
from tensoropt.reschedule.communicator import Communicator
from tensoropt.reschedule.layout import Layout
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.rank_steps import RankPath, rank_step
from tensoropt.reschedule.simulate import simulate, simulate_all_reduce, simulate_step
from tensoropt.reschedule.steps import KINDS
from tensoropt.runtime.collectives import mpi, outbox
from tensoropt.runtime.collectives.mpi import MpiCommunicator
from tensoropt.runtime.collectives.timed import TimedCommunicator

COMM = MPI.COMM_WORLD
RANK = COMM.rank
SHAPES = [(7,), (5, 7), (3, 4, 6), (4, 8)]
DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.uint8, np.complex64]


class BytesOnly:
    """Costs that make paths prefer few bytes, so that they take several steps."""

    def time_ns(self, kind, mesh, axes, n_bytes):
        return n_bytes if kind == "local" else 100 + 10 * n_bytes


def all_subsets(mesh):
    return [axes for count in range(1, len(mesh.sizes) + 1) for axes in combinations(mesh.axes, count)]


def assert_same(got, expected, what):
    assert got.dtype == expected.dtype and got.shape == expected.shape, what
    assert got.tobytes() == expected.tobytes(), f"{what}: rank {RANK} got {got}, expected {expected}"
    assert got.flags.c_contiguous and (got.size == 0 or got.ctypes.data % 64 == 0), f"{what}: not an aligned buffer"


@cache
def simulated_steps(mesh, shape):
    """Every step from every layout: this rank's shard of random real numbers, and what the simulation makes of it.

    However the ranks' communicators wait and divide what they send, this stays the same.
    """
    values, found = np.random.default_rng(1).normal(size=shape).astype(np.float32), []
    for layout in all_layouts(mesh, shape):
        shards = scatter(values, layout, np.random.default_rng(2))
        steps = [(step, simulate_step(step, shape, shards)[RANK]) for step in legal_steps(layout, shape)]
        found.append((layout, shards[RANK], steps))
    return found


def check_every_step(mesh, communicator, shape):
    """Sums depend on their order, which must be the simulation's."""
    seen = set()
    for layout, shard, steps in simulated_steps(mesh, shape):
        for step, expected in steps:
            seen.add(step.kind)
            got = rank_step(step, shape, RANK).run(shard, communicator)
            assert not np.shares_memory(got, shard), step
            assert_same(got, expected, f"{layout} {step} {shape}")
    expected = set(KINDS) - (set() if len(shape) > 1 or len(mesh.sizes) > 1 else {"all_to_all"})
    assert seen == expected, seen


def check_workspace(mesh, shape):
    """A communicator holds the predicted memory, but for blocks and chunks that are smaller on this rank."""
    communicator, foretold, item_bytes = MpiCommunicator(COMM, mesh), Counter(), 4
    communicator.prepare(all_subsets(mesh))
    for layout in all_layouts(mesh, shape):
        shards = scatter(np.ones(shape, np.float32), layout)
        for step in legal_steps(layout, shape):
            of_rank = rank_step(step, shape, RANK)
            of_rank.run(shards[RANK], communicator)
            if step.communicates:
                for name, n_bytes in workspace_bytes(of_rank, item_bytes).items():
                    foretold[name] = max(foretold[name], n_bytes)
            spare = foretold.total() - communicator.workspace_bytes
            # Slabs of tiles that are not alike needn't be the largest in the same round.
            allowed = item_bytes * COMM.size * (1 if of_rank.n_rounds(item_bytes) == 1 else 4 * math.prod(shape[1:]))
            assert 0 <= spare <= allowed, (step, foretold, communicator.workspace_bytes)
    assert foretold.total() > 0
    communicator.free()


@cache
def pairs_of(mesh, shape):
    return all_pairs(mesh, shape, 4, BytesOnly())


def check_random_paths(mesh, communicator, shape, count):
    pairs = pairs_of(mesh, shape)
    chooser = random.Random(3)
    for number in range(count):
        i, j = chooser.randrange(len(pairs.layouts)), chooser.randrange(len(pairs.layouts))
        if i == j:
            continue
        path = pairs.path(i, j)
        dtype = DTYPES[number % len(DTYPES)]
        values = np.random.default_rng(number).integers(0, 9, shape).astype(dtype)
        shards = scatter(values, path.source)
        got = RankPath.of(path, RANK).run(shards[RANK], communicator)
        assert_same(got, simulate(path, shards)[RANK], f"{path} {shape} {np.dtype(dtype)}")


def check_booleans(mesh, communicator):
    shape = (5, 7)
    pairs = all_pairs(mesh, shape, 1, BytesOnly(), all_layouts(mesh, shape, partial=False))
    values = np.random.default_rng(4).integers(0, 2, shape).astype(bool)
    for i in range(len(pairs.layouts)):
        path = pairs.path(i, (i * 5 + 1) % len(pairs.layouts))
        if path.steps:
            got = RankPath.of(path, RANK).run(scatter(values, path.source)[RANK], communicator)
            assert_same(got, scatter(values, path.target)[RANK], path)


def check_all_reduce(mesh, communicator):
    """All three algorithms (halves, gather, chunks), every dtype and operation; scalars and empty arrays."""
    for shape in [(), (0,), (1,), (3, 5), (70001,)]:
        for dtype in DTYPES:
            shard, sums = simulated_all_reduce(mesh, shape, dtype)
            for (axes, op), expected in sums.items():
                assert_same(communicator.all_reduce(axes, shard, op), expected, (shape, dtype, axes, op))


@cache
def simulated_all_reduce(mesh, shape, dtype):
    """This rank's array, and by axes and operation what the simulation makes of it."""
    rng = np.random.default_rng(5)
    shards = [np.array(abs(rng.normal(size=shape)) * 20, dtype) for _ in range(mesh.n_devices)]
    wanted = [(axes, op) for axes in all_subsets(mesh) for op in ("sum", "max", "min")]
    return shards[RANK], {each: simulate_all_reduce(shards, mesh, *each)[RANK] for each in wanted}


def check_direct_calls(mesh, communicator):
    """Pieces that do not follow each other in memory, without a buffer to receive into."""
    sends = [np.full(RANK + 1, 10 * RANK + member) for member in range(COMM.size)]
    shapes = [(member + 1,) for member in range(COMM.size)]
    for member, shard in enumerate(communicator.all_to_all(mesh.axes, sends, shapes)):
        assert shard.tolist() == [10 * member + RANK] * (member + 1)
    for member, shard in enumerate(communicator.all_gather(mesh.axes, sends[0], shapes)):
        assert shard.tolist() == [10 * member] * (member + 1)
    summed = communicator.reduce_scatter(mesh.axes, [np.full(member + 1, RANK) for member in range(COMM.size)], (RANK + 1,))
    assert summed.tolist() == [sum(range(COMM.size))] * (RANK + 1)


def check_errors(mesh, communicator):
    expect("no group was formed for axes 'a'", lambda: MpiCommunicator(COMM, mesh).all_reduce((0,), np.ones(2)))
    expect("the ranks prepare different groups", lambda: MpiCommunicator(COMM, mesh).prepare([(0,)] if RANK else []))
    expect("start that many", lambda: MpiCommunicator(COMM, Mesh.of(5)))
    expect("expected 4 of float64", lambda: communicator.all_gather((0,), np.ones(2), [(2,), (2,)], np.ones(3)))
    layout = Layout.replicated(mesh, 1)
    step = next(step for step in legal_steps(layout, (4,)) if step.kind == "keep")
    expect("expected (4,)", lambda: rank_step(step, (4,), RANK).run(np.ones(3), communicator))


def expect(message: str, call: Callable[[], object]) -> None:
    with pytest.raises((RuntimeError, ValueError), match=re.escape(message)):
        call()


def check_results(mesh: Mesh, communicator: Communicator, shapes: Sequence[tuple[int, ...]] = SHAPES) -> None:
    """What every communicator must give, whose groups are formed."""
    for shape in shapes:
        check_every_step(mesh, communicator, shape)
        check_random_paths(mesh, communicator, shape, 80)
    check_booleans(mesh, communicator)
    check_all_reduce(mesh, communicator)
    check_direct_calls(mesh, communicator)


def check(mesh: Mesh, shapes: Sequence[tuple[int, ...]], naps: bool, gives_way: bool = False) -> None:
    # So that halves travel in several parts, of which the last is smaller.
    outbox.PART_BYTES = 1 << 11
    begun = []
    communicator = MpiCommunicator(COMM, mesh, lambda: begun.append(1), naps, gives_way)
    communicator.prepare(all_subsets(mesh))
    communicator.prepare(reversed(all_subsets(mesh)))
    check_results(mesh, communicator, shapes)
    for shape in [*shapes, (90001,)]:
        check_workspace(mesh, shape)
    check_errors(mesh, communicator)
    assert len(begun) > 100 and len(set(COMM.allgather(len(begun)))) == 1
    communicator.free()


def check_calls(mesh: Mesh, communicator: MpiCommunicator, shape: tuple[int, ...]) -> None:
    """However many rounds a step takes, it is one call of as many bytes as in one round."""
    layout = Layout(mesh, (*[()] * (len(shape) - 1), mesh.axes))
    (local,) = scatter(np.ones(shape, np.float32), layout)[RANK : RANK + 1]
    for step in legal_steps(layout, shape):
        timed = TimedCommunicator(communicator)
        result = rank_step(step, shape, RANK).run(local, timed)
        moved = {"all_gather": result.nbytes, "all_to_all": local.nbytes, "all_reduce": local.nbytes}
        assert [call.n_bytes for call in timed.take()] == ([moved[step.kind]] if step.communicates else []), step


def check_rounds(mesh: Mesh, gives_way: bool) -> None:
    """Check that rounds of a few bytes each give the same, and that little is kept between collectives."""
    whole = rank_steps.ROUND_BYTES
    communicator = MpiCommunicator(COMM, mesh, gives_way=gives_way)
    communicator.prepare(all_subsets(mesh))
    for round_bytes, shapes in ((32, [(7,), (3, 4, 6)]), (1 << 12, [(6, 700), (9001,)])):
        rank_steps.ROUND_BYTES = mpi.ROUND_BYTES = workspace.ROUND_BYTES = round_bytes
        for shape in shapes:
            check_every_step(mesh, communicator, shape)
            check_calls(mesh, communicator, shape)
            if not gives_way:
                check_workspace(mesh, shape)
    rank_steps.ROUND_BYTES = mpi.ROUND_BYTES = workspace.ROUND_BYTES = 1 << 16
    check_all_reduce(mesh, communicator)
    rank_steps.ROUND_BYTES = mpi.ROUND_BYTES = workspace.ROUND_BYTES = whole
    communicator.free()


def check_two_chains(mesh: Mesh, n_rounds: int) -> None:
    """Two threads of each rank, each with its own order of small sums and large ones; pauses differ from rank to rank."""
    outbox.PART_BYTES = 1 << 12
    chains = [MpiCommunicator(COMM, mesh, naps=True), MpiCommunicator(COMM, mesh, gives_way=True)]
    for communicator in chains:
        communicator.prepare(all_subsets(mesh))
    waiting = [ChainState(), ChainState()]
    at_once = []

    def run(chain: int) -> None:
        drawn, own = random.Random(chain), random.Random(f"{chain} {RANK}")
        for number in range(n_rounds):
            axes, size = drawn.choice(all_subsets(mesh)), drawn.choice([1, 100, 3001, 40_001])
            shards = [np.random.default_rng([chain, number, rank]).normal(size=size) for rank in range(COMM.size)]
            time.sleep(own.choice([0, 0, 1e-4, 1e-3, 1e-2]))
            waiting[chain].begin("all_reduce")
            at_once.append(all(each.since_s is not None for each in waiting))
            got = chains[chain].all_reduce(axes, shards[RANK])
            waiting[chain].end()
            assert_same(got, simulate_all_reduce(shards, mesh, axes)[RANK], f"chain {chain}, round {number}")

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(run, chain) for chain in range(2)]:
            done.result()
    assert sum(at_once) > n_rounds // 10, "the chains were hardly ever busy at once"
    for communicator in chains:
        communicator.free()


def print_times() -> None:
    mesh = Mesh.of(COMM.size)
    communicator = MpiCommunicator(COMM, mesh)
    communicator.prepare([mesh.axes])
    if RANK == 0:
        print(
            f"microseconds, medians, {COMM.size} ranks\n"
            f"{'KiB':>6} {'all-reduce':>12} {'MPI':>8} {'reduce-scatter':>16} {'MPI':>8}"
        )
    for n_kib in (1, 16, 64, 256, 1024, 4096, 16384):
        times = times_us(communicator, mesh, n_kib)
        if RANK == 0:
            print(f"{n_kib:6d} {times[0]:12.0f} {times[1]:8.0f} {times[2]:16.0f} {times[3]:8.0f}", flush=True)


def times_us(communicator: MpiCommunicator, mesh: Mesh, n_kib: int) -> list[float]:
    """All-reduce, MPI's, reduce-scatter, MPI's."""
    array = np.ones(n_kib * 256 // COMM.size * COMM.size, np.float32)
    chunks = list(np.split(array, COMM.size))
    whole, chunk = np.empty_like(array), np.empty_like(chunks[0])
    calls: list[Callable[[], object]] = [
        lambda: communicator.all_reduce(mesh.axes, array),
        lambda: COMM.Allreduce(array, whole),
        lambda: communicator.reduce_scatter(mesh.axes, chunks, chunks[0].shape, array),
        lambda: COMM.Reduce_scatter_block(array, chunk),
    ]
    return [median_us(call, 40 if n_kib <= 1024 else 10) for call in calls]


def median_us(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        COMM.Barrier()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    if sys.argv[1:] == ["time"]:
        print_times()
    else:
        as_one, as_two = [Mesh.of(COMM.size)], [Mesh.of(2, 2)] * (COMM.size == 4)
        everything = "all" in sys.argv
        for mesh in as_one + as_two if everything else as_two or as_one:
            check(mesh, SHAPES, naps=False)
            # Naps change when messages come, and not what they are.
            few = SHAPES if everything else SHAPES[1:2]
            check(mesh, few, naps=True)
            check(mesh, few, naps=True, gives_way=True)
            for gives_way in (False, True):
                check_rounds(mesh, gives_way)
            check_two_chains(mesh, 300 if everything else 100)
        # Only rank 0's word, after all ranks are through.
        COMM.Barrier()
        if RANK == 0:
            print(f"all collectives agree on {COMM.size} ranks")
