"""Hardware descriptions: what they refuse, what survives a file, and which meshes they offer."""

import copy
import json
import pickle
from pathlib import Path

import pytest

from tensoropt.profiling.description_text import hardware_table
from tensoropt.profiling.hardware import CollectiveTable, Hardware, HardwareError, named, resolve, shipped
from tensoropt.reschedule.mesh import Mesh

GOOD = {
    "format": "tensoropt/hardware",
    "version": 1,
    "name": "two-by-four",
    "device": {"name": "thing", "memory_bytes": 16e9, "flops_per_s": {"float32": 1e12, "float16": 4e12},
               "memory_bytes_per_s": 1e11, "operator_overhead_us": 2.0, "copied_bytes_per_s": 3e10},
    "levels": [
        {"name": "machine", "count": 2, "latency_us": 5.0, "bytes_per_s": 1e10},
        {"name": "device", "count": 4, "latency_us": 0, "bytes_per_s": 1e11},
    ],
    "collectives": {
        "all_reduce": {
            "abc": {"bytes": [1, 2, 4], "time_us": [10, 10, 11]},
            "bc": {"bytes": [1, 8], "time_us": [1, 2], "spread": [0.5, 0]},
        },
        "all_gather": {"c": {"bytes": [1024, 4096], "time_us": [1.5, 2.5]}},
    },
    "operators": {
        "matrix product": {
            "float32": {
                "forward": {"overhead_us": 2, "us_per_gflop": 30.5, "us_per_gb": 0, "spread": 0.1, "samples": 12},
                "backward": {"overhead_us": 0, "us_per_gflop": 31, "us_per_gb": 5, "spread": 0.2, "samples": 12},
            }
        }
    },
    "provenance": {"flops_per_s": "somewhere"},
    "collective_call_us": 20.5,
    "collective_path_us": 10.5,
    "exposed_share": 0.4,
    "measured": {"date": "2026-11-21", "tensorflow": "2.21.0", "threads": 1, "is_complete": False, "is_quick": False,
                 "collectives": "horovod", "is_by_nccl": False},
}  # fmt: skip
MISSING = object()
RATE = ("operators", "matrix product", "float32", "forward")
NAN, INFINITY = float("nan"), float("inf")


def changed(path: tuple, value: object) -> dict:
    """GOOD with one value replaced, added, or (MISSING) taken away."""
    result = copy.deepcopy(GOOD)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return result


