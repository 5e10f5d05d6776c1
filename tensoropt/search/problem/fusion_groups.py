"""Group operators into fusion groups, the nodes of a Problem in the compact space.

A *contraction* (a matrix product, a convolution; lookups of rows and operators that can't be split count as such;
``contraction`` in the code) starts a node. All other operators are *elementwise* (``elementwise``): a run of them,
normalisations and reductions included, is one node, in which nothing is resharded but the partial sums that reductions
produce. Factors of different operators that name the same dimension of a tensor between them are one factor of the node.

An elementwise operator joins the latest elementwise node among those that produce its operands, as long as no other operand
depends on that node through a third one. So a residual connection ends in another node than it begins in, and may be
resharded. A view, or an operator that is linear in its one operand that isn't constant, joins even a contraction's node: it
uses partial sums as they are. A source whose consumers are all in one node joins that node, except for parameters of
contractions, whose layout is chosen separately.

Complexity: O(operators x operands).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...ir.graph import CONSTANT, SOURCES, VARIABLE, Graph, Operator
from ...rules.rule import Rule
from ...sharding.consumers import Consumer

Member = tuple[int, str]
"""An operator of a node, by its index there, and one of its factors."""


@dataclass(frozen=True)
class FusionGroup:
    """A fusion group: operators in program order that are one node, and the factors that they have in common.

    Attributes:
        factors: each a set of (index of the operator, its factor), in order of first appearance. In a node with a
            contraction, only the factors that the contraction has.
    """

    operators: tuple[Operator, ...]
    factors: tuple[tuple[Member, ...], ...]

    @property
    def name(self) -> str:
        """The name of the first operator that isn't a source, or else of the first."""
        return next((op.name for op in self.operators if op.type not in SOURCES), self.operators[0].name)


def fusion_groups(
    graph: Graph, rules: Mapping[str, Rule], consumers: Mapping[str, list[Consumer]], own_nodes: frozenset[str]
) -> tuple[FusionGroup, ...]:
    """Return the fusion groups of a graph's training steps, in program order of each group's first operator.

    Args:
        own_nodes: names of operators that must be nodes of their own.
    """
    operators = [op for op in graph.step_operators if op.updates is None]
    groups = _Groups(graph, rules, own_nodes)
    for op in operators:
        if op.type not in SOURCES:
            groups.place(op)
    for op in reversed(operators):
        if op.type in SOURCES:
            groups.place_source(op, consumers.get(op.result.name, []))
    members: dict[int, list[Operator]] = {}
    for op in operators:
        members.setdefault(groups.of[op.name], []).append(op)
    return tuple(_join_factors(tuple(group), rules) for group in members.values())


def is_contraction(op: Operator, rule: Rule) -> bool:
    """Return whether an operator starts a node: it contracts, looks rows up, or must run on global tensors."""
    is_contracting = len(op.operands) > 1 and bool(rule.results and rule.summed[0] - rule.inner)
    return bool(rule.without) or is_contracting


def passes_on(graph: Graph, rule: Rule, op: Operator) -> Operator | None:
    """Return the producer of an operator's only operand that isn't constant, if the operator is linear in it; else None."""
    producers = [(position, graph.producers[tensor.name]) for position, tensor in op.operands]
    unreduced = [(position, producer) for position, producer in producers if producer.type != CONSTANT]
    if len(unreduced) != 1:
        return None
    ((position, leader),) = unreduced
    return leader if (position,) in rule.linear and leader.type not in SOURCES else None


@dataclass
class _Groups:
    """Fusion groups under construction, by number; ``before`` holds the groups that each depends on."""

    graph: Graph
    rules: Mapping[str, Rule]
    apart: frozenset[str]
    of: dict[str, int] = field(default_factory=dict)
    before: list[set[int]] = field(default_factory=list)
    elementwise: list[bool] = field(default_factory=list)

    def place(self, op: Operator) -> None:
        leader = passes_on(self.graph, self.rules[op.name], op)
        if leader is not None and not {leader.name, op.name} & self.apart:
            self.of[op.name] = self.of[leader.name]
            return
        contraction = is_contraction(op, self.rules[op.name]) or op.name in self.apart
        producers = [self.graph.producers[tensor.name] for _, tensor in op.operands]
        sources = {self.of[producer.name] for producer in producers if producer.name in self.of}
        for group in sorted(sources, reverse=True) if not contraction else ():
            other_sources = sources - {group}
            if self.elementwise[group] and not any(group in self.before[source] for source in other_sources):
                self.before[group] |= other_sources.union(*(self.before[source] for source in other_sources))
                self.of[op.name] = group
                return
        self.of[op.name] = self._add_group(sources.union(*(self.before[group] for group in sources)), not contraction)

    def place_source(self, op: Operator, consumers: list[Consumer]) -> None:
        groups = {self.of[consumer.name] for consumer in consumers if consumer.name in self.of and consumer.name != op.name}
        is_joined = len(groups) == 1 and not any(consumer.is_step for consumer in consumers) and op.name not in self.apart
        is_joined = is_joined and not self.rules[op.name].spread
        if is_joined:
            (group,) = groups
            if op.type != VARIABLE or self.elementwise[group]:
                self.of[op.name] = group
                return
        self.of[op.name] = self._add_group(set(), False)

    def _add_group(self, predecessors: set[int], is_elementwise: bool) -> int:
        self.before.append(predecessors)
        self.elementwise.append(is_elementwise)
        return len(self.before) - 1


def _join_factors(operators: tuple[Operator, ...], rules: Mapping[str, Rule]) -> FusionGroup:
    """Return the operators as one node, with the factors joined that share a dimension of a tensor within it.

    Where a dimension merges several factors, the major ones are joined.
    """
    place = {op.name: index for index, op in enumerate(operators)}
    all_members = [(i, name) for i, op in enumerate(operators) for name in _names(rules[op.name])]
    classes = {member: frozenset([member]) for member in all_members}
    producers = {tensor.name: (op, index) for op in operators for index, tensor in enumerate(op.outputs)}
    for op in operators:
        for position, tensor in op.operands:
            if tensor.name not in producers:
                continue
            producer, index = producers[tensor.name]
            dims, results = rules[op.name].operands[position], rules[producer.name].results[index]
            assert dims is not None
            pairs = [(names[0], labels[0]) for names, labels in zip(dims, results, strict=True) if names and labels]
            if (position,) in rules[op.name].linear:
                group = f"+{rules[op.name].linear.index((position,))}"
                pairs += [(group, pending) for pending in _pending(rules[producer.name], index)]
            for name, match in pairs:
                joined = classes[place[op.name], name] | classes[place[producer.name], match]
                classes.update(dict.fromkeys(joined, joined))
    groups: dict[frozenset[Member], list[Member]] = {}
    for member in all_members:
        groups.setdefault(classes[member], []).append(member)
    contraction = next((i for i, op in enumerate(operators) if is_contraction(op, rules[op.name])), None)
    factors = (members for members in groups.values() if contraction is None or any(i == contraction for i, _ in members))
    return FusionGroup(operators, tuple(tuple(members) for members in factors))


def _names(rule: Rule) -> list[str]:
    return [*rule.extents, *(f"+{group}" for group in range(len(rule.linear)))]


def _pending(rule: Rule, result: int) -> list[str]:
    """Return the factors, and linear groups, whose split makes a result partial."""
    return [*sorted(rule.summed[result]), *(f"+{group}" for group in range(len(rule.linear)))]
