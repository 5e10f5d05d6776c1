"""Replay the forward pass in program order: the buffers that operators read, write and save for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

from ...costs.resharding_costs import piece_bytes
from ...ir.body import COMPOSITES, VALUE_SHAPED
from ...ir.graph import Operator, Tensor
from ...ir.views import viewed_operand
from ...reschedule.path import Path
from ...rules.rule import Demand
from ...sharding.resharding import Resharding, halo_resharding
from ..liveness import Buffer
from .gradient_flow import OPERAND, SHARED, Place, Places
from .program import COPIES, OVERWRITE, RESULTS, STATE, USES, StepProgram

# When their classes are split, these save a mask of one byte per class that marks the label.
_WHICH_CLASS = frozenset(["SparseSoftmaxCrossEntropyWithLogits"])


class Forward:
    """The replayed forward pass.

    Attributes:
        values: the buffer of each tensor in its produced layout, by tensor name.
        shared: the buffer of the copy that a tensor's consumers share, by tensor name.
        taken: the buffer that an operator reads, by operator name and input position.
        kept: the buffer that an operator saves inside for its backward pass, by operator name.
        collectives: where the gradient of each collective resharding arrives, in order of execution; None if it has none.
    """

    def __init__(self, program: StepProgram, places: Places) -> None:
        self.program, self.places, self.view = program, places, program.view
        self.values: dict[str, Buffer] = {}
        self.shared: dict[str, Buffer] = {}
        self.taken: dict[tuple[str, int], Buffer] = {}
        self.kept: dict[str, Buffer] = {}
        self.collectives: list[Place | None] = []
        # Copies made without a collective, by source and path.
        self._copies: dict[tuple[Buffer, Path], Buffer] = {}
        # The operands that are resharded once for all micro-batches.
        self._once: dict[Place, Buffer] = {}

    def source(self, op: Operator) -> None:
        """Add a placeholder, variable or constant, which is alive from the start, and a variable's slots."""
        layout, n_runs = self.view.interfaces[op.name].results[0], self.view.graph.n_runs(op.result.name)
        piece = Buffer(piece_bytes(op.result, layout), USES[op.type], of=op.result.name)
        self.values[op.result.name] = piece
        slots = [
            update.slots * (op.result.mem_bytes if update.is_whole else piece.n_bytes)
            for update in self.view.graph.updates.get(op.name, ())
        ]
        # All micro-batches of a batch are alive from the start, and each micro-batch has its own constants.
        others = Buffer((n_runs - 1) * piece.n_bytes, USES[op.type], of=op.result.name)
        self.program.lasting += [piece, others, Buffer(sum(slots), STATE, of=op.result.name)]

    def begin_slice(self, operators: Sequence[Operator]) -> None:
        """Begin a micro-batch: forget the reshardings of these operators' results in the micro-batch before."""
        self.collectives.clear()
        self.shared = {name: copy for name, copy in self.shared.items() if name not in {op.result.name for op in operators}}

    def slice_of_source(self, op: Operator) -> None:
        """Add the instruction that cuts the samples of one micro-batch out of a placeholder's batch."""
        self.values[op.result.name] = Buffer(self.program.result_bytes(op, op.result), COPIES)
        self.program.add([], [self.values[op.result.name]])

    def write(self, op: Operator, variable: Tensor) -> None:
        """Add an operator that writes to a variable in place, or reads it after such a write."""
        piece, demand = self.values[variable.name], Demand(self.view.layout(variable), None)
        self.program.add([piece, *(self.operand(tensor, demand) for _, tensor in op.operands)])
        self.values.update({tensor.name: piece for tensor in op.outputs})

    def run(self, op: Operator) -> None:
        """Add one operator, after the reshardings of its operands."""
        program = self.program
        for position, tensor in op.operands:
            place, demand = Place(OPERAND, op.name, position), self.view.demand(op, position)
            if not self.places.accumulates(op, position):
                self.taken[op.name, position] = self.operand(tensor, demand, place)
                continue
            if place not in self._once:
                self._once[place] = self.operand(tensor, demand)
            self.taken[op.name, position] = self._once[place]
        rule, config = self.view.rules[op.name], self.view.strategy.configs[op.name]
        if rule.exchanged(config):
            windows = halo_resharding(op, rule, config, True)
            self.taken[op.name, 0] = self._resharded(windows, self.taken[op.name, 0])
        operands = [(self.taken[op.name, position], program.operand_bytes(op, position)) for position, _ in op.operands]
        made: list[Buffer] = []
        for tensor, layout in zip(op.outputs, self.view.interfaces[op.name].results, strict=True):
            viewed = viewed_operand(op, tensor.name)
            if viewed is None:
                made.append(Buffer(piece_bytes(tensor, layout), RESULTS, of=tensor.name))
                self.values[tensor.name] = made[-1]
            else:
                position = next(i for i, operand in op.operands if operand.name == viewed.name)
                self.values[tensor.name] = self.taken[op.name, position]
        if op.type in (*COMPOSITES, VALUE_SHAPED):
            self._keep(op, program.costing.kept_inside_bytes(op, config), made)
        elif op.type in _WHICH_CLASS and program.splits_inner(op):
            position, tensor = op.operands[0]
            self._keep(op, program.operand_bytes(op, position) // tensor.item_bytes, made)
        if made:
            overwrites = operands if op.type in OVERWRITE else ()
            reads = [buffer for buffer, _ in operands]
            program.add([*reads, *self._completed(op, reads)], made, program.scratch_bytes(op), overwrites)

    def operand(self, tensor: Tensor, demand: Demand, consumer: Place | None = None) -> Buffer:
        """Reshard a tensor to an operand sharding (Demand), by way of its shared copy if it has one; return the buffer.

        Args:
            consumer: where the gradient of the resharding arrives; None if there is none.
        """
        source = self.values[tensor.name]
        to_shared = self.places.to_shared(tensor)
        if to_shared is not None:
            if tensor.name not in self.shared:
                self.shared[tensor.name] = self._resharded(to_shared, source, Place(SHARED, tensor.name))
            source = self.shared[tensor.name]
        return self._resharded(self.view.resharding(tensor, demand), source, consumer)

    def _resharded(self, resharding: Resharding, source: Buffer, place: Place | None = None) -> Buffer:
        """Reshard a buffer; return the copy. ``place`` is where the resharding's gradient arrives."""
        path = self.program.router.route(resharding).forward
        if path.communicates:
            self.collectives.append(place)
            return self.program.move(path, source, resharding.item_bytes, COPIES)
        # TensorFlow merges equal operators on equal operands, so a copy made without a collective is made once.
        key = source, path
        if key not in self._copies:
            self._copies[key] = self.program.move(path, source, resharding.item_bytes, COPIES)
        return self._copies[key]

    def _completed(self, op: Operator, reads: Sequence[Buffer]) -> list[Buffer]:
        """Add the collective that completes an operator's statistics while it runs; return the buffers it then waits for.

        These take next to no memory, but the collective calls Python.
        """
        if not self.program.splits_inner(op):
            return []
        statistic = Buffer(0, COPIES)
        self.program.add(reads, [statistic], calls_python=True)
        return [statistic]

    def _keep(self, op: Operator, n_bytes: int, made: list[Buffer]) -> None:
        """Let an operator save so many bytes inside for its backward pass."""
        self.kept[op.name] = Buffer(n_bytes, RESULTS, of=op.result.name)
        made.append(self.kept[op.name])
