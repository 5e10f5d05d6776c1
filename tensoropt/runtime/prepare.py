"""Prepare an imported graph for planning: check it, compare it on all ranks, analyse its backward pass."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from types import MappingProxyType

from ..common.dump import dump
from ..ir.graph import Graph
from ..ir.invariants import check_graph
from ..lowering.gradient_analysis import analyse
from ..rules.registry import rule_of
from ..sharding.model import Model
from .context import Context

logger = logging.getLogger("tensoropt")
NOTHING_PLACED: Mapping[str, tuple[int, ...]] = MappingProxyType({})


def model_of(graph: Graph, context: Context, placed: Mapping[str, tuple[int, ...]] = NOTHING_PLACED) -> Model:
    """Return the model of a graph, ready for the search. Every rank must call it.

    Args:
        placed: the devices that operators are placed on, by name.

    Raises:
        InputError: the ranks recorded different models, or a training step has nothing to train.
    """
    if os.environ.get("TENSOROPT_CHECK") == "1":
        check_graph(graph)
    context.check_same(graph.agreement, lambda: [line.partition("  # ")[0] for line in str(graph).splitlines()])
    _report_replicated(graph, context)
    if context.processes.rank == 0:
        dump("model", graph)
    return Model(graph, analyse(graph), placed=placed)


def _report_replicated(graph: Graph, context: Context) -> None:
    """Report once which types of operators have no rule and run replicated on every device."""
    if context.processes.rank or context.n_devices == 1:
        return
    reported: set[str] = set()
    for op in graph.operators.values():
        reason = rule_of(op).without if op.updates is None else ""
        if reason and op.type not in reported:
            reported.add(op.type)
            logger.warning("%s runs whole on every device: %s", op.where(), reason)
