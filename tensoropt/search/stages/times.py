"""Predict how long stages take for their passes: operators, what messages take of a rank's own cores, and what runs once.

    forward, backward   of a micro-batch: operators (:func:`works`) and messages (:func:`messages`)
    before, after       once a step: lookups that run ahead and what is sent with them; updates of variables
    transfer            :func:`transfers`: how long what is sent is on its way, beside the passes
    all of it           :func:`step_us`

A message takes of each of its ends the call into Python and half of the exposed share of the time that the link needs: the
share is measured of an all-reduce, which sends as many bytes as it receives (:mod:`...profiling.measure`). Where nothing was
measured, devices are taken to send by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ...costs.config_costs import ConfigCosts
from ...costs.operator_costs import costing_of
from ...ir.graph import CONSTANT, PLACEHOLDER, VARIABLE, Graph, Operator
from ...profiling.hardware import Hardware
from ...profiling.hardware_costs import Link, link_between
from ...profiling.work import NOTHING_KNOWN, MeasuredOperators
from ...program.deferral import has_separate_gradients
from ...program.orders.fast_makespan import PassTimes, Transfers, step_us
from ...program.orders.schedule import ONE_FORWARD_ONE_BACKWARD, tried_orders
from ...reschedule.mesh import Mesh
from ...rules.config_arrays import ConfigArrays
from ...rules.configs import configs_by_degrees
from ...rules.registry import rule_of
from ...sharding.model import Model
from ...sharding.stages import Crossing, Stages
from .placement import Block

# Operators


def runs_in_order(hardware: Hardware) -> bool:
    """Return whether ranks run their operators one after the other, so that what others wait for can be sent ahead."""
    return hardware.measured is not None and hardware.measured.threads == 1


class OperatorTimes:
    """The times of a model's operators on the devices of a stage, each split as it is fastest, of one micro-batch."""

    def __init__(self, model: Model, hardware: Hardware, mesh: Mesh, measured: MeasuredOperators = NOTHING_KNOWN) -> None:
        """Take the model of one micro-batch, the devices of a stage, and what was measured of operators."""
        self.graph: Graph = model.graph
        self._mesh, self.n_devices = mesh, mesh.n_devices
        self.costing = costing_of(model, hardware, mesh, measured)
        self.sends_early = runs_in_order(hardware)
        self._fastest_ns: dict[int, tuple[int, int, int]] = {}
        computing = (op for op in self.graph.step_operators if op.type not in (PLACEHOLDER, CONSTANT) and op.outputs)
        self.of: Mapping[str, PassTimes] = {op.name: self._of(op) for op in computing}

    def _of(self, op: Operator) -> PassTimes:
        n_runs = self.graph.n_runs(op.result.name)
        all_us, backward_us, adding_us = (time_ns / 1e3 / n_runs for time_ns in self._in_fastest_config(op))
        if op.type == VARIABLE:
            return PassTimes(after=all_us)
        parameters_us = adding_us + (backward_us - adding_us) * self._share_of_parameters(op)
        late_us = parameters_us if self.sends_early else 0.0
        return PassTimes(all_us - backward_us, backward_us, late=late_us, parameters=parameters_us)

    def _in_fastest_config(self, op: Operator) -> tuple[int, int, int]:
        """Return the time of an operator in its fastest config, that of its backward pass, and of sums of gradients in it.

        They are nanoseconds, found once for operators that are alike, such as those of equal layers.
        """
        rule = rule_of(op)
        kind = self.costing.kind(op, rule)
        if kind not in self._fastest_ns:
            costs = ConfigCosts(self.costing, op, ConfigArrays.of(rule, configs_by_degrees(rule, self._mesh)))
            fastest = int(costs.compute_ns.argmin())
            time_ns, backward_ns = costs.times_ns[:, fastest].tolist()
            self._fastest_ns[kind] = time_ns, backward_ns, int(costs.adding_ns[fastest])
        return self._fastest_ns[kind]

    def _share_of_parameters(self, op: Operator) -> float:
        """Return the share of an operator's backward pass that is for variables, whose gradients no stage waits for."""
        if not has_separate_gradients(op):
            return 0.0
        gradients = [tensor.name for i, tensor in op.operands if (op.name, i) in self.costing.backward.gradients]
        return sum(name in self.graph.made_of_variables for name in gradients) / max(1, len(gradients))


