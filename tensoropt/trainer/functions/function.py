"""Train any function that returns a loss from tensors and ``tf.Variable``s, without a Keras model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...common.errors import InputError, short
from ...common.files import path_text
from ...common.gradient_types import carries_gradient
from ...frontend.tracing.capture import concrete, own_name, variables_used_by
from ...runtime.execution import Execution
from ...runtime.ranks import current_processes, install_error_handling
from ...runtime.same_data import SameData
from ..batch import SAME_BATCHES
from ..capture.accepting import check_eager
from ..capture.programs import TRAIN, Objective
from ..capture.signature import Signature
from ..planned import Planned
from ..rate import RunningRate
from ..runs import Runs
from ..trainer_ranks import TrainerRanks


@dataclass(frozen=True, eq=False)
class CapturedFunction(Objective):
    """A function that :func:`tensoropt.capture` returned, for :func:`tensoropt.parallelize`.

    Attributes:
        function: the user's function, which returns the loss.
        signature: for each argument, a structure of ``tf.TensorSpec``.
        variables: the variables that the function uses, in the order of their first use.
    """

    function: Callable[..., Any]
    signature: tuple[Any, ...]
    variables: tuple[tf.Variable, ...]

    @classmethod
    def of(cls, function: Callable[..., Any], input_signature: Sequence[Any]) -> CapturedFunction:
        """Trace a function to find its variables; raise InputError if it isn't one, or an extent is left open."""
        # Before all checks, so that rank 0 reports errors for all ranks.
        install_error_handling(current_processes())
        check_eager("capture")
        if not callable(function):
            raise InputError(f"capture takes a function that returns a loss, got {short(function)}")
        if not isinstance(input_signature, Sequence):
            raise InputError(
                f"capture takes input_signature=, a list of a tf.TensorSpec for each argument, got {short(input_signature)}"
            )
        variables = variables_used_by(concrete(function, input_signature))
        return cls(function, tuple(input_signature), tuple(variables))

    @property
    def trained(self) -> list[tf.Variable]:
        """The trainable variables, except integer ones: they have no gradients, even if TensorFlow calls them trainable."""
        return [variable for variable in self.variables if variable.trainable and carries_gradient(variable.dtype)]

    @property
    def applies_optimizers(self) -> bool:
        """Return False: the function returns the loss."""
        return False

    def names_of(self, variables: Sequence[tf.Variable]) -> list[str]:
        return [own_name(variable) for variable in variables]

    def functions(self, signature: Signature) -> dict[str, tuple[Callable[..., Any], Sequence[Any]]]:
        """Return the function and the specs of the training step only."""
        return {TRAIN: (self.function, signature.inputs)}


class FunctionTrainer(Planned):
    """A captured function that trains on all ranks, as :func:`tensoropt.capture` shows; every rank makes the same calls.

    Attributes:
        captured: the function; its variables are those that are trained.
        optimizer: the learning rate and the number of updates on the ranks; missing if the step applies no optimizer.
    """

    def __init__(self, captured: CapturedFunction) -> None:
        self.captured = captured

    def start(self, execution: Execution, runs: Runs, optimizers: Mapping[str, keras.optimizers.Optimizer]) -> None:
        """Make the trainer ready to run. :func:`tensoropt.parallelize` calls it."""
        self._ranks = TrainerRanks(execution.processes)
        self._ranks.start(execution, runs)
        self._ranks.hold_optimizers(optimizers)
        self._same = SameData(execution.processes, "trainer.step", SAME_BATCHES)
        if self._ranks.optimizers:
            self.optimizer = RunningRate(self._ranks)

    def step(self, *arguments: Any) -> float:
        """Run one training step.

        Args:
            arguments: the function's arguments for the global batch, the same on every rank.

        Returns:
            The loss before the step.

        Raises:
            InputError: an argument's shape or type isn't that of the signature, or ranks give different arguments.
        """
        leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(list(arguments))]
        inputs = self._ranks.runs.planned.captured.given
        if len(leaves) != len(inputs):
            raise InputError(f"step takes {len(inputs)} tensors, as input_signature says, got {len(leaves)}")
        self._same.check(lambda: zip((tensor.name for tensor in inputs), leaves, strict=True))
        return float(self._ranks.step(self._ranks.runs.planned, leaves))

    def save(self, filepath: str | os.PathLike[str], *, max_to_keep: int | None = None) -> None:
        """Save a checkpoint with all that a later run needs to continue. Each rank writes its shards.

        Args:
            filepath: ``folder/name`` of the checkpoint.
            max_to_keep: how many of the newest checkpoints in the folder to keep.

        Raises:
            InputError: the folder can't be written.
            TensorOptError: writing failed; the files that were there before are unchanged.
        """
        self._ranks.save(path_text(filepath, "save"), {}, max_to_keep)

    def load(self, filepath: str | os.PathLike[str]) -> None:
        """Load a checkpoint that was saved under any plan.

        Args:
            filepath: the path given to :meth:`save`, or a folder, of which the latest checkpoint is loaded.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or it belongs to another function.
        """
        self._ranks.restore(path_text(filepath, "load"))

    def export(self) -> None:
        """Bring the variables' own memory up to date, on every rank; each rank alone may read them then."""
        self._ranks.export()
