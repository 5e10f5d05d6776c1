"""The peak of memory of a program without branches: what is alive at once, instruction by instruction.

A *buffer* is memory that some instruction writes and others read; it lives from the first to the last of them. An
instruction may write its result over an operand that nobody reads afterwards, as TensorFlow's elementwise operators do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Memory of so many bytes; ``use`` says what for."""

    n_bytes: int
    use: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """Attributes:
    scratch_bytes: that it takes while it runs, beside what it writes.
    may_overwrite: whether a result may take the memory of an operand of the same size that dies here.
    """

    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    scratch_bytes: int = 0
    may_overwrite: bool = False


@dataclass(frozen=True)
class Peak:
    """Attributes:
    n_bytes: the most that is alive at once.
    by_use: what it is made of.
    instruction: at which.
    """

    n_bytes: int
    by_use: Counter[str] = field(default_factory=Counter)
    instruction: int = 0


SCRATCH = "workspace of operators"


def peak_of_program(program: Sequence[Instruction]) -> Peak:
    """What is read before it was written is alive from the start; what is never read dies with its instruction."""
    last = {id(buffer): i for i, each in enumerate(program) for buffer in (*each.writes, *each.reads)}
    dying: list[list[Buffer]] = [[] for _ in program]
    for i, each in enumerate(program):
        dying[i] = [buffer for buffer in dict.fromkeys((*each.reads, *each.writes)) if last[id(buffer)] == i]
    written = {buffer for each in program for buffer in each.writes}
    alive: Counter[str] = Counter()
    for buffer in {buffer for each in program for buffer in each.reads} - written:
        alive[buffer.use] += buffer.n_bytes
    total, peak = alive.total(), Peak(alive.total(), Counter(alive))
    for i, each in enumerate(program):
        free = [buffer for buffer in dying[i] if buffer in each.reads] if each.may_overwrite else []
        for buffer in each.writes:
            over = next((other for other in free if other.n_bytes == buffer.n_bytes), None)
            if over is not None:
                free.remove(over)
                dying[i].remove(over)
                alive[over.use] -= over.n_bytes
                total -= over.n_bytes
            alive[buffer.use] += buffer.n_bytes
            total += buffer.n_bytes
        if total + each.scratch_bytes > peak.n_bytes:
            peak = Peak(total + each.scratch_bytes, +(alive + Counter({SCRATCH: each.scratch_bytes})), i)
        for buffer in dying[i]:
            alive[buffer.use] -= buffer.n_bytes
            total -= buffer.n_bytes
    return peak
