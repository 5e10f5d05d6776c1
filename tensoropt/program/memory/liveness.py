"""Compute the peak memory of a program without branches: the bytes alive at once, instruction by instruction.

A *buffer* is memory that one instruction writes and others read; it lives from the first to the last of them. An
instruction may write its result over an operand that nothing reads afterwards, as TensorFlow's elementwise operators do. A
buffer that Python allocated, as collectives do, is overwritten only through a view of a part of it. It also outlives its
last reader: it can't be freed without the interpreter's lock, so it stays until TensorFlow has called Python the next time.
Instructions that follow such a call and don't read its result run while the call is still under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A block of memory.

    Attributes:
        use: what it is used for, as tables name it.
        of: the name of the tensor of which it holds the value, the gradient or the slots; empty if there is none.
    """

    n_bytes: int
    use: str
    is_python_s: bool = False
    of: str = ""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step of a program: the buffers it reads and writes.

    Attributes:
        scratch_bytes: workspace that it uses while it runs, beside what it writes.
        overwrites: (buffer, bytes read of it). A result of just so many bytes takes over the buffer's memory if the buffer
            dies at this instruction. Through a view, fewer bytes are read than the buffer has; the result then keeps the
            whole buffer alive.
        calls_python: whether it calls Python, after which Python's buffers that died before it are freed.
    """

    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    scratch_bytes: int = 0
    overwrites: tuple[tuple[Buffer, int], ...] = ()
    calls_python: bool = False


@dataclass(frozen=True)
class Peak:
    """The peak memory of a program.

    Attributes:
        n_bytes: the most bytes that are alive at once.
        by_use: these bytes by the ``use`` of their buffers.
        instruction: the index of the instruction at which the peak occurs.
        by_tensor: these bytes by the tensor that their buffers name, for buffers that name one.
        runs: what that instruction makes, as text; may be empty.
    """

    n_bytes: int
    by_use: Counter[str] = field(default_factory=Counter)
    instruction: int = 0
    by_tensor: Counter[str] = field(default_factory=Counter)
    runs: str = ""
    n_instructions: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return what plans and reports keep of the peak as a JSON value, with the largest tensors only."""
        return {
            "peak_bytes": self.n_bytes, "peak_instruction": self.instruction, "peak_runs": self.runs,
            "instructions": self.n_instructions, "peak_by_use": dict(self.by_use.most_common()),
            "peak_by_tensor": dict(self.by_tensor.most_common(MOST_TENSORS)),
        }  # fmt: skip


MOST_TENSORS = 12
PEAK_KEYS = tuple(Peak(0).to_json())
SCRATCH = "workspace of operators"


Observer = Callable[[int, Counter[str]], None]
"""Called with an instruction's index and the bytes by use that are alive while it runs, without its workspace."""


def peak_of_program(program: Sequence[Instruction], observer: Observer | None = None) -> Peak:
    """Return the peak memory of a program.

    A buffer that no instruction writes is alive from the start. A buffer that is never read dies with the instruction that
    writes it.

    Args:
        observer: called at each instruction.
    """
    dying, first_buffers = _lifetimes(program)
    memory = _Memory(program, first_buffers)
    peak, at_peak = Peak(memory.alive.total(), Counter(memory.alive)), dict(memory.there)
    held: list[Buffer] = []  # Python's buffers that died since the last call of Python
    leaving: list[Buffer] = []  # Python's buffers that died before that call: it frees them
    for i, instruction in enumerate(program):
        if instruction.calls_python or (i and set(program[i - 1].writes) & set(instruction.reads)):
            memory.give_back(leaving)
            leaving = []
        memory.write(instruction, dying[i])
        if observer is not None:
            observer(i, memory.alive)
        total = memory.alive.total() + instruction.scratch_bytes
        if total > peak.n_bytes:
            by_use = +(memory.alive + Counter({SCRATCH: instruction.scratch_bytes}))
            peak, at_peak = Peak(total, by_use, i), dict(memory.there)
        memory.give_back(leaving)
        memory.give_back(buffer for buffer in dying[i] if id(buffer) not in memory.python_s)
        died = [buffer for buffer in dying[i] if id(buffer) in memory.python_s]
        leaving, held = (held, died) if instruction.calls_python else ([], held + died)
    for key, buffer in at_peak.items():
        if buffer.of:
            peak.by_tensor[buffer.of] += memory.size[key]
    runs = made_text(program[peak.instruction]) if program else ""
    return replace(peak, runs=runs, n_instructions=len(program))


class _Memory:
    """The buffers that are alive while a program runs, by their identity.

    Attributes:
        alive: the bytes that are alive, by use.
        there: the buffers that are alive.
        size: the bytes that each buffer keeps alive; of one that is written over another one, those of the other.
        python_s: the buffers that Python allocated, and those written over them.
    """

    def __init__(self, program: Sequence[Instruction], buffers: Iterable[Buffer]) -> None:
        self.alive: Counter[str] = Counter()
        self.there: dict[int, Buffer] = {}
        self.size = {
            id(buffer): buffer.n_bytes for instruction in program for buffer in (*instruction.writes, *instruction.reads)
        }
        self.python_s = {id(buffer) for instruction in program for buffer in instruction.writes if buffer.is_python_s}
        for buffer in buffers:
            self._take(buffer)

    def write(self, instruction: Instruction, dying: list[Buffer]) -> None:
        """Take the buffers that an instruction writes.

        Args:
            dying: the buffers that it is the last to use; those that it writes over are taken out.
        """
        # Python's memory is overwritten only through a view of a part of it.
        free = [
            (b, view_bytes)
            for b, view_bytes in dict.fromkeys(instruction.overwrites)
            if b in dying and (view_bytes < self.size[id(b)] or id(b) not in self.python_s)
        ]
        for buffer in instruction.writes:
            over = next((other for other, view_bytes in free if view_bytes == buffer.n_bytes), None)
            if over is not None:
                free = [(b, view_bytes) for b, view_bytes in free if b is not over]
                dying.remove(over)
                self.give_back([over])
                self.size[id(buffer)] = self.size[id(over)]
                if id(over) in self.python_s:
                    self.python_s.add(id(buffer))
            self._take(buffer)

    def give_back(self, buffers: Iterable[Buffer]) -> None:
        """Free buffers."""
        for buffer in buffers:
            self.alive[buffer.use] -= self.size[id(buffer)]
            self.there.pop(id(buffer), None)

    def _take(self, buffer: Buffer) -> None:
        self.alive[buffer.use] += self.size[id(buffer)]
        self.there[id(buffer)] = buffer


def made_text(instruction: Instruction) -> str:
    """Return what an instruction makes, as text: the use of what it writes, and the tensor."""
    named = [buffer for buffer in instruction.writes if buffer.of] or list(instruction.writes)
    if not named:
        return ""
    return f"{named[0].use}: {named[0].of}" if named[0].of else named[0].use


def _lifetimes(program: Sequence[Instruction]) -> tuple[list[list[Buffer]], set[Buffer]]:
    """Return the buffers that each instruction is the last to use, and those that no instruction writes."""
    last = {id(buffer): i for i, instruction in enumerate(program) for buffer in (*instruction.writes, *instruction.reads)}
    dying: list[list[Buffer]] = [[] for _ in program]
    for i, instruction in enumerate(program):
        dying[i] = [buffer for buffer in dict.fromkeys((*instruction.reads, *instruction.writes)) if last[id(buffer)] == i]
    written = {buffer for instruction in program for buffer in instruction.writes}
    return dying, {buffer for instruction in program for buffer in instruction.reads} - written
