"""Costs of collectives and operators against worked examples and laws."""

import pickle
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.profiling.hardware import CollectiveTable, Device, Hardware, LinkLevel, named
from tensoropt.profiling.hardware_costs import KINDS, MeasuredCurve, OperatorCosts, collective_costs
from tensoropt.profiling.work import WorkItem
from tensoropt.reschedule.mesh import Mesh

DEVICE = Device("d", 10**9, {"float32": 1e12}, 1e11, operator_overhead_us=2.0)
# 3 machines with 1 byte/ns and 10 us, 4 devices each with 10 bytes/ns and 1 us
HARDWARE = Hardware("worked", DEVICE, (LinkLevel("machine", 3, 10.0, 1e9), LinkLevel("device", 4, 1.0, 1e10)))
MESH = HARDWARE.mesh()
COSTS = collective_costs(HARDWARE, MESH)
N = 12_000_000


def test_equal_hardware_has_one_object_of_costs():
    costs = collective_costs(HARDWARE, MESH)
    assert pickle.loads(pickle.dumps(costs)) is costs


@pytest.mark.parametrize(
    ("kind", "axes", "expected_ns"),
    [
        # one machine, ring of 4: 3 messages of 1 us, 3/4 of the bytes at 10 bytes/ns
        ("all_gather", (1, 2), 3_000 + 900_000),
        ("reduce_scatter", (1, 2), 3_000 + 900_000),
        ("all_reduce", (1, 2), 6_000 + 1_800_000),
        ("all_to_all", (1, 2), 3_000 + 900_000),
        # pairs within a machine: each device has its own link
        ("all_gather", (2,), 1_000 + 600_000),
        # machines only: 4 groups share a machine's link; 2 messages of 10 us, 2/3 of the bytes at 1/4 byte/ns
        ("all_gather", (0,), 20_000 + 32_000_000),
        ("all_reduce", (0,), 40_000 + 64_000_000),
        ("all_to_all", (0,), 20_000 + 32_000_000),
        # two members per machine, 2 groups share the link: (inner) 1/2 at 10, (outer) 2/3 at 1/2
        ("all_gather", (0, 1), 21_000 + 600_000 + 16_000_000),
        # all of a machine in one group: nothing contends, but in an all-to-all all 4 devices send out 2/3 of theirs
        ("all_reduce", (0, 1, 2), 46_000 + 1_800_000 + 16_000_000),
        ("all_to_all", (0, 1, 2), 23_000 + 900_000 + 32_000_000),
        ("local", (0, 1, 2), 240_000),
    ],
)
def test_the_ring_model_on_worked_examples(kind, axes, expected_ns):
    assert COSTS.time_ns(kind, MESH, axes, N) == expected_ns


def test_a_gather_and_a_scatter_are_an_all_reduce_and_axes_are_a_set():
    for size in range(1, 4):
        for axes in combinations(MESH.axes, size):
            gather, scatter, both = (
                COSTS.time_ns(kind, MESH, axes, N) for kind in ("all_gather", "reduce_scatter", "all_reduce")
            )
            assert both == gather + scatter
            assert COSTS.time_ns("all_gather", MESH, axes[::-1], N) == gather


@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_one_device_are_free_and_others_never(kind):
    assert COSTS.time_ns(kind, MESH, (), N) == 0
    fast = replace(HARDWARE, levels=tuple(replace(lv, latency_us=0, bytes_per_s=1e15) for lv in HARDWARE.levels))
    least = collective_costs(fast, MESH).time_ns(kind, MESH, (1,), 0)
    assert least == (0 if kind == "local" else 1)


