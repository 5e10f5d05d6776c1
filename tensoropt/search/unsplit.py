"""Choose a plan that splits nothing where one device is as fast, as for a model of few small operators.

Each rank of a trainer loads its share of a batch, so that a search has no strategy without collectives for it, and a tiny
model is predicted to wait for them. In an unsplit plan each rank loads the global batch and does all of the work.
"""

from __future__ import annotations

from dataclasses import replace

from ..costs.objectives import MEMORY_TIME
from ..plan.plan import Plan
from ..program.schedule import PLAIN
from ..rules.registry import rule_of
from .baselines import OTHERS
from .candidates.whole_frontier import frontier_of_whole
from .frontiers.find_frontier import find_unsplit
from .request import Request


def unsplit_if_as_fast(plan: Plan, request: Request) -> Plan:
    """Return a plan, or the unsplit one if time counts, and that is predicted to be as fast and fits the memory limit.

    They are compared on measured hardware alone: descriptions don't say how long small operators and collectives take.
    """
    frontier = plan.stages[0].frontier
    assert frontier is not None
    is_open = not (request.force or request.placed) and request.algorithm not in OTHERS and request.objectives == MEMORY_TIME
    has_spread = any(rule_of(op).spread for op in frontier.model.graph.step_operators)
    if plan.parallelism == 1 or not (is_open and has_spread) or request.hardware.measured is None:
        return plan
    if plan.option != "mini_time" or plan.schedule != PLAIN or plan.micro_batches > 1:  # as the memory limit asked for
        return plan
    unsplit_frontier = find_unsplit(frontier)
    if unsplit_frontier.points[0].time_us > plan.time_us:
        return plan
    if request.limit_bytes is not None and unsplit_frontier.peak_bytes(0) > request.limit_bytes:
        return plan
    unsplit = frontier_of_whole(unsplit_frontier, plan.assumed).plan(0, plan.option)
    return replace(unsplit, frontier=plan.frontier, frontier_text=plan.frontier.table(), point=None)
