"""``tensoropt check``: traces, what a transfer took without waiting, the comparison, and a plan that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers.mpirun import run_ranks
from helpers.timelines import tasks_of
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tensoropt.lowering.resharding.backends import TimedBackend
from tensoropt.profiling.hardware import named
from tensoropt.profiling.trace import MemoryEvent, read_trace, traced_peak, traced_step
from tensoropt.reschedule.layout import Layout
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import cheapest_path
from tensoropt.runtime.collectives.single import SingleCommunicator
from tensoropt.runtime.collectives.timed import TimedCommunicator
from tensoropt.runtime.measuring.synthetic_batch import synthetic_batch
from tensoropt.sharding.resharding import PlainCosts
from tensoropt.tools.cli.main import main
from tensoropt.tools.cli.runs.check import comparison_text
from tensoropt.tools.offline import record_named
from tensoropt.tools.plan_check import UPDATES, Compared, PlanCheck, comparison_json, transfers_s

MODEL = f"{Path(__file__).with_name('check_model.py')}:model"
PARAMETER_BYTES = (3 * 3 * 3 * 16 + 16 + 4096 * 6) * 4


def test_the_peak_of_a_worked_example():
    allocations = [(0, 1, 100), (1, 2, 50), (2, 1, 0), (3, 3, 120), (4, 7, 0), (5, 2, 0), (6, 2, 10)]
    events = [MemoryEvent(*each) for each in allocations]
    assert traced_peak(events) == traced_peak(reversed(events)) == 170
    assert traced_peak([]) == traced_peak([MemoryEvent(0, 5, 0)]) == 0
    # A copy of 60 takes the place of what was there before.
    assert traced_peak([MemoryEvent(0, 1, 60), MemoryEvent(1, 9, -60), MemoryEvent(2, 2, 50), MemoryEvent(3, 2, -50)]) == 60


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100))))
def test_the_peak_is_the_largest_sum_of_what_is_alive(steps):
    events = [MemoryEvent(number, address, n_bytes) for number, (address, n_bytes) in enumerate(steps)]
    sums = [0]
    for number in range(len(steps)):
        alive = dict(steps[: number + 1])
        sums.append(sum(alive.values()))
    assert traced_peak(events) == max(sums)


def test_a_real_step_s_operators_and_peak():
    side = 256
    x = tf.ones((side, side))

    @tf.function(autograph=False)
    def step():
        return tf.reduce_sum(tf.matmul(tf.matmul(x, x, name="first"), x, name="second"))

    step()
    trace = traced_step(step)
    assert {"first", "second"} <= set(trace.operators_us)
    assert all(time_us >= 0 for time_us in trace.operators_us.values()) and trace.operators_us["first"] > 0
    # Both products are there while the second is computed, and little else.
    assert 2 * 4 * side**2 <= trace.peak_bytes < 3 * 4 * side**2
    # What others hold meanwhile is told by the system's clock.
    now: list[MemoryEvent] = []

    def beside() -> list[MemoryEvent]:
        return now

    def held():
        now.append(MemoryEvent(time.time_ns() * 1000, 1, 10**7))
        step()
        now.append(MemoryEvent(time.time_ns() * 1000, 1, 0))

    assert traced_step(held, beside).peak_bytes - trace.peak_bytes == 10**7


def test_operators_of_a_gpu_take_the_time_of_their_kernels():
    space = xplane_pb2.XSpace()
    host, device = space.planes.add(name="/host:CPU"), space.planes.add(name="/device:GPU:0")

    def written(plane, name: str, at_ps: int, ps: int, **stats: int | str) -> None:
        event = (plane.lines[0] if plane.lines else plane.lines.add(id=1)).events.add(offset_ps=at_ps, duration_ps=ps)
        event.metadata_id = len(plane.event_metadata) + 1
        plane.event_metadata[event.metadata_id].name = name
        for key, value in stats.items():
            stat = event.stats.add(metadata_id=len(plane.stat_metadata) + 1)
            plane.stat_metadata[stat.metadata_id].name = key
            if isinstance(value, int):
                stat.int64_value = value
            else:
                stat.ref_value = len(plane.stat_metadata) + 1
                plane.stat_metadata[stat.ref_value].name = value

    written(host, "dense/MatMul:MatMul", 0, 7_000_000)  # Its launch.
    written(host, "Shape:Shape", 8_000_000, 1_000_000)  # On the host.
    written(device, "ampere_sgemm_128x64_nn", 5_000_000, 40_000_000, tf_op="dense/MatMul:MatMul")
    written(device, "splitKreduce_kernel", 45_000_000, 2_000_000, tf_op="dense/MatMul:MatMul")
    written(device, "MemcpyH2D", 0, 3_000_000)
    for allocator, n_bytes in (("GPU_0_bfc", 512), ("gpu_host_bfc", 4096), ("cpu", 64)):
        written(host, "MemoryAllocation", 1, 0, allocator_name=allocator, requested_bytes=n_bytes, addr=n_bytes)
    trace = read_trace(space.SerializeToString())
    assert trace.operators_us == {"dense/MatMul": 42.0, "Shape": 1.0}
    assert trace.peak_bytes == 512


def test_a_transfer_takes_what_it_took_the_last_rank_to_come():
    mesh = Mesh.of(2, 2)
    # Two steps of two calls: over both axes, then over the second, where ranks 0, 1 and ranks 2, 3 are groups.
    seconds = [np.array(rows) for rows in ([[9, 5], [1, 1]], [[8, 2], [2, 1]], [[1, 7], [3, 4]], [[7, 4], [4, 6]])]
    assert transfers_s(mesh, [(0, 1), (1,)], seconds).tolist() == [[1, 4], [1, 4]]


def test_a_timed_communicator_writes_down_kind_axes_bytes_and_seconds():
    now = iter(range(100))
    timed = TimedCommunicator(SingleCommunicator(), lambda: float(next(now)))
    shard = np.ones((4, 2), np.float32)
    timed.all_gather((0,), shard, [(4, 2)], timed.empty((4, 2), np.float32))
    timed.all_to_all((1,), [shard], [(4, 2)])
    assert timed.reduce_scatter((0, 1), [shard], (4, 2)).tolist() == shard.tolist()
    timed.all_reduce((0,), shard)
    calls = timed.take()
    assert [(call.kind, call.axes) for call in calls] == [
        ("all_gather", (0,)), ("all_to_all", (1,)), ("reduce_scatter", (0, 1)), ("all_reduce", (0,))
    ]
    assert {(call.n_bytes, call.seconds) for call in calls} == {(32, 1.0)}
    assert timed.take() == ()


def test_rounds_of_one_collective_are_one_call():
    now = iter(range(100))
    timed = TimedCommunicator(SingleCommunicator(), lambda: float(next(now)))
    timed.all_reduce((0,), np.ones(3, np.float32))
    with timed.rounds():
        for _ in range(3):
            timed.all_gather((0,), np.ones((4, 2), np.float32), [(4, 2)])
    calls = [(call.kind, call.n_bytes, call.seconds) for call in timed.take()]
    assert calls == [("all_reduce", 12, 1.0), ("all_gather", 96, 3.0)]


def test_a_timed_communicator_follows_its_results_until_nothing_refers_to_them():
    timed = TimedCommunicator(SingleCommunicator(), follows_memory=True)
    shard = np.ones((4, 2), np.float32)
    first = timed.all_reduce((0,), shard)
    part = first[1:]
    second = timed.empty((8,), np.float64)
    assert [event.n_bytes for event in timed.take_memory()] == [32, 64]
    del first
    assert timed.take_memory() == ()
    del part, second
    released = timed.take_memory()
    assert [event.n_bytes for event in released] == [0, 0] and released[0].time_ps <= released[1].time_ps


def test_a_timed_backend_adds_up_what_paths_take():
    mesh, now = Mesh.of(2), iter(range(100))
    summed = cheapest_path(Layout(mesh, ((), ()), (0,)), Layout.replicated(mesh, 2), (4, 2), 4, PlainCosts())
    backend = TimedBackend(mesh, 0, SingleCommunicator(), clock=lambda: 3.0 * next(now))
    shard = np.ones((4, 2), np.float32)
    for run in (backend.runner(summed, "a sum"), backend.runner(summed, "a maximum", "max")):
        assert run(shard)[0].tolist() == shard.tolist()
    assert backend.take() == 6.0 and backend.take() == 0.0


def test_the_report_puts_the_most_wrong_first():
    rows = tuple(Compared(f"op{i}", 1000.0, 1000.0 + 100 * i) for i in range(8))
    total = Compared("step", 900.0, 1000.0)
    memory = Compared("memory", 2e6, 1e6)
    check = PlanCheck(
        step=total, steps_us=(900.0, 1000.0, 1100.0), compute=total, network=total, waiting_us=7.0, memory=memory,
        memory_bytes=(10**6,), collectives=(), operators=rows, edges=(), timeline={},
    )
    text = comparison_text(check)
    assert [line.split()[0] for line in text.splitlines() if line.startswith("op")] == ["op7", "op6", "op5", "op4", "op3"]
    assert "-10%" in text and "+100%" in text and "1 MB" in text
    assert "edges" not in text
    assert Compared("x", 1.0, 0.0).error is None
    unseen = replace(check, memory=Compared("memory", 2e6, 0.0), memory_bytes=())
    (row,) = (line for line in comparison_text(unseen).splitlines() if line.startswith("memory"))
    assert "2 MB" in row and "TF_ENABLE_ONEDNN_OPTS=1" in row and "%" not in row
    written = comparison_json(unseen)["memory_bytes"]
    assert written["measured"] == 0 and written["ranks"] == []


def test_memory_is_not_measured_where_tensorflow_reports_none(everything):
    code = (
        "import tensorflow as tf; from tensoropt.profiling.trace import traced_step;"
        "x = tf.ones([512, 512]); trace = traced_step(lambda: tf.exp(x));"
        "print(trace.reports_memory, trace.peak_bytes >= 2**20)"
    )
    for is_on, expected in (("0", "False False"), ("1", "True True"))[: 2 if everything else 1]:
        environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": is_on}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


def test_synthetic_batches_are_in_range():
    graph = record_named(MODEL).model.graph
    batch = {tensor.name: value for tensor, value in synthetic_batch(graph).items()}
    assert set(batch) == {"x:0", "y:0"}
    assert batch["y:0"].min() >= 0 and batch["y:0"].max() == 5  # six classes
    assert batch["x:0"].dtype == np.float32 and batch["x:0"].shape == (16, 32, 32, 3)


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    hardware = named("v100-1x2")
    replace(hardware, name="two").save(folder / "two.json")
    file = folder / "plan.json"
    # So little memory that something is split.
    asked = ["--cluster", "v100-1x2", "--optimizer", "momentum", "--memory", "2MB", "--plan", str(file)]
    asked += ["--without", "accumulate"]
    assert main(["search", MODEL, *asked]) == 0
    return file


def test_ranks_run_a_plan_and_compare(plan, tmp_path):
    file = tmp_path / "check.json"
    done = run_ranks(2, "-m", "tensoropt", "check", MODEL, "--plan", plan, "--optimizer", "momentum", "--steps", 5,
                     "--cluster", plan.with_name("two.json"), "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("predicted    measured", "waiting", "peak by rank", "the 5 operators most wrong", f"wrote {file}"):
        assert text in done.stdout
    found, planned = json.loads(file.read_text()), json.loads(plan.read_text())
    assert found["step_us"]["predicted"] == planned["time_us"] and len(found["step_us"]["steps"]) == 5
    # The profiler doesn't see tensors as small as the batch, what is pooled of half of it, and the gradient of that.
    unseen = found["memory_bytes"]["predicted"] - found["memory_bytes"]["measured"]
    assert 0 <= unseen <= 1.01 * 4 * (16 * 32 * 32 * 3 + 2 * 8 * 4096)
    assert len(found["memory_bytes"]["ranks"]) == 2
    operators = {row["name"]: row for row in found["operators_us"]}
    predicted = sum(row["predicted"] for row in operators.values())
    assert predicted == pytest.approx(planned["compute_time_us"], rel=1e-3)
    assert operators[UPDATES]["measured"] > 0
    assert all(row["measured"] > 0 for name, row in operators.items() if "Conv2D" in name or "MatMul" in name)
    counted = sum(row["count"] for row in found["collectives_us"])
    timeline = found["timeline"]
    assert timeline["devices"] == [[0], [1]] and {"forward", "backward", "update"} <= set(timeline["kinds"])
    tasks = tasks_of(timeline)
    assert 0 < max(start + duration for _, _, start, duration, *_ in tasks) <= timeline["makespan_ns"]
    assert {(device, lane) for device, lane, *_ in tasks} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert sum(1 for device, lane, *_ in tasks if (device, lane) == (0, 1)) == counted
    # The page takes what the check wrote.
    page = plan.with_name("report.html")
    assert main(["report", str(plan), "--measured", str(file), "-o", str(page), "--json", str(tmp_path / "page.json")]) == 0
    assert json.loads((tmp_path / "page.json").read_text())["measured"]["timeline"] == timeline
    # Of a bucket each gradient counts for its operator.
    assert 0 < counted <= sum(row["count"] for row in found["edges_us"])


def test_stages_are_compared_each_on_its_rank(plan, tmp_path):
    stages, file = tmp_path / "stages.json", tmp_path / "check.json"
    asked = ["--cluster", "v100-1x2", "--optimizer", "momentum", "--stages", "2", "--micro-batches", "2"]
    assert main(["search", MODEL, *asked, "--plan", str(stages)]) == 0
    done = run_ranks(2, "-m", "tensoropt", "check", MODEL, "--plan", stages, "--optimizer", "momentum", "--steps", 3,
                     "--cluster", plan.with_name("two.json"), "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    found, planned = json.loads(file.read_text()), json.loads(stages.read_text())
    assert found["step_us"]["predicted"] == planned["time_us"] and len(found["step_us"]["steps"]) == 3
    assert found["memory_bytes"]["predicted"] == planned["peak_bytes"]
    assert found["collectives_us"] == [] and found["network_us"]["measured"] == 0
    measured = {row["name"]: row["measured"] for row in found["operators_us"]}
    assert all(time_us > 0 for name, time_us in measured.items() if "Conv2D" in name or "MatMul" in name)
    assert {device for device, *_ in tasks_of(found["timeline"])} == {0, 1}
    page = tmp_path / "page.json"
    made = ["-o", str(tmp_path / "report.html"), "--json", str(page)]
    assert main(["report", str(stages), "--measured", str(file), *made]) == 0
    for shown in (stage["report"]["measured"] for stage in json.loads(page.read_text())["stages"]):
        assert shown["timeline"] == found["timeline"] and shown["step_us"]["measured"] == found["step_us"]["measured"]


def test_one_device_alone(tmp_path, capsys):
    file, found = tmp_path / "plan.json", tmp_path / "check.json"
    assert main(["search", MODEL, "--cluster", "v100-1x1", "--plan", str(file)]) == 0
    assert main(["check", MODEL, "--plan", str(file), "--steps", "3", "--cluster", "v100-1x1", "--json", str(found)]) == 0
    check = json.loads(found.read_text())
    assert check["network_us"]["measured"] == 0 and check["collectives_us"] == []
    # At the peak the pooling's gradient is computed: the activation and its gradient are there, and what is pooled.
    activation = 16 * 32 * 32 * 16 * 4
    assert PARAMETER_BYTES + 2.25 * activation < check["memory_bytes"]["measured"] < PARAMETER_BYTES + 3 * activation
    capsys.readouterr()
    for arguments, said in [
        (["--steps", "0"], "--steps takes a positive number"),
        (["--plan", str(tmp_path / "none.json")], "none.json' can't be read"),
        (["--json", str(tmp_path)], "that is a folder"),
    ]:
        assert main(["check", MODEL, "--plan", str(file), "--cluster", "v100-1x1", *arguments]) == 2
        assert said in capsys.readouterr().err
