"""Follow a user's placement: the operators that must be in the stage on given devices.

A placement says which devices run an operator (``force={"MatMul_1": {"devices": [0, 1]}}``, ``tensoropt.place``). Stages
have consecutive devices, in the order of the program; so it must be one of such: what comes first is on the first devices.
Each group of devices that is named is one stage, and what is left between them is others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from ...common.errors import InputError
from ...common.words import listed
from ...ir.graph import CONSTANT, PLACEHOLDER, VARIABLE, Graph, Operator
from ...profiling.hardware import Hardware
from ...sharding.constraints import Placed, force_by_name
from ...sharding.stages import Stages
from .submeshes import Block, Choices, is_submesh, reachable


def placement(graph: Graph, placed: Placed, hardware: Hardware, parallelism: int) -> dict[str, Block]:
    """Return the devices of each operator that is placed, by its name.

    Raises:
        InputError: a device isn't there, devices are of no one machine and not whole machines either, groups of devices
            overlap, or an operator comes before another one on earlier devices.
    """
    found = {name: Block(devices[0], len(devices)) for name, devices in placed.items()}
    for name, block in found.items():
        _check_block(graph.operators[name], block, hardware, parallelism)
    groups = sorted(set(found.values()))
    for one, other in pairwise(groups):
        if one.end > other.first:
            raise InputError(
                f"{_first_on(graph, found, one)}, and {_first_on(graph, found, other)}: a device has one stage; place them "
                "on the same devices, or on devices that aren't shared"
            )
    before: Operator | None = None
    for op in graph.operators.values():
        if op.name not in found or op.type in (PLACEHOLDER, CONSTANT, VARIABLE) or op.updates is not None:
            continue
        if before is not None and found[op.name] < found[before.name]:
            raise InputError(
                f"{_placed_text(op, found[op.name])}, but {_placed_text(before, found[before.name])} and comes before it: "
                "stages have their devices in the order of the program; place what comes first on the first devices"
            )
        before = op
    return {name: block for name, block in found.items() if graph.operators[name].type not in (PLACEHOLDER, CONSTANT)}


def _check_block(op: Operator, block: Block, hardware: Hardware, parallelism: int) -> None:
    if block.end > parallelism:
        there = f"devices 0 to {parallelism - 1}" if parallelism > 1 else "device 0 alone"
        raise InputError(f"{_placed_text(op, block)}, but the plan is for {there}; place it on these")
    if not is_submesh(hardware, block):
        per_machine = hardware.levels[-1].count
        raise InputError(
            f"{_placed_text(op, block)}, which are neither of one machine nor whole machines of {per_machine}; place it on "
            "such"
        )


def _placed_text(op: Operator, block: Block) -> str:
    devices = listed(block.devices)
    return f"{op.where()} is placed on device{'s' * (block.size > 1)} {devices}"


def _first_on(graph: Graph, placed: Mapping[str, Block], block: Block) -> str:
    name = next(name for name in graph.operators if placed.get(name) == block)
    return _placed_text(graph.operators[name], block)


def fewest_stages(placed: Mapping[str, Block], parallelism: int) -> int:
    """Return in how many stages a model is at least, with one for each group of devices and one for those left between."""
    groups = sorted(set(placed.values()))
    ends = [0, *(block.end for block in groups)]
    starts = [*(block.first for block in groups), parallelism]
    return len(groups) + sum(start > end for start, end in zip(starts, ends, strict=True))


def allowed(of_stages: Choices, placed: Mapping[str, Block], parallelism: int) -> Choices:
    """Return those of the stages' blocks that go with a placement.

    Raises:
        InputError: none do.
    """
    groups = set(placed.values())

    def goes(block: Block) -> bool:
        return block in groups or all(block.end <= group.first or group.end <= block.first for group in groups)

    found = reachable([[block for block in blocks if goes(block)] for blocks in of_stages], parallelism)
    if groups and not all(found):
        names = " and ".join(f"[{listed(group.devices)}]" for group in sorted(groups))
        raise InputError(
            f"stages={len(of_stages)} don't go with the placement on devices {names} of {parallelism}, for which it takes "
            f"{fewest_stages(placed, parallelism)} or more; leave out stages=, or place operators on others"
        )
    return found


def elsewhere(names: Sequence[str], placed: Mapping[str, Block], block: Block) -> np.ndarray:
    """Return how many of the operators up to each one are placed on other devices than these, int64[N + 1]."""
    return np.cumsum([0, *(placed.get(name, block) != block for name in names)])


def why_not_placed(stages: Stages, blocks: Sequence[Block], placed: Mapping[str, Block]) -> str | None:
    """Return the sentence that a cut has an operator on other devices than it is placed on; None if there is none."""
    for name, block in placed.items():
        if block not in blocks or name not in stages.members[blocks.index(block)]:
            op = stages.whole.graph.operators[name]
            homes = [Block(*each) for each, members in zip(blocks, stages.members, strict=True) if name in members]
            where = f"with what uses it on devices {listed(homes[0].devices)}" if homes else "in no stage"
            return f"{_placed_text(op, block)}, but it is {where}; place it there"
    return None


def of_stage(graph: Graph, stage: Graph, force: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """Return the degrees that are forced on a stage's operators of a model, by their names.

    Raises:
        InputError: ``force`` names what isn't in the model.
    """
    return {name: degrees for name, degrees in force_by_name(graph, force).items() if name in stage.operators}
