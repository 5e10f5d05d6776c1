"""Check that a graph keeps the invariants of the intermediate representation."""

from __future__ import annotations

from .graph import Graph


def check_graph(graph: Graph) -> None:
    """Check the graph against the invariants of :mod:`.graph`.

    Raises:
        AssertionError: an invariant is broken; the message names the operator at fault and prints the ones around it.
    """
    names: set[str] = set()
    for index, (name, op) in enumerate(graph.operators.items()):
        lines = "\n".join(map(str, list(graph.operators.values())[max(0, index - 2) : index + 3]))
        missing = [tensor.name for _, tensor in op.operands if tensor.name not in names]
        assert name == op.name, f"operator {op.name} is filed under {name}"
        assert not missing, f"{op.where()} takes {missing}, which no earlier operator makes; around it:\n{lines}"
        assert all(extent is not None for tensor in op.outputs for extent in tensor.shape), f"unknown shape in\n{lines}"
        names.update(tensor.name for tensor in op.outputs)
