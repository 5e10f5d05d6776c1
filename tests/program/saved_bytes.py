"""The memory of Equation (1), summed up over the buffers of a step program: an oracle of the search's arrays."""

from __future__ import annotations

import math

from tensoropt.costs.config_costs import costs_of_config
from tensoropt.costs.operator_costs import OperatorCosting
from tensoropt.costs.resharding_costs import shard_bytes
from tensoropt.ir.body import COMPOSITES, VALUE_SHAPED
from tensoropt.ir.graph import CONSTANT, VARIABLE, Operator
from tensoropt.program.memory.buffers import TaskBuffers
from tensoropt.program.memory.instructions import views_operand
from tensoropt.program.step import StepProgram, step_program
from tensoropt.program.tasks import BACKWARD, COMPUTE, FIRST, FORWARD, OPERAND, REMATERIALIZED, RESHARD, RESULT, Site, Value
from tensoropt.sharding.consumers import Consumer
from tensoropt.sharding.resharding import PathFinder, halo_resharding
from tensoropt.sharding.strategy import StrategyView


class SavedBytes:
    """The bytes that a step holds from forward to backward pass: parameters with their updates, and what is read again.

    Attributes:
        own: the bytes of what tasks of the backward pass read.
        charged: these, and the bytes of operands that local charges can't tell from what is read: of an operator that
            exchanges windows, whose gradient reads the windows, and of a view that is resharded before a gradient reads it.
    """

    def __init__(self, view: StrategyView, costing: OperatorCosting, path_finder: PathFinder) -> None:
        self.view, self.costing = view, costing
        self.program: StepProgram = step_program(view, path_finder)
        self.at = TaskBuffers(view, costing, path_finder)
        self._viewed: dict[Value, Value] = {}
        for task in self.program.tasks:
            is_copy = task.work == RESHARD and task.direction == FORWARD
            if is_copy and views_operand(path_finder.paths(self.at.flow.resharded(task.site)[1]).forward):
                self._viewed[task.writes[0]] = task.reads[0]
        read = self._read()
        fixed = sum(self._fixed_bytes(op) for op in view.graph.step_operators)
        self.own = fixed + self._bytes(read)
        self.charged = fixed + self._bytes(read | self._charged())

    def _exchanged(self, op: Operator) -> bool:
        return bool(self.view.rules[op.name].exchanged(self.view.strategy.configs[op.name]))

    def _read(self) -> set[Value]:
        """Return what was made in the forward pass and is read again, by the memory that it is in."""
        view = self.view
        produced = ((name, view.graph.producers[name].name) for name in self.costing.saved_as_produced)
        found = {Value(Site(RESULT, name)) for name, maker in produced if maker not in view.rematerialized}
        for task in self.program.tasks:
            if task.work == COMPUTE and task.direction in (BACKWARD, REMATERIALIZED):
                windows = task.direction == BACKWARD and self._exchanged(view.graph.operators[task.site.name])
                for value in task.reads:
                    if value.version == FIRST and not (windows and value.site == Site(OPERAND, task.site.name, 0)):
                        found.add(value)
            elif task.work == RESHARD and task.direction == REMATERIALIZED and task.reads[0].version == FIRST:
                found.add(task.reads[0])
        return {self._memory(value) for value in found}

    def _charged(self) -> set[Value]:
        """Return the operands that are charged though no task reads them; those that are made again aren't."""
        view, found = self.view, set()
        made_again = {value.site for task in self.program.tasks if task.direction == REMATERIALIZED for value in task.writes}
        for op in view.graph.step_operators:
            for position, _ in op.operands if op.updates is None else ():
                is_read = self.costing.reads(Consumer(op.name, position))
                is_own = (op.name, position) in view.backward.residual_operands
                if is_read and (not is_own or (position == 0 and self._exchanged(op))):
                    sources = self._sources(Value(Site(OPERAND, op.name, position)))
                    if made_again.isdisjoint(value.site for value in sources):
                        found.add(sources[-1])
        return found

    def _memory(self, value: Value) -> Value:
        """Return the value in whose memory a value is."""
        return self._sources(value)[-1]

    def _sources(self, value: Value) -> list[Value]:
        """Return a value, and those that it is or views, up to the one whose memory they all are."""
        found = [value]
        while True:
            source = self.program.source(found[-1])
            source = self._viewed.get(source, source)
            if source == found[-1]:
                return found
            found.append(source)

    def _bytes(self, values: set[Value]) -> int:
        total = 0
        for site in (value.site for value in values):
            if site.kind == RESULT:
                tensor = self.view.graph.tensors[site.name]
                if self.view.graph.producers[site.name].type not in (VARIABLE, CONSTANT):
                    total += shard_bytes(tensor, self.view.layout(tensor))
            else:
                tensor, resharding = self.at.flow.resharded(site)
                total += shard_bytes(tensor, resharding.sharding.layout)
        return total

    def _fixed_bytes(self, op: Operator) -> int:
        """Return the bytes of a variable with what updates it, of a constant, and of what is saved inside of an operator."""
        view, costing = self.view, self.costing
        rule, config, total = view.rules.get(op.name), view.strategy.configs.get(op.name), 0
        if op.type == VARIABLE:
            copies = (update.copies(op.result, view.layout(op.result), self._shard(op), op.name in view.graph.lookups)
                      for update in view.graph.updates.get(op.name, ()))
            total += self._shard(op) + sum(copies)
        elif op.type == CONSTANT:
            total += self._shard(op)
        elif op.type in (*COMPOSITES, VALUE_SHAPED):
            total += int(costs_of_config(costing, op, rule, config).saved_inside_bytes[0])
        if (op.name, 0) in view.backward.residual_operands and rule.exchanged(config):
            windows = halo_resharding(op, rule, config, True)
            total += math.prod(windows.halo.largest_local_shape(windows.shape)) * windows.item_bytes
        return total

    def _shard(self, op: Operator) -> int:
        return shard_bytes(op.result, self.view.layout(op.result))
