"""The configs of a rule on a mesh that are searched."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations_with_replacement, groupby, product

from ..reschedule.mesh import Mesh
from .rule import NONE, Config, Rule, why_unsearched

EXHAUSTIVE_AXES = 4


def configs(rule: Rule, mesh: Mesh) -> tuple[Config, ...]:
    """Return all valid configs of a rule on a mesh.

    On more than ``EXHAUSTIVE_AXES`` axes, only those that assign a contiguous group of axes to each factor.
    """
    names = (NONE, *rule.splittable, *(f"+{i}" for i in range(len(rule.linear))))
    n_axes = len(mesh.sizes)
    assignments = product(names, repeat=n_axes) if n_axes <= EXHAUSTIVE_AXES else _contiguous(names, n_axes)
    choices = (Config(mesh, assignment) for assignment in assignments)
    return tuple(config for config in choices if not why_unsearched(rule, config))


def configs_by_degrees(rule: Rule, mesh: Mesh) -> tuple[Config, ...]:
    """Return a valid config of a rule for each choice of its factors' degrees, which are all that compute depends on."""
    names = (NONE, *rule.splittable, *(f"+{i}" for i in range(len(rule.linear))))
    of_equal = [combinations_with_replacement(names, len([*axes])) for _, axes in groupby(mesh.sizes)]
    choices = (Config(mesh, tuple(chain.from_iterable(parts))) for parts in product(*of_equal))
    return tuple(config for config in choices if not why_unsearched(rule, config))


def _contiguous(names: tuple[str, ...], n_axes: int, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the assignments that give each name one contiguous group of axes, in the order of ``itertools.product``."""
    if n_axes == len(before):
        yield before
        return
    for name in names:
        if name not in before or name == before[-1]:
            yield from _contiguous(names, n_axes, (*before, name))
