"""The intermediate representation: what every way of recording a model ends in.

A graph of operators at full, logical shapes. Constants that only steer an operator (axes, paddings, target shapes) are
folded into it as *statics*; a variable is an operator of type ``Variable`` whose result is its value; updates of
variables (moving averages, counters) are operators without results. The training steps name a loss and an optimizer;
gradients are not part of the graph, since TensorFlow derives them from each rank's local graph.

Invariants (:func:`check`): operators stand in topological order; every operand is the result of an earlier operator; every
shape is fully known; an operator's name occurs once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..reschedule.layout import Shape
from .optimizer import Optimizer, ParameterUpdate

if TYPE_CHECKING:
    from .slicing import Slicing

VARIABLE, PLACEHOLDER, CONSTANT = "Variable", "Placeholder", "Const"
ARGUMENTS = "_arguments"  # the attribute that says how inputs make up TensorFlow's arguments: (name, length of a list)
LOADED = "loaded"  # the attribute of a placeholder whose batch ranks load: each its share, which may then be GATHERED
GATHERED = "gathered"
SOURCES = (VARIABLE, PLACEHOLDER, CONSTANT)
ITEM_BYTES = {"bool": 1, "bfloat16": 2, "string": 8, "complex64": 8, "complex128": 16}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One value of the model; the name is that of the recorded TensorFlow tensor."""

    name: str
    shape: Shape
    dtype: str

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES.get(self.dtype) or np.dtype(self.dtype).itemsize

    @property
    def mem_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers, real or complex, so that it may come in summands."""
        return "float" in self.dtype or "complex" in self.dtype

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator.

    Attributes:
        inputs: per input of the TensorFlow operator its tensor, or None where the input is static.
        statics: the values of the static inputs, by position.
        attrs: TensorFlow's attributes, without those that follow from the operands.
        updates: the variable operators that this operator assigns to.
        controls: operators that must run before this one, beyond its operands.
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

    @property
    def operands(self) -> tuple[tuple[int, Tensor], ...]:
        """The inputs that are tensors, with their positions."""
        return tuple((i, tensor) for i, tensor in enumerate(self.inputs) if tensor is not None)

    @property
    def result(self) -> Tensor:
        return self.outputs[0]

    def looks_up(self, tensor: Tensor) -> bool:
        """Whether it finds rows (of the first dimension) of a tensor, and takes it for nothing else."""
        if self.type != "GatherV2" or self.statics[2] != 0 or self.attrs["batch_dims"]:
            return False
        return [position for position, operand in self.operands if operand.name == tensor.name] == [0]

    @property
    def is_trainable(self) -> bool:
        return self.type == VARIABLE and bool(self.attrs["trainable"])

    def where(self) -> str:
        """The operator as error messages name it."""
        return f"{self.type} '{self.name}'" + (f" ({self.source})" if self.source else "")

    def __str__(self) -> str:
        inputs = ", ".join(
            tensor.name if tensor is not None else str(np.asarray(self.statics[i]).tolist())[:40]
            for i, tensor in enumerate(self.inputs)
        )
        outputs = ", ".join(map(str, self.outputs))
        return f"{outputs or self.name} = {self.type}({inputs})  # {self.source}"


@dataclass(frozen=True, slots=True)
class TrainStep:
    """A recorded ``minimize``: which loss, by which optimizer, for which variables.

    Attributes:
        name: of the recorded operation that stands for the step.
        loss: a scalar.
        variables: names of the variable operators that are trained.
        optimizer: what becomes of the gradients.
        step_counter: a variable that each step increments, or None.
        controls: operators that run with the step.
    """

    name: str
    loss: Tensor
    variables: tuple[str, ...]
    optimizer: Optimizer
    step_counter: str | None = None
    controls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Differentiated:
    """What gets a gradient on the ways from losses to the variables that their steps train.

    Attributes:
        tensors: by name.
        operands: of operators to which a gradient comes, the input positions to which it goes on; those that were imported
            as something else are left out.
    """

    tensors: frozenset[str]
    operands: Mapping[str, frozenset[int]]


@dataclass(frozen=True, eq=False)
class Graph:
    """A recorded model.

    Attributes:
        operators: by name, in topological order.
        train_steps: by the name of the recorded operation.
        aliases: recorded tensor names that mean another tensor (reads of variables, identities).
        slicing: of the graph of one of a step's micro-batches, how it comes from that of the whole batch.
        differentiated: where TensorFlow's gradients go, as the recorded graph says it; None where nobody asked.
    """

    operators: Mapping[str, Operator]
    train_steps: Mapping[str, TrainStep]
    aliases: Mapping[str, str]
    slicing: Slicing | None = None
    differentiated: Differentiated | None = None

    @property
    def n_slices(self) -> int:
        """In how many slices a training step takes its batch."""
        return 1 if self.slicing is None else self.slicing.n

    @property
    def whole(self) -> Graph:
        """The graph of the whole batch."""
        return self if self.slicing is None else self.slicing.whole

    def n_runs(self, tensor: str) -> int:
        """How often a training step makes a tensor: for each slice, or once."""
        return self.n_slices if self.slicing is not None and tensor in self.slicing.forms else 1

    def accumulates(self, tensor: str) -> bool:
        """Whether the gradients of several slices are added up at a tensor's copies."""
        return self.n_slices > 1 and self.n_runs(tensor) == 1

    @cached_property
    def producers(self) -> dict[str, Operator]:
        """Tensor name to the operator that makes it."""
        return {tensor.name: op for op in self.operators.values() for tensor in op.outputs}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for op in self.operators.values() for tensor in op.outputs}

    @cached_property
    def consumers(self) -> dict[str, tuple[Operator, ...]]:
        """Tensor name to the operators that have it as an operand, in topological order."""
        found: dict[str, dict[str, Operator]] = {}
        for op in self.operators.values():
            for _, tensor in op.operands:
                found.setdefault(tensor.name, {})[op.name] = op
        return {name: tuple(operators.values()) for name, operators in found.items()}

    def resolve(self, name: str) -> Tensor | None:
        """The tensor that a recorded name means, or None if the model has none of this name."""
        return self.tensors.get(self.aliases.get(name, name))

    @cached_property
    def variables(self) -> tuple[Operator, ...]:
        return tuple(op for op in self.operators.values() if op.type == VARIABLE)

    @cached_property
    def made_of_variables(self) -> frozenset[str]:
        """The names of the tensors that follow from variables and constants alone: only updates wait for their gradients."""
        found: set[str] = set()
        for op in self.operators.values():
            follows = op.operands and op.updates is None and all(tensor.name in found for _, tensor in op.operands)
            if follows or op.type in (VARIABLE, CONSTANT):
                found.update(tensor.name for tensor in op.outputs)
        return frozenset(found)

    @cached_property
    def updates(self) -> dict[str, tuple[ParameterUpdate, ...]]:
        """By trained variable, its update in each training step that trains it."""
        found: dict[str, tuple[ParameterUpdate, ...]] = {}
        for step in self.train_steps.values():
            tensors = [self.operators[name].result for name in step.variables]
            for name, update in zip(step.variables, step.optimizer.updates(tensors), strict=True):
                found[name] = (*found.get(name, ()), update)
        return found

    @cached_property
    def lookups(self) -> dict[str, tuple[str, ...]]:
        """By trained variable that is updated by rows, the lookups in it: one step trains it, and takes nothing else."""
        found: dict[str, tuple[str, ...]] = {}
        for step in self.train_steps.values():
            if not step.optimizer.takes_rows:
                continue
            needed = self.ancestors([step.loss])
            for name in step.variables:
                tensor = self.operators[name].result
                consumers = [op for op in self.consumers.get(tensor.name, ()) if op.name in needed]
                if consumers and len(self.updates[name]) == 1 and all(op.looks_up(tensor) for op in consumers):
                    found[name] = tuple(op.name for op in consumers)
        return found

    @cached_property
    def lookup_operators(self) -> frozenset[str]:
        """The lookups of all variables that are updated by rows."""
        return frozenset(name for names in self.lookups.values() for name in names)

    @property
    def parameter_bytes(self) -> int:
        return sum(op.result.mem_bytes for op in self.variables if op.is_trainable)

    def ancestors(
        self, tensors: Iterable[Tensor], controls: Iterable[str] = (), given: Container[str] = ()
    ) -> set[str]:
        """The names of the operators that these tensors and controls need, themselves included.

        Tensors named in ``given`` need nothing.
        """
        found: set[str] = set()
        pending = [self.producers[tensor.name].name for tensor in tensors if tensor.name not in given] + list(controls)
        while pending:
            name = pending.pop()
            if name in found:
                continue
            found.add(name)
            op = self.operators[name]
            pending += [self.producers[tensor.name].name for _, tensor in op.operands if tensor.name not in given]
            pending += op.controls
            if op.updates is not None:
                pending.append(op.updates)
        return found

    @cached_property
    def step_operators(self) -> tuple[Operator, ...]:
        """The operators that the training steps run, in topological order."""
        tensors = [step.loss for step in self.train_steps.values()]
        controls: list[str] = []
        for step in self.train_steps.values():
            tensors += step.optimizer.tensors
            controls += [*step.controls, *step.variables]
            controls += [step.step_counter] if step.step_counter else []
        needed = self.ancestors(tensors, controls)
        return tuple(op for op in self.operators.values() if op.name in needed)

    @cached_property
    def digest(self) -> str:
        """Equal for models with the same operators, shapes, attributes and training steps, whatever the hyperparameters.

        A learning rate that is changed leaves a saved plan usable; whether ranks agree is :attr:`agreement`.
        """
        text = hashlib.sha256()
        for op in self.operators.values():
            statics = [(i, value.tobytes()) for i, value in sorted(op.statics.items())] if op.type != CONSTANT else []
            attrs = sorted((key, str(value)) for key, value in op.attrs.items() if not key.startswith("_"))
            inputs = [tensor and tensor.name for tensor in op.inputs]
            text.update(repr((op.name, op.type, inputs, op.outputs, attrs, statics, op.updates)).encode())
        for _, step in sorted(self.train_steps.items()):
            what = (step.name, step.loss, step.variables, step.optimizer.structure, step.step_counter, step.controls)
            text.update(repr(what).encode())
        return text.hexdigest()[:16]

    @cached_property
    def agreement(self) -> str:
        """What ranks that run this model together must have in common: the digest, and all hyperparameters."""
        numbers = [step.optimizer.numbers for _, step in sorted(self.train_steps.items())]
        return f"{self.digest} {hashlib.sha256(repr(numbers).encode()).hexdigest()[:16]}"

    def __str__(self) -> str:
        lines = [str(op) for op in self.operators.values()]
        lines += [f"{step.name}: {step.optimizer} of {step.loss.name}" for step in self.train_steps.values()]
        return "\n".join(lines)


def check(graph: Graph) -> None:
    """Hold the graph against the invariants of the module docstring.

    Raises:
        AssertionError: names the operator at fault and prints the ones around it.
    """
    made: set[str] = set()
    for index, (name, op) in enumerate(graph.operators.items()):
        around = "\n".join(map(str, list(graph.operators.values())[max(0, index - 2) : index + 3]))
        missing = [tensor.name for _, tensor in op.operands if tensor.name not in made]
        assert name == op.name, f"operator {op.name} is filed under {name}"
        assert not missing, f"{op.where()} takes {missing}, which no earlier operator makes; around it:\n{around}"
        assert all(extent is not None for tensor in op.outputs for extent in tensor.shape), f"unknown shape in\n{around}"
        made.update(tensor.name for tensor in op.outputs)
