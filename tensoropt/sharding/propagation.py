"""Inherit a strategy for a model that was not searched, and propagate layouts to operators that the strategy doesn't have.

An evaluation, a prediction, or a step on another batch repeats most operators of the planned training step under the same
names: these have the plan's configs, and their tensors the plan's shared copies. A step also regathers and rematerializes
what the plan does. Any other operator uses its operands in their produced layouts, as far as its rule allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..ir.graph import Graph, Operator
from ..reschedule.layout import Layout
from ..reschedule.mesh import Mesh
from ..rules.configs import configs
from ..rules.registry import rule_of
from ..rules.rule import NONE, Config, Rule, interface_of, why_invalid
from .consumers import as_copy, consumers_of, sharding_of, shareable_copies
from .model import Model
from .strategy import Copy, Strategy


def inherited(model: Model, source: Strategy) -> Strategy:
    """Return a strategy for a model, from one that was planned for another model with the same operator names.

    A shared copy is inherited if it is still one that the tensor's consumers may share.
    """
    graph = model.graph
    view = model.view(Strategy(source.mesh, _configs(graph, source)))
    shared = {}
    for name, consumers in consumers_of(graph).items():
        if name in source.shared:
            possible = shareable_copies([sharding_of(view, graph.tensors[name], consumer) for consumer in consumers])
            copy = as_copy(source.shared[name], possible[0].unreduced is not None)
            if copy in possible:
                shared[name] = copy
    strategy = replace(view.strategy, shared=shared)
    if not graph.backward_passes:
        return strategy
    missing_copies = {Copy(name) for name in source.shared.keys() - shared.keys()}
    rematerialized = source.rematerialized & graph.operators.keys()
    return replace(strategy, regathered=source.regathered - missing_copies, rematerialized=rematerialized)


def _configs(graph: Graph, source: Strategy) -> dict[str, Config]:
    """Return each operator's config: the planned one, or what follows from its operands' layouts."""

    def choose(op: Operator, layouts: Mapping[str, Layout]) -> Config:
        rule, config = rule_of(op), source.configs.get(op.name)
        return config if config and not why_invalid(rule, config) else propagated(op, rule, layouts, source.mesh)

    return chosen_in_order(graph, choose)


def chosen_in_order(graph: Graph, choose: Callable[[Operator, Mapping[str, Layout]], Config]) -> dict[str, Config]:
    """Return each operator's config, chosen in program order, given the operator and the layouts that its operands have."""
    result: dict[str, Config] = {}
    layouts: dict[str, Layout] = {}
    for op in graph.operators.values():
        if op.updates is not None:
            # A tensor that is read after an update has the variable's layout.
            variable = graph.operators[op.updates].result
            layouts.update({tensor.name: layouts[variable.name] for tensor in op.outputs})
            continue
        result[op.name] = choose(op, layouts)
        interface = interface_of(rule_of(op), result[op.name])
        layouts.update({tensor.name: layout for tensor, layout in zip(op.outputs, interface.results, strict=True)})
    return result


def propagated(op: Operator, rule: Rule, layouts: Mapping[str, Layout], mesh: Mesh) -> Config:
    """Return the config in which an operator uses its operands in their produced layouts.

    Axes that the operator's rule can't use split nothing.
    """
    if not op.operands:
        return configs(rule, mesh)[0] if rule.spread else Config.unsplit(mesh)
    assignment = [NONE] * len(mesh.sizes)
    for axis in mesh.axes:
        for name in _split_by(axis, op, rule, layouts):
            candidate = [*assignment[:axis], name, *assignment[axis + 1 :]]
            if not why_invalid(rule, Config(mesh, tuple(candidate))):
                assignment = candidate
                break
    return Config(mesh, tuple(assignment))


def _split_by(axis: int, op: Operator, rule: Rule, layouts: Mapping[str, Layout]) -> list[str]:
    """Return the operator's factors that the axis splits in some operand, those of the largest operand first."""
    factors: dict[str, None] = {}
    for position, tensor in sorted(op.operands, key=lambda operand: -operand[1].mem_bytes):
        dims = rule.operands[position]
        assert dims is not None
        for names, axes in zip(dims, layouts[tensor.name].splits, strict=True):
            if axis in axes:
                factors.update(dict.fromkeys(names))
    return list(factors)
