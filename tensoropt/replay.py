"""A training step as a program of buffers, and the most memory that is alive at once on the device with the largest pieces.

Equation (1) of the TensorOpt paper adds up what operators keep, so that a search can add, too. What is alive at once is less
(a gradient goes when it has been used; what was kept goes while the backward pass runs) and more (gradients on their way,
results that nobody keeps, what collectives receive). Here the step is replayed as a rank runs it that computes one
operator at a time: forward in program order, deliveries where the lowering makes them, backward in the order in which
TensorFlow comes to operators and deliveries (:mod:`.reverse_order`), updates as soon as they can be
(:mod:`.lowering.order`). A batch that is taken in slices is replayed slice by slice: what is made without it is delivered
once, gradients are added up where it was delivered, and go back from there after the last slice.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .backward import Backward
from .collectives.workspace import workspace_bytes
from .composite.body import COMPOSITES
from .costing import OperatorCosting, piece_bytes
from .deliveries import Delivery, Router, halo_delivery
from .ir import CONSTANT, PLACEHOLDER, SOURCES, VARIABLE, Operator, Tensor
from .liveness import Buffer, Instruction, Peak, peak_of_program
from .lowering.order import LAG
from .optimizers.rows import row_deliveries
from .reschedule.execute import rank_step
from .reschedule.halo import HaloStep
from .reschedule.layout import Layout
from .reschedule.path import Path
from .reschedule.steps import Step
from .reverse_order import reverse_order
from .rules.rule import Demand
from .strategy import StrategyView
from .takers import LOSS, Taker, step_demand
from .views import viewed_operand

STATE, INPUTS, CONSTANTS = "parameters and slots", "inputs", "constants"
RESULTS, COPIES, GRADIENTS = "results of operators", "delivered copies", "gradients"
COLLECTIVES = "workspace of collectives"
OPERATOR, OPERAND, SHARED, RESULT, START = "operator", "operand", "shared copy", "result", "start"
USES = {VARIABLE: STATE, PLACEHOLDER: INPUTS, CONSTANT: CONSTANTS}

# TensorFlow's kernels write the result, or the gradient, over an operand that nobody else needs.
_OVERWRITE = frozenset(
    "Abs Add AddN AddV2 BiasAdd Div Elu Erf Exp FusedBatchNormV3 LeakyRelu Log LogSoftmax Maximum Minimum Mul Neg Pow "
    "RealDiv Relu Relu6 Rsqrt Select SelectV2 Selu Sigmoid Sign Softmax SoftmaxCrossEntropyWithLogits Softplus Softsign "
    "SparseSoftmaxCrossEntropyWithLogits Sqrt Square SquaredDifference Sub Tanh".split()
)
# The gradient of one operand is made from that of the result and the other operand.
_PRODUCTS = frozenset("BatchMatMulV2 BatchMatMulV3 Conv2D Conv3D DepthwiseConv2dNative Einsum MatMul Mul".split())
# Over split classes these keep, a byte a class, which one is the label.
_WHICH_CLASS = frozenset(["SparseSoftmaxCrossEntropyWithLogits"])
# The gradient of an operand at these positions is that of the result, where neither is broadcast.
_PASSED_ON = {
    **dict.fromkeys(("AddV2", "Add"), (0, 1)),
    **dict.fromkeys(("BiasAdd", "Sub", "Reshape", "ExpandDims", "Squeeze", "Identity"), (0,)),
}


def peak_of(view: StrategyView, backward: Backward, costing: OperatorCosting, router: Router) -> Peak:
    """The peak of one step of all training steps.

    Args:
        view: a strategy on its graph; operators that it has no config for aren't run.
        costing: knows what composite operators keep inside.
        router: finds the path of each delivery.
    """
    return peak_of_program(program_of(view, backward, costing, router))


def program_of(view: StrategyView, backward: Backward, costing: OperatorCosting, router: Router) -> list[Instruction]:
    """The step of which :func:`peak_of` is the peak."""
    return _Replay(view, backward, costing, router).program()


class _Node(NamedTuple):
    """Where the backward pass comes to: an operator; the delivery of its operand at a position, or to the shared copy of a
    tensor; where gradients are left for an operator, one of its results; or where it starts.
    """

    kind: str
    name: str
    position: int = -1


@dataclass
class _Replay:
    """Attributes:
    values: by tensor, where its producer left it; ``shared``: the copy that its takers share.
    copies: by what they are of, and how, those that are made without a collective.
    taken: by operator and input position, what it takes; ``kept``: what is kept inside of it; ``again``: by tensor, its
        shared copy after that was made again; ``taken_anew`` and ``values_anew``: what is taken and left, as the backward
        pass reads it.
    coming: the gradients that have come to a delivery, or to a result; ``collectives``: the deliveries of the forward pass
        that are collectives, in order; None for one that has no gradient.
    behind: collectives that only updates wait for, and what waits for these: a rank that computes one operator at a time
        comes to them when it has to wait for something, or when the first is too far behind. ``pending``: what they write.
    due: the length of the program at which that is. Where communication runs beside compute it may be at the end.
    once: what is delivered once for all slices of the batch; ``sums``: by where they were added up, and of which tensor, the
        gradients of the slices so far; ``rows``: by lookup, those of what was found in a table that is updated by rows.
    """

    view: StrategyView
    backward: Backward
    costing: OperatorCosting
    router: Router
    _program: list[Instruction] = field(default_factory=list)
    _values: dict[str, Buffer] = field(default_factory=dict)
    _shared: dict[str, Buffer] = field(default_factory=dict)
    _copies: dict[tuple[Buffer, Path], Buffer] = field(default_factory=dict)
    _taken: dict[tuple[str, int], Buffer] = field(default_factory=dict)
    _kept: dict[str, Buffer] = field(default_factory=dict)
    _again: dict[str, Buffer] = field(default_factory=dict)
    _taken_anew: dict[tuple[str, int], Buffer] = field(default_factory=dict)
    _values_anew: dict[str, Buffer] = field(default_factory=dict)
    _coming: defaultdict[_Node, list[Buffer]] = field(default_factory=lambda: defaultdict(list))
    _collectives: list[_Node | None] = field(default_factory=list)
    _lasting: list[Buffer] = field(default_factory=list)
    _behind: list[Instruction] = field(default_factory=list)
    _pending: set[Buffer] = field(default_factory=set)
    _due: float = 0
    _updates: list[Buffer] = field(default_factory=list)
    _workspace: Counter[tuple[str, bool]] = field(default_factory=Counter)
    _once: dict[_Node, Buffer] = field(default_factory=dict)
    _sums: dict[tuple[_Node, str], Buffer] = field(default_factory=dict)
    _rows: dict[str, list[Buffer]] = field(default_factory=dict)

    def program(self) -> list[Instruction]:
        """All instructions; at the end is read what stays."""
        graph = self.view.graph
        operators = [op for op in graph.step_operators if (op.updates or op.name) in self.view.interfaces]
        if graph.slicing is not None:
            # What comes after all slices, metrics and their updates, finds their memory free.
            operators = [op for op in operators if op.name not in graph.slicing.after]
        in_slices = [op for op in operators if op.updates is None and graph.n_runs(op.result.name) > 1]
        for op in operators:
            if op.type in SOURCES:
                self._source(op)
            elif op.updates is not None:
                self._written(op, graph.operators[op.updates].result)
            elif graph.n_runs(op.result.name) == 1:
                self._forward(op)
        if graph.n_slices == 1:
            self._passes([])
        else:
            self._collectives.clear()
            for _ in range(graph.n_slices):
                self._passes(in_slices)
            self._gradients_of_once()
        self._catch_up()
        self._add(self._updates)
        self._lasting += [Buffer(n_bytes, COLLECTIVES) for n_bytes in self._workspace.values()]
        return [*self._program, Instruction(tuple(self._lasting), ())]

    def _passes(self, in_slice: Sequence[Operator]) -> None:
        """The backward pass; in a slice of the batch, after the forward pass of what is the slice's own."""
        graph = self.view.graph
        for op in in_slice:
            self._shared = {name: copy for name, copy in self._shared.items() if name != op.result.name}
            if op.type == PLACEHOLDER:
                self._values[op.result.name] = Buffer(self._result_bytes(op, op.result), COPIES)
                self._add([], [self._values[op.result.name]])
            elif op.type != CONSTANT:
                self._forward(op)
        losses = [step.loss for step in graph.train_steps.values()]
        for loss in losses:
            whole = step_demand(self.view.strategy.mesh, loss, Taker(loss.name, LOSS))
            self._add([self._operand(loss, whole)])
            self._coming[_Node(RESULT, loss.name)].append(Buffer(loss.item_bytes, GRADIENTS, of=loss.name))
        starts = [_Node(OPERATOR, graph.producers[loss.name].name) for loss in losses]
        for node in reverse_order(starts, self._sources, self._collectives):
            self._back_at(node)
        for made_again in (self._again, self._taken_anew, self._values_anew):
            made_again.clear()
        if in_slice:
            self._collectives.clear()

    def _gradients_of_once(self) -> None:
        """After all slices: what was added up goes back to where it came from."""
        starts = []
        for (node, name), total in self._sums.items():
            tensor = self.view.graph.tensors[name]
            if node.kind == OPERAND:
                self._coming[node].append(total)
            else:
                self._leave(tensor, total)
            starts.append(node)
        start = _Node(START, "")
        for node in reverse_order([start], lambda at: starts if at == start else self._sources(at)):
            if node != start:
                self._back_at(node)
        for name, rows in self._rows.items():
            self._update_rows(self.view.graph.operators[name], rows)

    def _accumulate(self, op: Operator, position: int, gradient: Buffer) -> None:
        """Add a gradient to those of the slices before, where its operand was delivered for all slices."""
        key = self._goes_to(op, position), _operand_of(op, position).name
        known = self._sums.get(key)
        if known is not None:
            total = Buffer(known.n_bytes, GRADIENTS)
            self._add([known, gradient], [total], overwrites=[(each, known.n_bytes) for each in (known, gradient)])
            gradient = total
        self._sums[key] = gradient

    def _accumulates(self, op: Operator, position: int) -> bool:
        graph = self.view.graph
        return graph.n_runs(op.result.name) > 1 and graph.accumulates(_operand_of(op, position).name)

    def _add(
        self,
        reads: Iterable[Buffer],
        write: Iterable[Buffer] = (),
        scratch_bytes: int = 0,
        overwrites: Iterable[tuple[Buffer, int]] = (),
        calls_python: bool = False,
        trails: bool = False,
    ) -> None:
        instruction = Instruction(tuple(reads), tuple(write), scratch_bytes, tuple(overwrites), calls_python)
        if trails or self._pending.intersection(instruction.reads):
            if not self._behind:
                self._due = math.inf if self.costing.deliveries.overlaps else len(self._program) + LAG
            self._behind.append(instruction)
            self._pending.update(instruction.writes)
            return
        waits = calls_python and not self.costing.deliveries.overlaps
        if waits or (self._behind and self._due <= len(self._program)):
            self._catch_up()
        self._program.append(instruction)

    def _catch_up(self) -> None:
        self._program += self._behind
        self._behind.clear()
        self._pending.clear()

    # Forward

    def _source(self, op: Operator) -> None:
        layout = self.view.interfaces[op.name].results[0]
        piece = Buffer(piece_bytes(op.result, layout), USES[op.type], of=op.result.name)
        self._values[op.result.name] = piece
        slots = [
            update.slots * (op.result.mem_bytes if update.is_whole else piece.n_bytes)
            for update in self.view.graph.updates.get(op.name, ())
        ]
        # Of a batch that is taken in slices all is there, and each slice has its constants.
        others = (self.view.graph.n_runs(op.result.name) - 1) * piece.n_bytes
        self._lasting += [piece, Buffer(others, USES[op.type], of=op.result.name)]
        self._lasting.append(Buffer(sum(slots), STATE, of=op.result.name))

    def _written(self, op: Operator, variable: Tensor) -> None:
        """The forward pass writes to a variable, where it lies, or reads it afterwards."""
        piece, demand = self._values[variable.name], Demand(self.view.layout(variable), None)
        self._add([piece, *(self._operand(tensor, demand) for _, tensor in op.operands)])
        self._values.update({tensor.name: piece for tensor in op.outputs})

    def _forward(self, op: Operator) -> None:
        for position, tensor in op.operands:
            node, demand = _Node(OPERAND, op.name, position), self.view.demand(op, position)
            if not self._accumulates(op, position):
                self._taken[op.name, position] = self._operand(tensor, demand, node)
                continue
            if node not in self._once:
                self._once[node] = self._operand(tensor, demand)
            self._taken[op.name, position] = self._once[node]
        rule, config = self.view.rules[op.name], self.view.strategy.configs[op.name]
        if rule.exchanged(config):
            windows = halo_delivery(op, rule, config, True)
            self._taken[op.name, 0] = self._delivered(windows, self._taken[op.name, 0])
        operands = [(self._taken[op.name, position], self._operand_bytes(op, position)) for position, _ in op.operands]
        made: list[Buffer] = []
        for tensor, layout in zip(op.outputs, self.view.interfaces[op.name].results, strict=True):
            viewed = viewed_operand(op, tensor.name)
            if viewed is None:
                made.append(Buffer(piece_bytes(tensor, layout), RESULTS, of=tensor.name))
                self._values[tensor.name] = made[-1]
            else:
                position = next(i for i, operand in op.operands if operand.name == viewed.name)
                self._values[tensor.name] = self._taken[op.name, position]
        if op.type in COMPOSITES:
            self._keep(op, self.costing.kept_inside_bytes(op, config), made)
        elif op.type in _WHICH_CLASS and self._splits_inner(op):
            position, tensor = op.operands[0]
            self._keep(op, self._operand_bytes(op, position) // tensor.item_bytes, made)
        if made:
            overwrites = operands if op.type in _OVERWRITE else ()
            scratch_bytes = self._scratch_bytes(op)
            reads = [buffer for buffer, _ in operands]
            self._add([*reads, *self._completed(op, reads)], made, scratch_bytes, overwrites)

    def _completed(self, op: Operator, reads: Sequence[Buffer]) -> list[Buffer]:
        """What an operator whose statistics are completed while it runs waits for: little, but it calls Python."""
        if not self._splits_inner(op):
            return []
        statistic = Buffer(0, COPIES)
        self._add(reads, [statistic], calls_python=True)
        return [statistic]

    def _operand_bytes(self, op: Operator, position: int) -> int:
        return piece_bytes(_operand_of(op, position), self.view.demand(op, position).layout)

    def _result_bytes(self, op: Operator, tensor: Tensor) -> int:
        return piece_bytes(tensor, self.view.interfaces[op.name].results[op.outputs.index(tensor)])

    def _keep(self, op: Operator, n_bytes: int, made: list[Buffer]) -> None:
        self._kept[op.name] = Buffer(n_bytes, RESULTS, of=op.result.name)
        made.append(self._kept[op.name])

    def _operand(self, tensor: Tensor, demand: Demand, taker: _Node | None = None) -> Buffer:
        source = self._values[tensor.name]
        to_shared = self._to_shared(tensor)
        if to_shared is not None:
            if tensor.name not in self._shared:
                self._shared[tensor.name] = self._delivered(to_shared, source, _Node(SHARED, tensor.name))
            source = self._shared[tensor.name]
        return self._delivered(self.view.delivery(tensor, demand), source, taker)

    def _to_shared(self, tensor: Tensor) -> Delivery | None:
        shared = self.view.strategy.shared.get(tensor.name)
        return None if shared is None else self.view.shared_delivery(tensor, shared)

    def _delivered(self, delivery: Delivery, source: Buffer, node: _Node | None = None) -> Buffer:
        path = self.router.route(delivery).forward
        if path.communicates:
            self._collectives.append(node)
            return self._moved(path, source, delivery.item_bytes, COPIES)
        # TensorFlow merges equal operators on equal operands.
        key = source, path
        if key not in self._copies:
            self._copies[key] = self._moved(path, source, delivery.item_bytes, COPIES)
        return self._copies[key]

    def _moved(
        self,
        path: Path,
        source: Buffer,
        item_bytes: int,
        use: str,
        trails: bool = False,
        after: Buffer | None = None,
    ) -> Buffer:
        if all(_is_view(step) for step in path.steps):
            return source
        *between, last = (_bytes_after(step, path, item_bytes) for step in path.steps)
        moved = Buffer(last, use, is_python_s=path.communicates, of=source.of)
        # While a step runs there are what it takes and what it gives; the ends of the path are buffers of their own.
        scratch_bytes = max(map(sum, zip([0, *between], [*between, 0], strict=True)))
        reads = [source] if after is None else [source, after]
        self._add(reads, [moved], scratch_bytes, calls_python=path.communicates, trails=trails and path.communicates)
        # Of blocks that aren't even the last rank has the largest in each dimension.
        largest = self.view.strategy.mesh.n_devices - 1
        for step in path.steps:
            if isinstance(step, Step) and step.communicates:
                for name, n_bytes in workspace_bytes(rank_step(step, path.shape, largest), item_bytes).items():
                    # What runs beside compute has a chain with a workspace of its own.
                    key = name, trails and self.costing.deliveries.overlaps
                    self._workspace[key] = max(self._workspace[key], n_bytes)
        return moved

    def _splits_inner(self, op: Operator) -> bool:
        config = self.view.strategy.configs[op.name]
        return any(config.axes_of(name) for name in self.view.rules[op.name].inner)

    def _scratch_bytes(self, op: Operator) -> int:
        """Over split classes softmax and its like are made of several operators, whose results are there for a moment."""
        if op.type.startswith("FusedBatchNorm") or not self._splits_inner(op):
            return 0
        return 2 * self._operand_bytes(op, op.operands[0][0])

    # Backward

    def _sources(self, node: _Node) -> list[_Node]:
        """Where gradients go from an operator, a delivery to an operand, or to a copy that is shared."""
        if node.kind == SHARED:
            return [_Node(OPERATOR, self.view.graph.producers[node.name].name)]
        op = self.view.graph.operators[node.name]
        if node.kind == OPERAND:
            return [self._left_at(_operand_of(op, node.position))]
        positions = [i for i, _ in op.operands if (op.name, i) in self.view.gradients and not self._accumulates(op, i)]
        return [self._goes_to(op, i) for i in positions]

    def _goes_to(self, op: Operator, position: int) -> _Node:
        """The delivery of an operand; where there is nothing to do, what would come after it."""
        tensor = _operand_of(op, position)
        if self.router.route(self.view.delivery(tensor, self.view.demand(op, position))).is_free:
            return self._left_at(tensor)
        return _Node(OPERAND, op.name, position)

    def _left_at(self, tensor: Tensor) -> _Node:
        to_shared = self._to_shared(tensor)
        if to_shared is not None and not self.router.route(to_shared).is_free:
            return _Node(SHARED, tensor.name)
        return _Node(OPERATOR, self.view.graph.producers[tensor.name].name)

    def _back_at(self, node: _Node) -> None:
        """What the backward pass does at an operator or a delivery."""
        graph = self.view.graph
        if node.kind == SHARED:
            tensor = graph.tensors[node.name]
            to_shared = self._to_shared(tensor)
            assert to_shared is not None
            gradient = self._returned(tensor, to_shared, self._arrived(node, to_shared.demand.layout, tensor))
            self._coming[_Node(RESULT, tensor.name)].append(gradient)
            return
        op = graph.operators[node.name]
        if node.kind == OPERAND:
            operand, demand = _operand_of(op, node.position), self.view.demand(op, node.position)
            delivery = self.view.delivery(operand, demand)
            self._leave(operand, self._returned(operand, delivery, self._arrived(node, demand.layout, operand)))
        elif op.type == VARIABLE:
            self._update(op)
        elif op.type not in SOURCES and op.updates is None:
            self._backward(op)

    def _leave(self, tensor: Tensor, gradient: Buffer) -> None:
        """A gradient has come to where takers of a tensor take it."""
        node = self._left_at(tensor)
        self._coming[node if node.kind == SHARED else _Node(RESULT, tensor.name)].append(gradient)

    def _arrived(self, at: _Node, layout: Layout, tensor: Tensor) -> Buffer:
        """The sum of the gradients that have come."""
        coming, n_bytes = self._coming.pop(at), piece_bytes(tensor, layout)
        if len(coming) == 1:
            return coming[0]
        total = Buffer(n_bytes, GRADIENTS, of=tensor.name)
        self._add(coming, [total], overwrites=[(summand, n_bytes) for summand in coming])
        return total

    def _backward(self, op: Operator) -> None:
        if self._splits_inner(op) and not self.costing.deliveries.overlaps:
            self._catch_up()  # its statistics' gradients are communicated
        coming = [(_Node(RESULT, tensor.name), tensor) for tensor in op.outputs]
        arriving = [
            (self._arrived(node, self.view.layout(tensor), tensor), self._result_bytes(op, tensor))
            for node, tensor in coming
            if node in self._coming
        ]
        if arriving:
            self._make_again(op, arriving[0][0])
        operands = [position for position, _ in op.operands if (op.name, position) in self.backward.kept_operands]
        results = [tensor for tensor in op.outputs if tensor.name in self.backward.kept_results]
        known = [
            *arriving,
            *((self._taken[op.name, position], self._operand_bytes(op, position)) for position in operands),
            *((self._value_anew(tensor, arriving[0][0]), self._result_bytes(op, tensor)) for tensor in results if arriving),
        ]
        inside = [self._kept[op.name]] if op.name in self._kept else []
        for position, tensor in op.operands:
            if (op.name, position) not in self.view.gradients:
                continue
            gradient, of_result = arriving[0]
            n_bytes = self._operand_bytes(op, position)
            if position not in _PASSED_ON.get(op.type, ()) or n_bytes != of_result:
                gradient = Buffer(n_bytes, GRADIENTS, of=tensor.name)
                own = self._taken[op.name, position] if op.type in _PRODUCTS else None
                reads = [*(buffer for buffer, _ in known if buffer is not own), *inside]
                self._add(reads, [gradient], self._scratch_bytes(op), known if op.type in _OVERWRITE else ())
            if self._accumulates(op, position):
                self._accumulate(op, position, gradient)
            elif (node := self._goes_to(op, position)).kind == OPERAND:
                self._coming[node].append(gradient)
            else:
                self._leave(tensor, gradient)

        if op.name in self.view.graph.lookup_operators and arriving:
            self._update_by_rows(op, arriving[0][0])

    def _make_again(self, op: Operator, gradient: Buffer) -> None:
        """What an operator's gradient reads and wasn't kept, once the gradient of its result has come."""
        exchanged = self.view.rules[op.name].exchanged(self.view.strategy.configs[op.name])
        for position, tensor in op.operands:
            is_own = (op.name, position) in self.backward.kept_operands and not (exchanged and position == 0)
            if is_own or self._communicates_again(op, position, tensor):
                self._taken[op.name, position] = self._anew(op, position, gradient)

    def _communicates_again(self, op: Operator, position: int, tensor: Tensor) -> bool:
        """Whether a collective brings an operand once more, whoever reads it then."""
        delivery = self.view.delivery(tensor, self.view.demand(op, position))
        to_shared = self._to_shared(tensor)
        return (self.view.is_remade(op, position) and self.router.route(delivery).forward.communicates) or (
            to_shared is not None
            and self.view.reads_remade(op, position)
            and self.router.route(to_shared).forward.communicates
        )

    def _anew(self, op: Operator, position: int, gradient: Buffer) -> Buffer:
        """An operand in the backward pass: as it was kept, or made of what is there again then."""
        key = op.name, position
        if key not in self._taken_anew:
            tensor = _operand_of(op, position)
            source, kept = self._value_anew(tensor, gradient), self._values[tensor.name]
            to_shared = self._to_shared(tensor)
            if to_shared is not None:
                source = self._shared_anew(op, position, to_shared, source, gradient)
                kept = self._shared[tensor.name]
            delivery = self.view.delivery(tensor, self.view.demand(op, position))
            path = self.router.route(delivery).forward
            follows = source is not kept and not path.communicates
            if not path.steps:
                self._taken_anew[key] = source
            elif follows or self.view.is_remade(op, position):
                self._taken_anew[key] = self._made_again(delivery, source, gradient)
            else:
                self._taken_anew[key] = self._taken[key]
        return self._taken_anew[key]

    def _shared_anew(self, op: Operator, position: int, to_shared: Delivery, source: Buffer, gradient: Buffer) -> Buffer:
        """The copy that all takers share, in the backward pass."""
        name = _operand_of(op, position).name
        path = self.router.route(to_shared).forward
        follows = source is not self._values[name] and not path.communicates
        if name not in self._again and (follows or self.view.reads_remade(op, position)):
            self._again[name] = self._made_again(to_shared, source, gradient) if path.steps else source
        return self._again.get(name, self._shared[name])

    def _value_anew(self, tensor: Tensor, gradient: Buffer) -> Buffer:
        """A tensor in the backward pass, as its producer left it: what was kept, or what is computed again."""
        op = self.view.graph.producers[tensor.name]
        viewed = viewed_operand(op, tensor.name)
        if tensor.name not in self._values_anew and op.name in self.view.recomputed:
            self._compute_again(op, gradient)
        elif viewed is not None and tensor.name not in self._values_anew:
            position = next(i for i, operand in op.operands if operand.name == viewed.name)
            self._values_anew[tensor.name] = self._anew(op, position, gradient)
        return self._values_anew.get(tensor.name, self._values[tensor.name])

    def _compute_again(self, op: Operator, gradient: Buffer) -> None:
        operands = [(self._anew(op, position, gradient), self._operand_bytes(op, position)) for position, _ in op.operands]
        made: list[Buffer] = []
        for tensor, layout in zip(op.outputs, self.view.interfaces[op.name].results, strict=True):
            viewed = viewed_operand(op, tensor.name)
            if viewed is None:
                made.append(Buffer(piece_bytes(tensor, layout), RESULTS))
                self._values_anew[tensor.name] = made[-1]
            else:
                place = next(k for k, (_, operand) in enumerate(op.operands) if operand.name == viewed.name)
                self._values_anew[tensor.name] = operands[place][0]
        if made:
            self._add([buffer for buffer, _ in operands], made, 0, operands if op.type in _OVERWRITE else ())

    def _made_again(self, delivery: Delivery, source: Buffer, gradient: Buffer) -> Buffer:
        path = self.router.route(delivery).forward
        return self._moved(path, source, delivery.item_bytes, COPIES, after=gradient)

    def _update_by_rows(self, op: Operator, gradient: Buffer) -> None:
        """Each device gets all that was found in a table, and updates by it what it has of the table."""
        graph = self.view.graph
        _, of_gradient = row_deliveries(op, self.view.rules[op.name], self.view.strategy.configs[op.name])
        rows = self._moved(self.router.route(of_gradient).forward, gradient, of_gradient.item_bytes, GRADIENTS, trails=True)
        if graph.n_runs(op.result.name) > 1:
            self._rows.setdefault(op.name, []).append(rows)
        else:
            self._update_rows(op, [rows])

    def _update_rows(self, op: Operator, rows: list[Buffer]) -> None:
        """Update a table by the rows that a lookup found in it."""
        graph, table = self.view.graph, _operand_of(op, 0)
        changes_all = not all(update.leaves_rows for update in graph.updates[graph.producers[table.name].name])
        piece = Buffer(piece_bytes(table, self.view.layout(table)), GRADIENTS, of=table.name)
        self._add(rows, [piece] if changes_all else ())
        if self._waits_for_sums:
            self._updates += rows

    def _returned(self, tensor: Tensor, delivery: Delivery, gradient: Buffer) -> Buffer:
        path = self.router.route(delivery).backward
        trails = tensor.name in self.view.graph.made_of_variables
        return gradient if path is None else self._moved(path, gradient, delivery.item_bytes, GRADIENTS, trails)

    @property
    def _waits_for_sums(self) -> bool:
        return any(update.sums for updates in self.view.graph.updates.values() for update in updates)

    def _update(self, op: Operator) -> None:
        gradient = self._arrived(_Node(RESULT, op.result.name), self.view.layout(op.result), op.result)
        if self._waits_for_sums:
            # What is added up over all gradients must be known first.
            self._updates.append(gradient)
        else:
            self._add([gradient])


def _operand_of(op: Operator, position: int) -> Tensor:
    tensor = op.inputs[position]
    assert tensor is not None
    return tensor


def _bytes_after(step: Step | HaloStep, path: Path, item_bytes: int) -> int:
    after = step if isinstance(step, HaloStep) else step.target
    return math.prod(after.largest_local_shape(path.shape)) * item_bytes


def _is_view(step: Step | HaloStep) -> bool:
    """Slices of whole rows take no memory: TensorFlow has them lie where the rows are."""
    return isinstance(step, Step) and step.kind == "slice" and step.source.splits[1:] == step.target.splits[1:]
