"""Register and find sharding rules: one entry per operator type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary, WeakValueDictionary

from ..ir.graph import GATHERED, LOADED, SOURCES, Operator
from ..ir.micro_batching import are_shares_divided
from .rule import Rule, make_rule, own_dims, replicated_rule

RuleFunction = Callable[[Operator], Rule | str]
_RULES: dict[str, RuleFunction] = {}
_STATIC: dict[str, tuple[int, ...]] = {}
_KNOWN: WeakKeyDictionary[Operator, Rule] = WeakKeyDictionary()
_DISTINCT: WeakValueDictionary[tuple[object, ...], Rule] = WeakValueDictionary()


def op_rule(*types: str, static: Sequence[int] = ()) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule for operator types.

    The decorated function takes an operator and returns its rule, or the reason why the operator must run replicated.

    Args:
        types: TensorFlow's names of the operator types.
        static: the positions of inputs that steer the operator and must be constants, such as shapes; -1 is the last.

    Raises:
        ValueError: an operator type has a rule already.
    """

    def register(function: RuleFunction) -> RuleFunction:
        for name in types:
            if name in _RULES:
                raise ValueError(f"operator type {name} has a rule already: {_RULES[name].__module__}")
            _RULES[name] = function
            _STATIC[name] = tuple(static)
        return function

    return register


def are_own() -> bool:
    """Return whether all rules are TensorOpt's, so that another process that imports it has them too."""
    package = __name__.partition(".")[0]
    return all(function.__module__.partition(".")[0] == package for function in _RULES.values())


def static_positions(op_type: str, n_inputs: int) -> tuple[int, ...]:
    """Return the positions of an operator's static inputs; all of a type without a rule."""
    return tuple(position % n_inputs for position in _STATIC.get(op_type, range(n_inputs)))


def rule_of(op: Operator) -> Rule:
    """Return the rule of an operator; it is computed once, and equal ones, as those of equal layers, are one object.

    If there is none, return the rule of a replicated operator, whose ``without`` says why.
    """
    rule = _KNOWN.get(op)
    if rule is None:
        rule = _new_rule(op)
        rule = _KNOWN[op] = _DISTINCT.setdefault(rule.content, rule)
    return rule


def rule_in_micro_batches(op: Operator, n_micro_batches: int, n_devices: int) -> Rule:
    """Return the rule of an operator on the whole batch, for a training step with micro-batches.

    A batch of which each rank loads its share needn't be spread over all ranks if these shares can't be divided into
    micro-batches: it is then gathered first.
    """
    rule = rule_of(op)
    if not rule.spread or are_shares_divided(op.result.shape[0], n_micro_batches, n_devices):
        return rule
    return replace(rule, spread="")


def _new_rule(op: Operator) -> Rule:
    if op.type in SOURCES:
        dims, source = own_dims(len(op.result.shape)), op.attrs.get(LOADED)
        if source == GATHERED:
            return make_rule(op, (), (dims,), fixed=[name for (name,) in dims], flops_per_point=0.0)
        return make_rule(op, (), (dims,), spread="d0" if source else "", flops_per_point=0.0)
    if op.type not in _RULES:
        return replicated_rule(op, f"operator type {op.type} has no rule")
    if any(op.inputs[i] is not None for i in static_positions(op.type, len(op.inputs))):
        return replicated_rule(op, f"an input of {op.type} that steers it isn't a constant")
    rule = _RULES[op.type](op)
    return replicated_rule(op, rule) if isinstance(rule, str) else rule
