"""Compute the peak memory of a stage of a pipeline: that of its passes, in the order in which it runs them.

A stage has several micro-batches in flight, and others whose gradients of parameters are deferred. To replay all of them for
each order that is tried would take long. But a pass of a micro-batch changes the bytes that are alive by as much whatever
passes of others ran before it: each has memory of its own, and what all of them use is made by the first and freed by the
last. So one step is replayed with its micro-batches one after the other: the first, the last, and one that stands for those
between. Of each pass it has how far memory rises above where the pass begins, and where the pass leaves it. In any order of
passes the bytes alive before one of them are the sum of what those before it have left.

Messages from and to other stages call Python, so what Python has kept is freed between passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..costs.operator_costs import OperatorCosting
from ..sharding.resharding import PathFinder
from ..sharding.strategy import StrategyView
from .buffers import TaskBuffers
from .liveness import Instruction, peak_of_program
from .passes import BACKWARD, FORWARD, PARAMETERS, Pass
from .peak import MOST_MICRO_BATCHES
from .stage_ends import StageEnds
from .step import step_program

_WORKS = (FORWARD, BACKWARD, PARAMETERS)


@dataclass(frozen=True, slots=True)
class Messages:
    """The bytes of a stage's messages, on a device.

    Attributes:
        sent: what it sends of a micro-batch.
        received: for each stage that sends to it the bytes of a micro-batch, and how many that stage has in flight at most.
    """

    sent: int = 0
    received: tuple[tuple[int, int], ...] = ()

    def waiting_bytes(self, in_flight: int, others: int) -> int:
        """Return the most bytes of messages that may wait, on both ends, beside what a pass has of its own.

        What is in flight in a stage that sends, and not here, waits to be taken, or its gradient does (see
        :func:`.schedule.most_waiting`). Of those in flight here the message to the next stage waits, or its gradient.

        Args:
            in_flight: the micro-batches in flight.
            others: those of them that the pass isn't of.
        """
        return others * self.sent + sum(max(0, most - in_flight) * n_bytes for n_bytes, most in self.received)


@dataclass(frozen=True, eq=False)
class PassMemory:
    """The bytes that are alive while a stage runs a step, whatever the order of its passes.

    Attributes:
        outside: the most before the first pass and behind the last one; all where the batch is taken at once.
        begins: when the first pass begins.
        rises: by micro-batch that was replayed, and pass of it (forward, backward, of parameters): how far the most that is
            alive in it is above what is alive when it begins, int64[micro-batches, 3].
        changes: how much more is alive when it is over, int64[micro-batches, 3].
    """

    outside: int
    begins: int
    rises: np.ndarray
    changes: np.ndarray

    def peak_bytes(self, order: Iterable[Pass], n_micro_batches: int, messages: Messages = Messages()) -> int:
        """Return the most bytes that are alive at once with an order of a stage's passes.

        Args:
            order: each micro-batch's backward pass has that of its parameters at its end, where the order hasn't.
            messages: those that may wait meanwhile.
        """
        passes = list(order)
        return peak_together({each.stage: (self, messages) for each in passes}, passes, n_micro_batches)


def peak_together(
    of_stages: Mapping[int, tuple[PassMemory, Messages]], order: Iterable[Pass], n_micro_batches: int
) -> int:
    """Return the most bytes that are alive at once on a device that runs the passes of one stage, or of several.

    What a stage needs outside of its passes is counted beside what the others hold before theirs, and beside all that they
    run after its last one: updates wait for their own gradients alone.

    Args:
        of_stages: by number of a stage what is alive in its passes, and the messages that may wait meanwhile.
        order: see :meth:`PassMemory.peak_bytes`.
    """
    memories = {stage: memory for stage, (memory, _) in of_stages.items()}
    if not all(len(memory.rises) for memory in memories.values()):
        return sum(memory.outside for memory in memories.values())
    rises, changes = ({stage: getattr(m, name).tolist() for stage, m in memories.items()} for name in ("rises", "changes"))
    alive = {stage: memory.begins for stage, memory in memories.items()}
    in_flight, waiting = dict.fromkeys(memories, 0), {s: each.waiting_bytes(0, 0) for s, (_, each) in of_stages.items()}
    none_waits, most, passes = sum(waiting.values()), 0, _with_parameters(order)
    last_of = {stage: number for number, (stage, _, _) in enumerate(passes)}
    outside = 0  # beyond what is alive, of stages whose passes have all run
    for number, (stage, index, work) in enumerate(passes):
        last = len(rises[stage]) - 1
        replayed = last if index == n_micro_batches - 1 else min(index, last - 1)
        messages = of_stages[stage][1]
        in_flight[stage] += work == 0
        waiting[stage] = messages.waiting_bytes(in_flight[stage], in_flight[stage] - (work < 2))
        most = max(most, sum(alive.values()) + rises[stage][replayed][work] + sum(waiting.values()) + outside)
        alive[stage] += changes[stage][replayed][work]
        in_flight[stage] -= work == 1
        waiting[stage] = messages.waiting_bytes(in_flight[stage], in_flight[stage])
        if number == last_of[stage]:
            outside = max(outside, memories[stage].outside - alive[stage])
    held = {stage: max(memory.begins, alive[stage]) for stage, memory in memories.items()}
    beyond = max(memory.outside - held[stage] for stage, memory in memories.items())
    return max(most, sum(held.values()) + beyond + none_waits)


def _with_parameters(order: Iterable[Pass]) -> list[tuple[int, int, int]]:
    """Return the passes as stage, micro-batch and number of the work, each backward pass with that of its parameters."""
    passes = [(each.stage, each.micro_batch, _WORKS.index(each.work)) for each in order]
    if any(work == 2 for *_, work in passes):
        return passes
    return [each for stage, index, work in passes for each in ((stage, index, work), (stage, index, 2))[: 1 + (work == 1)]]


def pass_memory(view: StrategyView, costing: OperatorCosting, path_finder: PathFinder, ends: StageEnds) -> PassMemory:
    """Return the bytes that are alive in the passes of a stage, on the device with the largest shards.

    Args:
        view: a strategy on the graph of the stage; see :func:`.peak.peak_of`, also for the arguments that follow.
        ends: what the stage exchanges with others.
    """
    program = step_program(view, path_finder, MOST_MICRO_BATCHES, ends=ends)
    buffers = TaskBuffers(view, costing, path_finder, ends)
    return _memory_of(buffers.instructions(program), buffers.sizes.passes)


def _memory_of(program: list[Instruction], begins: list[int]) -> PassMemory:
    """Return the bytes alive in the passes of a program that begin behind some of its instructions, and in those outside."""
    totals = np.zeros(len(program), np.int64)
    if not begins:
        return PassMemory(peak_of_program(program).n_bytes, 0, np.zeros((0, 3), np.int64), np.zeros((0, 3), np.int64))

    def observe(index: int, alive: Counter[str]) -> None:
        totals[index] = alive.total()

    peak_of_program(program, observe)
    scratch = np.array([each.scratch_bytes for each in program], np.int64)
    # Nothing is read or written at the instructions at which passes begin, so what is alive there is alive between passes.
    at, most = totals[begins], totals + scratch
    of_passes = np.array([most[first : last + 1].max() for first, last in pairwise(begins)])
    outside = max(int(most[: begins[0] + 1].max()), int(most[begins[-1] :].max()))
    return PassMemory(outside, int(at[0]), (of_passes - at[:-1]).reshape(-1, 3), np.diff(at).reshape(-1, 3))