def test_what_can_be_asked():
    for arguments, said in [
        (("broadcast", MESH, (0,), 1), "unknown kind.*'broadcast'.*all_reduce"),
        (("all_gather", MESH, (3,), 1), r"axes \(3,\)"),
        (("all_gather", MESH, (1, 1), 1), r"axes \(1, 1\)"),
        (("all_gather", MESH, (1,), -1), "-1 bytes"),
        (("all_gather", Mesh.of(2, 2), (1,), 1), "these costs are for mesh"),
    ]:
        with pytest.raises(ValueError, match=said):
            COSTS.time_ns(*arguments)
    for wrong in (Mesh.of(4, 3), Mesh.of(12)):
        with pytest.raises(ValueError, match="is not one of worked"):
            collective_costs(HARDWARE, wrong)
    with pytest.raises(ValueError, match="parallelism 5"):
        collective_costs(HARDWARE, Mesh.of(5))
    mesh = Mesh.of(3, 4)  # levels are matched by their counts, not their names
    assert collective_costs(HARDWARE, mesh).time_ns("all_gather", mesh, (0, 1), N) == 16_621_000


def test_a_measurement_is_preferred_and_named_on_the_mesh_where_it_holds():
    table = CollectiveTable((1000, 2000), (7.0, 9.0))
    provenance = {"levels": "sheet", "collectives": "bench", "memory_bytes_per_s": "ram"}
    hardware = replace(HARDWARE, collectives={"all_gather": {"bc": table, "a": table}}, provenance=provenance)
    whole, machine = (collective_costs(hardware, hardware.mesh(p)) for p in (12, 4))
    assert whole.time_ns("all_gather", whole.mesh, (2, 1), 1000) == 7_000
    assert whole.time_ns("all_gather", whole.mesh, (0,), 2000) == 9_000
    assert machine.time_ns("all_gather", machine.mesh, (0, 1), 1000) == 7_000
    assert machine.time_ns("all_reduce", machine.mesh, (0, 1), 0) == 6_000
    part = collective_costs(hardware, hardware.mesh(2))
    assert part.time_ns("all_gather", part.mesh, (0,), 0) == 1_000
    assert whole.source("all_gather", (1, 2)) == "measured: bench"
    assert whole.source("all_gather", (1,)) == "modelled: sheet"
    assert whole.source("local", (1,)) == "modelled: ram"


def test_interpolation_is_the_paper_s_between_neighbouring_powers_of_two():
    curve = MeasuredCurve.of(CollectiveTable((1024, 2048), (10.0, 16.0)))
    bandwidth = (1024 / 10_000 + 2048 / 16_000) / 2  # half way, bytes per ns
    assert curve.time_ns(1536) == pytest.approx(1536 / bandwidth, rel=1e-12)


def test_latency_plus_bandwidth_is_met_exactly_over_wide_gaps_and_beyond():
    curve = MeasuredCurve.of(CollectiveTable((1 << 10, 1 << 14, 1 << 18), tuple(5 + 1e-3 * 2.0**i for i in (10, 14, 18))))
    for n_bytes in (0, 1, 1000, 5000, 1 << 16, 1 << 20, 10**9):
        assert curve.time_ns(n_bytes) == pytest.approx(5_000 + n_bytes, rel=1e-9)


def test_noise_at_the_end_is_not_an_infinite_bandwidth():
    curve = MeasuredCurve.of(CollectiveTable((1000, 2000, 3000), (1.0, 3.0, 2.5)))
    assert curve.time_ns(3000) == 3_000
    assert curve.time_ns(5000) == 5_000  # the slope of the whole table, 1 ns per byte


tables = st.dictionaries(st.integers(1, 1 << 20), st.floats(1e-3, 1e6), min_size=2, max_size=8).map(
    lambda rows: CollectiveTable(tuple(sorted(rows)), tuple(rows[size] for size in sorted(rows)))
)


@given(tables, st.lists(st.integers(0, 1 << 22), min_size=2, max_size=10))
def test_a_curve_is_monotone_positive_and_exact_at_running_maxima(table, sizes):
    curve = MeasuredCurve.of(table)
    asked = sorted({*sizes, *table.n_bytes})
    times = [curve.time_ns(size) for size in asked]
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(times))
    assert all(time >= 0 for time in times)
    so_far = 0.0
    for size, time_us in zip(table.n_bytes, table.time_us, strict=True):
        so_far = max(so_far, time_us * 1e3)
        assert curve.time_ns(size) == pytest.approx(so_far, rel=1e-12)


