"""The passes of a step in stages: of each micro-batch a forward pass, a backward pass, and maybe that of parameters."""

from __future__ import annotations

from typing import NamedTuple

from tabulate import tabulate

from ...common.errors import OrderError

FORWARD, BACKWARD, PARAMETERS = WORKS = "forward", "backward", "parameters"
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
        OrderError: there is none; the message draws the orders, with the passes that wait for each other marked.
    """
    n_stages = 1 + max((run.stage for order in orders for run in order), default=0)
    passes, n_before, at = dict[Pass, None](), -1, [0] * len(orders)
    while n_before < len(passes):
        n_before = len(passes)
        for submesh, order in enumerate(orders):
            while at[submesh] < len(order) and passes.keys() >= set(needs(order[at[submesh]], n_stages)):
                passes[order[at[submesh]]] = None
                at[submesh] += 1
    if any(index < len(order) for order, index in zip(orders, at, strict=True)):
        rows = [[f"submesh {n}", *map(str, order)] for n, order in enumerate(orders)]
        for row, index in zip(rows, at, strict=True):
            row[index + 1 :] = [f"[{name}]" for name in row[index + 1 : index + 2]] + row[index + 2 :]
        grid = tabulate(rows, tablefmt="plain", disable_numparse=True)
        raise OrderError(f"passes wait for each other, in brackets those that can't run:\n{grid}")
    return list(passes)
