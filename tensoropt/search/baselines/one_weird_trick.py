"""Build the strategy of one weird trick (Krizhevsky, 2014): dense layers are split by output, all else by batch.

A dense layer is a matrix product with a parameter. Its output factor is the one that the parameter has and its other
operand lacks; the parameter is split with it, so that its gradient needs no synchronisation. All other operators are as in
data parallelism. (The paper's trick of overlapping the layers' communication has no counterpart in this cost model.)
"""

from __future__ import annotations

from ...ir.graph import VARIABLE, Operator
from ...rules.rule import Config, Rule
from ..task import BaselineResult, BaselineTask, of_one_strategy
from . import data_parallel
from .dimensions import config_of

PRODUCTS = frozenset("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum".split())


def search(task: BaselineTask) -> BaselineResult:
    """Return one weird trick's one point."""
    return of_one_strategy(task, configs(task), "one-weird-trick")


def configs(task: BaselineTask) -> dict[str, Config]:
    """Return one weird trick's config for every operator, by name."""
    op_configs = data_parallel.configs(task)
    for op in task.operators:
        parameter = _parameter(task, op)
        if parameter is None:
            continue
        position, variable = parameter
        rule, variable_rule = task.rules[op.name], task.rules[variable]
        output = _output_factor(rule, position)
        if output is None:
            continue
        op_configs[op.name] = _split(task, rule, output)
        dims = rule.operands[position] or ()
        (name,) = (target[0] for names, target in zip(dims, variable_rule.results[0], strict=True) if names[:1] == (output,))
        op_configs[variable] = config_of(variable_rule, task.mesh, [(name, op_configs[op.name].axes_of(output))])
    return op_configs


def _parameter(task: BaselineTask, op: Operator) -> tuple[int, str] | None:
    """Return the position and the name of a dense layer's parameter; None for another operator."""
    if op.type not in PRODUCTS or len(op.operands) != 2:
        return None
    producers = [(position, task.graph.producers[tensor.name]) for position, tensor in op.operands]
    parameters = [(position, producer.name) for position, producer in producers if producer.type == VARIABLE]
    return parameters[0] if len(parameters) == 1 else None


def _output_factor(rule: Rule, position: int) -> str | None:
    """Return the first factor of the result that only the parameter has and that can be split; None if there is none."""
    parameter_factors = {name for names in rule.operands[position] or () for name in names}
    factors = {name for i, dims in enumerate(rule.operands) if i != position and dims for names in dims for name in names}
    result_factors = [names[0] for names in rule.results[0] if names]
    return next((name for name in result_factors if name in parameter_factors - factors and name in rule.splittable), None)


def _split(task: BaselineTask, rule: Rule, factor: str) -> Config:
    """Return the config that splits a factor over as many axes as it can be."""
    config = config_of(rule, task.mesh, ())
    for axis in task.mesh.axes:
        candidate = config_of(rule, task.mesh, [(factor, (*config.axes_of(factor), axis))])
        config = candidate if candidate.used_axes else config
    return config
