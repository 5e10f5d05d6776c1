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
    space: str, graph: Graph, rules: Mapping[str, Rule], consumers: Mapping[str, list[Consumer]], apart: frozenset[str]
) -> tuple[FusionGroup, ...]:
    """Return the nodes of a space; operators named in ``apart`` are always nodes of their own."""
    if space == COMPACT:
        return fusion_groups(graph, rules, consumers, apart)
    alone = [op for op in graph.step_operators if op.updates is None]
    return tuple(FusionGroup((op,), tuple(((0, name),) for name in rules[op.name].extents)) for op in alone)


def states_of(
    space: str, node: FusionGroup, rules: Mapping[str, Rule], mesh: Mesh, forced: Mapping[str, int] | None = None
) -> Assignments:
    """Return the configs of the node's operators in each of its states.

    Args:
        forced: degrees of factors for which to return all configs, as in the full space; the node must have one operator.
    """
    everything = space == FULL or forced is not None
    of = [rules[op.name] for op in node.operators]
    names = [
        tuple(dict(reversed(members)).get(i, NONE) for i in range(len(of)))
        for members in node.factors
        if any(name in of[i].splittable for i, name in members)
        and (everything or not any(name in _later_halos(of[i]) for i, name in members))
    ]
    if everything:
        assert len(of) == 1
        names += [(f"+{group}",) for group in range(len(of[0].linear))]
        assignments = _of_degrees([(NONE,), *names], mesh.sizes, forced or {})
    else:
        assignments = _runs([(NONE,) * len(of), *names], mesh)
    splittable = [{NONE, *rule.splittable, *(f"+{group}" for group in range(len(rule.linear)))} for rule in of]
    known: list[dict[tuple[str, ...], Config | None]] = [{} for _ in of]  # None where no search considers it
    found: dict[tuple[tuple[str, ...], ...], tuple[Config, ...]] = {}
    for assignment in dict.fromkeys(assignments):
        state, configs = [], []
        for i, rule in enumerate(of):
            given = tuple([each[i] if each[i] in splittable[i] else NONE for each in assignment])
            if given not in known[i]:
                config = Config(mesh, given)
                known[i][given] = None if why_unsearched(rule, config) else config
            possible = known[i][given]
            if possible is None:
                break
            state.append(given)
            configs.append(possible)
        else:
            found.setdefault(tuple(state), tuple(configs))
    return tuple(found.values())


def _of_degrees(
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
            left = {**degrees, name[0]: degree // sizes[0]} if name[0] in degrees else degrees
            yield from ((name, *rest) for rest in _of_degrees(names, sizes[1:], left))


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
    none = names[0]

    def extend(before: tuple[tuple[str, ...], ...], n_units: int) -> Iterator[tuple[tuple[str, ...], ...]]:
        if len(before) == n_units:
            yield before
            return
        used = set(before) - {none}
        for name in names:
            starts = name != none and name not in used
            if starts and len(used) == MOST_FACTORS:
                continue
            if name == none or starts or before[-1] == name:
                yield from extend((*before, name), n_units)

    for order in unit_orders(mesh):
        for assignment in extend((), len(order)):
            given = dict(zip(order, assignment, strict=True))
            of_axis = {axis: name for unit, name in given.items() for axis in unit}
            yield tuple(of_axis[axis] for axis in mesh.axes)


def unit_orders(mesh: Mesh) -> list[tuple[Axes, ...]]:
    """Return the orders in which the units of a mesh may come; each unit is a tuple of axes."""
    if len(mesh.sizes) <= MOST_AXES:
        return [units(mesh)]
    levels = [tuple(level) for _, level in groupby(units(mesh), key=lambda unit: mesh.level_of_axis[unit[0]])]
    in_level = (dict.fromkeys([bundles, bundles[::-1]]) for bundles in levels)
    return [tuple(chain.from_iterable(order)) for order in product(*in_level)]
