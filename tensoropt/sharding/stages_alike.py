"""Cut another program of a model into stages as its planned training step is cut.

An evaluation, a prediction, or a step on another batch uses the variables where the planned step has them. Its operators
have the stages of those of the same name; others follow those before them in program order. An operator that needs what a
later stage has is in that stage, and so are all after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..common.errors import InputError
from ..ir.graph import SOURCES, VARIABLE
from .cut_invariants import constant, following
from .lookups_ahead import LookupsAhead
from .stages import Stages


@dataclass(frozen=True, eq=False)
class StagesAlike(Stages):
    """Another program of a model that is cut into stages.

    Attributes:
        like: the planned training step, in its stages.
    """

    like: Stages

    @cached_property
    def _in_order(self) -> dict[str, int]:
        """The stage of each operator that isn't a source; it never decreases in program order."""
        graph, result, stage = self.whole.graph, {}, 0
        followers, constants = following(graph), constant(graph)
        homes = {name: home for name, home in self.like._homes.items() if name not in self._common_operators}
        needs = {op.result.name: homes.get(op.name, 0) for op in graph.operators.values() if op.type == VARIABLE}
        for op in graph.operators.values():
            if op.type in SOURCES:
                continue
            least = max((needs.get(tensor.name, 0) for _, tensor in op.operands), default=0)
            if op.name in followers:
                needs.update((tensor.name, least) for tensor in op.outputs)
            elif op.name not in constants and op.name not in self.ahead.lookups:
                stage = max(stage, least, homes.get(op.updates or "", 0), self.like._in_order.get(op.name, 0))
            result[op.name] = stage
        return result

    @cached_property
    def ahead(self) -> LookupsAhead:
        """The lookups that the planned step runs ahead too, as far as their indices are made of what is fed."""
        graph, original = self.whole.graph, self.like.ahead
        lookups: dict[str, int] = {}
        indices: set[str] = set()
        for name, stage in original.lookups.items():
            if name in graph.operators:
                sources = [graph.operators[ancestor] for ancestor in graph.ancestors([graph.operators[name].operands[1][1]])]
                if not any(op.type == VARIABLE or op.updates is not None for op in sources):
                    lookups[name] = stage
                    indices.update(op.name for op in sources if op.operands)
        tables = {name: stage for name, stage in original.tables.items() if name in graph.operators}
        return LookupsAhead(tables, lookups, frozenset(indices))

    @cached_property
    def _common_operators(self) -> frozenset[str]:
        return self.like._common_operators & self.whole.graph.operators.keys()

    @cached_property
    def _homes(self) -> dict[str, int]:
        """The stage of each variable: that of the planned step, or for another one the first that uses it."""
        graph, homes = self.whole.graph, {}
        for variable in graph.variables:
            updaters = {self._in_order[op.name] for op in graph.operators.values() if op.updates == variable.name}
            users = {self._in_order[op.name] for op in graph.consumers.get(variable.result.name, ())}
            homes[variable.name] = self.like._homes.get(variable.name, min(users | updaters, default=self.n - 1))
            if updaters - {homes[variable.name]}:
                raise InputError(
                    f"{variable.where()} is in stage {homes[variable.name]} and updated in a later one; use stages=1"
                )
        return homes