class TimesBySize:
    """The times of a model's operators on any number of devices, of one micro-batch; found when they are first asked for."""

    def __init__(
        self, model: Model, hardware: Hardware, n_micro_batches: int, measured: MeasuredOperators = NOTHING_KNOWN
    ) -> None:
        """Take the model of the full batch, and what was measured of operators."""
        self.whole, self.hardware, self._known = model, hardware, measured
        self._model = model.in_micro_batches(n_micro_batches)
        self._found: dict[int, OperatorTimes] = {}

    def __getitem__(self, size: int) -> OperatorTimes:
        if size not in self._found:
            mesh = self.hardware.mesh(size)
            self._found[size] = OperatorTimes(self._model, self.hardware, mesh, self._known)
        return self._found[size]

    def of(self, sizes: Sequence[int]) -> list[OperatorTimes]:
        """Return for each stage the times on its devices."""
        return [self[size] for size in sizes]

    def bound_us(self, sizes: Collection[int], n_submeshes: int, parallelism: int) -> float:
        """Return a time that no step on so many submeshes beats, wherever the model is cut, with ones of any of these sizes.

        One submesh has its share of all operators' least times at least, and one device its share of their least device
        time: an operator takes its time of each device of its stage.
        """
        n, names = self._model.graph.n_micro_batches, self[min(sizes)].of
        size_times = {size: [float(self[size].of[name].total(n)) for name in names] for size in sizes}
        total_us = sum(map(min, *size_times.values(), [math.inf] * len(names)))
        device_us = ([size * time_us for time_us in times] for size, times in size_times.items())
        total_device_us = sum(map(min, *device_us, [math.inf] * len(names)))
        return max(total_us / n_submeshes, total_device_us / parallelism)


def works(stages: Stages, times: Sequence[OperatorTimes]) -> list[PassTimes]:
    """Return the times of the operators of all stages.

    Lookups that run ahead take the whole batch before the first pass, and their gradients come after the last one. On any
    hardware a stage in which branches begin first computes in a backward pass what it sends back.

    Args:
        times: for each stage those on its devices.
    """
    ahead = stages.ahead.lookups
    sums = []
    for members, early_names, stage_times in zip(stages.members, stages.early, times, strict=True):
        n, total = stage_times.graph.n_micro_batches, PassTimes()
        for name, pass_times in stage_times.of.items():
            if name in members:
                is_ahead = name in ahead
                if name in early_names:
                    pass_times = replace(pass_times, early=pass_times.forward, parameters=pass_times.backward)
                total += PassTimes(before=n * pass_times.forward, after=n * pass_times.backward) if is_ahead else pass_times
        sums.append(replace(total, late=total.parameters) if early_names else total)
    return sums


# Messages


def crosses_in_passes(graph: Graph, tensor: str) -> bool:
    """Return whether a tensor is sent in passes, not once a step: of the batch at once all but what is made of variables."""
    if graph.micro_batching is None:
        return tensor not in graph.made_of_variables
    return tensor in graph.micro_batching.forms


def _crossed(crossing: Crossing, hardware: Hardware, blocks: Sequence[Block]) -> list[tuple[int, Link]]:
    """Return the links that a crossing passes, with their numbers; none within one stage's devices.

    Interleaved stages are joined by one link, which counts as the last one before the later of them.
    """
    source, target = sorted((crossing.source, crossing.target))
    if blocks[source] == blocks[target]:
        return []
    if len(set(blocks)) < len(blocks):
        return [(target - 1, link_between(hardware, blocks[source].devices, blocks[target].devices))]
    pairs = ((number, blocks[number].devices, blocks[number + 1].devices) for number in range(source, target))
    return [(number, link_between(hardware, devices, next_devices)) for number, devices, next_devices in pairs]


