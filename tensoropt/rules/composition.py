"""Derive the sharding rule of a composite operator (a loop, a custom gradient) from the rules of the operators in its body.

Two dimensions belong to one *class* if some operator's rule gives them the same factor, or if they are the same dimension of
a loop's state before and after a trip. Classes are found by union-find. A class is a factor of the composite if the body,
run on blocks of it without any collective, gives blocks of the composite's results, or summands of them. This is determined
for each class by itself: from the rules it follows for each tensor of the body whether it is then a block (:data:`SPLIT`),
replicated (:data:`WHOLE`) or a summand (:data:`PARTIAL`):

- an operator that has the class as a factor uses blocks of operands that have it, and other operands replicated. Its results
  are blocks, or summands if the factor is reduced. It must be able to split the factor without collectives inside;
- an operator without the class gives replicated results from replicated operands, and summands from summands in which it is
  linear.

A state must be after a trip what it was before. A result of the composite must not be replicated: the gradient that comes
back through it would be counted once on each device. The gradients of operands that lack the class come out as summands, as
a rule promises. If a custom gradient computes a replicated one nevertheless, one device of each group keeps it and the
others give zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..ir.body import BODY, COMPOSITES, FORM, LOOP, VALUE_SHAPED, Body, GradientForm, LoopForm
from ..ir.graph import Operator, Tensor
from ..reschedule.layout import Axes, Layout
from .registry import op_rule, rule_of
from .rule import NONE, Config, Dims, Interface, Rule, interface_of, make_rule

SPLIT, WHOLE, PARTIAL = "split", "whole", "partial"
Node = tuple[str, Any, Any]
"""A member of a class: ``("tensor", name, dimension)`` or ``("factor", operator, name)`` of the body, or
``("operand", position, dimension)`` or ``("result", position, dimension)`` of the composite."""


@dataclass(frozen=True, slots=True)
class Border:
    """A tensor of the composite and a tensor of the body that have the same dimensions.

    Attributes:
        side: ``operand`` or ``result``: the composite's tensor is one of these.
        position: its position among them.
        offset: the number of leading dimensions that only the composite's tensor has.
    """

    side: str
    position: int
    inner: Tensor
    offset: int = 0


@dataclass(frozen=True)
class Composition:
    """A composite operator with its body, and the rule that follows from the body's operators."""

    op: Operator

    @property
    def body(self) -> Body:
        return self.op.attrs[BODY]

    @cached_property
    def rules(self) -> dict[str, Rule]:
        return {op.name: rule_of(op) for op in self.body.operators}

    @cached_property
    def borders(self) -> tuple[Border, ...]:
        """The pairs of a tensor of the composite and the tensor of the body that corresponds to it."""
        form, body = self.op.attrs[FORM], self.body
        if self.op.type == LOOP:
            return tuple(self._loop_borders(form))
        passed, others = body.inputs[: len(form.passed)], body.inputs[len(form.passed) :]
        return (
            *(Border("result", j, tensor) for j, tensor in enumerate(passed)),
            *(Border("operand", form.passed[j], tensor) for j, tensor in enumerate(passed)),
            *(Border("operand", i, tensor) for i, tensor in zip(form.reads, others, strict=True)),
            *(Border("operand", i, tensor) for i, tensor in zip(form.into, body.outputs, strict=True)),
        )

    def _loop_borders(self, form: LoopForm) -> Iterator[Border]:
        for i, tensor in enumerate(self.body.inputs):
            yield Border("operand", i, tensor, int(i < len(form.reads)))
        for j, tensor in enumerate(self.body.outputs):
            yield Border("result", j, tensor, int(j < len(form.writes)))
        for i, (item, _) in enumerate(form.starts, start=len(self.body.inputs)):
            yield Border("operand", i, self.body.outputs[item])

    @property
    def carried(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """The states of a loop: pairs of the body's tensors before and after a trip; empty for other composites."""
        form = self.op.attrs[FORM]
        if not isinstance(form, LoopForm):
            return ()
        before = self.body.inputs[len(form.reads) : form.first_invariant]
        return tuple(zip(before, self.body.outputs[len(form.writes) :], strict=True))

    @cached_property
    def _classes(self) -> Any:
        from networkx.utils import UnionFind  # type: ignore[import-untyped,unused-ignore]  # here, since loading it takes .2 s

        classes = UnionFind()
        for op in self.body.operators:
            rule = self.rules[op.name]
            operands = [(tensor, rule.operands[i]) for i, tensor in op.operands]
            for tensor, dims in [*operands, *zip(op.outputs, rule.results, strict=True)]:
                for d, names in enumerate(dims or ()):
                    if names:
                        classes.union(("factor", op.name, names[0]), ("tensor", tensor.name, d))
        for border in self.borders:
            for d in range(len(border.inner.shape)):
                classes.union(("tensor", border.inner.name, d), (border.side, border.position, d + border.offset))
        for before, after in self.carried:
            for d in range(len(before.shape)):
                classes.union(("tensor", before.name, d), ("tensor", after.name, d))
        return classes

    @cached_property
    def _candidates(self) -> dict[Node, str]:
        """The name of each class that a dimension of an operand belongs to, in the order of the operands."""
        names: dict[Node, str] = {}
        for i, tensor in self.op.operands:
            for d in range(len(tensor.shape)):
                names.setdefault(self.find(("operand", i, d)), f"d{len(names)}")
        return names

    @cached_property
    def _extents(self) -> dict[str, list[int]]:
        """The extents of all dimensions and factors of the body in a class, by class."""
        tensors = {tensor.name: tensor for op in self.body.graph.operators.values() for tensor in op.outputs}
        extents: dict[str, list[int]] = {}
        for node in tuple(self._classes):  # finding a node may add one
            name = self._candidates.get(self.find(node))
            if name is not None:
                kind, name_in_body, index = node
                if kind == "factor":
                    extents.setdefault(name, []).append(self.rules[name_in_body].extents[index])
                elif kind == "tensor":
                    extents.setdefault(name, []).append(tensors[name_in_body].shape[index])
        return extents

    @cached_property
    def trials(self) -> dict[str, SplitTrial]:
        """The outcome of splitting a class, by class."""
        return {name: SplitTrial(self, root) for root, name in self._candidates.items()}

    @cached_property
    def extents(self) -> dict[str, int]:
        return {
            name: math.gcd(*extents)
            for name, extents in self._extents.items()
            if not self.trials[name].why_not and math.gcd(*extents) > 1
        }

    @property
    def even(self) -> frozenset[str]:
        """The factors whose number of blocks must divide their extent."""
        return frozenset(name for name in self.extents if len(set(self._extents[name])) > 1)

    @property
    def without(self) -> str:
        """The reason why nothing can be split; empty if something can."""
        if self.extents:
            return ""
        reasons = [trial.why_not for trial in self.trials.values() if trial.why_not]
        return f"in its body {next(iter(reasons), 'no dimension has more than one element')}"

    def dims(self, side: str, position: int, rank: int) -> Dims:
        """Return the factors of each dimension of an operand or a result of the composite.

        Args:
            side: ``operand`` or ``result``.
            position: its position among these.
            rank: its number of dimensions.
        """
        names = (self._candidates.get(self.find((side, position, d))) for d in range(rank))
        return tuple((name,) if name in self.extents else () for name in names)

    def inner(self, op: Operator, config: Config) -> tuple[Config, Interface]:
        """Return the config and the interface of an operator of the body under a config of the composite."""
        assignment = (self.trials[name].factors.get(op.name, NONE) if name else NONE for name in config.assignment)
        inner = Config(config.mesh, tuple(assignment))
        return inner, interface_of(self.rules[op.name], inner)

    def input_layout(self, tensor: Tensor, config: Config) -> Layout:
        """Return the layout in which the body expects an input under a config of the composite."""
        names = (self._candidates.get(self.find(("tensor", tensor.name, d)), NONE) for d in range(len(tensor.shape)))
        return Layout(config.mesh, tuple(config.axes_of(name) if name in self.extents else () for name in names))

    def alike(self, output: int, config: Config) -> Axes:
        """Return the axes along which all devices compute the same gradient of an operand, instead of summands of it.

        Args:
            output: the gradient's position among the body's outputs.
        """
        name = self.body.outputs[output].name
        factors = (factor for factor in self.extents if self.trials[factor].states[name] == WHOLE)
        return tuple(axis for factor in factors for axis in config.axes_of(factor))

    def dimensions(self, tensor: Tensor, root: Node) -> list[int]:
        """Return the dimensions of a tensor of the body that belong to a class."""
        return [d for d in range(len(tensor.shape)) if self.find(("tensor", tensor.name, d)) == root]

    def find(self, node: Node) -> Node:
        """Return the class of a dimension or factor, as the node that identifies it."""
        root: Node = self._classes[node]  # one that belongs to nothing else is a class of its own
        return root


class SplitTrial:
    """A class is split in all inputs of the body that have it. Methods return why it can't be, or an empty text.

    Attributes:
        why_not: the reason why the class can't be split; empty if it can.
        states: whether a tensor of the body is SPLIT, WHOLE or PARTIAL then, by tensor name.
        factors: the factor or linear group to which an axis of the class is assigned in an operator of the body, by operator
            name.
    """

    def __init__(self, composition: Composition, root: Node) -> None:
        self.composition, self.root = composition, root
        self.states: dict[str, str] = {}
        self.factors: dict[str, str] = {}
        self.why_not = self._run()

    def _run(self) -> str:
        """Split the class in all inputs of the body that have it, and follow it through the body."""
        composition = self.composition
        for tensor in composition.body.inputs:
            self.states[tensor.name] = SPLIT if composition.dimensions(tensor, self.root) else WHOLE
        for tensor in composition.body.graph.tensors.values():
            if len(composition.dimensions(tensor, self.root)) > 1:
                return f"two dimensions of {tensor} would be split together"
        reasons = (self._apply(op, composition.rules[op.name]) for op in composition.body.operators)
        return next(filter(None, reasons), "") or self._at_borders()

    def _apply(self, op: Operator, rule: Rule) -> str:
        """Apply an operator of the body, with the factor that belongs to the class if it has one."""
        own = [name for name in rule.extents if self.composition.find(("factor", op.name, name)) == self.root]
        if len(own) > 1:
            return f"{op.where()} has two factors that would be split together"
        return self._with_factor(op, rule, own[0]) if own else self._without_factor(op, rule)

    def _with_factor(self, op: Operator, rule: Rule, name: str) -> str:
        """Apply an operator that has the class as a factor."""
        if name not in rule.splittable:
            return f"{op.where()} can't split factor '{name}' of {rule}"
        if name in rule.inner or name in rule.completed or name in rule.halos or rule.minor_to.get(name):
            return f"{op.where()} would need a collective to split factor '{name}' of {rule}"
        for i, tensor in op.operands:
            state = SPLIT if _has_factor(rule.operands[i], name) else WHOLE
            if self.states[tensor.name] != state:
                return f"{op.where()} would need {tensor} {state} and gets it {self.states[tensor.name]}"
        self.factors[op.name] = name
        for tensor, dims, summed in zip(op.outputs, rule.results, rule.summed, strict=True):
            self.states[tensor.name] = SPLIT if _has_factor(dims, name) else PARTIAL if name in summed else WHOLE
        return ""

    def _without_factor(self, op: Operator, rule: Rule) -> str:
        """Apply an operator that doesn't have the class as a factor."""
        split = [tensor for _, tensor in op.operands if self.states[tensor.name] == SPLIT]
        if split:
            return f"{op.where()} needs {split[0]} whole"
        partial = tuple(i for i, tensor in op.operands if self.states[tensor.name] == PARTIAL)
        if partial and partial not in rule.linear:
            return f"{op.where()} isn't linear in {op.inputs[partial[0]]}, which would be a sum"
        if partial:
            self.factors[op.name] = f"+{rule.linear.index(partial)}"
        for tensor in op.outputs:
            self.states[tensor.name] = PARTIAL if partial else WHOLE
        return ""

    def _at_borders(self) -> str:
        """Check the states of a loop, the results, and the gradients of a custom gradient."""
        composition = self.composition
        form = composition.op.attrs[FORM]
        for before, after in composition.carried:
            if self.states[before.name] != self.states[after.name]:
                return f"{before} is {self.states[before.name]} before a trip and {self.states[after.name]} after it"
        for border in composition.borders:
            if border.side == "result" and self.states[border.inner.name] == WHOLE:
                return f"{border.inner} would be computed whole on each device"
        if isinstance(form, LoopForm):
            for k, _ in form.starts:
                if self.states[composition.body.outputs[k].name] == PARTIAL:
                    return f"{composition.body.outputs[k]} would be a sum, unlike what is put beside it before the loop"
        if isinstance(form, GradientForm):
            for i, tensor in zip(form.into, composition.body.outputs, strict=True):
                if (self.states[tensor.name] == SPLIT) != self._splits_operand(i):
                    return f"the gradient {tensor} would be {self.states[tensor.name]}"
        return ""

    def _splits_operand(self, position: int) -> bool:
        """Return whether splitting the class splits an operand of the composite."""
        rank = len(self.composition.op.operand(position).shape)
        return any(self.composition.find(("operand", position, d)) == self.root for d in range(rank))


def _has_factor(dims: Dims | None, name: str) -> bool:
    return dims is not None and any(name in names for names in dims)


@op_rule(*COMPOSITES)
def composite(op: Operator) -> Rule | str:
    composition = Composition(op)
    if composition.without:
        return composition.without
    operands = tuple(composition.dims("operand", i, len(tensor.shape)) for i, tensor in op.operands)
    results = tuple(composition.dims("result", j, len(tensor.shape)) for j, tensor in enumerate(op.outputs))
    rule = make_rule(op, operands, results, composition.extents)
    return replace(rule, even=rule.even | composition.even)


@op_rule(VALUE_SHAPED)
def value_shaped(op: Operator) -> str:
    return "values decide its shapes or its branch"
