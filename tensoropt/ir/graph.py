"""The intermediate representation: every way of recording a model ends in it.

A :class:`Graph` has operators at full, logical shapes. Constants that only steer an operator (axes, paddings, target shapes)
are folded into it as *statics*; a variable is an operator of type ``Variable`` whose result is its value; updates of
variables (moving averages, counters) are operators without results. The training steps name a loss and an optimizer.
Gradients are named too: which loss, with respect to which variables (:class:`Gradients`). TensorFlow derives them from each
rank's local graph. Where the model computes with gradients (it clips them, say), each is the result of a ``Gradient``
operator, in the variable's layout, and the training step takes the tensors that it updates by.

Invariants (:func:`.invariants.check_graph`): operators stand in topological order; every operand is the result of an earlier
operator; every shape is fully known; an operator's name occurs once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from .optimizer import Optimizer, ParameterUpdate
from .tensor import Tensor

VARIABLE, PLACEHOLDER, CONSTANT = "Variable", "Placeholder", "Const"
GRADIENT = "Gradient"  # the type of an operator whose result is the gradient with respect to the variable that it names
ARGUMENTS = "_arguments"  # the attribute that says how inputs make up TensorFlow's arguments: (name, length of a list)
LOADED = "loaded"  # the attribute of a placeholder of which each rank loads its share; GATHERED: the shares are gathered
GATHERED = "gathered"
SOURCES = (VARIABLE, PLACEHOLDER, CONSTANT)


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator.

    Attributes:
        inputs: for each input of the TensorFlow operator its tensor, or None where the input is static.
        statics: the values of the static inputs, by position.
        attrs: TensorFlow's attributes, without those that follow from the operands.
        updates: the name of the variable operator that this operator assigns to, or reads after an update, or is the
            gradient with respect to; None for others.
        controls: names of the operators and training steps that must run before this one, beyond its operands' producers.
        source: the line of the user's code that made it, as ``file:line``.
    """

    name: str
    type: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    statics: Mapping[int, np.ndarray] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    updates: str | None = None
    controls: tuple[str, ...] = ()
    source: str = ""

    @cached_property
    def operands(self) -> tuple[tuple[int, Tensor], ...]:
        """The inputs that are tensors, with their positions."""
        return tuple((i, tensor) for i, tensor in enumerate(self.inputs) if tensor is not None)

    def operand(self, position: int) -> Tensor:
        """Return the tensor at the position of an input that isn't static."""
        tensor = self.inputs[position]
        assert tensor is not None
        return tensor

    @property
    def result(self) -> Tensor:
        return self.outputs[0]

    def looks_up(self, tensor: Tensor) -> bool:
        """Return whether the operator finds rows (of the first dimension) of a tensor, and uses it for nothing else."""
        if self.type != "GatherV2" or self.statics[2] != 0 or self.attrs["batch_dims"]:
            return False
        return [position for position, operand in self.operands if operand.name == tensor.name] == [0]

    @property
    def is_trainable(self) -> bool:
        return self.type == VARIABLE and bool(self.attrs["trainable"])

    def where(self) -> str:
        """Return the operator's type, name and source line, as error messages name it."""
        return f"{self.type} '{self.name}'" + (f" ({self.source})" if self.source else "")

    def __str__(self) -> str:
        inputs = ", ".join(
            tensor.name if tensor is not None else str(np.asarray(self.statics[i]).tolist())[:40]
            for i, tensor in enumerate(self.inputs)
        )
        outputs = ", ".join(map(str, self.outputs))
        return f"{outputs or self.name} = {self.type}({inputs})  # {self.source}"


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of a loss with respect to variables.

    Attributes:
        name: the name of the training step that minimises the loss, or the one that ``Gradient`` operators say.
        loss: a scalar.
        variables: names of the variable operators, or of the operators that read them after an update.
    """

    name: str
    loss: Tensor
    variables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One application of an optimizer: to minimise a loss, or by gradients that the model has computed with.

    Attributes:
        name: the name of the recorded operation that stands for the step.
        loss: a scalar; None where the gradients are given.
        variables: names of the variable operators that are trained.
        optimizer: the rule that turns gradients into updates.
        step_counter: the variable that each step increments, or None.
        controls: operators that run with the step.
        gradients: where there is no loss, for each variable the tensor that it is updated by.
        of: the name of the first step that applies the same optimizer, whose slots this one uses, too; empty for the first.
    """

    name: str
    loss: Tensor | None
    variables: tuple[str, ...]
    optimizer: Optimizer
    step_counter: str | None = None
    controls: tuple[str, ...] = ()
    gradients: tuple[Tensor, ...] = ()
    of: str = ""


