"""Training any function that returns a loss from tensors and ``tf.Variable``s: the door that needs no Keras model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..errors import InputError, short
from ..execution import Execution
from ..plan import Plan
from ..plan_frontier import PlanFrontier
from ..tracing.function import concrete
from .programs import TRAIN
from .rate import RunningRate
from .runs import Run, Runs
from .signature import Signature


@dataclass(frozen=True, eq=False)
class CapturedFunction:
    """A function as :func:`tensoropt.capture` took it, for :func:`tensoropt.parallelize`.

    Attributes:
        function: returns the loss.
        signature: per argument a structure of ``tf.TensorSpec``.
        variables: those that it uses, in the order of their first use.
    """

    function: Callable[..., Any]
    signature: tuple[Any, ...]
    variables: tuple[tf.Variable, ...]

    @classmethod
    def of(cls, function: Callable[..., Any], input_signature: Sequence[Any]) -> CapturedFunction:
        """Trace a function to see which variables it uses.

        Raises:
            InputError: it isn't a function, or the signature leaves an extent open.
        """
        if not callable(function):
            raise InputError(f"capture takes a function that returns a loss, got {short(function)}")
        if not isinstance(input_signature, Sequence):
            raise InputError(
                f"capture takes input_signature=, a list of a tf.TensorSpec for each argument, got {short(input_signature)}"
            )
        graph = concrete(function, input_signature).graph
        by_handle = {id(variable.handle): variable for variable in graph.variables}
        used = [by_handle[id(outer)] for outer, _ in graph.captures if id(outer) in by_handle]
        return cls(function, tuple(input_signature), tuple(used))

    @property
    def trained(self) -> list[tf.Variable]:
        """Whole numbers have no gradients, whatever TensorFlow calls them."""
        return [variable for variable in self.variables if variable.trainable and variable.dtype.is_floating]

    def name_of(self, variable: tf.Variable) -> str:
        return str(variable.name.partition(":")[0])

    def functions(self, signature: Signature) -> dict[str, tuple[Callable[..., Any], Sequence[Any]]]:
        """The training step alone."""
        return {TRAIN: (self.function, signature.inputs)}


class FunctionTrainer:
    """Trains a captured function by a plan; every rank makes the same calls.

    Attributes:
        captured: the function; its variables change only by :meth:`export`.
        optimizer: the learning rate and the number of updates as they are on the ranks.
    """

    def __init__(self, captured: CapturedFunction) -> None:
        self.captured = captured

    def start(self, execution: Execution, runs: Runs, seed: int) -> None:
        """Make the trainer ready to run; :func:`tensoropt.parallelize` does."""
        self._execution, self._runs = execution, runs
        self.optimizer = RunningRate(execution.engine.optimizers[TRAIN])

    @property
    def plan(self) -> Plan:
        """What runs."""
        return self._execution.plan

    @property
    def frontier(self) -> PlanFrontier | None:
        """All plans that the search found, on the rank that searched."""
        return self.plan.frontier

    def explain(self) -> str:
        """The plan as a table, below what it was chosen from."""
        return self.plan.explained()

    def step(self, *arguments: Any) -> float:
        """One training step.

        Args:
            arguments: as the function takes them, whole, the same on every rank.

        Returns:
            The loss before the step.

        Raises:
            InputError: an argument's shape or type isn't that of the signature.
        """
        return self._run.train([np.asarray(leaf) for leaf in tf.nest.flatten(list(arguments))], is_share=False)

    def export(self) -> None:
        """Give the function's own variables the trained values, on every rank."""
        ops = {self._run.captured.variable(variable): variable for variable in self.captured.variables}
        for op, value in self._run.values([op for op in ops if op is not None]):
            ops[op].assign(value)

    @property
    def _run(self) -> Run:
        return self._runs.planned
