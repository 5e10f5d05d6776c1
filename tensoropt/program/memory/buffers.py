"""Give the values of a step program their buffers, and its tasks the instructions that read and write them.

What is known here of TensorFlow: elementwise operators write over an operand that nothing else reads; reshapes, and slices
of complete rows, are views; equal copies made without a collective are merged; the gradient of an addition is that of its
result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ...costs.config_costs import costs_of_config
from ...costs.operator_costs import OperatorCosting
from ...costs.resharding_costs import shard_bytes
from ...ir.body import COMPOSITES, VALUE_SHAPED, viewed_operand
from ...ir.graph import CONSTANT, PLACEHOLDER, VARIABLE, Operator, Tensor
from ...reschedule.path import Path
from ...sharding.resharding import PathFinder, Resharding, halo_resharding
from ...sharding.strategy import StrategyView
from ..gradient_flow import GradientFlow
from ..stage_ends import NOTHING_CROSSES, StageEnds
from ..step import StepProgram
from ..tasks import FETCHED, OPERAND, RESULT, Site, Task, Value
from .instructions import Instructions
from .liveness import Buffer, Instruction

PARAMETERS, SLOTS, INPUTS, CONSTANTS = "parameters", "slots of the optimizer", "inputs", "constants"
RESULTS, COPIES, GRADIENTS = "results of operators", "resharded copies", "gradients"
_USES = {VARIABLE: PARAMETERS, PLACEHOLDER: INPUTS, CONSTANT: CONSTANTS}

# TensorFlow's kernels write the result, or the gradient, over an operand that nothing else reads.
OVERWRITE = frozenset(
    "Abs Add AddN AddV2 BiasAdd Div Elu Erf Exp FusedBatchNormV3 LeakyRelu Log LogSoftmax Maximum Minimum Mul Neg Pow "
    "RealDiv Relu Relu6 Rsqrt Select SelectV2 Selu Sigmoid Sign Softmax SoftmaxCrossEntropyWithLogits Softplus Softsign "
    "SparseSoftmaxCrossEntropyWithLogits Sqrt Square SquaredDifference Sub Tanh".split()
)
# When their classes are split, these save a mask of one byte per class that marks the label.
WHICH_CLASS = frozenset(["SparseSoftmaxCrossEntropyWithLogits"])
# The gradient of one operand is computed from the gradient of the result and from the other operand.
PRODUCTS = frozenset("BatchMatMulV2 BatchMatMulV3 Conv2D Conv3D DepthwiseConv2dNative Einsum MatMul Mul".split())
# The gradient of an operand at these positions is the gradient of the result, where the operand isn't broadcast.
PASSED_ON = {
    **dict.fromkeys(("AddV2", "Add"), (0, 1)),
    **dict.fromkeys(("BiasAdd", "Sub", "Reshape", "ExpandDims", "Squeeze", "Identity"), (0,)),
}
_Sized = tuple[Buffer, int]


class TaskBuffers:
    """The buffers of a step's values, and the instructions of its tasks."""

    def __init__(
        self, view: StrategyView, costing: OperatorCosting, path_finder: PathFinder, ends: StageEnds = NOTHING_CROSSES
    ) -> None:
        """Take a strategy, and what a stage exchanges with others."""
        self.view, self.costing, self.path_finder, self._ends = view, costing, path_finder, ends
        # The instructions, which know the sizes of operands and results.
        self.sizes = self._out = Instructions(view, costing)
        # Whether the step is that of a stage in micro-batches, whose passes run in some order.
        self._counts_passes = ends.counts_passes and view.graph.micro_batching is not None
        self.flow = GradientFlow(view, path_finder)
        self._program = StepProgram((), {})
        self._buffers: dict[Value, Buffer] = {}
        self._constants: dict[str, Buffer] = {}
        # Copies made without a collective, by source and path.
        self._copies: dict[tuple[Buffer, Path], Buffer] = {}
        # What an operator saves inside for its gradient, and the windows that it exchanged, by its result.
        self._saved_inside: dict[Value, Buffer] = {}
        self._windows: dict[Value, Buffer] = {}
        # By loss, the gradient at which the backward pass starts: a constant, which all micro-batches read.
        self._seeds: dict[Site, Buffer] = {}
        # Gradients whose updates wait for a sum over all gradients.
        self._waiting: list[Buffer] = []
        # The buffers read by the parameters' gradients of the last operator, until something is rematerialized.
        self._for_parameters: list[Buffer] = []
        self._has_rematerialized = False
        # Gradients of what lookups found, each for as many micro-batches that weren't written.
        self._others: dict[Value, list[Buffer]] = {}

    def instructions(self, program: StepProgram) -> list[Instruction]:
        """Return the instructions of a step."""
        self._program, places = program, deque(program.passes if self._counts_passes else ())
        n_others = self.view.graph.n_micro_batches - program.n_micro_batches
        micro_batch = -1
        for index, task in enumerate(program.tasks):
            while places and places[0] == index:
                places.popleft()
                self._begin_pass()
                if n_others and not places:
                    self._stand_for(n_others, 0)
            if task.micro_batch > micro_batch:
                micro_batch = task.micro_batch
                self._out.catch_up()  # a micro-batch waits for the sums of the one before
                if n_others and micro_batch == program.n_micro_batches - 2 and not self._counts_passes:
                    self._stand_for(n_others, micro_batch - 1)
            self._run(task)
        for _ in places:
            self._begin_pass()
        self._out.catch_up()
        self._out.add(self._waiting)
        return self._out.finished()

    def _begin_pass(self) -> None:
        """Let all that was written be over before a pass of a stage begins, and note where that is."""
        self._for_parameters, self._has_rematerialized = [], False
        self._out.end_pass()

    def _stand_for(self, n_others: int, micro_batch: int) -> None:
        """Let what lookups found in a micro-batch stand for that of others: their gradients wait for the update, too."""
        for task in self._program.tasks:
            if task.is_of_rows and task.reads[0].micro_batch == micro_batch:
                gradient = self._buffer(task.reads[0])
                self._others[task.reads[0]] = [replace(gradient) for _ in range(n_others)]
                self._out.add([], self._others[task.reads[0]])

    def _buffer(self, value: Value) -> Buffer:
        return self._buffers[self._program.source(value)]

    def _run(self, task: Task) -> None:
        """Add the instructions of a task; what runs after all micro-batches has all their memory."""
        micro_batching = self.view.graph.micro_batching
        if micro_batching is not None and (task.site.kind in FETCHED or task.site.name in micro_batching.after):
            return
        match task.work, task.direction:
            case "feed", "forward":
                self._feed(task)
            case "feed", _:
                self._begin_backward(task)
            case "write" | "send", _:
                self._read(task)
            case "compute", "backward":
                self._compute_gradients(task)
            case "compute", "forward":
                self._compute(task)
            case "compute", _:
                self._compute_again(task)
            case "reshard", "backward":
                self._send_back(task)
            case "reshard", _:
                self._reshard(task)
            case "sum", _:
                summands = [self._buffer(value) for value in task.reads]
                self._buffers[task.writes[0]] = self._sum(summands) if len(summands) > 1 else summands[0]
            case _:
                self._update(task)

    def _operator(self, task: Task) -> Operator:
        return self.view.graph.operators[task.site.name]

    # The forward pass

    def _feed(self, task: Task) -> None:
        """Add a placeholder, variable or constant, which is alive from the start, and a variable's slots.

        Of a batch that is alive from the start a micro-batch takes its samples.
        """
        op = self._operator(task)
        if op.result.name in self._ends.received:
            self._receive(op, task)
            return
        if task.micro_batch >= 0 and op.type == CONSTANT:
            self._buffers[task.writes[0]] = self._constants[op.name]
            return
        if task.micro_batch >= 0:
            self._buffers[task.writes[0]] = Buffer(self._out.result_bytes(op, op.result), COPIES)
            self._out.add([], [self._buffers[task.writes[0]]])
            return
        layout, n_runs = self.view.interfaces[op.name].results[0], self.view.graph.n_runs(op.result.name)
        shard = Buffer(shard_bytes(op.result, layout), _USES[op.type], of=op.result.name)
        self._buffers.update(dict.fromkeys(task.writes, shard))
        if op.type == CONSTANT:
            self._constants[op.name] = shard
        slots = [
            update.slots * (op.result.mem_bytes if update.is_global else shard.n_bytes)
            for update in self.view.graph.updates.get(op.name, ())
        ]
        # All micro-batches of a batch are alive from the start, and each micro-batch has its own constants.
        others = Buffer((n_runs - 1) * shard.n_bytes, _USES[op.type], of=op.result.name)
        self._out.lasting += [shard, others, Buffer(sum(slots), SLOTS, of=op.result.name)]

    def _receive(self, op: Operator, task: Task) -> None:
        """Add the reception of what another stage computes; of a batch that comes in micro-batches, nothing."""
        if task.writes:
            received = Buffer(self._out.result_bytes(op, op.result), COPIES, is_python_s=True, of=op.result.name)
            self._buffers.update(dict.fromkeys(task.writes, received))
            self._out.add([], [received], calls_python=True)

    def _read(self, task: Task) -> None:
        """Add an operator that writes to a variable in place, or reads it after such a write; or what sends gradients."""
        self._out.add([self._buffer(value) for value in task.reads])

    def _reshard(self, task: Task) -> None:
        """Add a resharding, the first time or once more."""
        _, resharding = self.flow.resharded(task.site)
        after = self._buffer(task.after[0]) if task.after else None
        self._buffers[task.writes[0]] = self._resharded(resharding, self._buffer(task.reads[0]), after)

    def _resharded(self, resharding: Resharding, source: Buffer, after: Buffer | None = None) -> Buffer:
        path = self.path_finder.paths(resharding).forward
        if path.communicates or after is not None:
            return self._out.move(path, source, resharding.item_bytes, COPIES, after=after)
        # TensorFlow merges equal operators on equal operands, so a copy made without a collective is made once.
        key = source, path
        if key not in self._copies:
            self._copies[key] = self._out.move(path, source, resharding.item_bytes, COPIES)
        return self._copies[key]

    def _operands(self, op: Operator, task: Task) -> list[_Sized]:
        """Return the buffers that an operator reads, each with the bytes that are read."""
        return [
            (self._buffer(value), self._out.operand_bytes(op, position))
            for (position, _), value in zip(op.operands, task.reads, strict=True)
        ]

    def _compute(self, task: Task) -> None:
        op, out = self._operator(task), self._out
        rule, config = self.view.rules[op.name], self.view.strategy.configs[op.name]
        operands = self._operands(op, task)
        if rule.exchanged(config):
            windows = self._resharded(halo_resharding(op, rule, config, True), operands[0][0])
            self._windows[task.writes[0]] = windows
            operands[0] = windows, operands[0][1]
        results = self._new_buffers(op, task, is_named=True)
        if op.type in (*COMPOSITES, VALUE_SHAPED):
            results.append(self._keep(task, op, int(costs_of_config(self.costing, op, rule, config).saved_inside_bytes[0])))
        elif op.type in WHICH_CLASS and out.splits_inner(op):
            position, tensor = op.operands[0]
            results.append(self._keep(task, op, out.operand_bytes(op, position) // tensor.item_bytes))
        if results:
            reads = [buffer for buffer, _ in operands]
            overwrites = operands if op.type in OVERWRITE else ()
            out.add([*reads, *self._completed(op, reads)], results, out.scratch_bytes(op), overwrites)

    def _compute_again(self, task: Task) -> None:
        """Add an operator that is rematerialized."""
        op, operands = self._operator(task), self._operands(self._operator(task), task)
        results = self._new_buffers(op, task, is_named=False)
        self._has_rematerialized = True
        for tensor, value in zip(op.outputs, task.writes, strict=True):
            viewed = viewed_operand(op, tensor.name)
            if viewed is not None:
                index = next(k for k, (_, operand) in enumerate(op.operands) if operand.name == viewed.name)
                self._buffers[value] = operands[index][0]
        if results:
            overwrites = operands if op.type in OVERWRITE else ()
            self._out.add([buffer for buffer, _ in operands], results, self._out.scratch_bytes(op), overwrites)

    def _new_buffers(self, op: Operator, task: Task, is_named: bool) -> list[Buffer]:
        """Return new buffers of an operator's results; those that are views have none."""
        buffers = []
        for tensor, value in zip(op.outputs, task.writes, strict=True):
            if viewed_operand(op, tensor.name) is None:
                n_bytes = self._out.result_bytes(op, tensor)
                self._buffers[value] = Buffer(n_bytes, RESULTS, of=tensor.name if is_named else "")
                buffers.append(self._buffers[value])
        return buffers

    def _keep(self, task: Task, op: Operator, n_bytes: int) -> Buffer:
        """Return a buffer of so many bytes that an operator saves inside for its gradient."""
        self._saved_inside[task.writes[0]] = Buffer(n_bytes, RESULTS, of=op.result.name)
        return self._saved_inside[task.writes[0]]

    def _completed(self, op: Operator, reads: Sequence[Buffer]) -> list[Buffer]:
        """Add the collective that completes an operator's statistics while it runs; return the buffers it then waits for.

        These take next to no memory, but the collective calls Python.
        """
        if not self._out.splits_inner(op):
            return []
        statistic = Buffer(0, COPIES)
        self._out.add(reads, [statistic], calls_python=True)
        return [statistic]

    # The backward pass

    def _begin_backward(self, task: Task) -> None:
        """Add the gradient of a loss. The backward pass doesn't wait for the loss itself."""
        loss, _ = self.flow.resharded(task.site)
        self._out.add([self._buffer(task.reads[0])])
        if task.site not in self._seeds:
            self._seeds[task.site] = Buffer(loss.item_bytes, GRADIENTS, of=loss.name)
        self._buffers[task.writes[0]] = self._seeds[task.site]

    def _sum(self, summands: Sequence[Buffer]) -> Buffer:
        """Add the instruction that sums gradients, over one of them if possible; return the sum."""
        n_bytes = max(summand.n_bytes for summand in summands)
        total = Buffer(n_bytes, GRADIENTS, of=summands[0].of)
        self._out.add(summands, [total], overwrites=[(summand, n_bytes) for summand in summands])
        return total

    def _compute_gradients(self, task: Task) -> None:
        """Add the gradients of an operator's operands, computed from those of its results and from its residuals."""
        op, out = self._operator(task), self._out
        if out.splits_inner(op) and not out.overlaps:
            out.catch_up()  # the gradients of its statistics are communicated
        arriving = [(self._buffer(value), out.result_bytes(op, op.outputs[index])) for index, value in task.gradients]
        if self._has_rematerialized:
            # Rematerialization has no place in TensorFlow's order, so these gradients may be computed after it.
            out.add(self._for_parameters)
        self._for_parameters, self._has_rematerialized = [], False
        first = Value(Site(RESULT, op.result.name), micro_batch=task.micro_batch)
        by_position: dict[int, Buffer] = {}
        inputs = list(arriving)
        for value in task.reads:
            if value.site.kind == OPERAND:
                is_window = value.site.position == 0 and first in self._windows
                buffer = self._windows[first] if is_window else self._buffer(value)
                by_position[value.site.position] = buffer
                inputs.append((buffer, out.operand_bytes(op, value.site.position)))
            else:
                inputs.append((self._buffer(value), out.result_bytes(op, self.view.graph.tensors[value.site.name])))
        inside = [self._saved_inside[first]] if first in self._saved_inside else []
        for value in task.writes:
            position, tensor = value.site.position, op.operand(value.site.position)
            gradient, of_result = arriving[0]
            n_bytes = out.operand_bytes(op, position)
            if position not in PASSED_ON.get(op.type, ()) or n_bytes != of_result:
                is_received = op.name in self._ends.awaited
                gradient = Buffer(n_bytes, GRADIENTS, is_received, of=tensor.name)
                own = by_position.get(position) if op.type in PRODUCTS else None
                reads = [*(buffer for buffer, _ in inputs if buffer is not own), *inside]
                overwrites = inputs if op.type in OVERWRITE else ()
                out.add(reads, [gradient], out.scratch_bytes(op, position), overwrites, is_received)
                if tensor.name in self.view.graph.made_of_variables:
                    self._for_parameters += reads
            self._buffers[value] = gradient

    def _send_back(self, task: Task) -> None:
        """Add the way back of gradients through reshardings; of what lookups found, to the update."""
        for value, returned in zip(task.reads, task.writes, strict=True):
            tensor, resharding = self.flow.resharded(returned.site)
            gradient, paths = self._buffer(value), self.path_finder.paths(resharding)
            is_rows = returned.site.kind == RESULT
            path = paths.forward if is_rows else paths.backward
            assert path is not None
            is_overlappable = is_rows or tensor.name in self.view.graph.made_of_variables
            gradients = [gradient, *self._others.pop(value, ())]
            sent = [self._out.move(path, g, resharding.item_bytes, GRADIENTS, is_overlappable, True) for g in gradients]
            self._buffers[returned] = sent[0]
            if len(sent) > 1:
                self._others[returned] = sent[1:]

    def _own_rows(self, variable: Tensor, gradients: Sequence[Buffer], n_bytes: int) -> Sequence[Buffer]:
        """Join the rows that lookups found in a variable, and take those of a shard of so many bytes, about its share."""
        rows = Buffer(sum(gradient.n_bytes for gradient in gradients), GRADIENTS, of=variable.name)
        if len(gradients) > 1:
            self._out.add(gradients, [rows])
            gradients = [rows]
        if n_bytes < variable.mem_bytes:
            own = Buffer(int(rows.n_bytes * (n_bytes / variable.mem_bytes)), GRADIENTS, of=variable.name)
            self._out.add(gradients, [own])
            gradients = [own]
        return gradients

    def _update(self, task: Task) -> None:
        """Add the update of a variable, or let it wait for a sum over all gradients."""
        updates = self.view.graph.updates.values()
        waits = any(update.sums for of_variable in updates for update in of_variable)
        gradients = [gradient for value in task.reads for gradient in (self._buffer(value), *self._others.pop(value, ()))]
        variable = self._operator(task).result
        if task.site.name in self.view.graph.lookups:
            changes_all = not all(update.leaves_rows for update in self.view.graph.updates[task.site.name])
            shard = Buffer(shard_bytes(variable, self.view.layout(variable)), GRADIENTS, of=variable.name)
            self._out.add(self._own_rows(variable, gradients, shard.n_bytes), [shard] if changes_all else ())
        if waits:
            self._waiting += gradients
        elif task.site.name not in self.view.graph.lookups:
            self._out.add(gradients)
