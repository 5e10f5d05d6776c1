"""The passes of a step in stages: of each micro-batch a forward pass, a backward pass, and maybe that of parameters."""

from __future__ import annotations

from typing import NamedTuple

FORWARD, BACKWARD, PARAMETERS = "forward", "backward", "parameters"
"""The kinds of passes of a micro-batch: the forward pass; the backward pass, which computes all gradients, or those that an
earlier stage waits for; and the pass that computes the gradients of parameters which the backward pass has left."""


class Pass(NamedTuple):
    """A pass of a micro-batch in one stage; its work is FORWARD, BACKWARD or PARAMETERS."""

    stage: int
    micro_batch: int
    work: str

    def __str__(self) -> str:
        letter = {FORWARD: "F", BACKWARD: "B", PARAMETERS: "W"}[self.work]
        return f"{letter}{self.micro_batch} of stage {self.stage}"


Orders = tuple[tuple[Pass, ...], ...]
"""For each submesh the passes of its stages in order; but for interleaved stages each stage has a submesh of its own."""


def needs(run: Pass, n_stages: int) -> list[Pass]:
    """Return the passes of other stages, and the pass before of its own micro-batch and stage, that a pass needs."""
    if run.work == FORWARD:
        return [run._replace(stage=run.stage - 1)] if run.stage else []
    if run.work == PARAMETERS:
        return [run._replace(work=BACKWARD)]
    later = [run._replace(stage=run.stage + 1)] if run.stage + 1 < n_stages else []
    return [run._replace(work=FORWARD), *later]


def merged(orders: Orders) -> list[Pass]:
    """Return one order of all passes: each submesh's own, and each pass after those that it needs.

    Raises:
        ValueError: there is none; the message names the passes that wait for each other.
    """
    n_stages = 1 + max((run.stage for order in orders for run in order), default=0)
    done: set[Pass] = set()
    passes: list[Pass] = []
    at = [0] * len(orders)
    while True:
        before = len(passes)
        for submesh, order in enumerate(orders):
            while at[submesh] < len(order) and done.issuperset(needs(order[at[submesh]], n_stages)):
                done.add(order[at[submesh]])
                passes.append(order[at[submesh]])
                at[submesh] += 1
        if len(passes) == before:
            break
    waiting = [order[index] for order, index in zip(orders, at, strict=True) if index < len(order)]
    if waiting:
        raise ValueError(f"passes wait for each other: {', '.join(map(str, waiting))}")
    return passes
