"""Find lookups that run where their table is, ahead of the stages that use the rows.

A tied embedding is looked up in one of the first stages and is a factor of a product in the last. Either its table crosses
once a step, with its whole gradient back; or it belongs to the stage of the product, which looks up the rows of all
micro-batches when a step begins, sends them, and adds their gradients at the end. Rows are sent if they are fewer bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ..common.reach import reached
from ..ir.graph import PLACEHOLDER, VARIABLE, Graph, Operator
from ..rules.random import RANDOM
from .cut_invariants import following


@dataclass(frozen=True, slots=True)
class LookupsAhead:
    """The lookups that run ahead, and what follows from that.

    Attributes:
        tables: by the name of a variable, the stage that it belongs to.
        lookups: by the name of a lookup, the same stage.
        indices: the names of operators that compute indices from what is fed; each stage that needs them has them.
    """

    tables: Mapping[str, int] = field(default_factory=dict)
    lookups: Mapping[str, int] = field(default_factory=dict)
    indices: frozenset[str] = frozenset()


def lookups_ahead(graph: Graph, stage_of: Mapping[str, int]) -> LookupsAhead:
    """Return the lookups of a model in stages that run ahead.

    Args:
        stage_of: the stage of each operator that isn't a source, by its place in program order.
    """
    batch, trained, looked_up, updated = _uses_of_tables(graph)
    dtypes = {loss.dtype for loss in graph.losses.values()}
    first: dict[str, int] = {}
    tables: dict[str, int] = {}
    lookups: dict[str, int] = {}
    indices: set[str] = set()
    for name in looked_up:
        table, uses = graph.operators[name].result, trained[name]
        others = {stage_of[op.name] for op in uses if not op.looks_up(table)}
        if not others or name in updated or {table.dtype} != dtypes:
            continue
        home = min(others)
        ahead = [op for op in uses if op.looks_up(table) and stage_of[op.name] not in others]
        # What is made of the table alone, such as a penalty on it, is made where the table is; nothing earlier may use it.
        if not ahead or any(stage < home for stage in _uses_of_followers(graph, table.name, stage_of)):
            continue
        first = first or {name: min((stage_of[op.name] for op in uses), default=-1) for name, uses in trained.items()}
        if first[name] < home and list(first.values()).count(first[name]) == 1:
            continue  # the first stage would have nothing to train
        sources = [_made_of_feeds(graph, op, batch) for op in ahead]
        if any(names is None for names in sources) or not _are_fewer_bytes(ahead, stage_of, table.mem_bytes):
            continue
        first[name] = tables[name] = home
        lookups.update((op.name, home) for op in ahead)
        indices.update(*(names for names in sources if names is not None))
    return LookupsAhead(tables, lookups, frozenset(indices))


@lru_cache(maxsize=4)
def _uses_of_tables(graph: Graph) -> tuple[tuple[int, ...], dict[str, list[Operator]], list[str], set[str]]:
    """Return the shape of the batch, the operators that use each trained variable, which of these are looked up, and the
    variables that operators update.

    It is the same wherever a graph is cut, as many cuts are tried.
    """
    batch = next((op.result.shape[:1] for op in graph.step_operators if op.type == PLACEHOLDER and op.result.shape), ())
    ancestors = graph.ancestors(graph.losses.values()).difference(following(graph))
    variables = [name for step in graph.train_steps.values() for name in step.variables]
    users = {name: graph.consumers.get(graph.operators[name].result.name, ()) for name in variables}
    trained = {name: [op for op in uses if op.name in ancestors] for name, uses in users.items()}
    looked_up = [name for name, uses in trained.items() if any(op.looks_up(graph.operators[name].result) for op in uses)]
    return batch, trained, looked_up, {op.updates for op in graph.operators.values() if op.updates is not None}


def _uses_of_followers(graph: Graph, table: str, stage_of: Mapping[str, int]) -> Iterable[int]:
    """Return the stages of operators that use what is made of a table alone."""
    followers = following(graph)

    def made_of(name: str) -> Iterable[str]:
        users = (op for op in graph.consumers.get(name, ()) if op.name in followers)
        return (tensor.name for op in users for tensor in op.outputs)

    users = (op for name in reached(made_of(table), made_of) for op in graph.consumers.get(name, ()))
    return (stage_of[op.name] for op in users if op.name not in followers)


@lru_cache(maxsize=16)
def _made_of_feeds(graph: Graph, lookup: Operator, batch: tuple[int, ...]) -> set[str] | None:
    """Return the names of the operators that compute a lookup's indices from fed batches; None if they need others."""
    names = graph.ancestors([tensor for position, tensor in lookup.operands if position == 1])
    operators = [graph.operators[name] for name in names]
    if any(op.type == VARIABLE or op.updates is not None or op.type in RANDOM or op.controls for op in operators):
        return None
    batches = {op.result.shape[:1] for op in operators if op.type == PLACEHOLDER}
    return {op.name for op in operators if op.operands} if batches == {batch} else None


def _are_fewer_bytes(lookups: Iterable[Operator], stage_of: Mapping[str, int], table_bytes: int) -> bool:
    """Return whether the rows that each stage is sent are fewer bytes than the table."""
    by_stage: dict[int, int] = {}
    for op in lookups:
        by_stage[stage_of[op.name]] = by_stage.get(stage_of[op.name], 0) + op.result.mem_bytes
    return all(n_bytes < table_bytes for n_bytes in by_stage.values())
