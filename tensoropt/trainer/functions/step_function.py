"""Run a function that is a training step, with gradients and optimizers in it, on all ranks under a plan."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...common.errors import InputError, short
from ...common.source_lines import running_line
from ...frontend.tracing.capture import own_name
from ...runtime.checkpoint import Objects, entry_name
from ...runtime.execution import Execution
from ..capture.programs import TRAIN, Objective, inner
from ..capture.signature import Signature
from ..runs import Runs
from ..saving import plain_optimizers, updated_by
from .function import FunctionTrainer


@dataclass(eq=False)
class StepObjective(Objective):
    """The user's training step.

    Attributes:
        models: the Keras models whose variables it trains or uses.
    """

    function: Callable[..., Any]
    models: Sequence[keras.Model]
    applies_optimizers: bool = True
    trained: Sequence[Any] = ()

    def names_of(self, variables: Sequence[tf.Variable]) -> list[str]:
        """Return the Keras paths of the models' variables, and the own names of others."""
        paths = {id(inner(variable)): str(variable.path) for model in self.models for variable in model.variables}
        return [paths.get(id(variable)) or own_name(variable) for variable in variables]

    def functions(self, signature: Signature) -> dict[str, tuple[Callable[..., Any], Sequence[Any]]]:
        return {TRAIN: (self.function, signature.inputs)}


@dataclass(eq=False)
class StepFunction(FunctionTrainer):
    """A training step on all ranks: call it with the full batch, the same on every rank.

    Attributes:
        captured: the user's step.
        batch_size: the number of samples of a step, over all devices; the last batch of an epoch may be smaller.
        build: plans the step for a batch of this signature, and makes it ready to run.
    """

    captured: Any
    batch_size: int
    build: Callable[[Signature], None] = field(init=False)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run one training step; return what the step returns, as arrays.

        Raises:
            InputError: an argument has another shape than planned, or ranks give different arguments.
        """
        arguments = self._in_order(arguments, keywords)
        signature = self.prepare(*arguments)
        run = self._ranks.runs.at((TRAIN, str(signature.inputs)), TRAIN, signature)
        leaves = list(map(_array, tf.nest.flatten(list(arguments))))
        results = self._ranks.step(run, self._agreed([tensor.name for tensor in run.captured.given], leaves))
        return None if isinstance(results, tuple) and not results else results

    def _agreed(self, names: Sequence[str], leaves: list[np.ndarray]) -> list[np.ndarray]:
        """Return the tensors of a batch, which must be the same on all ranks."""
        self._same.check(lambda: zip(names, leaves, strict=True))
        return leaves

    def start(self, execution: Execution, runs: Runs, optimizers: Mapping[str, keras.optimizers.Optimizer]) -> None:
        """Make the step ready to run, and its checkpoints those of its models and optimizers."""
        super().start(execution, runs, optimizers)
        self._ranks.objects = functools.cache(lambda: self._objects(optimizers))

    def _objects(self, optimizers: Mapping[str, keras.optimizers.Optimizer]) -> Objects:
        """Return the models and the optimizers, with the names of their variables in a checkpoint."""
        models, ranks = self.captured.models, self._ranks
        variables = [variable for model in models for variable in model.variables]
        state, by_name = ranks.planned_state, ranks.runs.planned.captured.capture.variables
        keys = {id(variable): name for name, variable in by_name.items() if name in state}  # of the user's variables

        def updated(step: str) -> list[Any]:
            return updated_by(step, ranks, variables)

        copies, pairs = plain_optimizers(optimizers, updated, lambda variable: keys.get(id(variable)), ranks, is_empty=True)
        own_pairs = [(variable, state[keys[id(inner(variable))]]) for variable in variables if id(inner(variable)) in keys]
        roots: dict[str, Any] = {f"model_{k}" if k else "model": model for k, model in enumerate(models)}
        roots |= {f"optimizer_{k}" if k else "optimizer": copy for k, copy in enumerate(copies.values())}
        return Objects(roots, [(variable, entry_name(entry)) for variable, entry in [*own_pairs, *pairs]])

    def prepare(self, *arguments: Any) -> Signature:
        """Plan the step for a batch, if it isn't planned yet; return the batch's signature."""
        signature = self._signature(arguments)
        if not self._is_built:
            self.build(signature)
        return signature

    @property
    def _is_built(self) -> bool:
        return "_ranks" in vars(self)

    def __getattr__(self, name: str) -> Any:
        if name != "_ranks":
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        raise InputError(
            f"a training step is planned when it is first called ({running_line()}), with a batch that shows its shapes; "
            "call it, or give training_step data= with the arguments of one call"
        )

    def _in_order(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of a call in the step's order; raise InputError if the step doesn't take them."""
        try:
            bound = inspect.signature(self.captured.function).bind(*arguments, **named)
        except TypeError as error:
            raise InputError(f"the training step ({running_line()}) can't be called so: {error}") from error
        if bound.kwargs:
            raise InputError(
                f"a training step ({running_line()}) is called with {next(iter(bound.kwargs))}=, after an argument that is "
                "left out, or of a parameter that only has a name; give all arguments in the order of the step's parameters"
            )
        return bound.args

    def _signature(self, arguments: Sequence[Any]) -> Signature:
        """Return the signature of a call; raise InputError if the batch is larger than planned."""
        names = list(inspect.signature(self.captured.function).parameters)
        specs = [_specs(value, name) for value, name in zip(arguments, [*names, *("",) * len(arguments)], strict=False)]
        self._check_size(next((leaf.shape[0] for leaf in tf.nest.flatten(specs) if leaf.shape.rank), None))
        return Signature(specs)

    def _check_size(self, size: int | None) -> None:
        if size is None or size > self.batch_size or (size < self.batch_size and not self._is_built):
            raise InputError(
                f"a training step ({running_line()}) is called with a batch of {size} samples, expected batch_size="
                f"{self.batch_size}, over all devices"
            )


def _array(leaf: Any) -> np.ndarray:
    """Return a tensor, an array or a number as an array; numbers of Python's take the type that Keras computes in."""
    return np.asarray(leaf, tf.as_dtype(keras.backend.floatx()).as_numpy_dtype if isinstance(leaf, float) else None)


def _specs(argument: Any, name: str) -> Any:
    """Return the specs of one argument's tensors, named after the argument."""
    leaves = tf.nest.flatten(argument)
    for leaf in leaves:
        if isinstance(leaf, (str, bytes, tf.RaggedTensor, tf.SparseTensor)) or leaf is None:
            raise InputError(f"a training step ({running_line()}) takes dense tensors and arrays, got {short(leaf)}")
        if isinstance(leaf, bool):
            raise InputError(
                f"a training step ({running_line()}) takes tensors and numbers, got {leaf} for '{name}': its Python runs "
                f"once, when it is planned; make a training step for each, as of lambda x, y: step(x, y, {leaf}), or give "
                f"tf.constant({leaf}) and choose by tf.where"
            )
    arrays = [leaf if isinstance(leaf, tf.Tensor) else _array(leaf) for leaf in leaves]
    labels = [name if len(leaves) == 1 else f"{name}_{i}" for i in range(len(leaves))]
    specs = [tf.TensorSpec(array.shape, array.dtype, label or None) for array, label in zip(arrays, labels, strict=True)]
    return tf.nest.pack_sequence_as(argument, specs)
