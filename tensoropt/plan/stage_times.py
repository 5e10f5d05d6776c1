"""Predict how long stages take for their passes: operators, what messages take of a rank's own cores, and what runs once.

    forward, backward   of a micro-batch: operators (:func:`works`), messages and sums of gradients (:func:`beside`)
    before, after       once a step: lookups that run ahead and what is sent with them; updates of variables
    transfer            :func:`transfers`: how long what is sent is on its way, beside the passes
    all of it           :func:`step_us`

A message takes of each of its ends the call into Python and half of the exposed share of the time that the link needs: the
share is measured of an all-reduce, which sends as many bytes as it receives (:mod:`..profiling.exposed`). Where nothing was
measured, devices are taken to send by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from ..costs.model_costs import costing_of
from ..costs.resharding_costs import shard_bytes
from ..ir.graph import CONSTANT, PLACEHOLDER, VARIABLE, Graph, Operator
from ..profiling.hardware import Hardware
from ..profiling.work import WorkItem
from ..program.schedule import ONE_FORWARD_ONE_BACKWARD, Times, makespan, pass_orders, tried_in_flight
from ..reschedule.mesh import Mesh
from ..rules.registry import rule_of
from ..rules.rule import configs, interface_of
from ..sharding.model import Model
from ..sharding.stages import Crossing, Stages


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Microseconds of a stage: of a micro-batch's passes, and of what runs once a step. Many plans have float64[plans] each.

    Attributes:
        before: until its first pass may begin.
        after: when its last pass is over.
        late: the end of a backward pass, when what earlier stages wait for has been sent.
    """

    forward: Times = 0.0
    backward: Times = 0.0
    before: Times = 0.0
    after: Times = 0.0
    late: Times = 0.0

    def __add__(self, other: PassTimes) -> PassTimes:
        return PassTimes(*(own + each for own, each in zip(astuple(self), astuple(other), strict=True)))

    def scaled(self, factor: Times) -> PassTimes:
        """Return all times multiplied by a factor."""
        return PassTimes(*(each * factor for each in astuple(self)))

    def total(self, n_micro_batches: int) -> Times:
        """Return the time of all passes of a step and of what runs once."""
        return n_micro_batches * (self.forward + self.backward) + self.before + self.after


class Transfers(NamedTuple):
    """How long transfers between stages are on their way, in microseconds; see :func:`.makespan`.

    Attributes:
        each: for each pair of neighbouring stages, of a micro-batch's tensors.
        first: for each stage, of what it receives before its first pass.
        last: for each stage, of what it sends back after its last pass.
    """

    each: list[float]
    first: list[float]
    last: list[float]


def first_passes_us(times: Sequence[PassTimes], on_the_way: Transfers) -> list[Times]:
    """Return for each stage when what its first pass needs is there."""
    begins = [each.before for each in times]
    for stage, way in enumerate(on_the_way.first):
        if way:
            begins[stage] = np.maximum(begins[stage], way + reduce(np.maximum, [each.before for each in times]))
    return begins


def step_us(times: Sequence[PassTimes], on_the_way: Transfers, schedule: str, n: int, in_flight: Sequence[int]) -> Times:
    """Return the predicted time of a step in ``n`` micro-batches, or the times of many plans."""
    return makespan(
        pass_orders(schedule, n, in_flight),
        [each.forward for each in times],
        [each.backward for each in times],
        on_the_way.each,
        first_passes_us(times, on_the_way),
        on_the_way.last,
        [each.after for each in times],
        [each.late for each in times],
    )


# Operators


def runs_in_order(hardware: Hardware) -> bool:
    """Return whether ranks run their operators one after the other, so that what others wait for can be sent ahead."""
    return hardware.measured is not None and hardware.measured.threads == 1


