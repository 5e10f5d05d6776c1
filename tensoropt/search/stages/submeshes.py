"""Give stages devices: consecutive ones, of one machine or whole machines, so that a stage's mesh is that of its number."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ...profiling.hardware import Hardware

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
