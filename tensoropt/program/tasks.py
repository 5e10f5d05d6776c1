"""Define the tasks of a training step, and the values that they read and write.

A step is a list of tasks in the order in which they run. Each names what it reads and writes:

- a *result* of an operator, in its produced layout;
- the *shared copy* of a tensor, which its consumers reshard from;
- the *operand* of an operator at a position, in its operand sharding;
- what is *fetched*: the global value of a tensor, or a rank's shard of it.

Each of them may be made *again* in the backward pass, regathered or rematerialized, and has a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

RESULT, SHARED, OPERAND, OPERATOR = "result", "shared", "operand", "operator"
GLOBAL, LOCAL, SENT = FETCHED = "global", "local", "sent"
FIRST, AGAIN, GRADIENT, RETURNED, ACCUMULATED = "", "again", "gradient", "returned gradient", "accumulated gradient"
"""Versions of a value: of the forward pass, made once more, its gradient, the gradient after its resharding, and gradients
accumulated over micro-batches."""

FEED, COMPUTE, RESHARD, SUM, WRITE, UPDATE, SEND = "feed", "compute", "reshard", "sum", "write", "update", "send"
JOIN, CUT = "join", "cut"
COMPUTING, COMMUNICATING, OVERLAPPABLE = "compute", "communication", "overlappable communication"
"""The streams of tasks: each has a total order, which is that of the program. For what is overlappable only updates wait."""
FORWARD, BACKWARD, REMATERIALIZED = "forward", "backward", "rematerialized"


class Site(NamedTuple):
    """An operator, or something that has a value and a gradient.

    Attributes:
        kind: OPERATOR, RESULT, SHARED, OPERAND, or how a tensor is fetched: GLOBAL, LOCAL or, by other stages, SENT.
        name: the operator's name; the tensor's for all but OPERATOR and OPERAND.
        position: an operand's position among the operator's inputs; -1 for others, and for the loss of a training step.
    """

    kind: str
    name: str
    position: int = -1

    def __str__(self) -> str:
        if self.kind == OPERAND:
            return f"{self.name}[{self.position}]"
        return f"{self.kind} {self.name}" if self.kind in FETCHED else f"{self.name}" + "*" * (self.kind == SHARED)


class Value(NamedTuple):
    """One version of what is at a site.

    As text: ``relu:0`` is a result, ``relu:0*`` its shared copy, ``conv[0]`` an operand; with ``'`` it was made again;
    ``d(...)`` is a gradient, ``d(...)~`` one that went back through a resharding, ``d(...)+2`` the sum of two, ``d(...)&+2``
    of those of two micro-batches; ``1:relu:0`` belongs to micro-batch 1.

    Attributes:
        site: the result, shared copy or operand.
        version: FIRST, AGAIN, GRADIENT, RETURNED or ACCUMULATED.
        n_summed: the number of gradients that have been summed in this one; 0 for one that isn't a sum.
        micro_batch: the index of the micro-batch that it belongs to; -1 for what is made once a step.
        backward_pass: of a gradient, the index of the backward pass, where there are several.
    """

    site: Site
    version: str = FIRST
    n_summed: int = 0
    micro_batch: int = -1
    backward_pass: int = 0

    @property
    def is_gradient(self) -> bool:
        return self.version in (GRADIENT, RETURNED, ACCUMULATED)

    def __str__(self) -> str:
        text = f"{self.micro_batch}:{self.site}" if self.micro_batch >= 0 else str(self.site)
        text += "'" * (self.version == AGAIN)
        if self.is_gradient:
            text = f"d{self.backward_pass or ''}({text})" + {GRADIENT: "", RETURNED: "~", ACCUMULATED: "&"}[self.version]
        return f"{text}+{self.n_summed}" if self.n_summed else text


def source_of(value: Value, aliases: Mapping[Value, Value]) -> Value:
    """Return the value whose memory a value is."""
    while value in aliases:
        value = aliases[value]
    return value


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a step.

    Attributes:
        work: FEED a placeholder, variable or constant; COMPUTE an operator or its gradient; RESHARD a value or a gradient;
            SUM two gradients; WRITE to a variable, or read it after that, by an operator of the model; UPDATE a variable by
            its gradient, or by those of the rows that lookups found in it; SEND a tensor to a later stage, or a gradient to
            an earlier one; JOIN what micro-batches have of a tensor, or of its gradient; CUT a tensor into what they have.
        direction: FORWARD, BACKWARD, or REMATERIALIZED: once more in the backward pass.
        site: what is computed or resharded; for a sum, where the gradients arrive.
        gradients: for the gradient of an operator, the gradients of its results, each with the result's index.
        after: values that must be there before a task in the backward pass is run once more.
        micro_batch: the index of the micro-batch that it belongs to; -1 for what is done once a step.
        stream: COMPUTING, COMMUNICATING or OVERLAPPABLE: what it takes while it runs.
        step: for an update, and a gradient that is sent to another stage or fed by one, the name of the training step.
    """

    work: str
    direction: str
    site: Site
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    gradients: tuple[tuple[int, Value], ...] = ()
    after: tuple[Value, ...] = ()
    micro_batch: int = -1
    stream: str = COMPUTING
    step: str = ""

    def __str__(self) -> str:
        prefix = {FORWARD: "", BACKWARD: "gradient of ", REMATERIALIZED: "again "}[self.direction]
        after = f" after {', '.join(map(str, self.after))}" if self.after else ""
        stream = f" [{self.stream}]" if self.stream != COMPUTING else ""
        return f"{self.work} {prefix}{self.site}: {_text(self.all_reads)} -> {_text(self.writes)}{after}{stream}"

    @property
    def is_of_rows(self) -> bool:
        """Whether the task brings the gradients of what a lookup found to every rank."""
        return self.work == RESHARD and self.site.kind == RESULT

    @property
    def all_reads(self) -> tuple[Value, ...]:
        """Return all values that the task reads, gradients first."""
        return (*(value for _, value in self.gradients), *self.reads)


def _text(values: Iterable[Value]) -> str:
    return ", ".join(map(str, values)) or "nothing"
