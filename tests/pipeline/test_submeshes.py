"""Stages on unequally many devices: which they may have, and how they are chosen."""

from __future__ import annotations

import itertools
from dataclasses import replace

import accumulate.models as models
import pipeline.test_branches as branches
import pytest
from helpers import zoo
from helpers.large import first
from helpers.searches import find_with_stages
from pipeline.staged import random_cuts
from pipeline.test_cuts import slow_link

from tensoropt.common.errors import InputError
from tensoropt.ft import Budget
from tensoropt.profiling.hardware import named
from tensoropt.search.candidates.plan_points import PlanPoint
from tensoropt.search.request import Request
from tensoropt.search.stages.cuts import _Places, balanced
from tensoropt.search.stages.placement import Block, blocks_of, choices, equal_blocks, is_submesh
from tensoropt.search.stages.times import TimesBySize, estimated_us, transfers
from tensoropt.sharding.stages import Stages


def request(name: str, cluster: str, **changed: object) -> Request:
    model = models.recorded(name, "adam").model
    return Request(model, named(cluster), None, budget=Budget(seconds=0), micro_batches=4, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(("cluster", "n_stages"), [("v100-1x3", 2), ("v100-1x6", 3), ("v100-2x3", 3), ("v100-3x2", 2)])
def test_each_device_has_one_stage_and_each_stage_a_mesh_of_its_machines(cluster: str, n_stages: int) -> None:
    """Against all ways to give consecutive devices to stages."""
    hardware = named(cluster)
    n, per_machine = hardware.n_devices, hardware.levels[-1].count

    def fits(block: Block) -> bool:
        machines = {device // per_machine for device in block.devices}
        return len(machines) == 1 or block.size == len(machines) * per_machine

    ends = itertools.combinations(range(1, n), n_stages - 1)
    ways = [tuple(itertools.starmap(lambda a, b: Block(a, b - a), itertools.pairwise((0, *each, n)))) for each in ends]
    ways = [way for way in ways if all(map(fits, way))]
    assert ways and all(is_submesh(hardware, block) for way in ways for block in way)
    assert [set(each) for each in choices(hardware, n, n_stages)] == [set(each) for each in zip(*ways, strict=True)]
    for size in {block.size for way in ways for block in way}:
        assert hardware.mesh(size).n_devices == size
    same = {len({block.size for block in way}) == 1 for way in ways}
    assert (equal_blocks(hardware, n, n_stages) is not None) == (True in same)


def test_stages_over_many_devices_have_half_to_twice_the_average() -> None:
    sizes = {block.size for blocks in choices(named("v100-1x16"), 16, 4) for block in blocks}
    assert sizes == set(range(2, 9))


LINKS = {"slow": slow_link(1e8), "usual": slow_link(1e10), "fast": slow_link(1e12)}
N_BY_DEFAULT = {"slow": 4, "v100-1x3": 2, "usual": 0, "v100-1x4": 0}
CASES = [case for where, n in N_BY_DEFAULT.items() for case in first(n, [(name, where, 4) for name in models.FUNCTIONS])]
CASES += [(name, link, n) for name in branches.MODELS for link in ("slow", "fast") for n in (1, 4)]


@pytest.mark.parametrize(("name", "cluster", "n"), CASES)
def test_of_stages_of_any_size_the_predicted_time_is_that_of_the_best_cut(name: str, cluster: str, n: int) -> None:
    """Against all cuts, for each pair of sizes, on the devices of one machine and on two machines of one."""
    recorded = models.recorded(name, "adam") if name in models.FUNCTIONS else zoo.record(branches.MODELS[name], "adam")
    model, hardware = recorded.model, LINKS.get(cluster) or named(cluster)
    n_devices, times = hardware.n_devices, TimesBySize(model, hardware, n)
    every: dict[tuple[str, int], float] = {}
    for op, size in itertools.product(model.graph.step_operators, range(1, n_devices)):
        stages = Stages(model, (op.name,))
        try:
            if op.operands and stages.models:
                sizes = size, n_devices - size
                every[op.name, size] = estimated_us(stages, hardware, blocks_of(sizes), times.of(sizes))
        except InputError:
            continue
    for size in {size for _, size in every}:
        found = balanced([[block] for block in blocks_of((size, n_devices - size))], times)
        least = min(time_us for (_, of_first), time_us in every.items() if of_first == size)
        assert found.time_us == pytest.approx(least, rel=1e-9) and found.sizes == (size, n_devices - size)
        assert found.time_us >= times.bound_us(range(1, n_devices), 2, n_devices) > 0
    if not every:
        with pytest.raises(InputError, match="can't be cut"):
            balanced(choices(hardware, n_devices, 2), times)
        return
    chosen = balanced(choices(hardware, n_devices, 2), times)
    assert every[chosen.stages.cuts[0], chosen.sizes[0]] == pytest.approx(chosen.time_us, rel=1e-9)


@pytest.mark.parametrize(("cluster", "n_stages"), [("v100-1x4", 2), ("v100-1x4", 3), ("v100-2x2", 3)])
def test_the_shortest_longest_stage_is_that_of_all_cuts_on_all_devices(cluster: str, n_stages: int) -> None:
    model, hardware = models.recorded("mlp", "adam").model, named(cluster)
    allowed = choices(hardware, 4, n_stages)
    places = _Places.of(TimesBySize(model, hardware, 4), allowed)
    ways = [way for way in itertools.product(*allowed) if blocks_of([block.size for block in way]) == way]
    trained, n = places.trained, len(places.names)
    least = min(
        max(places.all_us(at, way))
        for at in itertools.combinations(range(n - 1), n_stages - 1)
        if all(trained[b] > trained[a] for a, b in itertools.pairwise([0, *(place + 1 for place in at), n]))
        for way in ways
    )
    at, blocks = places.shortest_longest(allowed)
    assert blocks in ways and max(places.all_us(at, blocks)) == pytest.approx(least, rel=1e-12)


def test_devices_of_three_are_shared_one_and_two() -> None:
    asked = request("mlp", "v100-1x3")
    found = find_with_stages(asked, 3, (2,))
    sizes = {tuple(each.mesh.n_devices for each in of_cut.frontiers) for of_cut in found.searched}
    assert sizes and sizes <= {(1, 2), (2, 1)}
    assert all(point.time_us >= found.bound.time_ns[0] / 1e3 for point in found.points)
    with pytest.raises(InputError, match="4 stages on 3 devices: each takes one at least; give 3 or fewer"):
        find_with_stages(asked, 3, (4,))
    with pytest.raises(InputError, match="2 stages: parallelism 3 is not possible on v100-2x2"):
        find_with_stages(request("mlp", "v100-2x2"), 3, (2,))


def test_a_link_is_that_of_the_smaller_stage() -> None:
    hardware = named("v100-2x4")
    levels = tuple(replace(level, latency_us=0.0) for level in hardware.levels)
    hardware, model = replace(hardware, levels=levels), models.recorded("attention", "adam")
    stages = random_cuts(model, 2, 3)

    def taking_us(*sizes: int) -> float:
        return transfers(stages, hardware, blocks_of(sizes), 4).each[0]

    machine, device = levels
    assert taking_us(1, 3) == taking_us(3, 1) == 2 * taking_us(2, 2) > 0.0
    # Between machines that of one of them, however many devices it has in the stage.
    assert taking_us(4, 4) == taking_us(4, 2) == pytest.approx(taking_us(1, 3) * device.bytes_per_s / machine.bytes_per_s)


def test_unequal_stages_are_searched_where_they_save_time() -> None:
    found = find_with_stages(request("mlp", "v100-1x4"), 4, (2,))
    sizes = [tuple(each.mesh.n_devices for each in of_cut.frontiers) for of_cut in found.searched]
    assert sizes[0] == (2, 2)
    assert all(isinstance(point, PlanPoint) and point.time_us >= found.bound.time_ns[0] / 1e3 for point in found.points_of)