def transfers(stages: Stages, hardware: Hardware, blocks: Sequence[Block], n_micro_batches: int) -> Transfers:
    """Return how long what stages on some devices send each other takes on its way.

    Before its first pass a stage waits for what is sent once a step, and for the first micro-batch's rows of a table that is
    looked up ahead; after its last pass the gradients of these are still on their way. The rows of other micro-batches are
    there when these begin.
    """
    graph = stages.whole.in_micro_batches(n_micro_batches).graph
    passes, first, last = [0.0] * (stages.n - 1), [0.0] * stages.n, [0.0] * stages.n
    for crossing in stages.crossings:
        n_bytes = graph.tensors[crossing.tensor].mem_bytes
        crossed = _crossed(crossing, hardware, blocks)
        link_us = {number: link.latency_us + n_bytes / link.bytes_per_us for number, link in crossed}
        is_in_passes = crosses_in_passes(graph, crossing.tensor)
        if is_in_passes and not crossing.is_ahead:
            for number, time_us in link_us.items():
                passes[number] += time_us
        if crossing.is_ahead or not is_in_passes:
            first[crossing.target] += sum(link_us.values())
            last[crossing.target] += sum(link_us.values()) * len(crossing.steps)
    return Transfers(passes, first, last)


def way_back_and_forth_us(hardware: Hardware, source: Block, target: Block) -> float:
    """Return the time that a byte takes from some devices to others, and its gradient back."""
    return 2 / link_between(hardware, source.devices, target.devices).bytes_per_us


def messages(stages: Stages, hardware: Hardware, blocks: Sequence[Block], n_micro_batches: int) -> list[PassTimes]:
    """Return what sending and receiving takes of the cores of each stage's devices."""
    graph = stages.whole.in_micro_batches(n_micro_batches).graph
    times = [PassTimes() for _ in range(stages.n)]
    for crossing in stages.crossings:
        n_bytes = graph.tensors[crossing.tensor].mem_bytes
        crossed = _crossed(crossing, hardware, blocks)
        ends_us = [link.call_us + link.share / 2 * n_bytes / link.bytes_per_us for _, link in crossed]
        end_us = max(ends_us, default=hardware.collective_call_us)
        back_us = end_us * len(crossing.steps)
        pass_times, step_times = PassTimes(forward=end_us, backward=back_us), PassTimes(before=end_us, after=back_us)
        is_in_passes = crosses_in_passes(graph, crossing.tensor)
        times[crossing.target] += pass_times if is_in_passes else step_times
        if crossing.is_ahead and is_in_passes:
            step_times = step_times.scaled(n_micro_batches)
        times[crossing.source] += pass_times if is_in_passes and not crossing.is_ahead else step_times
    return times


def estimated_us(
    stages: Stages,
    hardware: Hardware,
    blocks: Sequence[Block],
    times: Sequence[OperatorTimes],
    schedule: str | None = ONE_FORWARD_ONE_BACKWARD,
    again_us: Sequence[float] = (),
) -> float:
    """Return the time of a step in stages whose operators are each split as they are fastest, by the best order of passes.

    Args:
        blocks: for each stage its devices, which interleaved stages share.
        times: for each stage those of operators on its devices.
        schedule: see :func:`.tried_orders`.
        again_us: for each stage what its backward passes take longer, of all micro-batches; without it nothing.
    """
    n = times[0].graph.n_micro_batches
    message_times = messages(stages, hardware, blocks, n)
    stage_times = [work + message for work, message in zip(works(stages, times), message_times, strict=True)]
    if again_us:
        stage_times = [passes + PassTimes(backward=extra / n) for passes, extra in zip(stage_times, again_us, strict=True)]
    way_times = transfers(stages, hardware, blocks, n)
    orders = tried_orders(schedule, stages.n, n, len(set(blocks)))
    return min(float(step_us(stage_times, way_times, order)) for order in orders)
