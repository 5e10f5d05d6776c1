"""Write the program of a step; delay the collectives that only updates wait for, as a rank does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from ...common.settings import LAG
from ...costs.collective_workspace import in_graph_bytes, nccl_bytes, workspace_bytes
from ...costs.operator_costs import OperatorCosting
from ...costs.resharding_costs import ReshardingCosting, shard_bytes
from ...ir.graph import Operator, Tensor
from ...reschedule.halo import HaloStep
from ...reschedule.layout import Axes
from ...reschedule.path import Path
from ...reschedule.rank_steps import as_rank, rank_step
from ...reschedule.steps import Step
from ...sharding.strategy import StrategyView
from .einsum_scratch import einsum_scratch_bytes, equation_of_gradient
from .liveness import Buffer, Instruction

COLLECTIVES_WORKSPACE, NCCL_BUFFERS = "workspace of collectives", "NCCL's buffers"


class Instructions:
    """The instructions of one rank's step, and the buffers that are alive throughout it.

    Attributes:
        costing: the costs of operators; says what composite operators save inside.
        overlaps: whether communication overlaps with compute, in a chain of its own.
        lasting: the buffers that stay alive to the end.
        passes: of a stage of a pipeline, the index of the instruction before each of its passes, and of that behind the
            last.
    """

    def __init__(self, view: StrategyView, costing: OperatorCosting) -> None:
        self.view, self.costing = view, costing
        self.overlaps = costing.reshardings.overlaps
        self.lasting: list[Buffer] = []
        self.passes: list[int] = []
        self._program: list[Instruction] = []
        # Collectives that only updates wait for, and the instructions that wait for these; and those that bring gradients
        # back. A rank that computes one operator at a time computes on while it can. It runs them when it has to wait for
        # something, or when the first of them lags too far behind.
        self._behind: list[Instruction] = []
        self._pending: set[Buffer] = set()
        self._needed: set[Buffer] = set()
        self._due: float = 0
        self._workspace: Counter[tuple[str, bool]] = Counter()
        self._operand_bytes: dict[tuple[str, int], int] = {}
        self._result_bytes: dict[str, int] = {}
        # By the identity of a path, which is kept, and an element's bytes, what it takes: each micro-batch asks for that.
        self._taken: dict[tuple[int, int], tuple[Path, tuple[int, int], dict[str, int]]] = {}
        self._groups: set[Axes] = set()

    def add(
        self,
        reads: Iterable[Buffer],
        write: Iterable[Buffer] = (),
        scratch_bytes: int = 0,
        overwrites: Iterable[tuple[Buffer, int]] = (),
        calls_python: bool = False,
        is_overlappable: bool = False,
        may_wait: bool = False,
    ) -> None:
        """Add an instruction.

        An instruction that ``is_overlappable``, or that reads what such a one writes, is delayed: see :meth:`catch_up`. One
        that ``may_wait`` is delayed until another reads what it writes.
        """
        instruction = Instruction(tuple(reads), tuple(write), scratch_bytes, tuple(overwrites), calls_python)
        for_updates = is_overlappable or bool(self._pending.intersection(instruction.reads))
        if for_updates or (may_wait and not self.overlaps):
            if not self._behind:
                # Where communication overlaps with compute, the delayed instructions may come at the end.
                self._due = math.inf if self.overlaps else len(self._program) + LAG
            self._behind.append(instruction)
            (self._pending if for_updates else self._needed).update(instruction.writes)
            return
        waits = (calls_python and not self.overlaps) or self._needed.intersection(instruction.reads)
        if waits or (self._behind and self._due <= len(self._program)):
            self.catch_up()
        self._program.append(instruction)

    def catch_up(self) -> None:
        """Append the delayed instructions to the program."""
        self._program += self._behind
        self._behind.clear()
        self._pending.clear()
        self._needed.clear()

    def end_pass(self) -> None:
        """Append the delayed instructions, and have Python called until what died is freed: by messages between stages."""
        self.catch_up()
        self._program += [Instruction((), (), calls_python=True)] * 2
        self.passes.append(len(self._program) - 1)

    def move(
        self,
        path: Path,
        source: Buffer,
        item_bytes: int,
        use: str,
        is_overlappable: bool = False,
        may_wait: bool = False,
        after: Buffer | None = None,
    ) -> Buffer:
        """Reshard a buffer along a path; return the resharded buffer.

        Args:
            use: what the resharded buffer is used for.
            is_overlappable: whether only updates wait for the path's collectives, so that they are delayed.
            may_wait: whether a rank computes on, as far as it can, before it comes to the path's collectives.
            after: a buffer that must have been written before; None if there is none.
        """
        if views_operand(path):
            return source
        key_of_path = id(path), item_bytes
        if key_of_path not in self._taken:
            by = self.costing.reshardings
            self._taken[key_of_path] = path, moved_bytes(path, item_bytes, by), workspaces(path, item_bytes, by)
            self._groups |= groups_of(path)
        _, (last, scratch_bytes), of_workspaces = self._taken[key_of_path]
        moved = Buffer(last, use, is_python_s=path.communicates, of=source.of)
        reads = [source] if after is None else [source, after]
        self.add(
            reads, [moved], scratch_bytes, calls_python=path.communicates,
            is_overlappable=is_overlappable and path.communicates, may_wait=may_wait and path.communicates,
        )  # fmt: skip
        for name, n_bytes in of_workspaces.items():
            # Collectives that overlap with compute form a chain, which has a workspace of its own.
            key = name, is_overlappable and self.overlaps
            self._workspace[key] = max(self._workspace[key], n_bytes)
        return moved

    def finished(self) -> list[Instruction]:
        """Return all instructions; the last one reads the buffers that stay alive to the end."""
        self.catch_up()
        workspace = [Buffer(n_bytes, COLLECTIVES_WORKSPACE) for n_bytes in self._workspace.values() if n_bytes]
        if of_groups := nccl_workspace(self._groups, self.costing.reshardings):
            workspace.append(Buffer(of_groups, NCCL_BUFFERS))
        return [*self._program, Instruction((*self.lasting, *workspace), ())]

    # The sizes of an operator's operands, results and workspace

    def operand_bytes(self, op: Operator, position: int) -> int:
        """Return the bytes of the largest shard of an operand; every micro-batch asks for them."""
        key = op.name, position
        if key not in self._operand_bytes:
            self._operand_bytes[key] = shard_bytes(op.operand(position), self.view.sharding(op, position).layout)
        return self._operand_bytes[key]

    def result_bytes(self, op: Operator, tensor: Tensor) -> int:
        """Return the bytes of the largest shard of a result in its produced layout; see :meth:`operand_bytes`."""
        if tensor.name not in self._result_bytes:
            layout = self.view.interfaces[op.name].results[op.outputs.index(tensor)]
            self._result_bytes[tensor.name] = shard_bytes(tensor, layout)
        return self._result_bytes[tensor.name]

    def splits_inner(self, op: Operator) -> bool:
        """Return whether a factor is split that needs collectives inside the operator."""
        config = self.view.strategy.configs[op.name]
        return any(config.axes_of(name) for name in self.view.rules[op.name].inner)

    def scratch_bytes(self, op: Operator, of_gradient: int | None = None) -> int:
        """Return the workspace of an operator, or of its gradient for the operand at position ``of_gradient``, in bytes.

        When their classes are split, softmax and the like consist of several operators, whose results are transient.
        """
        if op.type == "Einsum":
            return self._einsum_scratch_bytes(op, of_gradient)
        if op.type.startswith("FusedBatchNorm") or not self.splits_inner(op):
            return 0
        return 2 * self.operand_bytes(op, op.operands[0][0])

    def _einsum_scratch_bytes(self, op: Operator, of_gradient: int | None) -> int:
        """Return the workspace of an Einsum, or of its gradient for an operand, in bytes."""
        equation, result = op.attrs["equation"], self.result_bytes(op, op.result)
        operands = [self.operand_bytes(op, position) for position, _ in op.operands]
        if of_gradient is None:
            return einsum_scratch_bytes(equation, operands, result)
        if len(operands) != 2:
            return 0
        own, other = operands[of_gradient], operands[1 - of_gradient]
        return einsum_scratch_bytes(equation_of_gradient(equation, of_gradient), (result, other), own)


def views_operand(path: Path) -> bool:
    """Return whether all that a path does is to view its operand, or nothing."""
    return all(_is_view(step) for step in path.steps)


def moved_bytes(path: Path, item_bytes: int, costing: ReshardingCosting) -> tuple[int, int]:
    """Return the bytes at the end of a path that isn't a view, and the most that it takes on the way beside its ends."""
    *between, last = (_bytes_after(step, path, item_bytes) for step in path.steps)
    largest = path.source.mesh.n_devices - 1
    inside = [
        in_graph_bytes(as_rank(step, path.shape, largest), item_bytes) if costing.in_graph and step.communicates else 0
        for step in path.steps
    ]
    # While a step of the path runs, its operand and its result are alive; the ends of the path are buffers of their own.
    return last, max(map(sum, zip([0, *between], [*between, 0], inside, strict=True)))


