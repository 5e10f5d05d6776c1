"""The largest batch with which a plan would fit, estimated: the step replayed with what belongs to samples made smaller.

What follows from variables and constants alone (parameters, their slots, gradients and copies) stays as it is, and so does
what collectives work in; all else is taken to be in proportion to the batch. A search with that batch may find a plan that
needs less still. Complexity: O(log batch) passes over the program of a step.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from ..ir.graph import PLACEHOLDER
from ..program.liveness import Buffer, Instruction, peak_of_program
from ..sharding.model import Model
from .find_frontier import ModelFrontier


def batch_of(model: Model) -> int | None:
    """The samples per step: the leading extent that the placeholders of the training steps share."""
    extents = {
        op.result.shape[0]
        for op in model.graph.step_operators
        if op.type == PLACEHOLDER and op.result.shape
    }
    return extents.pop() if len(extents) == 1 else None


def batch_that_fits(frontier: ModelFrontier, point: int, batch: int, limit_bytes: int) -> int:
    """The most samples per step, fewer than ``batch``, with which a point's plan would fit; 0 if none would.

    Args:
        batch: samples per step of the frontier's model.
    """
    program, fixed = frontier.program(point), frontier.model.graph.made_of_variables
    fitting, too_many = 0, batch
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if peak_of_program(_with_batch(program, middle, batch, fixed)).n_bytes <= limit_bytes:
            fitting = middle
        else:
            too_many = middle
    return fitting


def _with_batch(program: Sequence[Instruction], n_samples: int, batch: int, fixed: Container[str]) -> list[Instruction]:
    """The program where what belongs to samples has ``n_samples`` of ``batch``, rounded up."""
    known: dict[Buffer, Buffer] = {}

    def share(n_bytes: int) -> int:
        return -(-n_bytes * n_samples // batch)

    def is_fixed(buffer: Buffer) -> bool:
        return not buffer.of or buffer.of in fixed

    def smaller(buffer: Buffer) -> Buffer:
        if is_fixed(buffer):
            return buffer
        if buffer not in known:
            known[buffer] = replace(buffer, n_bytes=share(buffer.n_bytes))
        return known[buffer]

    return [
        Instruction(
            tuple(map(smaller, each.reads)),
            tuple(map(smaller, each.writes)),
            each.scratch_bytes if all(map(is_fixed, each.reads)) else share(each.scratch_bytes),
            tuple((smaller(b), seen if is_fixed(b) else share(seen)) for b, seen in each.overwrites),
            each.calls_python,
        )
        for each in program
    ]