@dataclass(frozen=True, slots=True)
class Differentiated:
    """The tensors and operands that get a gradient, on the paths from losses to the variables that their steps train.

    Attributes:
        operands: by name of each operator to which a gradient comes, the input positions to which the gradient goes on;
            operators that were imported as another type are left out.
    """

    tensors: frozenset[str]
    operands: Mapping[str, frozenset[int]]


@dataclass(frozen=True, eq=False)
class MicroBatching:
    """The relation between the graph of one micro-batch and the graph of the full batch.

    Attributes:
        batch: the number of samples in the full batch.
        forms: by name of each tensor that the micro-batches compute, the dimension that they split, or SUM: their parts add
            up.
        once: (operator, position) of the operands that only the first micro-batch uses.
        after: names of the operators that run after all micro-batches.
    """

    n: int
    full_batch: Graph
    batch: int
    forms: Mapping[str, int]
    once: frozenset[tuple[str, int]]
    after: frozenset[str]


@dataclass(frozen=True, eq=False)
class Graph:
    """A recorded model.

    Attributes:
        operators: by name, in topological order.
        train_steps: by the name of the recorded operation.
        aliases: recorded tensor names that mean another tensor (reads of variables, identities).
        micro_batching: for the graph of one micro-batch, how it comes from the graph of the full batch; else None.
        differentiated: where TensorFlow's gradients go, as the recorded graph says it; None where it was not worked out.
        gradients: the gradients that ``Gradient`` operators give, by name.
    """

    operators: Mapping[str, Operator]
    train_steps: Mapping[str, TrainStep]
    aliases: Mapping[str, str]
    micro_batching: MicroBatching | None = None
    differentiated: Differentiated | None = None
    gradients: Mapping[str, Gradients] = field(default_factory=dict)

    @property
    def n_micro_batches(self) -> int:
        """The number of micro-batches in which a training step takes its batch."""
        return 1 if self.micro_batching is None else self.micro_batching.n

    @property
    def full_batch(self) -> Graph:
        """The graph of the full batch."""
        return self if self.micro_batching is None else self.micro_batching.full_batch

    def n_runs(self, tensor: str) -> int:
        """Return how often a training step computes a tensor: once for each micro-batch, or once."""
        return self.n_micro_batches if self.micro_batching is not None and tensor in self.micro_batching.forms else 1

    def accumulates(self, tensor: str) -> bool:
        """Return whether the gradients of several micro-batches are added up at a tensor's copies."""
        return self.n_micro_batches > 1 and self.n_runs(tensor) == 1

    @cached_property
    def backward_passes(self) -> tuple[Gradients, ...]:
        """All gradients that are taken: those of ``Gradient`` operators, and those of the losses that steps minimise."""
        minimised = (Gradients(step.name, step.loss, step.variables) for step in self.train_steps.values() if step.loss)
        return (*self.gradients.values(), *minimised)

    @cached_property
    def pass_names(self) -> tuple[str, ...]:
        """The names of the backward passes by their numbers, which are the same in all stages."""
        return (*self.gradients, *self.train_steps)

    @cached_property
    def losses(self) -> dict[str, Tensor]:
        """The loss of which gradients are taken, by the gradients' name."""
        return {backward_pass.name: backward_pass.loss for backward_pass in self.backward_passes}

    @cached_property
    def given_gradients(self) -> dict[str, tuple[Tensor, ...]]:
        """The tensors that training steps without a loss update each variable by, by the variable's name."""
        gradients: dict[str, tuple[Tensor, ...]] = {}
        for step in self.train_steps.values():
            for name, gradient in zip(step.variables, step.gradients, strict=False):
                gradients[name] = (*gradients.get(name, ()), gradient)
        return gradients

    @cached_property
    def late(self) -> frozenset[str]:
        """The names of the operators that need gradients, or wait for training steps."""
        names: set[str] = set()
        for op in self.operators.values():
            waits = any(name in names or name in self.train_steps for name in op.controls)
            if op.type == GRADIENT or waits or any(self.producers[tensor.name].name in names for _, tensor in op.operands):
                names.add(op.name)
        return frozenset(names)

    @property
    def is_sequential(self) -> bool:
        """Return whether a loss needs gradients or updated values: there are several passes, one after the other."""
        return any(self.producers[backward_pass.loss.name].name in self.late for backward_pass in self.backward_passes)

    @cached_property
    def producers(self) -> dict[str, Operator]:
        """The operator that produces each tensor, by the tensor's name."""
        return {tensor.name: op for op in self.operators.values() for tensor in op.outputs}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for op in self.operators.values() for tensor in op.outputs}

    @cached_property
    def consumers(self) -> dict[str, tuple[Operator, ...]]:
        """The operators that have each tensor as an operand, in topological order, by the tensor's name."""
        result: dict[str, dict[str, Operator]] = {}
        for op in self.operators.values():
            for _, tensor in op.operands:
                result.setdefault(tensor.name, {})[op.name] = op
        return {name: tuple(operators.values()) for name, operators in result.items()}

    def resolve(self, name: str) -> Tensor | None:
        """Return the tensor that a recorded name means, or None if the model has no tensor of this name."""
        return self.tensors.get(self.aliases.get(name, name))

    @cached_property
    def variables(self) -> tuple[Operator, ...]:
        return tuple(op for op in self.operators.values() if op.type == VARIABLE)

    @cached_property
    def made_of_variables(self) -> frozenset[str]:
        """The names of the tensors that follow from variables and constants alone: only updates wait for their gradients."""
        names: set[str] = set()
        for op in self.operators.values():
            follows = op.operands and op.updates is None and all(tensor.name in names for _, tensor in op.operands)
            if follows or op.type in (VARIABLE, CONSTANT):
                names.update(tensor.name for tensor in op.outputs)
        return frozenset(names)

    @cached_property
    def updates(self) -> dict[str, tuple[ParameterUpdate, ...]]:
        """The updates of each trained variable, one for each training step that trains it, by the variable's name."""
        result: dict[str, tuple[ParameterUpdate, ...]] = {}
        for step in self.train_steps.values():
            tensors = [self.operators[name].result for name in step.variables]
            for name, update in zip(step.variables, step.optimizer.updates(tensors), strict=True):
                result[name] = (*result.get(name, ()), replace(update, slots=0) if step.of else update)
        return result

    @cached_property
    def lookups(self) -> dict[str, tuple[str, ...]]:
        """The lookups in each trained variable that is updated by rows, by the variable's name.

        Such a variable is trained by one step, which uses it in lookups alone.
        """
        result: dict[str, tuple[str, ...]] = {}
        for step in self.train_steps.values():
            if not step.optimizer.takes_rows or step.loss is None:
                continue
            ancestors = self.ancestors([step.loss])
            for name in step.variables:
                tensor = self.operators[name].result
                consumers = [op for op in self.consumers.get(tensor.name, ()) if op.name in ancestors]
                if any(name in gradients.variables for gradients in self.gradients.values()):
                    continue
                if consumers and len(self.updates[name]) == 1 and all(op.looks_up(tensor) for op in consumers):
                    result[name] = tuple(op.name for op in consumers)
        return result

    @cached_property
    def lookup_operators(self) -> frozenset[str]:
        """The names of the lookups in all variables that are updated by rows."""
        return frozenset(name for names in self.lookups.values() for name in names)

    @property
    def parameter_bytes(self) -> int:
        return sum(op.result.mem_bytes for op in self.variables if op.is_trainable)

    def ancestors(self, tensors: Iterable[Tensor], controls: Iterable[str] = (), inputs: Container[str] = ()) -> set[str]:
        """Return the names of the operators that compute these tensors and controls, and of all operators that those need.

        Tensors named in ``inputs`` need nothing.
        """
        result: set[str] = set()
        pending = [self.producers[tensor.name].name for tensor in tensors if tensor.name not in inputs] + list(controls)
        while pending:
            name = pending.pop()
            if name in result or name in self.train_steps:
                continue
            result.add(name)
            op = self.operators[name]
            if op.type == GRADIENT:
                gradients = self.gradients[op.attrs["of"]]
                pending += [self.producers[gradients.loss.name].name] if gradients.loss.name not in inputs else []
            pending += [self.producers[tensor.name].name for _, tensor in op.operands if tensor.name not in inputs]
            pending += op.controls
            if op.updates is not None:
                pending.append(op.updates)
        return result

    def operators_of(self, step: TrainStep, inputs: Container[str] = ()) -> set[str]:
        """Return the names of the operators that a training step runs. Tensors named in ``inputs`` need nothing."""
        loss = [] if step.loss is None else [step.loss]
        counter = [step.step_counter] if step.step_counter else []
        tensors = [*loss, *step.gradients, *step.optimizer.tensors]
        return self.ancestors(tensors, [*step.controls, *step.variables, *counter], inputs)

    @cached_property
    def step_operators(self) -> tuple[Operator, ...]:
        """The operators that the training steps run, in topological order."""
        names = {name for step in self.train_steps.values() for name in self.operators_of(step)}
        return tuple(op for op in self.operators.values() if op.name in names)

    @property
    def batch(self) -> int | None:
        """The samples per step: the leading extent that the placeholders of the training steps share; None without one."""
        extents = {op.result.shape[0] for op in self.step_operators if op.type == PLACEHOLDER and op.result.shape}
        return extents.pop() if len(extents) == 1 else None

    @cached_property
    def digest(self) -> str:
        """A hash that is equal for models with the same operators, shapes, attributes and training steps.

        Hyperparameters don't count: a changed learning rate leaves a saved plan usable. :attr:`agreement` tells whether
        ranks agree.
        """
        text = hashlib.sha256()
        for op in self.operators.values():
            statics = [(i, value.tobytes()) for i, value in sorted(op.statics.items())] if op.type != CONSTANT else []
            attrs = sorted((key, str(value)) for key, value in op.attrs.items() if not key.startswith("_"))
            inputs = [tensor and tensor.name for tensor in op.inputs]
            text.update(repr((op.name, op.type, inputs, op.outputs, attrs, statics, op.updates)).encode())
        for _, step in sorted(self.train_steps.items()):
            record = (step.name, step.loss, step.variables, step.optimizer.structure, step.step_counter, step.controls)
            text.update(repr((*record, step.gradients, step.of) if step.gradients or step.of else record).encode())
        if self.gradients:
            text.update(repr(sorted(self.gradients.items())).encode())
        return text.hexdigest()[:16]

    @cached_property
    def agreement(self) -> str:
        """The text that must be equal on all ranks that run this model together: the digest, and all hyperparameters."""
        numbers = [step.optimizer.numbers for _, step in sorted(self.train_steps.items())]
        return f"{self.digest} {hashlib.sha256(repr(numbers).encode()).hexdigest()[:16]}"

    def __str__(self) -> str:
        lines = [str(op) for op in self.operators.values()]
        lines += [f"{backward_pass.name}: gradients of {backward_pass.loss.name}" for backward_pass in self.backward_passes]
        lines += [f"{step.name}: {step.optimizer}" for step in self.train_steps.values()]
        return "\n".join(lines)
