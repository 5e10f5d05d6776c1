"""What the backward pass makes again, since it wasn't kept: resharded copies, and what is computed again."""

from __future__ import annotations

from ...costs.operator_costs import piece_bytes
from ...ir.gradient_info import Backward
from ...ir.graph import Operator, Tensor
from ...ir.views import viewed_operand
from ...sharding.resharding import Resharding
from ..liveness import Buffer
from .forward import Forward
from .gradient_flow import Places
from .program import COPIES, OVERWRITE, RESULTS, StepProgram, operand_of


class Again:
    """Values as the backward pass reads them: as they were kept, or made again, each once.

    Everything that is made waits for ``gradient``, the one whose coming asks for it.
    """

    def __init__(self, program: StepProgram, places: Places, forward: Forward, backward: Backward) -> None:
        self.program, self.places, self.forward, self.backward = program, places, forward, backward
        self.view = program.view
        self._shared: dict[str, Buffer] = {}
        self._taken: dict[tuple[str, int], Buffer] = {}
        self._values: dict[str, Buffer] = {}

    def clear(self) -> None:
        """Nothing has been made again: the next slice of a batch begins."""
        for made in (self._shared, self._taken, self._values):
            made.clear()

    @property
    def n_made(self) -> int:
        """How many tensors have been made again so far."""
        return len(self._values)

    def make(self, op: Operator, gradient: Buffer) -> None:
        """What an operator's gradient reads and wasn't kept."""
        exchanged = self.view.rules[op.name].exchanged(self.view.strategy.configs[op.name])
        for position, tensor in op.operands:
            is_own = (op.name, position) in self.backward.kept_operands and not (exchanged and position == 0)
            if is_own or self._communicates(op, position, tensor):
                self.forward.taken[op.name, position] = self.operand(op, position, gradient)

    def operand(self, op: Operator, position: int, gradient: Buffer) -> Buffer:
        """What an operator took, in the backward pass."""
        key = op.name, position
        if key not in self._taken:
            tensor = operand_of(op, position)
            source, kept = self.value(tensor, gradient), self.forward.values[tensor.name]
            to_shared = self.places.to_shared(tensor)
            if to_shared is not None:
                source = self._shared_copy(op, position, to_shared, source, gradient)
                kept = self.forward.shared[tensor.name]
            resharding = self.view.resharding(tensor, self.view.demand(op, position))
            path = self.program.router.route(resharding).forward
            follows = source is not kept and not path.communicates
            if not path.steps:
                self._taken[key] = source
            elif follows or self.view.is_remade(op, position):
                self._taken[key] = self._resharded(resharding, source, gradient)
            else:
                self._taken[key] = self.forward.taken[key]
        return self._taken[key]

    def value(self, tensor: Tensor, gradient: Buffer) -> Buffer:
        """A tensor as its producer left it, in the backward pass."""
        op = self.view.graph.producers[tensor.name]
        viewed = viewed_operand(op, tensor.name)
        if tensor.name not in self._values and op.name in self.view.recomputed:
            self._compute(op, gradient)
        elif viewed is not None and tensor.name not in self._values:
            position = next(i for i, operand in op.operands if operand.name == viewed.name)
            self._values[tensor.name] = self.operand(op, position, gradient)
        return self._values.get(tensor.name, self.forward.values[tensor.name])

    def _communicates(self, op: Operator, position: int, tensor: Tensor) -> bool:
        """Whether a collective brings an operand once more, whoever reads it then."""
        resharding = self.view.resharding(tensor, self.view.demand(op, position))
        to_shared, router = self.places.to_shared(tensor), self.program.router
        return (self.view.is_remade(op, position) and router.route(resharding).forward.communicates) or (
            to_shared is not None
            and self.view.reads_remade(op, position)
            and router.route(to_shared).forward.communicates
        )

    def _shared_copy(self, op: Operator, position: int, to_shared: Resharding, source: Buffer, gradient: Buffer) -> Buffer:
        """The copy that all consumers share, in the backward pass."""
        name = operand_of(op, position).name
        path = self.program.router.route(to_shared).forward
        follows = source is not self.forward.values[name] and not path.communicates
        if name not in self._shared and (follows or self.view.reads_remade(op, position)):
            self._shared[name] = self._resharded(to_shared, source, gradient) if path.steps else source
        return self._shared.get(name, self.forward.shared[name])

    def _compute(self, op: Operator, gradient: Buffer) -> None:
        program = self.program
        operands = [(self.operand(op, i, gradient), program.operand_bytes(op, i)) for i, _ in op.operands]
        made: list[Buffer] = []
        for tensor, layout in zip(op.outputs, self.view.interfaces[op.name].results, strict=True):
            viewed = viewed_operand(op, tensor.name)
            if viewed is None:
                made.append(Buffer(piece_bytes(tensor, layout), RESULTS))
                self._values[tensor.name] = made[-1]
            else:
                place = next(k for k, (_, operand) in enumerate(op.operands) if operand.name == viewed.name)
                self._values[tensor.name] = operands[place][0]
        if made:
            overwrites = operands if op.type in OVERWRITE else ()
            program.add([buffer for buffer, _ in operands], made, program.scratch_bytes(op), overwrites)

    def _resharded(self, resharding: Resharding, source: Buffer, gradient: Buffer) -> Buffer:
        path = self.program.router.route(resharding).forward
        return self.program.move(path, source, resharding.item_bytes, COPIES, after=gradient)
