"""Ways between machines: the tensor arrives, each machine is sent each element that it lacks once where shapes allow it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from helpers.large import first
from oracles.layouts import all_layouts
from oracles.shards import gather, scatter

from tensoropt.reschedule.between_machines import bytes_between, cheapest_way
from tensoropt.reschedule.cross_mesh import CrossMesh
from tensoropt.reschedule.layout import Layout
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import cheapest_path
from tensoropt.reschedule.simulate import simulate
from tensoropt.sharding.resharding import PlainCosts

from .test_cross_mesh import MESHES, disjoint, lacking

BETWEEN = (*MESHES, (Mesh.of(2), Mesh.of(6)))
SHAPES = ((5, 7), (12, 12))


def machines_of(source: Mesh, target: Mesh, per_machine: int) -> tuple[int, ...]:
    """Return the machine of each device; the target's begin with a machine of their own."""
    first_of_target = -(-source.n_devices // per_machine)
    own = [device // per_machine for device in range(source.n_devices)]
    return (*own, *(first_of_target + device // per_machine for device in range(target.n_devices)))


@pytest.mark.parametrize("per_machine", first(2, [4, 2, 1]))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("meshes", BETWEEN, ids=str)
def test_the_tensor_arrives_and_crosses_once(meshes: tuple[Mesh, Mesh], shape: tuple[int, ...], per_machine: int) -> None:
    source, target = meshes
    devices = disjoint(source, target)
    machine_of, tensor = machines_of(source, target, per_machine), np.random.default_rng(0).integers(0, 1000, shape)
    costs = PlainCosts()
    for produced, wanted in product(all_layouts(source, shape), all_layouts(target, shape, partial=False)):
        way = cheapest_way(produced, wanted, shape, *devices, machine_of)
        shards = scatter(tensor, produced, np.random.default_rng(1))
        sent = simulate(cheapest_path(produced, way.source, shape, 8, costs), shards)
        received = simulate(cheapest_path(way.target, wanted, shape, 8, costs), way.simulate(sent))
        assert np.array_equal(gather(received, wanted, shape), tensor)
        direct = CrossMesh(produced.with_partial(()), wanted, shape, *devices)
        least = lacking(direct, machine_of)
        assert least <= bytes_between(way, machine_of) <= bytes_between(direct, machine_of)
        if target.n_devices <= per_machine:
            assert bytes_between(way, machine_of) == least


def test_what_is_gathered_stays_inside_of_a_machine() -> None:
    """Three machines of two: the gather is over the devices of each, and the tensor goes to each machine once."""
    source, target = Mesh.of(2), Mesh.of(2, 2)
    way = cheapest_way(
        Layout.replicated(source, 2), Layout.replicated(target, 2), (4, 4), (0, 1), (2, 3, 4, 5), (0, 0, 1, 1, 2, 2)
    )
    assert way.target == Layout(target, ((1,), ())) and bytes_between(way, (0, 0, 1, 1, 2, 2)) == 2 * 16


def test_on_one_machine_parts_are_sent_as_they_are_wanted() -> None:
    mesh = Mesh.of(2)
    way = cheapest_way(Layout(mesh, ((0,),)), Layout.replicated(mesh, 1), (4,), (0, 1), (2, 3), (0,) * 4)
    assert (way.source, way.target) == (Layout(mesh, ((0,),)), Layout.replicated(mesh, 1))


@pytest.mark.parametrize(("shape", "scattered"), [((4, 3), "[a, -]"), ((1, 3), "[-, a]"), ((1,), "[-]")])
def test_pending_sums_are_scattered_where_a_dimension_is_long_enough(shape: tuple[int, ...], scattered: str) -> None:
    mesh = Mesh.of(2)
    produced, wanted = Layout(mesh, ((),) * len(shape), (0,)), Layout.replicated(mesh, len(shape))
    assert str(cheapest_way(produced, wanted, shape, (0, 1), (2, 3), (0,) * 4).source) == scattered
