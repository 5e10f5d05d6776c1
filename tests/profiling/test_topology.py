"""Topologies in hardware files: routes, parts, and what a faulty one gets."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from tensoropt.profiling.hardware import Hardware, HardwareError, Link, Topology, named

DIAMOND = {
    "format": "tensoropt/hardware",
    "version": 1,
    "name": "diamond",
    "device": {"name": "GPU", "memory_bytes": 16e9, "flops_per_s": {"float32": 1e13}, "memory_bytes_per_s": 9e11},
    "levels": [{"name": "device", "count": 2, "latency_us": 1.0, "bytes_per_s": 1e10}],
    "topology": {
        "devices": ["gpu0", {"name": "gpu1", "speed": 0.5}],
        "links": [
            {"from": "gpu0", "to": "slow", "bytes_per_s": 1e9, "latency_us": 0.1},
            {"from": "slow", "to": "gpu1", "bytes_per_s": 1e9, "latency_us": 0.1},
            {"from": "gpu0", "to": "fast", "bytes_per_s": 5e9, "latency_us": 2.0, "both_ways": True},
            {"from": "fast", "to": "gpu1", "bytes_per_s": 5e9, "latency_us": 2.0, "both_ways": True},
        ],
    },
}


def ends(topology: Topology, source: int, target: int) -> list[str]:
    return [topology.directed[number].target for number in topology.route(source, target)]


def test_a_topology_is_read_and_written(tmp_path):
    hardware = Hardware.from_json(DIAMOND)
    assert hardware.topology.devices == ("gpu0", "gpu1") and hardware.topology.speeds == (1.0, 0.5)
    assert len(hardware.topology.links) == 4 and len(hardware.topology.directed) == 6
    hardware.save(tmp_path / "diamond.json")
    assert Hardware.load(tmp_path / "diamond.json") == hardware
    assert json.loads((tmp_path / "diamond.json").read_text())["topology"] == DIAMOND["topology"]
    assert hash(hardware) == hash(Hardware.load(tmp_path / "diamond.json"))
    assert Topology(("a", "b"), (Link("a", "b", 1.0, 0.0, True),), (1.0, 1.0)).speeds == ()  # equal ones are none


def test_the_fastest_route_is_taken_in_each_direction():
    topology = Hardware.from_json(DIAMOND).topology
    assert ends(topology, 0, 1) == ["fast", "gpu1"] and ends(topology, 1, 0) == ["fast", "gpu0"]
    quick = (replace(link, bytes_per_s=1e11) for link in topology.links[:2])
    faster = replace(topology, links=(*quick, *topology.links[2:]))
    assert ends(faster, 0, 1) == ["slow", "gpu1"] and ends(faster, 1, 0) == ["fast", "gpu0"]
    # Through devices, too.
    ring = Topology(("a", "b", "c"), tuple(Link(x, y, 1e9, 1.0) for x, y in ("ab", "bc", "ca")))
    assert ends(ring, 0, 2) == ["b", "c"] and ends(ring, 2, 1) == ["a", "b"] and ends(ring, 1, 1) == []


def test_flexflow_s_clusters():
    p100, k80 = named("p100-4x4").topology, named("k80-16x4").topology
    assert (len(p100.devices), len(k80.devices)) == (16, 64)
    assert ends(p100, 0, 3) == ["0:gpu3"]
    assert ends(p100, 3, 4) == ["0:pcie", "0:nic", "infiniband", "1:nic", "1:pcie", "1:gpu0"]
    assert ends(k80, 0, 1) == ["0:switch0", "0:gpu1"]
    assert ends(k80, 1, 2) == ["0:switch0", "0:pcie", "0:switch1", "0:gpu2"]
    for name in ("p100-4x4", "k80-16x4"):
        assert "Figure 5" in named(name).provenance["topology"]


def test_fewer_machines_keep_their_part_and_other_ones_have_none():
    assert named("p100-2x4").topology.devices == named("p100-4x4").topology.devices[:8]
    one = named("k80-1x4").topology
    assert {link.source for link in one.links} | {link.target for link in one.links} == {
        *(f"0:gpu{i}" for i in range(4)), "0:switch0", "0:switch1", "0:pcie"
    }  # fmt: skip
    assert named("p100-1x1").topology is None and named("p100-8x4").topology is None and named("k80-16x2").topology is None


@pytest.mark.parametrize(("change", "told"), [
    (lambda t: t["links"].__delitem__(slice(1, None)), ["'slow'", "no device and has no other link", "topology.links[0]"]),
    (lambda t: t["links"][1].update({"from": "slwo"}), ["topology.links[0]: got an end 'slow'", "did you mean 'slwo'?"]),
    (lambda t: t["devices"].append("slow") or t["links"][0].update(both_ways=True),
     ["topology.devices", "3 devices", "each of the 2 devices of the levels (2)"]),
    (lambda t: t["devices"].__setitem__(1, "gpu0"), ["topology.devices: 'gpu0' is named 2 times"]),
    (lambda t: t["devices"].clear(), ["topology.devices: got []", "at least one device"]),
    (lambda t: t.__setitem__("links", []), ["'gpu1' can't be reached from 'gpu0'"]),
    (lambda t: t.__setitem__("links", t["links"][:2]), ["'gpu1' can't reach 'gpu0'"]),
    (lambda t: t["links"][0].__delitem__("bytes_per_s"), ["topology.links[0].bytes_per_s: missing"]),
    (lambda t: t["links"][2].update(bytes_per_s=-1), ["topology.links[2] from 'gpu0' to 'fast': bytes_per_s: got -1"]),
    (lambda t: t["links"][2].update(bytes_per_s=0), ["bytes_per_s: got 0, expected a positive number"]),
    (lambda t: t["links"][2].update(latency_us=-0.5), ["from 'gpu0' to 'fast': latency_us: got -0.5"]),
    (lambda t: t["links"][2].update(both_ways="yes"), ["both_ways: got 'yes', expected true or false"]),
    (lambda t: t["links"][2].update(width=16), ["topology.links[2].width: unknown field"]),
    (lambda t: t["links"][0].update({"to": "gpu0"}), ["topology.links[0]: got a link from 'gpu0' to itself"]),
    (lambda t: t["links"].append(t["links"][3]), ["topology.links[4]", "'fast' to 'gpu1' is topology.links[3] already"]),
    (lambda t: t["devices"][1].update(speed=0), ["topology.devices[1].speed: got 0"]),
    (lambda t: t.__delitem__("links"), ["topology.links: missing"]),
    (lambda t: t.update(switches=[]), ["topology.switches: unknown field"]),
])  # fmt: skip
def test_a_faulty_topology_is_refused_in_a_sentence(change, told, tmp_path):
    file, value = tmp_path / "faulty.json", copy.deepcopy(DIAMOND)
    change(value["topology"])
    file.write_text(json.dumps(value))
    with pytest.raises(HardwareError) as error:
        Hardware.load(file)
    sentence = str(error.value)
    assert "\n" not in sentence and str(file) in sentence
    assert all(text in sentence for text in told), sentence
