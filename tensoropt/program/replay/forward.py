"""The forward pass: what operators take, make and keep, in program order."""

from __future__ import annotations

from collections.abc import Sequence

from ...costs.operator_costs import piece_bytes
from ...ir.body import COMPOSITES
from ...ir.graph import Operator, Tensor
from ...ir.views import viewed_operand
from ...reschedule.path import Path
from ...rules.rule import Demand
from ...sharding.resharding import Resharding, halo_resharding
from ..liveness import Buffer
from .gradient_flow import OPERAND, SHARED, Place, Places
from .program import COPIES, OVERWRITE, RESULTS, STATE, USES, StepProgram

# Over split classes these keep, a byte a class, which one is the label.
_WHICH_CLASS = frozenset(["SparseSoftmaxCrossEntropyWithLogits"])


class Forward:
    """Attributes:
    values: by tensor, where its producer left it; ``shared``: the copy that its consumers share.
    taken: by operator and input position, what it takes; ``kept``: what is kept inside of it.
    collectives: the reshardings that are collectives, in order; None for one that has no gradient.
    """

    def __init__(self, program: StepProgram, places: Places) -> None:
        self.program, self.places, self.view = program, places, program.view
        self.values: dict[str, Buffer] = {}
        self.shared: dict[str, Buffer] = {}
        self.taken: dict[tuple[str, int], Buffer] = {}
        self.kept: dict[str, Buffer] = {}
        self.collectives: list[Place | None] = []
        # By what they are of, and how, copies that are made without a collective.
        self._copies: dict[tuple[Buffer, Path], Buffer] = {}
        # What is resharded once for all slices of the batch.
        self._once: dict[Place, Buffer] = {}

    def source(self, op: Operator) -> None:
        """A placeholder, variable or constant is there from the start, and so are a variable's slots."""
        layout, n_runs = self.view.interfaces[op.name].results[0], self.view.graph.n_runs(op.result.name)
        piece = Buffer(piece_bytes(op.result, layout), USES[op.type], of=op.result.name)
        self.values[op.result.name] = piece
        slots = [
            update.slots * (op.result.mem_bytes if update.is_whole else piece.n_bytes)
            for update in self.view.graph.updates.get(op.name, ())
        ]
        # Of a batch that is taken in slices all is there, and each slice has its constants.
        others = Buffer((n_runs - 1) * piece.n_bytes, USES[op.type], of=op.result.name)
        self.program.lasting += [piece, others, Buffer(sum(slots), STATE, of=op.result.name)]

    def begin_slice(self, operators: Sequence[Operator]) -> None:
        """Forget what the slice before resharded of these operators' results."""
        self.collectives.clear()
        self.shared = {name: copy for name, copy in self.shared.items() if name not in {op.result.name for op in operators}}

    def slice_of_source(self, op: Operator) -> None:
        """The samples of one slice are cut out of the batch."""
        self.values[op.result.name] = Buffer(self.program.result_bytes(op, op.result), COPIES)
        self.program.add([], [self.values[op.result.name]])

    def write(self, op: Operator, variable: Tensor) -> None:
        """The forward pass writes to a variable, where it lies, or reads it afterwards."""
        piece, demand = self.values[variable.name], Demand(self.view.layout(variable), None)
        self.program.add([piece, *(self.operand(tensor, demand) for _, tensor in op.operands)])
        self.values.update({tensor.name: piece for tensor in op.outputs})

    def run(self, op: Operator) -> None:
        """One operator, after the reshardings of what it takes."""
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
        if op.type in COMPOSITES:
            self._keep(op, program.costing.kept_inside_bytes(op, config), made)
        elif op.type in _WHICH_CLASS and program.splits_inner(op):
            position, tensor = op.operands[0]
            self._keep(op, program.operand_bytes(op, position) // tensor.item_bytes, made)
        if made:
            overwrites = operands if op.type in OVERWRITE else ()
            reads = [buffer for buffer, _ in operands]
            program.add([*reads, *self._completed(op, reads)], made, program.scratch_bytes(op), overwrites)

    def operand(self, tensor: Tensor, demand: Demand, consumer: Place | None = None) -> Buffer:
        """A tensor as it is demanded."""
        source = self.values[tensor.name]
        to_shared = self.places.to_shared(tensor)
        if to_shared is not None:
            if tensor.name not in self.shared:
                self.shared[tensor.name] = self._resharded(to_shared, source, Place(SHARED, tensor.name))
            source = self.shared[tensor.name]
        return self._resharded(self.view.resharding(tensor, demand), source, consumer)

    def _resharded(self, resharding: Resharding, source: Buffer, place: Place | None = None) -> Buffer:
        path = self.program.router.route(resharding).forward
        if path.communicates:
            self.collectives.append(place)
            return self.program.move(path, source, resharding.item_bytes, COPIES)
        # TensorFlow merges equal operators on equal operands.
        key = source, path
        if key not in self._copies:
            self._copies[key] = self.program.move(path, source, resharding.item_bytes, COPIES)
        return self._copies[key]

    def _completed(self, op: Operator, reads: Sequence[Buffer]) -> list[Buffer]:
        """What an operator whose statistics are completed while it runs waits for: little, but it calls Python."""
        if not self.program.splits_inner(op):
            return []
        statistic = Buffer(0, COPIES)
        self.program.add(reads, [statistic], calls_python=True)
        return [statistic]

    def _keep(self, op: Operator, n_bytes: int, made: list[Buffer]) -> None:
        self.kept[op.name] = Buffer(n_bytes, RESULTS, of=op.result.name)
        made.append(self.kept[op.name])