def groups_of(path: Path) -> set[Axes]:
    """Return the axes of the groups among which a path communicates."""
    return {step.group_axes for step in path.steps if step.communicates}


def nccl_workspace(groups: Iterable[Axes], costing: ReshardingCosting) -> int:
    """Return the bytes that NCCL's communicators of groups take; none if collectives don't run by NCCL."""
    rate = costing.nccl_bytes_per_s
    return 0 if rate is None else sum(nccl_bytes(costing.mesh, axes, rate) for axes in groups)


def workspaces(path: Path, item_bytes: int, costing: ReshardingCosting) -> dict[str, int]:
    """Return the bytes of each workspace that a path's collectives keep, by its name: none of those in the graph."""
    sizes: dict[str, int] = {}
    if costing.in_graph:
        return sizes
    # Where blocks are uneven, the last rank has the largest in each dimension.
    largest = path.source.mesh.n_devices - 1
    for step in path.steps:
        if isinstance(step, Step) and step.communicates:
            for name, n_bytes in workspace_bytes(rank_step(step, path.shape, largest), item_bytes).items():
                sizes[name] = max(sizes.get(name, 0), n_bytes)
    return sizes


def _bytes_after(step: Step | HaloStep, path: Path, item_bytes: int) -> int:
    """Return the bytes of the largest shard after a step of a path."""
    after = step if isinstance(step, HaloStep) else step.target
    return math.prod(after.largest_local_shape(path.shape)) * item_bytes


def _is_view(step: Step | HaloStep) -> bool:
    """Return whether a step slices whole rows: TensorFlow makes that a view of its operand, which takes no memory."""
    return isinstance(step, Step) and step.kind == "slice" and step.source.splits[1:] == step.target.splits[1:]
