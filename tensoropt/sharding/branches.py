"""Find the branches that begin in a stage: what it computes before it needs what earlier stages send.

Of two towers that meet in a head, one is a stage, and the other one with the head the next. The second stage runs its own
tower first, at the same time as the first stage runs the other tower, and waits only then. Likewise a stage that begins with
a decoder runs the decoder's first self-attention beside the encoder.

A branch begins with an operator that reads the batch and a trained variable and comes after no other such operator. What a
stage needs of the batch without a variable, such as a mask, stays where it is: it takes no time worth a different order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from functools import lru_cache
from heapq import heapify, heappop, heappush

from ..ir.graph import VARIABLE, Graph, Operator
from .cut_invariants import places


def runs_early(graph: Graph, members: frozenset[str], awaited: Collection[str], ahead: Set[str]) -> frozenset[str]:
    """Return the names of the operators of branches that begin in a stage, with all of it that they need.

    None of them needs what is awaited, nor is there an order to keep with updates. A stage that awaits nothing has none.

    Args:
        members: the names of the stage's operators.
        awaited: the names of the tensors that earlier stages send it in each pass.
        ahead: the names of the lookups that run ahead of all passes.
    """
    place_of = places(graph)
    pending = [(place_of[name], name) for name in branch_starts(graph) & members] if awaited else []
    heapify(pending)
    early, visited = set[str](), {name for _, name in pending}
    while pending:
        op = graph.operators[heappop(pending)[1]]
        if not _waits(graph, op, members, awaited, early):
            early.add(op.name)
            following = (consumer.name for tensor in op.outputs for consumer in graph.consumers.get(tensor.name, ()))
            for name in members.intersection(following) - visited:
                visited.add(name)
                heappush(pending, (place_of[name], name))
    ends = [tensor for name in early - ahead for tensor in graph.operators[name].outputs]
    return frozenset(graph.ancestors(ends)) & members


def _waits(graph: Graph, op: Operator, members: frozenset[str], awaited: Collection[str], early: set[str]) -> bool:
    """Return whether an operator needs what is awaited, or must keep an order with updates."""
    pending, visited = [op], {op.name}
    while pending:
        ancestor = pending.pop()
        if ancestor.updates is not None or ancestor.controls:
            return True
        for _, tensor in ancestor.operands:
            producer = graph.producers[tensor.name]
            if tensor.name in awaited:
                return True
            if producer.name in members and producer.name not in early and producer.name not in visited:
                visited.add(producer.name)
                pending.append(producer)
    return False


def early_first(graph: Graph, early: Collection[str]) -> Iterable[Operator]:
    """Return a graph's operators in program order, but with those named in ``early`` before the others.

    Variables come before all, still in program order, in which all processes ask for their first values.
    """
    if not early:
        return graph.operators.values()
    return sorted(graph.operators.values(), key=lambda op: 0 if op.type == VARIABLE else 1 if op.name in early else 2)


def earliest_needed(graph: Graph, places: Mapping[str, int]) -> dict[str, int]:
    """Return, for each operator of a branch, the first operator of the batch that it needs, itself among them, by its place.

    Where the model is cut before that the operator doesn't wait, as far as program order tells.

    Args:
        places: the places of operators, in program order.
    """
    starts, first, result = branch_starts(graph), dict[str, int](), dict[str, int]()
    for op in graph.operators.values():
        if op.name not in places or all(tensor.name in graph.made_of_variables for tensor in op.outputs):
            continue
        producers = [graph.producers[tensor.name].name for _, tensor in op.operands]
        first[op.name] = min([places[op.name], *(first[name] for name in producers if name in first)])
        if op.name in starts or any(name in result for name in producers):
            result[op.name] = first[op.name]
    return result


@lru_cache(maxsize=4)
def branch_starts(graph: Graph) -> frozenset[str]:
    """Return the names of the operators with which branches begin, wherever a graph is cut."""
    of_variables, of_branches, starts = set[str](), set[str](), set[str]()
    for op in graph.operators.values():
        operands = [tensor.name for _, tensor in op.operands]
        if op.type == VARIABLE:
            of_variables.update([op.result.name] if op.is_trainable else [])
        elif op.outputs and all(tensor.name in graph.made_of_variables for tensor in op.outputs):
            if not of_variables.isdisjoint(operands):
                of_variables.update(tensor.name for tensor in op.outputs)
        elif not of_branches.isdisjoint(operands) or not of_variables.isdisjoint(operands):
            if of_branches.isdisjoint(operands):
                starts.add(op.name)
            of_branches.update(tensor.name for tensor in op.outputs)
    return frozenset(starts)
