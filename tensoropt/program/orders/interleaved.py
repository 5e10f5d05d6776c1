"""Order the passes of interleaved stages: each submesh has several, one from each round through the submeshes.

Stage s is on submesh s modulo their number, so a micro-batch passes all submeshes several times. A stage is shorter than
with one for each submesh, and so is what the first and the last wait while the pipeline fills and drains (Narayanan et al.,
Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, 2021, section 2.2). Each micro-batch crosses
between submeshes as many times more.

A submesh takes micro-batches in rounds: all of a round through its first stage, then all through its next one. The paper's
rounds have a micro-batch for each submesh. Larger ones leave more time until the first micro-batch of a round is back at the
submesh that sent it, which hides what is on its way over a slow link, and hold more micro-batches.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from .passes import BACKWARD, FORWARD, Orders, Pass, merged

INTERLEAVED = "interleaved"
ROUNDS = (1, 2, 4)
"""So many micro-batches of a round are tried for each submesh."""
AHEAD_PER_SUBMESH = (2, 3)
"""So many more passes in flight are tried for each submesh that follows: the paper's, and one more."""


class Interleaving(NamedTuple):
    """How stages share submeshes.

    Attributes:
        n_submeshes: the number of submeshes; stage s is on submesh s modulo it.
        per_round: how many micro-batches a round has at least.
        ahead: for each submesh, how many forward passes of its stages have run at most whose backward pass hasn't.
    """

    n_submeshes: int
    per_round: int
    ahead: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {"n_submeshes": self.n_submeshes, "per_round": self.per_round, "ahead": list(self.ahead)}


def interleaving_of(value: Any, n_stages: int) -> Interleaving | None:
    """Return what a plan's file has of how stages share submeshes; None where it has nothing.

    Raises:
        ValueError: so many stages can't share submeshes so.
    """
    if value is None:
        return None
    interleaving = Interleaving(value["n_submeshes"], value["per_round"], tuple(value["ahead"]))
    numbers, n_submeshes = (interleaving.n_submeshes, interleaving.per_round, *interleaving.ahead), len(interleaving.ahead)
    are_counts = all(type(number) is int and number > 0 for number in numbers)
    if not are_counts or n_submeshes != interleaving.n_submeshes or n_stages % n_submeshes:
        raise ValueError(f"{n_stages} stages can't be interleaved as {value}")
    return interleaving


def interleaved_orders(n_stages: int, n_micro_batches: int, interleaving: Interleaving) -> Orders:
    """Return the order of each submesh's passes: some forward passes ahead, then backward and forward passes alternate.

    Backward passes go through a round's stages from the last one to the first.
    """
    n_submeshes, per_round, ahead_of = interleaving
    rounds = _rounds(n_micro_batches, per_round)
    orders = []
    for submesh, ahead in enumerate(ahead_of):
        stages = range(submesh, n_stages, n_submeshes)
        forward = [Pass(stage, i, FORWARD) for indices in rounds for stage in stages for i in indices]
        backward = [Pass(stage, i, BACKWARD) for indices in rounds for stage in reversed(stages) for i in indices]
        order = forward[:ahead]
        for index, run in enumerate(backward):
            order += [run, *forward[ahead + index : ahead + index + 1]]
        orders.append(tuple(order))
    return tuple(orders)


@lru_cache(maxsize=64)
def tried_interleavings(n_stages: int, n_micro_batches: int, n_submeshes: int) -> tuple[Interleaving, ...]:
    """Return the ways to interleave stages that are tried, all of which have an end; the paper's comes first.

    Args:
        n_submeshes: a number that divides that of stages.
    """
    ways = []
    per_submesh = n_stages // n_submeshes
    for factor in ROUNDS:
        first, *others = _rounds(n_micro_batches, factor * n_submeshes)
        least = n_micro_batches // (1 + len(others))
        for extra in AHEAD_PER_SUBMESH:
            ahead = (
                min(n_micro_batches * per_submesh, (per_submesh - 1) * len(first) + 1 + extra * (n_submeshes - 1 - submesh))
                for submesh in range(n_submeshes)
            )
            ways.append(Interleaving(n_submeshes, least, tuple(ahead)))
    orders = {way: interleaved_orders(n_stages, n_micro_batches, way) for way in ways}
    return tuple(way for way, order in orders.items() if _has_an_end(order))


def most_in_flight(n_stages: int, orders: Orders) -> tuple[int, ...]:
    """Return for each stage how many micro-batches have run their forward pass and not their backward pass at most."""
    most: Counter[int] = Counter()
    for order in orders:
        in_flight: Counter[int] = Counter()
        for run in order:
            in_flight[run.stage] += {FORWARD: 1, BACKWARD: -1}[run.work]
            most[run.stage] = max(most[run.stage], in_flight[run.stage])
    return tuple(most[stage] for stage in range(n_stages))


def _rounds(n_micro_batches: int, per_round: int) -> list[range]:
    """Return the micro-batches of each round, the larger rounds first; fewer than a round's are one."""
    n_rounds = max(1, n_micro_batches // per_round)
    size, larger = divmod(n_micro_batches, n_rounds)
    starts = [number * size + min(number, larger) for number in range(n_rounds + 1)]
    return [range(*ends) for ends in pairwise(starts)]


def _has_an_end(orders: Orders) -> bool:
    """Return whether no passes wait for each other."""
    try:
        merged(orders)
    except ValueError:
        return False
    return True
