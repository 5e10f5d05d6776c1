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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ...costs.operator_costs import OperatorCosting
from ...sharding.resharding import PathFinder
from ...sharding.strategy import StrategyView
from ..orders.passes import WORKS, Pass
from ..stage_ends import StageEnds
from ..step import step_program
from .buffers import TaskBuffers
from .liveness import Instruction, peak_of_program
from .peak import MOST_MICRO_BATCHES


@dataclass(frozen=True, slots=True)
class Messages:
    """The bytes of a stage's messages, on a device: integers, or int64[P] under many strategies.

    Attributes:
        sent: what it sends of a micro-batch.
        received: for each stage that sends to it the bytes of a micro-batch, and how many that stage has in flight at most.
        beside: of the gradients of what it sends those that wait while the backward pass of one training step runs.
        near: of what it sends that which goes no farther than to the next stage on the same device.
    """

    sent: Any = 0
    received: tuple[tuple[Any, int], ...] = ()
    beside: Any = 0
    near: Any = 0

    def take(self, points: Any) -> Messages:
        """Return the messages under some of the strategies."""
        received = tuple((n_bytes[points], most) for n_bytes, most in self.received)
        return Messages(self.sent[points], received, self.beside[points], self.near[points])

    def waiting_bytes(self, in_flight: Any, others: Any, later: Any = 0) -> Any:
        """Return the most bytes of messages that may wait, on both ends, beside what a pass has of its own.

        What is in flight in a stage that sends, and not here, waits to be taken, or its gradient does. Of those in flight
        here the message to the next stage waits, or its gradient.

        Args:
            in_flight: the micro-batches in flight: a number, or int64[N, 1].
            others: those of them that the pass isn't of.
            later: how many the device's next stage has in flight. They have passed those between, and their gradients are
                still to come.
        """
        own = others * self.sent - np.minimum(others, later) * self.near + (in_flight - others) * self.beside
        return own + sum(np.maximum(0, most - in_flight) * n_bytes for n_bytes, most in self.received)


@dataclass(frozen=True, eq=False)
class PassMemory:
    """The bytes that are alive while a stage runs a step, whatever the order of its passes, under P strategies.

    Attributes:
        outside: the most before the first pass and behind the last one; all where the batch is taken at once: int64[P].
        begins: when the first pass begins, int64[P].
        rises: by micro-batch that was replayed, and pass of it (forward, backward, of parameters): how far the most that is
            alive in it is above what is alive when it begins, int64[micro-batches, 3, P].
        changes: how much more is alive when it is over, int64[micro-batches, 3, P].
    """

    outside: np.ndarray
    begins: np.ndarray
    rises: np.ndarray
    changes: np.ndarray

    @classmethod
    def of(cls, alive: np.ndarray, most: np.ndarray) -> PassMemory:
        """Return the bytes of passes.

        Args:
            alive: those when each pass begins, and behind the last one, int64[passes + 1, P]; int64[0, P] where the batch is
                taken at once.
            most: the most before the first pass, in each of them, and behind the last one, int64[passes + 2, P].
        """
        if not len(alive):
            none = np.zeros((0, 3, most.shape[1]), np.int64)
            return cls(most[0], np.zeros_like(most[0]), none, none)
        shape, outside = (-1, 3, alive.shape[1]), np.maximum(most[0], most[-1])
        return cls(outside, alive[0], (most[1:-1] - alive[:-1]).reshape(shape), np.diff(alive, axis=0).reshape(shape))

    @classmethod
    def joined(cls, parts: Sequence[PassMemory]) -> PassMemory:
        """Return the bytes under the strategies of several, one after the other."""
        of_parts = zip(*((part.outside, part.begins, part.rises, part.changes) for part in parts), strict=True)
        return cls(*(np.concatenate(arrays, axis=-1) for arrays in of_parts))

    def take(self, points: Any) -> PassMemory:
        """Return the bytes under some of the strategies, in any order."""
        return PassMemory(*(amounts[..., points] for amounts in (self.outside, self.begins, self.rises, self.changes)))