class OperatorTimes:
    """The times of a model's operators on the devices of a stage, each split as it is fastest, of one micro-batch."""

    def __init__(self, model: Model, hardware: Hardware, mesh: Mesh) -> None:
        """Take the model of one micro-batch, and the devices of a stage."""
        self.graph: Graph = model.graph
        self._mesh = mesh
        self._costing = costing_of(model, hardware, mesh)
        self.sends_early = runs_in_order(hardware)
        computing = (op for op in self.graph.step_operators if op.type not in (PLACEHOLDER, CONSTANT) and op.outputs)
        self.of: Mapping[str, PassTimes] = {op.name: self._of(op) for op in computing}
        self.adding_us: Mapping[str, float] = {op.name: self._adding_us(op) for op in self.graph.variables}

    def _of(self, op: Operator) -> PassTimes:
        rule, costing = rule_of(op), self._costing
        choices = ((each, interface_of(rule, each)) for each in configs(rule, self._mesh))
        config, interface = min(choices, key=lambda choice: costing.compute_time_ns(op, rule, *choice))
        all_us, backward_us = (
            time_ns(op, rule, config, interface) / 1e3 / self.graph.n_runs(op.result.name)
            for time_ns in (costing.compute_time_ns, costing.backward_time_ns)
        )
        if op.type == VARIABLE:
            return PassTimes(after=all_us)
        late_us = backward_us * self._late_share(op) if self.sends_early else 0.0
        return PassTimes(all_us - backward_us, backward_us, late=late_us)

    def _late_share(self, op: Operator) -> float:
        """Return the share of an operator's backward pass that is for variables, whose gradients no stage waits for."""
        gradients = [tensor.name for i, tensor in op.operands if (op.name, i) in self._costing.backward.gradients]
        return sum(name in self.graph.made_of_variables for name in gradients) / max(1, len(gradients))

    def _adding_us(self, op: Operator) -> float:
        """Return the time to add a micro-batch's gradient of a variable to those before, on average over micro-batches."""
        n, result = self.graph.n_micro_batches, op.result
        if n == 1 or op.name not in self.graph.updates or op.name in self.graph.lookups:
            return 0.0
        rule = rule_of(op)
        layouts = (interface_of(rule, config).results[0] for config in configs(rule, self._mesh))
        n_bytes = min(shard_bytes(result, layout) for layout in layouts)
        work = WorkItem("AddV2", result.dtype, n_bytes // result.item_bytes, 3 * n_bytes)
        return self._costing.compute.time_ns(work) / 1e3 * (n - 1) / n


def works(stages: Stages, times: OperatorTimes) -> list[PassTimes]:
    """Return the times of the operators of all stages.

    Lookups that run ahead take the whole batch before the first pass, and their gradients come after the last one.
    """
    n, ahead = times.graph.n_micro_batches, stages.ahead.lookups
    found = []
    for members in stages.members:
        total = PassTimes()
        for name, each in times.of.items():
            if name in members:
                is_ahead = name in ahead
                total += PassTimes(before=n * each.forward, after=n * each.backward) if is_ahead else each
        found.append(total)
    return found


# Messages


class _Link(NamedTuple):
    """What joins two neighbouring stages: how much all their devices send at once, and what that takes of their cores.

    Attributes:
        call_us: of each end of each message.
        share: the share of the time on the link that both ends' cores are busy with it.
    """

    latency_us: float
    bytes_per_us: float
    call_us: float
    share: float


def _links(hardware: Hardware, per_stage: int, n_stages: int) -> list[_Link]:
    """Return the links between neighbouring stages."""
    machine, device = hardware.levels[0], hardware.levels[-1]
    found = []
    for stage in range(1, n_stages):
        is_between = len(hardware.levels) > 1 and stage * per_stage % device.count == 0
        level, units = (machine, max(1, per_stage // device.count)) if is_between else (device, per_stage)
        share = 0.0 if hardware.measured is None else hardware.exposed_share if is_between else 1.0
        found.append(_Link(level.latency_us, units * level.bytes_per_s / 1e6, hardware.collective_call_us, share))
    return found


def _crossed(crossing: Crossing) -> range:
    """Return the numbers of the links that a crossing passes."""
    return range(*sorted((crossing.source, crossing.target)))


def transfers(stages: Stages, hardware: Hardware, per_stage: int, n_micro_batches: int) -> Transfers:
    """Return how long what stages send each other takes on its way.

    Before its first pass a stage waits for what is sent once a step, and for the first micro-batch's rows of a table that is
    looked up ahead; after its last pass the gradients of these are still on their way. The rows of other micro-batches are
    there when these begin.
    """
    graph = stages.whole.in_micro_batches(n_micro_batches).graph
    forms = graph.micro_batching.forms if graph.micro_batching is not None else {}
    links = _links(hardware, per_stage, stages.n)
    each, first, last = [0.0] * (stages.n - 1), [0.0] * stages.n, [0.0] * stages.n
    for crossing in stages.crossings:
        n_bytes = graph.tensors[crossing.tensor].mem_bytes
        on_links = {number: links[number].latency_us + n_bytes / links[number].bytes_per_us for number in _crossed(crossing)}
        if crossing.tensor in forms and not crossing.is_ahead:
            for number, time_us in on_links.items():
                each[number] += time_us
        if crossing.is_ahead or crossing.tensor not in forms:
            first[crossing.target] += sum(on_links.values())
            last[crossing.target] += sum(on_links.values()) if crossing.has_gradient else 0.0
    return Transfers(each, first, last)


def way_back_and_forth_us(hardware: Hardware, per_stage: int, n_stages: int) -> float:
    """Return the time that a byte takes to the next stage, and its gradient back, over the slowest link."""
    return 2 / min(each.bytes_per_us for each in _links(hardware, per_stage, n_stages))


def messages(stages: Stages, hardware: Hardware, per_stage: int, n_micro_batches: int) -> list[PassTimes]:
    """Return what sending and receiving takes of the cores of each stage's devices."""
    graph = stages.whole.in_micro_batches(n_micro_batches).graph
    forms = graph.micro_batching.forms if graph.micro_batching is not None else {}
    links = _links(hardware, per_stage, stages.n)
    found = [PassTimes() for _ in range(stages.n)]
    for crossing in stages.crossings:
        n_bytes = graph.tensors[crossing.tensor].mem_bytes
        end_us = max(
            links[number].call_us + links[number].share / 2 * n_bytes / links[number].bytes_per_us
            for number in _crossed(crossing)
        )
        back_us = end_us if crossing.has_gradient else 0.0
        in_pass, once = PassTimes(forward=end_us, backward=back_us), PassTimes(before=end_us, after=back_us)
        is_in_passes = crossing.tensor in forms
        found[crossing.target] += in_pass if is_in_passes else once
        if crossing.is_ahead and is_in_passes:
            once = once.scaled(n_micro_batches)
        found[crossing.source] += in_pass if is_in_passes and not crossing.is_ahead else once
    return found


def beside(stages: Stages, hardware: Hardware, per_stage: int, times: OperatorTimes) -> list[PassTimes]:
    """Return what each stage does beside its operators: its messages, and the sums of gradients over micro-batches."""
    sums = []
    for members in stages.members:
        adding_us = sum(each for name, each in times.adding_us.items() if name in members)
        sums.append(PassTimes(backward=adding_us, late=adding_us if times.sends_early else 0.0))
    found = messages(stages, hardware, per_stage, times.graph.n_micro_batches)
    return [of_messages + adding for of_messages, adding in zip(found, sums, strict=True)]


def estimated_us(stages: Stages, hardware: Hardware, per_stage: int, times: OperatorTimes) -> float:
    """Return the time of a step in stages whose operators are each split as they are fastest, by the best of the numbers of
    micro-batches in flight.
    """
    n = times.graph.n_micro_batches
    others = beside(stages, hardware, per_stage, times)
    found = [work + other for work, other in zip(works(stages, times), others, strict=True)]
    on_the_way = transfers(stages, hardware, per_stage, n)
    return min(
        float(step_us(found, on_the_way, ONE_FORWARD_ONE_BACKWARD, n, in_flight))
        for in_flight in tried_in_flight(stages.n, n)
    )

