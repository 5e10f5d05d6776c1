"""Measuring: with ranks that disagree about the time, alone, and under a real mpirun."""

import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.large import first
from helpers.mpirun import run_ranks

from tensoropt.profiling.collective_tables import APART_SHARE, SIZES, CollectiveTables, device_partitions
from tensoropt.profiling.compute import CLOSE
from tensoropt.profiling.cpu_caches import MOST_CACHE_BYTES, USUAL_CACHE_BYTES, cache_bytes
from tensoropt.profiling.hardware import COMMUNICATING_KINDS, CollectiveTable, Hardware, named
from tensoropt.profiling.hardware_costs import CollectiveCosts, MeasuredCurve
from tensoropt.profiling.measure import fitted_link, measure
from tensoropt.profiling.measuring_ranks import MeasuringProcess
from tensoropt.profiling.tensorflow_engine import TensorFlowEngine
from tensoropt.reschedule.layout import axes_text
from tensoropt.reschedule.mesh import Level, Mesh
from tensoropt.runtime.collectives.single import SingleCommunicator


class SlowOneCommunicator:
    """Two ranks as threads; rank 1 takes long for everything. Logs what each rank calls."""

    def __init__(self, rank, values, barrier):
        self.rank, self.values, self.barrier, self.log = rank, values, barrier, []

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)

    def all_reduce(self, axes, array, op="sum"):
        self.log.append(("all_reduce", axes, array.shape, op))
        self.values[self.rank] = array
        self.barrier.wait(timeout=20)
        result = np.maximum(*self.values) if op == "max" else sum(self.values)
        self.barrier.wait(timeout=20)
        return result

    def _collective(self, *called):
        self.log.append(called)
        time.sleep(0.002 * (1 + 9 * self.rank))

    def all_gather(self, axes, send, recv_shapes, out=None):
        assert send.shape == recv_shapes[self.rank]
        assert sum(shape[0] for shape in recv_shapes) == out.size
        self._collective("all_gather", axes, out.nbytes)

    def all_to_all(self, axes, sends, recv_shapes, out=None, joined=None):
        assert [send.shape for send in sends][self.rank] == recv_shapes[0]
        self._collective("all_to_all", axes, sum(send.nbytes for send in sends))

    def reduce_scatter(self, axes, sends, own_shape, joined=None):
        assert sends[self.rank].shape == own_shape
        self._collective("reduce_scatter", axes, sum(send.nbytes for send in sends))


class PlainEngine:
    """An engine that makes the calls and computes nothing between them."""

    is_gpu = False

    def among(self, calls, is_early, compute):
        return lambda: [call(np.ones(count, np.float32)) for count, call in calls]


def test_ranks_call_alike_though_their_clocks_differ():
    mesh, barrier, values = Mesh.of(2), threading.Barrier(2), [None, None]
    communicators = [SlowOneCommunicator(rank, values, barrier) for rank in range(2)]
    tables = [None, None]

    def run(rank):
        place = MeasuringProcess(communicators[rank], rank)
        each = CollectiveTables(PlainEngine(), mesh, place, call_us=5.0).each(0.3)
        tables[rank] = {kind: table for kind, _, table in each}  # there is one axis

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=50)
    assert communicators[0].log == communicators[1].log
    assert tables[0] == tables[1]
    assert set(tables[0]) == set(COMMUNICATING_KINDS)
    # What the slow rank takes longer the other waits; the engine's call is on top.
    assert all(2005 < time_us < 20005 for time_us in tables[0]["all_gather"].time_us)
    sizes = {size for kind, _, size in (entry[:3] for entry in communicators[0].log) if kind == "all_gather"}
    assert {SIZES[0], SIZES[1]} <= sizes <= set(SIZES)


class ToldEngine:
    """An engine whose calls take 1 ms between little compute, and 3 ms between much."""

    is_gpu, called = False, TensorFlowEngine.called

    def among_emitted(self, calls, is_early, beside):
        return lambda: np.full(len(calls), 0.001 if beside == CLOSE else 0.003)


