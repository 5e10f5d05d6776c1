"""Replay the backward pass and the updates, in the order in which TensorFlow visits operators and reshardings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ...costs.resharding_costs import shard_bytes
from ...ir.gradient_info import Backward
from ...ir.graph import SOURCES, VARIABLE, Operator, Tensor
from ...sharding.consumers import LOSS, Consumer, step_sharding
from ...sharding.resharding import Resharding
from ...sharding.update_resharding import row_reshardings
from ..backward_order import reverse_order
from ..liveness import Buffer
from .forward import Forward
from .gradient_flow import OPERAND, OPERATOR, RESULT, SHARED, START, BackwardNode, GradientFlow
from .program import GRADIENTS, OVERWRITE, StepProgram, operand_of
from .rematerialization import Residuals

# The gradient of one operand is computed from the gradient of the result and from the other operand.
_PRODUCTS = frozenset("BatchMatMulV2 BatchMatMulV3 Conv2D Conv3D DepthwiseConv2dNative Einsum MatMul Mul".split())
# The gradient of an operand at these positions is the gradient of the result, where the operand isn't broadcast.
_PASSED_ON = {
    **dict.fromkeys(("AddV2", "Add"), (0, 1)),
    **dict.fromkeys(("BiasAdd", "Sub", "Reshape", "ExpandDims", "Squeeze", "Identity"), (0,)),
}


class Gradients:
    """The replayed backward pass: the gradients that have arrived at each node, and the updates that read them."""

    def __init__(self, program: StepProgram, gradient_flow: GradientFlow, forward: Forward, backward: Backward) -> None:
        self.program, self.gradient_flow, self.forward, self.backward = program, gradient_flow, forward, backward
        self.view, self.router = program.view, program.router
        self.residuals = Residuals(program, gradient_flow, forward, backward)
        # By resharding or result, the sum of the gradients that have arrived there so far.
        self._coming: dict[BackwardNode, Buffer] = {}
        # By loss, the gradient at which the backward pass starts: a constant, which all micro-batches read.
        self._ones: dict[str, Buffer] = {}
        # Gradients whose updates wait for a sum over all gradients.
        self._updates: list[Buffer] = []
        # By node and tensor, the gradients accumulated there over the micro-batches so far.
        self._sums: dict[tuple[BackwardNode, str], Buffer] = {}
        # The buffers read by the parameters' gradients of the operator visited last.
        self._for_parameters: list[Buffer] = []
        # By lookup in a table that is updated by rows, the gradients of the rows that it found, one per micro-batch.
        self._rows: dict[str, list[Buffer]] = {}

    def run(self) -> None:
        """Add the backward pass of the forward pass that was replayed last."""
        graph = self.view.graph
        losses = [each.loss for each in graph.backward_passes]
        for loss in losses:
            replicated = step_sharding(self.view.strategy.mesh, loss, Consumer(loss.name, LOSS))
            with self.program.perhaps_later():
                self.program.add([self.forward.operand(loss, replicated)])
            if loss.name not in self._ones:
                self._ones[loss.name] = Buffer(loss.item_bytes, GRADIENTS, of=loss.name)
            self._come(BackwardNode(RESULT, loss.name), self._ones[loss.name])
        starts = [BackwardNode(OPERATOR, graph.producers[loss.name].name) for loss in losses]
        self._back(reverse_order(starts, self.gradient_flow.sources, self.forward.collectives), self.gradient_flow.sources)
        self.residuals.clear()

    def stand_for(self, n_micro_batches: int) -> None:
        """Count the last replayed micro-batch ``n_micro_batches`` times more: the rows of its lookups wait for the update,
        too."""
        for rows in self._rows.values() if n_micro_batches > 0 else ():
            others = [replace(each, n_bytes=n_micro_batches * each.n_bytes) for each in rows]
            self.program.add([], others)
            rows += others

    def after_micro_batches(self) -> None:
        """Send the gradients that were accumulated over all micro-batches back to the producers of their tensors."""
        starts = []
        for (node, name), total in self._sums.items():
            tensor = self.view.graph.tensors[name]
            if node.kind == OPERAND:
                self._come(node, total)
            else:
                self._leave(tensor, total)
            starts.append(node)
        start = BackwardNode(START, "")

        def sources(node: BackwardNode) -> Sequence[BackwardNode]:
            return starts if node == start else self.gradient_flow.sources(node)

        self._back(reverse_order([start], sources), sources)
        for name, rows in self._rows.items():
            self._update_rows(self.view.graph.operators[name], rows)

    def finish(self) -> None:
        """Add the updates that waited for all gradients."""
        self.program.catch_up()
        self.program.add(self._updates)

    def _back(self, order: Iterable[BackwardNode], sources: Callable[[BackwardNode], Sequence[BackwardNode]]) -> None:
        """Visit all nodes in order; update a variable as soon as all of its gradients have arrived."""
        gradient_flow = list(order)
        missing = Counter(source for node in gradient_flow for source in sources(node))
        for node in gradient_flow:
            if self._is_variable(node):
                continue
            self._back_at(node)
            for source in sources(node):
                missing[source] -= 1
                if not missing[source] and self._is_variable(source):
                    self._update(source.name)

    def _is_variable(self, node: BackwardNode) -> bool:
        return node.kind == OPERATOR and self.view.graph.operators[node.name].type == VARIABLE

    def _back_at(self, node: BackwardNode) -> None:
        """Add the instructions of the backward pass at an operator or a resharding."""
        graph = self.view.graph
        if node.kind == START:
            return
        if node.kind == SHARED:
            tensor = graph.tensors[node.name]
            to_shared = self.gradient_flow.to_shared(tensor)
            assert to_shared is not None
            self._come(BackwardNode(RESULT, tensor.name), self._returned(tensor, to_shared, self._coming.pop(node)))
            return
        op = graph.operators[node.name]
        if node.kind == OPERAND:
            operand, sharding = operand_of(op, node.position), self.view.sharding(op, node.position)
            resharding = self.view.resharding(operand, sharding)
            self._leave(operand, self._returned(operand, resharding, self._coming.pop(node)))
        elif op.type not in SOURCES and op.updates is None:
            self._back_through(op)

    def _leave(self, tensor: Tensor, gradient: Buffer) -> None:
        """Bring a gradient, in the layout that a tensor's consumers reshard from, to the shared copy or to the result."""
        node = self.gradient_flow.produced_at(tensor)
        self._come(node if node.kind == SHARED else BackwardNode(RESULT, tensor.name), gradient)

    def _come(self, node: BackwardNode, gradient: Buffer) -> None:
        """Add a gradient to those that have arrived at a node: two at a time are summed, as soon as both have arrived."""
        before = self._coming.get(node)
        self._coming[node] = gradient if before is None else self._sum(before, gradient)

    def _sum(self, *summands: Buffer) -> Buffer:
        """Add the instruction that sums gradients, over one of them if possible; return the sum."""
        n_bytes = max(each.n_bytes for each in summands)
        total = Buffer(n_bytes, GRADIENTS, of=summands[0].of)
        self.program.add(summands, [total], overwrites=[(each, n_bytes) for each in summands])
        return total

    def _back_through(self, op: Operator) -> None:
        """Add the gradients of an operator's operands, computed from those of its results and from its residuals."""
        program, taken = self.program, self.forward.taken
        if program.splits_inner(op) and not program.overlaps:
            program.catch_up()  # the gradients of its statistics are communicated
        coming = [(BackwardNode(RESULT, tensor.name), tensor) for tensor in op.outputs]
        arriving = [
            (self._coming.pop(node), program.result_bytes(op, tensor))
            for node, tensor in coming
            if node in self._coming
        ]
        n_made = self.residuals.n_made
        if arriving:
            self.residuals.make(op, arriving[0][0])
        operands = [position for position, _ in op.operands if (op.name, position) in self.backward.residual_operands]
        results = [tensor for tensor in op.outputs if tensor.name in self.backward.residual_results]
        known = [
            *arriving,
            *((taken[op.name, position], program.operand_bytes(op, position)) for position in operands),
            *((self.residuals.value(each, arriving[0][0]), program.result_bytes(op, each)) for each in results if arriving),
        ]
        if self.residuals.n_made > n_made:
            # Rematerialization has no place in TensorFlow's order, so these gradients may be computed after it.
            program.add(self._for_parameters)
        self._for_parameters = []
        inside = [self.forward.saved_inside[op.name]] if op.name in self.forward.saved_inside else []
        for position, tensor in op.operands:
            if (op.name, position) not in self.view.gradients:
                continue
            gradient, of_result = arriving[0]
            n_bytes = program.operand_bytes(op, position)
            if position not in _PASSED_ON.get(op.type, ()) or n_bytes != of_result:
                gradient = Buffer(n_bytes, GRADIENTS, of=tensor.name)
                own = taken[op.name, position] if op.type in _PRODUCTS else None
                reads = [*(buffer for buffer, _ in known if buffer is not own), *inside]
                program.add(reads, [gradient], program.scratch_bytes(op, position), known if op.type in OVERWRITE else ())
                if tensor.name in self.view.graph.made_of_variables:
                    self._for_parameters += reads
            if self.gradient_flow.accumulates(op, position):
                self._accumulate(op, position, gradient)
            elif (node := self.gradient_flow.goes_to(op, position)).kind == OPERAND:
                self._come(node, gradient)
            else:
                self._leave(tensor, gradient)
        if op.name in self.view.graph.lookup_operators and arriving:
            self._update_by_rows(op, arriving[0][0])

    def _accumulate(self, op: Operator, position: int, gradient: Buffer) -> None:
        """Add a gradient to those of earlier micro-batches, for an operand that was resharded once for all of them."""
        key = self.gradient_flow.goes_to(op, position), operand_of(op, position).name
        known = self._sums.get(key)
        self._sums[key] = gradient if known is None else self._sum(known, gradient)

    def _returned(self, tensor: Tensor, resharding: Resharding, gradient: Buffer) -> Buffer:
        """Reshard a gradient along the backward path of a resharding; return the resharded gradient."""
        path = self.router.route(resharding).backward
        is_overlappable = tensor.name in self.view.graph.made_of_variables
        return (
            gradient
            if path is None
            else self.program.move(path, gradient, resharding.item_bytes, GRADIENTS, is_overlappable)
        )

    # Updates

    @property
    def _waits_for_sums(self) -> bool:
        """Return whether some update waits for a sum over all gradients, such as a global norm."""
        return any(update.sums for updates in self.view.graph.updates.values() for update in updates)

    def _update(self, variable: str) -> None:
        """Update a variable from its gradient, or let the update wait for a sum over all gradients."""
        gradient = self._coming.pop(BackwardNode(RESULT, self.view.graph.operators[variable].result.name))
        if self._waits_for_sums:
            # The sum over all gradients must be known first.
            self._updates.append(gradient)
        else:
            self.program.add([gradient])

    def _update_by_rows(self, op: Operator, gradient: Buffer) -> None:
        """Send the gradient of a lookup's result to every device, which updates its shard of the table by it."""
        _, of_gradient = row_reshardings(op, self.view.rules[op.name], self.view.strategy.configs[op.name])
        path = self.router.route(of_gradient).forward
        rows = self.program.move(path, gradient, of_gradient.item_bytes, GRADIENTS, is_overlappable=True)
        if self.view.graph.n_runs(op.result.name) > 1:
            self._rows.setdefault(op.name, []).append(rows)
        else:
            self._update_rows(op, [rows])

    def _update_rows(self, op: Operator, rows: Sequence[Buffer]) -> None:
        """Update a table's shard from the gradients of the rows that a lookup found in it."""
        graph, table = self.view.graph, operand_of(op, 0)
        changes_all = not all(update.leaves_rows for update in graph.updates[graph.producers[table.name].name])
        shard = Buffer(shard_bytes(table, self.view.layout(table)), GRADIENTS, of=table.name)
        self.program.add(rows, [shard] if changes_all else ())
        if self._waits_for_sums:
            self._updates += rows