@given(st.sampled_from(KINDS), st.sets(st.integers(0, 2)), st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_times_are_whole_and_monotone_in_bytes_and_contention(kind, axes, first, second):
    few, many = sorted((first, second))
    axes = tuple(axes)
    times = [COSTS.time_ns(kind, MESH, axes, n_bytes) for n_bytes in (few, many)]
    assert all(type(time) is int for time in times)
    assert times[0] <= times[1]
    inside = tuple(axis for axis in axes if axis > 0)
    machine = collective_costs(HARDWARE, HARDWARE.mesh(4))
    alone = machine.time_ns(kind, machine.mesh, tuple(axis - 1 for axis in inside), many)
    if kind != "local":
        assert alone <= times[1]


def test_the_operator_roofline():
    costs = OperatorCosts(HARDWARE)
    for flops, n_bytes, expected_ns in [
        (0, 0, 2_000),
        (10**9, 0, 2_000 + 1_000_000),
        (10**9, 10**8, 2_000 + 1_000_000),  # compute and bytes take as long
        (10**9, 2 * 10**8, 2_000 + 2_000_000),
    ]:
        assert costs.time_ns(WorkItem("Relu", "float32", flops, n_bytes)) == expected_ns
    # the backward pass of two gradients is one more operator of twice the work
    assert costs.time_ns(WorkItem("Mul", "float32", 10**9, 0, 2)) == 2_000 + 1_000_000 + 2_000 + 2_000_000
    for flops, n_bytes in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="at least 0"):
            WorkItem("Relu", "float32", flops, n_bytes)


@pytest.mark.parametrize(
    ("rates", "dtype", "rate"),
    [({}, "float64", 0.5e12), ({}, "int64", 0.5e12), ({"float64": 1e11}, "float64", 1e11),
     ({"float64": 1e11}, "complex128", 1e11), ({}, "float16", 1e12), ({"float16": 8e12}, "bfloat16", 8e12),
     ({"bfloat16": 9e12}, "float16", 9e12), ({"float16": 8e12, "bfloat16": 9e12}, "bfloat16", 9e12),
     ({"float16": 8e12}, "int32", 1e12), ({}, "bool", 1e12), ({}, "string", 1e12)],
)  # fmt: skip
def test_a_dtype_without_a_rate_takes_its_nearest(rates, dtype, rate):
    device = replace(DEVICE, flops_per_s={"float32": 1e12, **rates}, operator_overhead_us=0)
    costs = OperatorCosts(replace(HARDWARE, device=device))
    assert costs.time_ns(WorkItem("MatMul", dtype, 10**12, 0)) == round(10**12 / rate * 1e9)


def test_a_data_parallel_step_of_the_paper_s_cluster_is_of_its_order():
    # VGG16's 138 million float32 parameters over 16 devices: Table 4 has 0.16 s a step for data parallelism, most of it
    # this all-reduce.
    hardware = named("v100-2x8")
    mesh = hardware.mesh()
    time_ns = collective_costs(hardware, mesh).time_ns("all_reduce", mesh, mesh.axes, 138_357_544 * 4)
    assert 0.03e9 < time_ns < 0.16e9


@given(st.booleans(), st.lists(st.integers(0, 1 << 34), min_size=1, max_size=6))
def test_many_times_at_once_are_the_same(is_measured, sizes):
    table = CollectiveTable((1000, 2000), (7.0, 9.0))
    collectives = {"all_gather": {"bc": table, "a": table}, "all_to_all": {"b": table}} if is_measured else {}
    costs = collective_costs(replace(HARDWARE, collectives=collectives), MESH)
    subsets = [axes for n in range(4) for axes in combinations(MESH.axes, n)]
    found = costs.times_ns(KINDS, MESH, subsets, np.array(sizes, np.int64))
    assert found.tolist() == [
        [[costs.time_ns(kind, MESH, axes, n_bytes) for n_bytes in sizes] for axes in subsets] for kind in KINDS
    ]
    with pytest.raises(ValueError, match="these costs are for mesh"):
        costs.times_ns(KINDS, Mesh.of(2), [(0,)], np.array(sizes, np.int64))
