"""Compute the peak memory of a training step on the device with the largest shards.

Equation (1) of the TensorOpt paper sums the memory of all residuals, because a search needs costs that add up. The bytes
that are alive at once are fewer (a gradient is freed once it has been used, and residuals are freed while the backward pass
runs) and also more (gradients under way, results that aren't residuals, the buffers that collectives receive into). So the
step program (:mod:`..step`) is written with the buffers that its tasks read and write, as a rank that computes one operator
at a time runs it, and the bytes alive are counted (:mod:`.liveness`).

The micro-batches between the first and the last are alike, so only one of them is written.
"""

from __future__ import annotations

from ...costs.operator_costs import OperatorCosting
from ...sharding.resharding import PathFinder
from ...sharding.strategy import StrategyView
from ..step import step_program
from .buffers import GRADIENTS, INPUTS, PARAMETERS, SLOTS, TaskBuffers
from .liveness import Instruction, Peak, peak_of_program

MOST_MICRO_BATCHES = 3
"""The most micro-batches that are written: the first, the last, and one that stands for all between, which are alike."""

__all__ = ["GRADIENTS", "INPUTS", "PARAMETERS", "SLOTS", "instructions_of", "peak_of"]


def peak_of(view: StrategyView, costing: OperatorCosting, path_finder: PathFinder) -> Peak:
    """Return the peak memory of one run of all training steps, or of the whole graph if it has none.

    Args:
        view: a strategy on its graph, with the residuals; operators without a config aren't run.
        costing: says what composite operators save inside for the backward pass.
    """
    return peak_of_program(instructions_of(view, costing, path_finder))


def instructions_of(view: StrategyView, costing: OperatorCosting, path_finder: PathFinder) -> list[Instruction]:
    """Return what the tasks of a step read and write; the peak of that is :func:`peak_of`, with the same arguments."""
    return TaskBuffers(view, costing, path_finder).instructions(step_program(view, path_finder, MOST_MICRO_BATCHES))
