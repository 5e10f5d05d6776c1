"""Estimate the largest batch with which a plan would fit a memory limit.

The step's program is replayed with smaller buffers. Buffers that depend on variables and constants alone (parameters, their
slots, gradients and copies) keep their size, and so does the workspace of collectives; all others are taken to be
proportional to the batch. A search with the smaller batch may find a plan that needs still less memory.
Complexity: O(log batch) passes over the program of a step.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from functools import cache

from ..program.memory.liveness import Buffer, Instruction, peak_of_program
from .frontiers.model_frontier import ModelFrontier


def batch_that_fits(frontier: ModelFrontier, point: int, batch: int, limit_bytes: int) -> int:
    """Return the largest number of samples per step below ``batch`` with which a point's plan would fit; 0 if none would.

    Args:
        point: the number of a point of the frontier.
        batch: samples per step of the frontier's model.
        limit_bytes: the memory limit per device.
    """
    program, variables = frontier.program(point), frontier.model.graph.made_of_variables
    fitting, too_many = 0, batch
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if peak_of_program(_scale_batch(program, middle, batch, variables)).n_bytes <= limit_bytes:
            fitting = middle
        else:
            too_many = middle
    return fitting


def _scale_batch(program: Sequence[Instruction], n_samples: int, batch: int, variables: Container[str]) -> list[Instruction]:
    """Return the program with every buffer that depends on the batch scaled by ``n_samples / batch``, rounded up."""
    def share(n_bytes: int) -> int:
        return -(-n_bytes * n_samples // batch)

    def is_fixed(buffer: Buffer) -> bool:
        return not buffer.of or buffer.of in variables

    @cache
    def scale(buffer: Buffer) -> Buffer:
        return buffer if is_fixed(buffer) else replace(buffer, n_bytes=share(buffer.n_bytes))

    return [
        Instruction(
            tuple(map(scale, instruction.reads)),
            tuple(map(scale, instruction.writes)),
            instruction.scratch_bytes if all(map(is_fixed, instruction.reads)) else share(instruction.scratch_bytes),
            tuple((scale(b), n_bytes if is_fixed(b) else share(n_bytes)) for b, n_bytes in instruction.overwrites),
            instruction.calls_python,
        )
        for instruction in program
    ]