FAULTS = [
    (("format",), "tensoropt/plan", ["format", "'tensoropt/plan'", "'tensoropt/hardware'"]),
    (("format",), MISSING, ["format", "None", "'tensoropt/hardware'"]),
    (("version",), 2, ["version", "'tensoropt/hardware', 2", "'tensoropt/hardware', 1"]),
    (("version",), True, ["version", "True"]),
    (("name",), MISSING, ["name: missing"]),
    (("name",), " ", ["name: got ' '"]),
    (("name",), 7, ["name: got 7"]),
    (("speed",), 1, ["speed: unknown field", "provenance"]),
    (("device",), MISSING, ["device: missing"]),
    (("device",), [1], ["device: got [1]", "memory_bytes"]),
    (("device", "name"), None, ["device.name: got None"]),
    (("device", "memory_bytes"), MISSING, ["device.memory_bytes: missing"]),
    (("device", "memory_bytes"), -1, ["device.memory_bytes: got -1", "positive whole number"]),
    (("device", "memory_bytes"), 1.5, ["device.memory_bytes: got 1.5", "whole"]),
    (("device", "memory_bytes"), "16GB", ["device.memory_bytes: got '16GB'"]),
    (("device", "memory_bytes"), True, ["device.memory_bytes: got True"]),
    (("device", "memory_bytes_per_s"), 0, ["device.memory_bytes_per_s: got 0", "positive"]),
    (("device", "memory_bytes_per_s"), NAN, ["device.memory_bytes_per_s: got nan"]),
    (("device", "flops_per_s"), {}, ["device.flops_per_s.float32: missing", "no dtype"]),
    (("device", "flops_per_s"), 1e12, ["device.flops_per_s: got 1000000000000.0", "object"]),
    (("device", "flops_per_s"), {"float16": 1.0}, ["device.flops_per_s.float32: missing", "float16"]),
    (("device", "flops_per_s", "float16"), INFINITY, ["device.flops_per_s.float16: got inf"]),
    (("device", "copied_bytes_per_s"), -1, ["device.copied_bytes_per_s: got -1", "at least 0"]),
    (("device", "operator_overhead_us"), -0.1, ["device.operator_overhead_us: got -0.1", "at least 0"]),
    (("device", "cores"), 4, ["device.cores: unknown field"]),
    (("levels",), [], ["levels: got []", "at least one"]),
    (("levels",), {}, ["levels: got {}", "list"]),
    (("levels", 0), 3, ["levels[0]: got 3"]),
    (("levels", 1, "latency_us"), MISSING, ["levels[1].latency_us: missing"]),
    (("levels", 1, "latency_us"), -1, ["levels[device].latency_us: got -1"]),
    (("levels", 1, "bytes_per_s"), 0.0, ["levels[device].bytes_per_s: got 0.0"]),
    (("levels", 0, "count"), 0, ["levels[machine].count: got 0"]),
    (("levels", 0, "count"), 2.5, ["levels[machine].count: got 2.5"]),
    (("levels", 0, "count"), 1 << 40, ["levels[machine].count: got 1099511627776", "at most 65,536"]),
    (("levels",), [{**level, "count": 1 << 16} for level in GOOD["levels"]], ["levels: a mesh has at most 26 axes"]),
    (("levels", 0, "width"), 1, ["levels[0].width: unknown field"]),
    (("levels", 1, "name"), "machine", ["levels: got ['machine', 'machine']"]),
    (("collectives",), [], ["collectives: got []"]),
    (("collectives", "broadcast"), {}, ["collectives: got 'broadcast'", "all_reduce"]),
    (("collectives", "all_reduce", "abd"), GOOD["collectives"]["all_gather"]["c"], ["all_reduce: got 'abd'", "abc"]),
    (("collectives", "all_reduce", "ba"), GOOD["collectives"]["all_gather"]["c"], ["all_reduce: got 'ba'", "in order"]),
    (("collectives", "all_reduce", ""), GOOD["collectives"]["all_gather"]["c"], ["all_reduce: got ''"]),
    (("collectives", "all_reduce", "a"), [], ["collectives.all_reduce.a: got []", "time_us"]),
    (("collectives", "all_reduce", "bc", "bytes"), [1], ["collectives.all_reduce.bc.bytes: got [1]", "at least two"]),
    (("collectives", "all_reduce", "bc", "bytes"), [8, 1], ["collectives.all_reduce.bc.bytes: got [8, 1]", "larger"]),
    (("collectives", "all_reduce", "bc", "bytes"), [0, 1], ["collectives.all_reduce.bc.bytes: got 0"]),
    (("collectives", "all_reduce", "bc", "bytes"), 8, ["collectives.all_reduce.bc.bytes: got 8", "list"]),
    (("collectives", "all_reduce", "bc", "time_us"), [1.0], ["all_reduce.bc.time_us: got [1.0]", "2 sizes"]),
    (("collectives", "all_reduce", "bc", "time_us"), [1, NAN], ["collectives.all_reduce.bc.time_us: got nan"]),
    (("collectives", "all_reduce", "bc", "time_us"), MISSING, ["collectives.all_reduce.bc.time_us: missing"]),
    (("collective_call_us",), -1, ["collective_call_us: got -1"]),
    (("measured", "collectives"), "pigeons", ["measured.collectives: got 'pigeons'", "'mpi', 'tensorflow' or 'horovod'"]),
    (("collective_path_us",), "long", ["collective_path_us: got 'long'"]),
    (("exposed_share",), 0, ["exposed_share: got 0", "at most 1"]),
    (("exposed_share",), 1.5, ["exposed_share: got 1.5", "at most 1"]),
    (("provenance",), "me", ["provenance: got 'me'"]),
    (("provenance", "levels"), "", ["provenance.levels: got ''"]),
    (("collectives", "all_reduce", "bc", "spread"), [0.1], ["all_reduce.bc.spread: got [0.1]", "2 sizes"]),
    (("collectives", "all_reduce", "bc", "spread"), [0.1, -1], ["all_reduce.bc.spread: got -1"]),
    (("operators",), 1, ["operators: got 1"]),
    (("operators", "matrix products"), {}, ["operators: got 'matrix products'", "matrix product, ", "operator type"]),
    ((*RATE, "us_per_gflop"), -1.0, ["operators.matrix product.float32.forward.us_per_gflop: got -1.0", "at least 0"]),
    ((*RATE, "us_per_gb"), NAN, ["operators.matrix product.float32.forward.us_per_gb: got nan"]),
    ((*RATE, "overhead_us"), MISSING, ["operators.matrix product.float32.forward.overhead_us: missing"]),
    ((*RATE, "samples"), 0, ["operators.matrix product.float32.forward.samples: got 0"]),
    (RATE, {"overhead_us": 0, "us_per_gflop": 0, "us_per_gb": 0}, ["forward.overhead_us, us_per", "takes no time"]),
    ((*RATE[:-1], "sideways"), {}, ["operators.matrix product.float32.sideways: unknown field"]),
    (("measured", "date"), "yesterday", ["measured.date: got 'yesterday'", "2026-11-21"]),
    (("measured", "date"), MISSING, ["measured.date: missing"]),
    (("measured", "threads"), -1, ["measured.threads: got -1"]),
    (("measured", "is_complete"), 1, ["measured.is_complete: got 1"]),
]


