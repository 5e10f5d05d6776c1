"""Devices and links that are simulated as one have equal timelines when each is simulated by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.large import first
from program.simulator.simulating import Simulated, uneven

from tensoropt.profiling.hardware import named
from tensoropt.program.simulator.symmetry import symmetry_of


def test_all_devices_of_flexflow_s_clusters_are_alike():
    for name, n_links in (("p100-4x4", 13), ("k80-16x4", 4)):
        hardware = named(name)
        found = symmetry_of(hardware.topology, hardware.mesh())
        assert [len(ranks) for ranks in found.devices] == [hardware.n_devices]
        assert len(found.links) == n_links


def test_no_device_is_like_another_where_all_differ():
    hardware = uneven()
    assert len(symmetry_of(hardware.topology, hardware.mesh()).devices) == hardware.n_devices


def test_a_slower_device_is_a_class_and_so_is_the_one_on_its_switch():
    described = named("k80-1x4")
    hardware = replace(described, topology=replace(described.topology, speeds=(1.0, 1.0, 1.0, 0.5)))
    found = symmetry_of(hardware.topology, hardware.mesh())
    assert found.devices == ((0, 1), (2,), (3,))


@pytest.mark.parametrize(("name", "cluster", "seed"), first(6, [
    (name, cluster, seed)
    for seed in range(10) for name in ("lenet5", "rnnlm") for cluster in ("p100-2x4", "k80-1x4", "k80-2x4")
]))  # fmt: skip
def test_one_of_each_class_stands_for_all(name, cluster, seed):
    merged, apart = (Simulated.of(name, named(cluster), seed, is_merged) for is_merged in (True, False))
    ours, theirs = (each.timeline() for each in (merged, apart))
    assert len(theirs.network.classes) == merged.hardware.n_devices > len(ours.network.classes)
    assert ours.makespan_ns == theirs.makespan_ns
    busy = {name: ns for each, ns in zip(theirs.resources, theirs.busy_ns, strict=True) for name in each.members}
    for resource, ns in zip(ours.resources, ours.busy_ns, strict=True):
        assert {busy[name] for name in resource.members} == {ns}, resource
