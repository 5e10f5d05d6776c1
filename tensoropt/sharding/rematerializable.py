"""Which operators may be computed again in the backward pass: those that then make what they made before, alone.

| never | why |
|---|---|
| sources, updates of variables, what reads after an update | they are given, or change |
| random operators, what reads or moves a generator's state | they draw other numbers |
| loops, custom gradients | what they keep is inside |
| lookups in tables that are updated by rows | updates take the indices as they were |
| operators without a rule | nothing is known of them |
| operators that no gradient passes | the backward pass doesn't come to them |
| a config with reshardings inside of the operator | they communicate |
"""

from __future__ import annotations

from collections.abc import Collection

from ..ir.body import COMPOSITES
from ..ir.graph import SOURCES, Graph, Operator
from ..rules.random import FROM_KEY, FROM_SEED
from ..rules.rule import Config, Rule
from .resharding import differentiated_operands, inner_reshardings

NEVER = frozenset([*SOURCES, *COMPOSITES, *FROM_KEY, *FROM_SEED, "StatelessRandomGetKeyCounter"])


def may_be_recomputed(graph: Graph, op: Operator, rule: Rule, gradients: Collection[tuple[str, int]]) -> bool:
    """Whether an operator may be computed again in some config.

    Args:
        gradients: (operator, position) of the operands to which a gradient comes back.
    """
    if op.updates is not None or op.type in NEVER or rule.without or op.name in graph.lookup_operators:
        return False
    return any((op.name, position) in gradients for position, _ in op.operands)


def is_recomputable(
    graph: Graph, op: Operator, rule: Rule, config: Config, gradients: Collection[tuple[str, int]]
) -> bool:
    """Whether it may in this config."""
    if not may_be_recomputed(graph, op, rule, gradients):
        return False
    return not inner_reshardings(op, rule, config, differentiated_operands(op, gradients))
