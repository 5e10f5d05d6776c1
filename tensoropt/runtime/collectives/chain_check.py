"""Prove that what TensorFlow runs of an emitted function, after Grappler and partitioning, keeps the chain of collectives.

Each collective has a number that grows in the order of emission. The chain holds if each follows, by values or control
dependencies, from the one before: then from all before, and all ranks run them in one order. One pass through the graph
computes for each operator the largest number of a collective that it follows from. That must be the number before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any

from ...common.errors import TensorOptError

NUMBER = "_tensoropt_number"
"""The attribute with a collective's number."""
_SENDS, _RECEIVES = {"_Send", "_HostSend"}, {"_Recv", "_HostRecv"}
Node = tuple[int, str]
"""An operator: the number of its device's graph, and its name."""


@contextmanager
def chain_checked() -> Iterator[None]:
    """Return a context that checks each function that first runs within it; raise TensorOptError if one lost the chain."""
    from tensorflow.python.eager import context

    context.context().enable_run_metadata()
    try:
        yield
        metadata = context.context().export_run_metadata()
    finally:
        context.context().disable_run_metadata()
    for function in metadata.function_graphs:
        check_chain(function.partition_graphs)


def check_chain(graphs: Sequence[Any]) -> int:
    """Check that the collectives of a function's graphs (GraphDef, one for each device) are one chain; return their number.

    Raises:
        TensorOptError: two aren't in order.
    """
    numbers: dict[Node, int] = {}
    sources: dict[Node, list[Node]] = {}
    kinds: dict[Node, str] = {}
    senders: dict[str, Node] = {}
    receivers: dict[str, Node] = {}
    for place, graph in enumerate(graphs):
        for node in graph.node:
            key = (place, node.name)
            kinds[key] = node.op
            sources[key] = [(place, operand.lstrip("^").partition(":")[0]) for operand in node.input]
            if NUMBER in node.attr:
                numbers[key] = node.attr[NUMBER].i
            if node.op in _SENDS:
                senders[node.attr["tensor_name"].s] = key
            elif node.op in _RECEIVES:
                receivers[node.attr["tensor_name"].s] = key
    for key, kind in kinds.items():
        if kind == "Merge":  # what a loop's turn hands to the next one isn't an order of operators
            sources[key] = [source for source in sources[key] if kinds.get(source) != "NextIteration"]
    for name, key in receivers.items():
        sources[key] += [senders[name]] if name in senders else []
    latest: dict[Node, int] = {}
    for key in TopologicalSorter(sources).static_order():
        latest[key] = max((max(numbers.get(source, 0), latest[source]) for source in sources.get(key, ())), default=0)
    chain = sorted((number, key) for key, number in numbers.items())
    for (last_number, earlier), (_, later) in pairwise(chain):
        if latest[later] != last_number:
            raise TensorOptError(
                f"TensorFlow's graph optimizer took collective '{later[1]}' out of the chain: it doesn't wait for "
                f"'{earlier[1]}', and ranks could run them in different orders; please report this, and take "
                "collectives='mpi' meanwhile"
            )
    return len(chain)