@pytest.mark.parametrize(("path", "value", "said"), FAULTS, ids=[f"{f[0][-1]}-{i}" for i, f in enumerate(FAULTS)])
def test_a_fault_is_named_with_its_field_its_value_and_the_file(tmp_path, path, value, said):
    file = tmp_path / "faulty.json"
    file.write_text(json.dumps(changed(path, value)))
    with pytest.raises(HardwareError) as caught:
        Hardware.load(file)
    for part in [str(file), *said]:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(json.dumps(GOOD)[:100].encode(), "cut off"),
     (b"", "cut off"),
     (b"\xff\xfe\x00", "UTF-8"),
     (b"[1, 2]", "tensoropt/hardware"),
     (json.dumps(GOOD).replace('"version": 1', '"version": 1, "version": 1').encode(), "version: occurs twice")],
)  # fmt: skip
def test_a_file_that_is_no_description_is_refused(tmp_path, content, said):
    file = tmp_path / "broken.json"
    file.write_bytes(content)
    with pytest.raises(HardwareError, match=said) as caught:
        Hardware.load(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(HardwareError, match="cannot be read"):
            Hardware.load(path)


def test_a_description_survives_file_and_pickle(tmp_path):
    hardware = Hardware.from_json(GOOD)
    hardware.save(tmp_path / "file.json")
    again = Hardware.load(tmp_path / "file.json")
    assert again == hardware == pickle.loads(pickle.dumps(hardware))
    assert hash(again) == hash(hardware)
    written = json.loads((tmp_path / "file.json").read_text())
    assert written == {**GOOD, "device": {**GOOD["device"], "memory_bytes": 16_000_000_000}}
    assert isinstance(written["device"]["memory_bytes"], int)
    assert again.collectives["all_reduce"]["abc"] == CollectiveTable((1, 2, 4), (10.0, 10.0, 11.0))
    assert again != Hardware.from_json(changed(("name",), "another"))


def test_optional_fields_may_be_missing():
    bare = {key: GOOD[key] for key in ("format", "version", "name", "device", "levels")}
    bare["device"] = {key: value for key, value in GOOD["device"].items() if key != "operator_overhead_us"}
    hardware = Hardware.from_json(bare)
    assert (dict(hardware.collectives), dict(hardware.provenance)) == ({}, {})
    assert hardware.device.operator_overhead_us == 0.0


def test_the_papers_cluster():
    hardware = named("v100-2x8")
    assert hardware.name == "v100-2x8"
    assert hardware.device.memory_bytes == 16_000_000_000
    assert dict(hardware.device.flops_per_s) == {"float32": 15.7e12, "float64": 7.8e12, "float16": 125e12}
    assert hardware.device.memory_bytes_per_s == 900e9
    assert [level.bytes_per_s for level in hardware.levels] == [12.5e9, 130e9]
    assert str(hardware.mesh()) == "(2 | 2, 2, 2)" and hardware.mesh(6).sizes == Mesh.of(1, 6).sizes
    assert hardware.parallelisms() == (1, 2, 3, 4, 5, 6, 7, 8, 16)


def test_every_shipped_description_is_the_paper_s_or_an_own_cluster_with_sources():
    names = (
        "a100-1x8 a100gb40-1x8 a100pcie-1x8 a10g-1x8 b200-1x8 h100-1x8 h100pcie-1x8 h100tf32-1x8 h200-1x8 h200nvl-1x8 "
        "k80-16x4 l4-1x4 l40s-1x8 p100-4x4 rtx4090-1x4 rtx5090-1x4 t4-1x4 v100-2x8"
    ).split()
    assert [described.name for described in shipped().values()] == names
    for described in shipped().values():
        assert named(described.name) == described
        assert {"memory_bytes", "flops_per_s", "memory_bytes_per_s", "levels"} <= set(described.provenance)
        assert len(described.levels) == 2
        assert (described.device.watts is None) == ("watts" not in described.provenance)
    assert named("h100-2x8").levels[0].bytes_per_s == 2 * named("a100-2x8").levels[0].bytes_per_s


@pytest.mark.parametrize("name", "a100 a100pcie a10g h100pcie h200 b200 l4 l40s rtx4090 rtx5090 t4".split())
def test_a_gpu_that_nobody_measured_reaches_the_fractions_of_its_peaks_that_an_h100_does(name):
    own, measured = named(f"{name}-2x8"), named("h100-2x8")
    dtypes = own.operators["MatMul"].keys()
    assert dtypes == measured.operators["MatMul"].keys() & own.device.flops_per_s.keys() != set()
    for dtype in dtypes:
        ours, theirs = (each.operators["MatMul"][dtype]["forward"] for each in (own, measured))
        peaks = [each.device.flops_per_s[dtype] for each in (own, measured)]
        assert ours.us_per_gflop * peaks[0] == pytest.approx(theirs.us_per_gflop * peaks[1])
    assert own.provenance["operators"].startswith("assumed: ")


@pytest.mark.parametrize(("name", "counts"), [("h100-1x8", (1, 8)), ("v100-4x2", (4, 2)), ("k80-3x5", (3, 5))])
def test_a_name_gives_any_number_of_machines_and_devices(name, counts):
    assert named(name).name == name and tuple(level.count for level in named(name).levels) == counts


@pytest.mark.parametrize(
    ("name", "offered"),
    [("v10-2x8", "v100-2x8"), ("V100-2x8", "v100-2x8"), ("v100", "v100-2x8"), ("h100-8", "h100-1x8"), ("?", "k80")],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, offered):
    with pytest.raises(HardwareError, match=f"did you mean .*{offered}"):
        named(name)


@pytest.mark.parametrize("name", ["v100-0x8", "v100-2x0", "v100-2x-8", "v100-02x8", "v100-2x8x1"])
def test_impossible_counts_in_a_name_are_refused(name):
    with pytest.raises(HardwareError, match="DEVICE-MxD"):
        named(name)


def test_a_name_or_a_path_is_resolved(tmp_path, monkeypatch):
    hardware = Hardware.from_json(GOOD)
    hardware.save(tmp_path / "mine.json")
    hardware.save(tmp_path / "v100-2x8")
    assert resolve(tmp_path / "mine.json") == hardware
    assert resolve("v100-2x8") == named("v100-2x8")
    monkeypatch.chdir(tmp_path)
    assert resolve("mine.json") == resolve("v100-2x8") == hardware
    with pytest.raises(HardwareError, match=r"other\.json: cannot be read"):
        resolve("other.json")
    assert resolve(Path(__file__).parents[2] / "docs/how-to/v100-2x8-price.json").price_per_hour == 3.06


def test_meshes_are_devices_of_one_machine_or_whole_machines():
    hardware = Hardware.from_json(changed(("levels", 0, "count"), 3))
    counts = {n: tuple(level.count for level in hardware.mesh(n).levels) for n in hardware.parallelisms()}
    assert counts == {1: (1, 1), 2: (1, 2), 3: (1, 3), 4: (1, 4), 8: (2, 4), 12: (3, 4)}
    assert hardware.mesh() == hardware.mesh(12)
    assert [level.name for level in hardware.mesh(2).levels] == ["machine", "device"]


@pytest.mark.parametrize(
    ("parallelism", "nearest"), [(5, "4 or 8"), (7, "4 or 8"), (9, "8"), (0, "1"), (-3, "1"), ("4", "8"), (2.5, "8")]
)
def test_another_parallelism_is_refused_with_its_neighbours(parallelism, nearest):
    with pytest.raises(HardwareError, match=f"parallelism {parallelism!r} .*nearest are {nearest}$"):
        Hardware.from_json(GOOD).mesh(parallelism)


def test_a_description_may_have_one_level():
    hardware = Hardware.from_json({**changed(("levels",), GOOD["levels"][1:]), "collectives": {}})
    assert hardware.parallelisms() == (1, 2, 3, 4)
    assert hardware.mesh().sizes == (2, 2)


def test_tables_hold_where_the_same_groups_contend():
    hardware = Hardware.from_json(GOOD)
    measured = {("all_reduce", (0, 1, 2)), ("all_reduce", (1, 2)), ("all_gather", (2,))}
    assert set(hardware.measured_on(hardware.mesh())) == measured
    one_machine = hardware.measured_on(hardware.mesh(4))
    assert set(one_machine) == {("all_reduce", (0, 1)), ("all_gather", (1,))}
    assert one_machine["all_reduce", (0, 1)] == hardware.collectives["all_reduce"]["bc"]
    assert hardware.measured_on(hardware.mesh(2)) == {}
    assert hardware.measured_on(hardware.mesh(1)) == {}


def test_the_table_says_what_there_is():
    text = hardware_table(Hardware.from_json(GOOD))
    facts = ("two-by-four", "8 x thing", "(2 | 2, 2)", "16.00 GB", "float32 1,000")
    for part in (*facts, "measured", "modelled", "(abc)"):
        assert part in text
    assert "all_reduce" not in hardware_table(named("h100-1x1"))
