"""Define the space of a search: which operators have configs of their own, and which configs.

| space | nodes | configs |
|---|---|---|
| ``full`` | every operator | every mesh axis assigned to any factor, to a linear group, or to none |
| ``compact`` | fusion groups (:mod:`.fusion_groups`): a contraction, or elementwise operators together | at most
MOST_FACTORS factors, each split by a run of units |

A *unit* of the compact space is an axis or, on more than MOST_AXES axes, a bundle of them (:mod:`...reschedule.units`): 8
devices are then 2 x 4. The units of a level may come in ascending or in descending order; a factor takes a run of them in
some order. Of the factors that windows slide along (height and width of a convolution) only the first is offered there.

A search result is exact, or its gap certified, within the space that it names. If no space is given, a search takes the
full space while that has at most MOST_CONFIGS configs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, groupby, product
from math import prod

from ...ir.graph import Graph
from ...reschedule.layout import Axes
from ...reschedule.mesh import Mesh
from ...reschedule.units import MOST_AXES, units
from ...rules.registry import rule_of
from ...rules.rule import NONE, Config, Rule, why_unsearched
from ...sharding.consumers import Consumer
from .fusion_groups import FusionGroup, fusion_groups

FULL, COMPACT = "full", "compact"
SPACES = (FULL, COMPACT)
MOST_FACTORS = 2
MOST_CONFIGS = 4_000

Assignments = tuple[tuple[Config, ...], ...]
"""The configs of a node's operators in each of its states: [states][operators]."""


def space_for(graph: Graph, mesh: Mesh) -> str:
    """Return the space that a search takes by default: full while it has at most MOST_CONFIGS configs."""
    rules = [rule_of(op) for op in graph.step_operators if op.updates is None]
    total = sum((1 + len(rule.splittable) + len(rule.linear)) ** len(mesh.sizes) for rule in rules)
    return FULL if total <= MOST_CONFIGS else COMPACT


def described(space: str) -> str:
    """Return the space in words, for people and result files."""
    if space == FULL:
        return "full: all configs of all operators"
    return f"compact: light operators follow; at most {MOST_FACTORS} factors, each over a run of axes or of bundles of them"


def nodes_of(
    space: str, graph: Graph, rules: Mapping[str, Rule], consumers: Mapping[str, list[Consumer]], own_nodes: frozenset[str]
) -> tuple[FusionGroup, ...]:
    """Return the nodes of a space; operators named in ``own_nodes`` are always nodes of their own."""
    if space == COMPACT:
        return fusion_groups(graph, rules, consumers, own_nodes)
    alone = [op for op in graph.step_operators if op.updates is None]
    return tuple(FusionGroup((op,), tuple(((0, name),) for name in rules[op.name].extents)) for op in alone)


def states_of(
    space: str, node: FusionGroup, rules: Mapping[str, Rule], mesh: Mesh, degrees: Mapping[str, int] | None = None
) -> Assignments:
    """Return the configs of the node's operators in each of its states.

    Args:
        degrees: degrees of factors for which to return all configs, as in the full space; the node must have one operator.
    """
    is_full = space == FULL or degrees is not None
    rules_of = [rules[op.name] for op in node.operators]
    names = [
        tuple(dict(reversed(members)).get(i, NONE) for i in range(len(rules_of)))
        for members in node.factors
        if any(name in rules_of[i].splittable for i, name in members)
        and (is_full or not any(name in _later_halos(rules_of[i]) for i, name in members))
    ]
    if is_full:
        assert len(rules_of) == 1
        names += [(f"+{group}",) for group in range(len(rules_of[0].linear))]
        assignments = _assign_degrees([(NONE,), *names], mesh.sizes, degrees or {})
    else:
        assignments = _runs([(NONE,) * len(rules_of), *names], mesh)
    splittable = [{NONE, *rule.splittable, *(f"+{group}" for group in range(len(rule.linear)))} for rule in rules_of]
    caches: list[dict[tuple[str, ...], Config | None]] = [{} for _ in rules_of]  # None where no search considers it
    states: dict[tuple[tuple[str, ...], ...], tuple[Config, ...]] = {}
    for assignment in dict.fromkeys(assignments):
        state, configs = [], []
        for i, rule in enumerate(rules_of):
            factors = tuple([labels[i] if labels[i] in splittable[i] else NONE for labels in assignment])
            if factors not in caches[i]:
                config = Config(mesh, factors)
                caches[i][factors] = None if why_unsearched(rule, config) else config
            config_of_rule = caches[i][factors]
            if config_of_rule is None:
                break
            state.append(factors)
            configs.append(config_of_rule)
        else:
            states.setdefault(tuple(state), tuple(configs))
    return tuple(states.values())


def _assign_degrees(
    names: list[tuple[str, ...]], sizes: tuple[int, ...], degrees: Mapping[str, int]
) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield the assignments of axes to names that give some of them these degrees, without looking at all others."""
    if not sizes:
        if all(degree == 1 for degree in degrees.values()):
            yield ()
        return
    if prod(degrees.values()) > prod(sizes):
        return
    for name in names:
        degree = degrees.get(name[0], sizes[0])
        if degree % sizes[0] == 0:
            degrees_left = {**degrees, name[0]: degree // sizes[0]} if name[0] in degrees else degrees
            yield from ((name, *tail) for tail in _assign_degrees(names, sizes[1:], degrees_left))


def _later_halos(rule: Rule) -> list[str]:
    """Return the factors that windows slide along, without the first that can be split.

    They are left out because splitting the width costs as much as splitting the height, and splitting both pays only on
    very many devices.
    """
    return [name for name in rule.splittable if name in rule.halos][1:]


def _runs(names: list[tuple[str, ...]], mesh: Mesh) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield the assignments of axes to at most MOST_FACTORS names, where each name has one run of units.

    The first name stands for no factor; it may have any number of units anywhere.
    """
    no_factor = names[0]

    def extend(prefix: tuple[tuple[str, ...], ...], n_units: int) -> Iterator[tuple[tuple[str, ...], ...]]:
        if len(prefix) == n_units:
            yield prefix
            return
        factors = set(prefix) - {no_factor}
        for name in names:
            is_start = name != no_factor and name not in factors
            if is_start and len(factors) == MOST_FACTORS:
                continue
            if name == no_factor or is_start or prefix[-1] == name:
                yield from extend((*prefix, name), n_units)

    for order in unit_orders(mesh):
        for assignment in extend((), len(order)):
            name_of_unit = dict(zip(order, assignment, strict=True))
            name_of_axis = {axis: name for unit, name in name_of_unit.items() for axis in unit}
            yield tuple(name_of_axis[axis] for axis in mesh.axes)


def unit_orders(mesh: Mesh) -> list[tuple[Axes, ...]]:
    """Return the orders in which the units of a mesh may come; each unit is a tuple of axes."""
    if len(mesh.sizes) <= MOST_AXES:
        return [units(mesh)]
    levels = [tuple(level) for _, level in groupby(units(mesh), key=lambda unit: mesh.level_of_axis[unit[0]])]
    in_level = (dict.fromkeys([bundles, bundles[::-1]]) for bundles in levels)
    return [tuple(chain.from_iterable(order)) for order in product(*in_level)]
