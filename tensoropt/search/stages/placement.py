"""Give stages devices, and follow a user's placement: the operators that must be in the stage on given devices.

A stage has consecutive devices, of one machine or whole machines, so that its mesh is that of its number.

A placement says which devices run an operator (``force={"MatMul_1": {"devices": [0, 1]}}``, ``tensoropt.place``). Stages
have consecutive devices, in the order of the program; so it must be one of such: what comes first is on the first devices.
Each group of devices that is named is one stage, and what is left between them is others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...common.errors import InputError
from ...common.words import listed
from ...ir.graph import CONSTANT, PLACEHOLDER, VARIABLE, Graph, Operator
from ...profiling.hardware import Hardware
from ...sharding.constraints import Placed, force_by_name
from ...sharding.stages import Stages


def placement(graph: Graph, placed: Placed, hardware: Hardware, parallelism: int) -> dict[str, Block]:
    """Return the devices of each operator that is placed, by its name.

    Raises:
        InputError: a device isn't there, devices are of no one machine and not whole machines either, groups of devices
            overlap, or an operator comes before another one on earlier devices.
    """
    blocks = {name: Block(devices[0], len(devices)) for name, devices in placed.items()}
    for name, block in blocks.items():
        _check_block(graph.operators[name], block, hardware, parallelism)
    groups = sorted(set(blocks.values()))
    for left, right in pairwise(groups):
        if left.end > right.first:
            raise InputError(
                f"{_first_on(graph, blocks, left)}, and {_first_on(graph, blocks, right)}: a device has one stage; place "
                "them on the same devices, or on devices that aren't shared"
            )
    last: Operator | None = None
    for op in graph.operators.values():
        if op.name not in blocks or op.type in (PLACEHOLDER, CONSTANT, VARIABLE) or op.updates is not None:
            continue
        if last is not None and blocks[op.name] < blocks[last.name]:
            raise InputError(
                f"{_placed_text(op, blocks[op.name])}, but {_placed_text(last, blocks[last.name])} and comes before it: "
                "stages have their devices in the order of the program; place what comes first on the first devices"
            )
        last = op
    return {name: block for name, block in blocks.items() if graph.operators[name].type not in (PLACEHOLDER, CONSTANT)}


def _check_block(op: Operator, block: Block, hardware: Hardware, parallelism: int) -> None:
    if block.end > parallelism:
        devices = f"devices 0 to {parallelism - 1}" if parallelism > 1 else "device 0 alone"
        raise InputError(f"{_placed_text(op, block)}, but the plan is for {devices}; place it on these")
    if not is_submesh(hardware, block):
        machine_size = hardware.levels[-1].count
        raise InputError(
            f"{_placed_text(op, block)}, which are neither of one machine nor whole machines of {machine_size}; place it on "
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


def allowed(choices: Choices, placed: Mapping[str, Block], parallelism: int) -> Choices:
    """Return those of the stages' blocks that go with a placement.

    Raises:
        InputError: none do.
    """
    groups = set(placed.values())

    def goes(block: Block) -> bool:
        return block in groups or all(block.end <= group.first or group.end <= block.first for group in groups)

    options = reachable([[block for block in blocks if goes(block)] for blocks in choices], parallelism)
    if groups and not all(options):
        names = " and ".join(f"[{listed(group.devices)}]" for group in sorted(groups))
        raise InputError(
            f"stages={len(choices)} don't go with the placement on devices {names} of {parallelism}, for which it takes "
            f"{fewest_stages(placed, parallelism)} or more; leave out stages=, or place operators on others"
        )
    return options


def elsewhere(names: Sequence[str], placed: Mapping[str, Block], block: Block) -> np.ndarray:
    """Return how many of the operators up to each one are placed on other devices than these, int64[N + 1]."""
    return np.cumsum([0, *(placed.get(name, block) != block for name in names)])


def why_not_placed(stages: Stages, blocks: Sequence[Block], placed: Mapping[str, Block]) -> str | None:
    """Return the sentence that a cut has an operator on other devices than it is placed on; None if there is none."""
    for name, block in placed.items():
        if block not in blocks or name not in stages.members[blocks.index(block)]:
            op = stages.whole.graph.operators[name]
            homes = [home for home, members in zip(blocks, stages.members, strict=True) if name in members]
            place = f"with what uses it on devices {listed(homes[0].devices)}" if homes else "in no stage"
            return f"{_placed_text(op, block)}, but it is {place}; place it there"
    return None


def of_stage(graph: Graph, stage: Graph, force: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """Return the degrees that are forced on a stage's operators of a model, by their names.

    Raises:
        InputError: ``force`` names what isn't in the model.
    """
    return {name: degrees for name, degrees in force_by_name(graph, force).items() if name in stage.operators}


FEW_DEVICES = 8
"""On more devices a stage has at least half and at most twice as many as on average, to limit how many are tried."""


class Block(NamedTuple):
    """Consecutive devices, by the number of the first one."""

    first: int
    size: int

    @property
    def end(self) -> int:
        return self.first + self.size

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(range(self.first, self.end))


Choices = Sequence[Collection[Block]]
"""For each stage the blocks that it may have."""


def is_submesh(hardware: Hardware, block: Block) -> bool:
    """Return whether devices are of one unit of some level (of one machine), or whole units of it."""
    inner_size = 1
    for level in reversed(hardware.levels):
        unit = inner_size * level.count
        if block.size <= unit:
            is_whole = block.size % inner_size == 0 and block.first % inner_size == 0
            return is_whole and block.first // unit == (block.end - 1) // unit
        inner_size = unit
    return False


def blocks_of(sizes: Sequence[int]) -> tuple[Block, ...]:
    """Return the devices of stages of these sizes."""
    return tuple(Block(sum(sizes[:stage]), size) for stage, size in enumerate(sizes))


def equal_blocks(hardware: Hardware, parallelism: int, n_stages: int) -> tuple[Block, ...] | None:
    """Return the devices of stages of equal size; None where there are none."""
    if parallelism % n_stages:
        return None
    blocks = blocks_of((parallelism // n_stages,) * n_stages)
    return blocks if all(is_submesh(hardware, block) for block in blocks) else None


def interleaved_blocks(hardware: Hardware, parallelism: int, n_stages: int) -> tuple[Block, ...] | None:
    """Return the devices of interleaved stages; None where there are none.

    They are on as many submeshes of equal size as possible, two of these or more, with two stages or more on each.
    """
    for n_submeshes in range(n_stages // 2, 1, -1):
        blocks = None if n_stages % n_submeshes else equal_blocks(hardware, parallelism, n_submeshes)
        if blocks is not None:
            return blocks * (n_stages // n_submeshes)
    return None


def interleaved_counts(hardware: Hardware, parallelism: int) -> list[int]:
    """Return two numbers of stages that can be interleaved, for the fewest equal submeshes; none where there are no such."""
    fewest = (n for n in range(2, parallelism + 1) if equal_blocks(hardware, parallelism, n) is not None)
    n_submeshes = next(fewest, 0)
    return [2 * n_submeshes, 3 * n_submeshes] if n_submeshes else []


def choices(hardware: Hardware, parallelism: int, n_stages: int, tries_all: bool = False) -> Choices:
    """Return for each stage the blocks that it has in some way to give each device to one stage, of those that are tried.

    Args:
        tries_all: whether all are tried on many devices too.
    """
    average = parallelism / n_stages
    low, high = (1, parallelism) if tries_all or parallelism <= FEW_DEVICES else (average / 2, average * 2)
    blocks = [
        Block(first, size)
        for first in range(parallelism)
        for size in range(1, parallelism - first + 1)
        if low <= size <= high and is_submesh(hardware, Block(first, size))
    ]
    options = reachable([blocks] * n_stages, parallelism)
    return options if tries_all or all(options) else choices(hardware, parallelism, n_stages, tries_all=True)


def reachable(blocks_by_stage: Choices, parallelism: int) -> Choices:
    """Return those of the blocks with which each device has one stage, whatever the others are."""
    forward: list[set[Block]] = []
    ends = {0}
    for blocks in blocks_by_stage:
        forward.append({block for block in blocks if block.first in ends})
        ends = {block.end for block in forward[-1]}
    options: list[tuple[Block, ...]] = []
    firsts = {parallelism}
    for stage_blocks in reversed(forward):
        options.insert(0, tuple(sorted(block for block in stage_blocks if block.end in firsts)))
        firsts = {block.first for block in options[0]}
    return options
