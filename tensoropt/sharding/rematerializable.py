"""Decide which operators may be rematerialized: those that compute the same again, without communication.

| never rematerialized | why |
|---|---|
| sources, updates of variables, reads after an update | their values are given, or change |
| random operators, operators that read or move a generator's state | they would draw other numbers |
| loops, custom gradients | what they save is inside of them |
| lookups in tables that are updated by rows | updates use the indices as they were |
| operators without a rule | nothing is known about them |
| operators that no gradient passes through | the backward pass doesn't come to them |
| an operator in a config with reshardings inside of it | it communicates |
"""

from __future__ import annotations

from collections.abc import Collection

from ..ir.body import COMPOSITES, VALUE_SHAPED
from ..ir.graph import SOURCES, Graph, Operator
from ..rules.random import RANDOM
from ..rules.rule import Config, Rule
from .resharding import differentiated_operands, inner_reshardings

NEVER = frozenset([*SOURCES, *COMPOSITES, VALUE_SHAPED, *RANDOM, "StatelessRandomGetKeyCounter"])


def may_be_rematerialized_at_all(graph: Graph, op: Operator, rule: Rule, gradients: Collection[tuple[str, int]]) -> bool:
    """Return whether an operator may be rematerialized in some config.

    Args:
        gradients: (operator, position) of the operands to which a gradient comes back.
    """
    if op.updates is not None or op.type in NEVER or rule.without or op.name in graph.lookup_operators:
        return False
    return any((op.name, position) in gradients for position, _ in op.operands)


def is_rematerializable(
    graph: Graph, op: Operator, rule: Rule, config: Config, gradients: Collection[tuple[str, int]]
) -> bool:
    """Return whether an operator may be rematerialized in this config."""
    if not may_be_rematerialized_at_all(graph, op, rule, gradients):
        return False
    return not inner_reshardings(op, rule, config, differentiated_operands(op, gradients))
