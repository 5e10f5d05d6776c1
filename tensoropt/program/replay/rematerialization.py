"""Replay what the backward pass produces again because it wasn't saved: regathered copies and rematerialized results."""

from __future__ import annotations

from ...costs.resharding_costs import shard_bytes
from ...ir.gradient_info import Backward
from ...ir.graph import Operator, Tensor
from ...ir.views import viewed_operand
from ...sharding.resharding import Resharding
from ..liveness import Buffer
from .forward import Forward
from .gradient_flow import GradientFlow
from .program import COPIES, OVERWRITE, RESULTS, StepProgram, operand_of


class Residuals:
    """Tensors as the backward pass reads them: saved, regathered or rematerialized, each at most once.

    Regathering and rematerialization wait for ``gradient``, the gradient whose arrival at an operator asks for them.
    """

    def __init__(self, program: StepProgram, gradient_flow: GradientFlow, forward: Forward, backward: Backward) -> None:
        self.program, self.gradient_flow, self.forward, self.backward = program, gradient_flow, forward, backward
        self.view = program.view
        self._shared: dict[str, Buffer] = {}
        self._taken: dict[tuple[str, int], Buffer] = {}
        self._values: dict[str, Buffer] = {}

    def clear(self) -> None:
        """Forget what was regathered and rematerialized, before the next micro-batch begins."""
        for made in (self._shared, self._taken, self._values):
            made.clear()

    @property
    def n_made(self) -> int:
        """The number of tensors rematerialized so far; views of operands count, too."""
        return len(self._values)

    def make(self, op: Operator, gradient: Buffer) -> None:
        """Regather or rematerialize the operands that an operator's gradient reads and that weren't saved.

        An operand whose copy a collective regathers is included even if another operator is the one that reads it.
        """
        exchanged = self.view.rules[op.name].exchanged(self.view.strategy.configs[op.name])
        for position, tensor in op.operands:
            is_own = (op.name, position) in self.backward.residual_operands and not (exchanged and position == 0)
            if is_own or self._communicates(op, position, tensor):
                self.forward.taken[op.name, position] = self.operand(op, position, gradient)

    def operand(self, op: Operator, position: int, gradient: Buffer) -> Buffer:
        """Return an operator's operand as the backward pass reads it, and regather or rematerialize it if need be."""
        key = op.name, position
        if key not in self._taken:
            tensor = operand_of(op, position)
            source, saved = self.value(tensor, gradient), self.forward.values[tensor.name]
            to_shared = self.gradient_flow.to_shared(tensor)
            if to_shared is not None:
                source = self._shared_copy(op, position, to_shared, source, gradient)
                saved = self.forward.shared[tensor.name]
            resharding = self.view.resharding(tensor, self.view.sharding(op, position))
            path = self.program.router.route(resharding).forward
            follows = source is not saved and not path.communicates
            if not path.steps:
                self._taken[key] = source
            elif follows or self.view.is_regathered(op, position):
                self._taken[key] = self._resharded(resharding, source, gradient)
            else:
                self._taken[key] = self.forward.taken[key]
        return self._taken[key]

    def value(self, tensor: Tensor, gradient: Buffer) -> Buffer:
        """Return a tensor in its produced layout as the backward pass reads it, and rematerialize it if need be."""
        op = self.view.graph.producers[tensor.name]
        viewed = viewed_operand(op, tensor.name)
        if tensor.name not in self._values and op.name in self.view.rematerialized:
            self._compute(op, gradient)
        elif viewed is not None and tensor.name not in self._values:
            position = next(i for i, operand in op.operands if operand.name == viewed.name)
            self._values[tensor.name] = self.operand(op, position, gradient)
        return self._values.get(tensor.name, self.forward.values[tensor.name])

    def _communicates(self, op: Operator, position: int, tensor: Tensor) -> bool:
        """Return whether a collective regathers an operand, or the shared copy that it comes from, whoever reads it then."""
        resharding = self.view.resharding(tensor, self.view.sharding(op, position))
        to_shared, router = self.gradient_flow.to_shared(tensor), self.program.router
        return (self.view.is_regathered(op, position) and router.route(resharding).forward.communicates) or (
            to_shared is not None
            and self.view.reads_regathered(op, position)
            and router.route(to_shared).forward.communicates
        )

    def _shared_copy(self, op: Operator, position: int, to_shared: Resharding, source: Buffer, gradient: Buffer) -> Buffer:
        """Return the copy that all consumers of an operand share as the backward pass reads it; regather it if need be."""
        name = operand_of(op, position).name
        path = self.program.router.route(to_shared).forward
        follows = source is not self.forward.values[name] and not path.communicates
        if name not in self._shared and (follows or self.view.reads_regathered(op, position)):
            self._shared[name] = self._resharded(to_shared, source, gradient) if path.steps else source
        return self._shared.get(name, self.forward.shared[name])

    def _compute(self, op: Operator, gradient: Buffer) -> None:
        """Rematerialize an operator: compute its results from operands as the backward pass reads them."""
        program = self.program
        operands = [(self.operand(op, i, gradient), program.operand_bytes(op, i)) for i, _ in op.operands]
        made: list[Buffer] = []
        for tensor, layout in zip(op.outputs, self.view.interfaces[op.name].results, strict=True):
            viewed = viewed_operand(op, tensor.name)
            if viewed is None:
                made.append(Buffer(shard_bytes(tensor, layout), RESULTS))
                self._values[tensor.name] = made[-1]
            else:
                node = next(k for k, (_, operand) in enumerate(op.operands) if operand.name == viewed.name)
                self._values[tensor.name] = operands[node][0]
        if made:
            overwrites = operands if op.type in OVERWRITE else ()
            program.add([buffer for buffer, _ in operands], made, program.scratch_bytes(op), overwrites)

    def _resharded(self, resharding: Resharding, source: Buffer, gradient: Buffer) -> Buffer:
        """Reshard a buffer once ``gradient`` has arrived; return the copy."""
        path = self.program.router.route(resharding).forward
        return self.program.move(path, source, resharding.item_bytes, COPIES, after=gradient)
