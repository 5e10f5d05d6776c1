"""The registry: operator type to rule, one entry a type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from weakref import WeakKeyDictionary

from ..ir.graph import GATHERED, LOADED, SOURCES, Operator
from ..ir.slicing import are_shares_sliced
from .rule import Rule, make_rule, replicated_rule

RuleFunction = Callable[[Operator], Rule | str]
_RULES: dict[str, RuleFunction] = {}
_STATIC: dict[str, tuple[int, ...]] = {}
_KNOWN: WeakKeyDictionary[Operator, Rule] = WeakKeyDictionary()


def op_rule(*types: str, static: Sequence[int] = ()) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule for operator types.

    The decorated function takes an operator and returns its rule, or a text that says why it must run replicated.

    Args:
        types: TensorFlow's names of the operator types.
        static: the inputs that must be constants and steer the operator, by position; -1 is the last.
    """

    def register(function: RuleFunction) -> RuleFunction:
        for name in types:
            if name in _RULES:
                raise ValueError(f"operator type {name} has a rule already: {_RULES[name].__module__}")
            _RULES[name] = function
            _STATIC[name] = tuple(static)
        return function

    return register


def has_rule(op_type: str) -> bool:
    _load()
    return op_type in _RULES


def rule_types() -> tuple[str, ...]:
    """All operator types with a rule."""
    _load()
    return tuple(sorted(_RULES))


def static_positions(op_type: str, n_inputs: int) -> tuple[int, ...]:
    """Which inputs of an operator of this type are static."""
    _load()
    return tuple(position % n_inputs for position in _STATIC.get(op_type, ()))


def rule_of(op: Operator) -> Rule:
    """The rule of an operator, found once; without one, it runs replicated, and ``rule.without`` says why."""
    known = _KNOWN.get(op)
    if known is None:
        known = _KNOWN[op] = _found(op)
    return known


def rule_in_slices(op: Operator, n_slices: int, n_devices: int) -> Rule:
    """Return the rule of an operator whose training step takes its batch in slices, at the whole batch.

    A loaded batch needn't lie spread where each rank's share of it can't be sliced: it is gathered first.
    """
    rule = rule_of(op)
    if not rule.spread or are_shares_sliced(op.result.shape[0], n_slices, n_devices):
        return rule
    return replace(rule, spread="")


def _found(op: Operator) -> Rule:
    _load()
    if op.type in SOURCES:
        names, loaded = [f"d{i}" for i in range(len(op.result.shape))], op.attrs.get(LOADED)
        dims = tuple((name,) for name in names)
        if loaded == GATHERED:
            return make_rule(op, (), (dims,), fixed=names, flops_per_point=0.0)
        return make_rule(op, (), (dims,), spread="d0" if loaded else "", flops_per_point=0.0)
    if op.type not in _RULES:
        return replicated_rule(op, f"operator type {op.type} has no rule")
    if any(op.inputs[i] is not None for i in static_positions(op.type, len(op.inputs))):
        return replicated_rule(op, f"an input of {op.type} that steers it isn't a constant")
    found = _RULES[op.type](op)
    return replicated_rule(op, found) if isinstance(found, str) else found


@cache
def _load() -> None:
    """Import the modules that register rules; not at import time, since they import this one."""
    from . import (  # noqa: F401
        complex_numbers,
        control_flow,
        convolution,
        elementwise,
        gradients,
        indexing,
        linear_algebra,
        matrices,
        random,
        rearranging,
        reduction,
        resizing,
        scattering,
        searching,
        shape,
        softmax,
    )