def peak_together(
    of_stages: Mapping[int, tuple[PassMemory, Messages]], order: Iterable[Pass], n_micro_batches: int
) -> np.ndarray:
    """Return the most bytes that are alive at once on a device that runs the passes of one stage, or of several, int64[P].

    What a stage needs outside of its passes is counted beside what the others hold before theirs, and beside all that they
    run after its last one: updates wait for their own gradients alone.

    Args:
        of_stages: by number of a stage what is alive in its passes, and the messages that may wait meanwhile.
        order: each micro-batch's backward pass has that of its parameters at its end, where the order hasn't.
    """
    if not all(len(memory.rises) for memory, _ in of_stages.values()):
        return np.sum([memory.outside for memory, _ in of_stages.values()], axis=0)
    of_passes, index, work = np.array(_with_parameters(order)).T
    ran_of = {stage: (of_passes == stage) * (work == np.array([[0], [1]])) for stage in of_stages}
    in_flight_of = {stage: ran[0].cumsum() - (ran[1].cumsum() - ran[1]) for stage, ran in ran_of.items()}
    tables, states, ends = [], [], dict[int, np.ndarray]()
    for stage, (memory, messages) in of_stages.items():
        runs, last = of_passes == stage, len(memory.rises) - 1
        replayed = np.where(index == n_micro_batches - 1, last, np.minimum(index, last - 1))
        ran = runs[:, None] & ((3 * replayed + work)[:, None] == np.arange(3 * last + 3))
        before, changes = ran.cumsum(axis=0) - ran, memory.changes.reshape(len(ran.T), -1)
        ends[stage] = memory.begins + ran.sum(axis=0) @ changes
        in_flight = in_flight_of[stage]
        later = next((in_flight_of[each] for each in sorted(of_stages) if each > stage), np.zeros_like(in_flight))
        # Once through, a micro-batch that leaves nothing doesn't count, so few passes differ. Floats are exact below 2^53.
        before -= np.repeat(before[:, 2::3] * ~memory.changes.sum(axis=1).any(axis=1), 3, axis=1)
        flying = in_flight, in_flight - (runs & (work < 2)), later
        rows, known = np.column_stack([*flying, before, ran]), dict[bytes, int]()
        states.append([known.setdefault(row.tobytes(), len(known)) for row in rows])
        few = np.frombuffer(b"".join(known), rows.dtype).reshape(len(known), -1)
        alive = (few[:, 3:] @ np.vstack([changes, memory.rises.reshape(changes.shape)], dtype=float)).astype(np.int64)
        tables.append(memory.begins + alive + messages.waiting_bytes(*np.split(few[:, :3], 3, axis=1)))
    outside = [np.zeros_like(sum(ends.values()))]  # beyond what is alive, of stages whose passes have all run
    last_of = {stage: number for number, stage in enumerate(of_passes.tolist())}
    for stage in sorted(last_of, key=last_of.__getitem__):
        outside.append(np.maximum(outside[-1], of_stages[stage][0].outside - ends[stage]))
    states.append(np.searchsorted(sorted(last_of.values()), np.arange(len(work))).tolist())
    alike = np.array(list(set(zip(*states, strict=True)))).T
    most = sum(table[at] for table, at in zip([*tables, np.array(outside)], alike, strict=True)).max(axis=0)
    held = {stage: np.maximum(memory.begins, ends[stage]) for stage, (memory, _) in of_stages.items()}
    beyond = np.max([of_stages[stage][0].outside - held[stage] for stage in held], axis=0)
    return np.maximum(most, sum(held.values()) + beyond + sum(each.waiting_bytes(0, 0) for _, each in of_stages.values()))


def _with_parameters(order: Iterable[Pass]) -> list[tuple[int, int, int]]:
    """Return the passes as stage, micro-batch and number of the work, each backward pass with that of its parameters."""
    passes = [(run.stage, run.micro_batch, WORKS.index(run.work)) for run in order]
    if any(work == 2 for *_, work in passes):
        return passes
    return [row for stage, index, work in passes for row in ((stage, index, work), (stage, index, 2))[: 1 + (work == 1)]]


def pass_memory(view: StrategyView, costing: OperatorCosting, path_finder: PathFinder, ends: StageEnds) -> PassMemory:
    """Return the bytes that are alive in the passes of a stage under one strategy, on the device with the largest shards.

    Args:
        view: a strategy on the graph of the stage; see :func:`.peak.peak_of`, also for the arguments that follow.
    """
    program = step_program(view, path_finder, MOST_MICRO_BATCHES, ends=ends)
    buffers = TaskBuffers(view, costing, path_finder, ends)
    return _memory_of(buffers.instructions(program), buffers.sizes.passes)


def _memory_of(program: list[Instruction], begins: list[int]) -> PassMemory:
    """Return the bytes alive in the passes of a program that begin behind some of its instructions, and in those outside."""
    totals = np.zeros(len(program), np.int64)

    def observe(index: int, alive: Counter[str]) -> None:
        totals[index] = alive.total()

    peak = peak_of_program(program, observe).n_bytes
    if not begins:
        return PassMemory.of(np.zeros((0, 1), np.int64), np.array([[peak]]))
    most = totals + np.array([instruction.scratch_bytes for instruction in program], np.int64)
    # Nothing is read or written at the instructions at which passes begin, so what is alive there is alive between passes.
    parts = pairwise([0, *begins, len(program) - 1])
    of_parts = np.array([most[first : last + 1].max() for first, last in parts])
    return PassMemory.of(totals[begins][:, None], of_parts[:, None])