def test_collectives_count_by_what_is_between_them():
    place = MeasuringProcess(SingleCommunicator(), emitted=lambda kind, axes, size: (size // 4, None))
    on_gpu = ToldEngine()
    on_gpu.is_gpu = True  # MPI's calls are timed as operators, so with the copies to the host and back, and the call itself
    for engine, by, call_us in ((ToldEngine(), place, 0.0), (on_gpu, MeasuringProcess(SingleCommunicator()), 20.0)):
        found_us = CollectiveTables(engine, Mesh.of(2), by, call_us).afresh("all_gather", (0,), [1024, 4096, 65536])
        assert found_us == pytest.approx(dict.fromkeys([1024, 4096, 65536], 1000 + 2000 * APART_SHARE))


def test_what_is_timed_on_a_gpu_is_between_fences():
    """There control dependencies alone would read clocks when operators are launched; here both are the host."""
    engine = TensorFlowEngine()
    engine.is_gpu = True
    calls = [(n, partial(engine.called, lambda array: (time.sleep(0.02), array)[1])) for n in (1, 1000)]
    seconds = engine.among_emitted(calls, False, CLOSE)()
    assert seconds.shape == (2,) and (seconds >= 0.02).all() and (seconds < 2.0).all()


@pytest.mark.parametrize(
    ("files", "n_bytes"),
    [({"index0": "48K\n", "index3": "32768K\n"}, 1 << 25), ({"index2": "16M\n"}, 1 << 24),
     ({"index3": "4096M\n"}, MOST_CACHE_BYTES), ({"index0": "\n"}, USUAL_CACHE_BYTES), ({}, USUAL_CACHE_BYTES)],
)  # fmt: skip
def test_the_last_cache(tmp_path, files, n_bytes):
    for name, text in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "size").write_text(text)
    assert cache_bytes(tmp_path) == n_bytes


def test_one_device_alone_has_a_description_that_can_be_saved(tmp_path):
    hardware = measure((Level("machine", 1), Level("device", 1)), budget_s=0.05)
    hardware.save(tmp_path / "alone.json")
    assert Hardware.load(tmp_path / "alone.json") == hardware
    assert hardware.parallelisms() == (1,)
    assert 1e8 < hardware.device.flops_per_s["float32"] < 1e14
    assert 1e8 < hardware.device.memory_bytes_per_s < 1e13
    assert 0 <= hardware.device.operator_overhead_us < 1e3
    assert dict(hardware.collectives) == {}
    for field in ("memory_bytes", "flops_per_s", "memory_bytes_per_s", "operator_overhead_us", "collectives", "levels"):
        assert hardware.provenance[field]


def test_what_cannot_be_measured():
    levels = (Level("device", 1),)
    for arguments, said in [
        ({"levels": levels, "budget_s": 0}, "budget.*0 s"),
        ({"levels": levels, "budget_s": float("nan")}, "budget.*nan"),
        ({"levels": (Level("device", 2),)}, "2 devices needs their communicator"),
    ]:
        with pytest.raises(ValueError, match=said):
            measure(**arguments)


def test_partitions_are_all_sets_of_axes():
    assert device_partitions(Mesh.of(1, 1)) == ()
    assert [axes_text(axes) for axes in device_partitions(Mesh.of(2, 4))] == ["a", "b", "c", "ab", "ac", "bc", "abc"]


def test_the_fit_finds_the_links_that_made_the_times():
    hardware = named("v100-3x4")
    mesh = hardware.mesh()
    costs = CollectiveCosts(hardware, mesh)
    sizes = (1 << 10, 1 << 22)
    gathers = {
        axes_text(axes): CollectiveTable(sizes, tuple(costs.time_ns("all_gather", mesh, axes, n) / 1e3 for n in sizes))
        for axes in device_partitions(mesh)
    }
    for index, level in enumerate(mesh.levels):
        link = fitted_link(level, index, mesh, {"all_gather": gathers}, hardware.device)
        assert link.latency_us == pytest.approx(hardware.levels[index].latency_us, rel=1e-2)
        assert link.bytes_per_s == pytest.approx(hardware.levels[index].bytes_per_s, rel=1e-2)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("n_ranks", "machines", "partitions"), first(2, [(2, 1, ["a"]), (4, 2, ["a", "b", "ab"]), (3, 1, ["a"])])
)
def test_ranks_under_mpirun_measure_one_description(tmp_path, n_ranks, machines, partitions):
    path = tmp_path / "measured.json"
    script = Path(__file__).with_name("measuring_rank.py")
    done = run_ranks(n_ranks, script, machines, 0.3, path)
    assert done.returncode == 0, done.stdout + done.stderr
    hardware = Hardware.load(path)
    assert hardware.n_devices == n_ranks
    assert set(hardware.collectives) == set(COMMUNICATING_KINDS)
    mesh = hardware.mesh()
    costs = CollectiveCosts(hardware, mesh)
    for kind, tables in hardware.collectives.items():
        assert list(tables) == partitions
        for axes, table in tables.items():
            assert table.n_bytes[0] <= 1 << 10
            assert table.n_bytes[-1] >= 1 << 22
            # Equal where other work took the core from the small one: a table's times are their running maximum.
            assert MeasuredCurve.of(table).time_ns(1 << 26) >= MeasuredCurve.of(table).time_ns(1 << 10) > 0
            numbers = tuple("abc".index(axis) for axis in axes)
            assert costs.source(kind, numbers).startswith("measured: measured 2")
            assert costs.time_ns(kind, mesh, numbers, 1 << 20) > 1_000
    for parallelism in hardware.parallelisms()[1:]:
        part = hardware.mesh(parallelism)
        assert CollectiveCosts(hardware, part).time_ns("all_reduce", part, part.axes, 1 << 20) > 100
