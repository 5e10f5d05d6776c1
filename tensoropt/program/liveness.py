"""The peak of memory of a program without branches: what is alive at once, instruction by instruction.

A *buffer* is memory that some instruction writes and others read; it lives from the first to the last of them. An
instruction may write its result over an operand that nobody reads afterwards, as TensorFlow's elementwise operators do. A
buffer that Python made, as collectives do, is written over only by way of a view of a part of it, and lives on until
TensorFlow has called Python the next time: it can't be given back without the interpreter's lock. What follows a call and
doesn't wait for it runs meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Memory of so many bytes; ``use`` says what for, ``of`` names the tensor that it holds, its gradient or slots."""

    n_bytes: int
    use: str
    is_python_s: bool = False
    of: str = ""


@dataclass(frozen=True, slots=True)
class Instruction:
    """Attributes:
    scratch_bytes: that it takes while it runs, beside what it writes.
    overwrites: buffers whose memory a result may take if they die here, with the bytes that are read: a result of as many
        takes it. Of a view of a part of a buffer these are fewer than the buffer's, all of which the result keeps.
    calls_python: whether what Python made, and died before, is given back after it.
    """

    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    scratch_bytes: int = 0
    overwrites: tuple[tuple[Buffer, int], ...] = ()
    calls_python: bool = False


@dataclass(frozen=True)
class Peak:
    """Attributes:
    n_bytes: the most that is alive at once.
    by_use: what it is made of.
    instruction: at which.
    by_tensor: whose it is, as far as buffers say.
    """

    n_bytes: int
    by_use: Counter[str] = field(default_factory=Counter)
    instruction: int = 0
    by_tensor: Counter[str] = field(default_factory=Counter)


SCRATCH = "workspace of operators"


def peak_of_program(program: Sequence[Instruction]) -> Peak:
    """What is read before it was written is alive from the start; what is never read dies with its instruction."""
    last = {id(buffer): i for i, each in enumerate(program) for buffer in (*each.writes, *each.reads)}
    dying: list[list[Buffer]] = [[] for _ in program]
    for i, each in enumerate(program):
        dying[i] = [buffer for buffer in dict.fromkeys((*each.reads, *each.writes)) if last[id(buffer)] == i]
    written = {buffer for each in program for buffer in each.writes}
    alive: Counter[str] = Counter()
    size = {id(buffer): buffer.n_bytes for each in program for buffer in (*each.writes, *each.reads)}
    python_s = {id(buffer) for each in program for buffer in each.writes if buffer.is_python_s}
    there: dict[int, Buffer] = {}
    for buffer in {buffer for each in program for buffer in each.reads} - written:
        alive[buffer.use] += buffer.n_bytes
        there[id(buffer)] = buffer
    peak, at_peak = Peak(alive.total(), Counter(alive)), dict(there)
    held: list[Buffer] = []  # died since the last call
    leaving: list[Buffer] = []  # died before it

    def give_back(buffers: Iterable[Buffer]) -> None:
        for buffer in buffers:
            alive[buffer.use] -= size[id(buffer)]
            there.pop(id(buffer), None)

    for i, each in enumerate(program):
        if each.calls_python or (i and set(program[i - 1].writes) & set(each.reads)):
            give_back(leaving)
            leaving = []
        # Python's memory isn't written over by itself, but by way of a view of a part.
        free = [
            (b, seen)
            for b, seen in dict.fromkeys(each.overwrites)
            if b in dying[i] and (seen < size[id(b)] or id(b) not in python_s)
        ]
        for buffer in each.writes:
            over = next((other for other, seen in free if seen == buffer.n_bytes), None)
            if over is not None:
                free = [(b, seen) for b, seen in free if b is not over]
                dying[i].remove(over)
                give_back([over])
                size[id(buffer)] = size[id(over)]
                if id(over) in python_s:
                    python_s.add(id(buffer))
            alive[buffer.use] += size[id(buffer)]
            there[id(buffer)] = buffer
        total = alive.total() + each.scratch_bytes
        if total > peak.n_bytes:
            peak, at_peak = Peak(total, +(alive + Counter({SCRATCH: each.scratch_bytes})), i), dict(there)
        give_back(leaving)
        give_back(buffer for buffer in dying[i] if id(buffer) not in python_s)
        died = [buffer for buffer in dying[i] if id(buffer) in python_s]
        leaving, held = (held, died) if each.calls_python else ([], held + died)
    for key, buffer in at_peak.items():
        if buffer.of:
            peak.by_tensor[buffer.of] += size[key]
    return peak
