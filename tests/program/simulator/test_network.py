"""What collectives occupy: the formulas of the module docstrings, on topologies small enough to do by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensoropt.profiling.hardware import CollectiveTable, Hardware, Link, Topology, named
from tensoropt.profiling.hardware_costs import CollectiveCosts
from tensoropt.program.simulator.network import COMPUTE, LINK, Action, Network
from tensoropt.program.simulator.topology_network import network_of
from tensoropt.sharding.resharding import BUCKET_BYTES


def of(hardware: Hardware) -> Network:
    return network_of(hardware, hardware.mesh())


def ring_of_four() -> Hardware:
    """Four devices in a circle of links of 1 GB/s and 2 us, both ways."""
    links = tuple(Link(str(i), str((i + 1) % 4), 1e9, 2.0, both_ways=True) for i in range(4))
    return replace(named("v100-1x4"), topology=Topology(("0", "1", "2", "3"), links))


def longest(network: Network, action: Action) -> tuple[int, int]:
    """Return the longest that a link is occupied, and the latency."""
    (work,) = network.works(action)
    return max(ns for _, ns in work.uses), work.latency_ns


def test_a_ring_gathers_and_scatters_by_its_formula():
    network = of(ring_of_four())
    for kind in ("all_gather", "reduce_scatter"):
        assert longest(network, Action(kind, (0, 1), 4_000_000)) == (3_000_000, 3 * 2_000)
    assert longest(network, Action("all_reduce", (0, 1), 4_000_000)) == (6_000_000, 6 * 2_000)


def test_few_bytes_are_summed_by_recursive_doubling():
    # Axis a joins devices opposite each other, two links apart; axis b neighbours. Each sends all it has twice.
    (work,) = of(ring_of_four()).works(Action("all_reduce", (0, 1), 100))
    assert work.latency_ns == 2 * 4_000


def test_pairs_share_links():
    # From each device to the next, and the opposite one by way of it or of the one before: links are shared.
    network = of(ring_of_four())
    (work,) = network.works(Action("all_to_all", (0, 1), 4_000_000))
    carried = {network.resources[i].members: ns for i, ns in work.uses}
    total = sum(ns * len(members) for members, ns in carried.items())
    # 8 pairs of neighbours over one link, 4 of opposite devices over two, 1 MB each.
    assert total == (8 + 4 * 2) * 1_000_000


def test_groups_that_share_a_switch_contend():
    network = of(named("k80-1x4"))
    apart, across = (longest(network, Action("all_gather", axes, 1 << 20))[0] for axes in ((1,), (0,)))
    assert across == pytest.approx(2 * apart, abs=2)


def test_a_fast_device_computes_shorter_than_the_slowest_and_devices_without_a_topology_are_one_class():
    hardware = ring_of_four()
    network = of(replace(hardware, topology=replace(hardware.topology, speeds=(1, 1, 1, 0.5))))
    times = {work.classes: work.uses[0][1] for work in network.works(Action(COMPUTE, time_ns=1000))}
    slow = next(i for i, ranks in enumerate(network.classes) if 3 in ranks)
    assert times[(slow,)] == 1000 and set(times.values()) == {500, 1000}
    assert of(named("v100-2x4")).classes == (tuple(range(8)),)


def test_a_measured_collective_occupies_its_links_for_the_measured_time():
    hardware = ring_of_four()
    table = CollectiveTable((1024, 1 << 20), (50.0, 900.0))
    network = of(replace(hardware, collectives={"all_reduce": {"ab": table}}))
    assert longest(network, Action("all_reduce", (0, 1), 1 << 20)) == (900_000, 0)
    assert longest(network, Action("all_gather", (0, 1), 4_000_000)) == (3_000_000, 6_000)


def test_without_a_topology_collectives_take_what_the_additive_costs_say():
    hardware = named("v100-2x2")
    mesh = hardware.mesh()
    expected = CollectiveCosts(hardware, mesh).time_ns("all_reduce", mesh, (0, 1), 1 << 20)
    (work,) = of(hardware).works(Action("all_reduce", (0, 1), 1 << 20))
    assert work.uses == ((0, expected),)
    (work,) = of(replace(hardware, exposed_share=0.25)).works(Action("all_reduce", (0, 1), 1 << 20))
    assert work.uses == ((1, expected), (0, expected - int(expected * 0.75)))


def test_a_gradient_in_a_bucket_takes_its_share():
    for hardware in (named("v100-1x4"), named("k80-1x4")):
        network = of(hardware)
        whole, half = (
            network.works(Action("all_reduce", (0, 1), BUCKET_BYTES, of_bucket=n))[0] for n in (0, BUCKET_BYTES // 2)
        )
        assert [ns for _, ns in half.uses] == [ns // 2 for _, ns in whole.uses]
        assert half.latency_ns == whole.latency_ns // 2


def test_links_are_named_by_their_ends():
    links = [each for each in of(named("k80-1x4")).resources if each.kind == LINK]
    assert "0:gpu0 > 0:switch0" in links[0].members and sum(len(each.members) for each in links) == 12
