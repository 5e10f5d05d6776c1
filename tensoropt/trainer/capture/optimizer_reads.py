"""Optimizers' values that programs read, such as metrics that report a learning rate.

A program has a variable of its own for what it reads of the user's optimizer. Before each run it takes the value that the
optimizer on the ranks has. A training step counts its update in there, ahead of metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from ...common.errors import InputError
from ...common.source_lines import running_line
from ...optimizers.copies import inner_of, named_variables
from ...optimizers.keras_optimizer import KerasOptimizer
from ...optimizers.keras_running import RunningKeras
from ...runtime.step.step_optimizer import StepOptimizer
from .programs import Captured, inner


def check_reads(captured: Captured, optimizer: Any) -> None:
    """Raise InputError if a program reads of an optimizer else than the rate, or updates that it counts itself."""
    inner_optimizer = inner_of(optimizer)
    counted = [inner_optimizer._learning_rate, *([inner_optimizer._iterations] if inner_optimizer is optimizer else [])]
    for variable in (*optimizer.variables, *inner_optimizer.variables):
        is_read = captured.variable(inner(variable)) is not None
        if is_read and not any(variable is variable_read for variable_read in counted):
            raise InputError(
                f"the loss or a metric ({running_line()}) reads '{variable.path}' of optimizer {type(optimizer).__name__}, "
                "whose variables are on the ranks; read it in a callback, by trainer.optimizer.learning_rate or "
                "trainer.optimizer.iterations"
            )


def copies_on_ranks(captured: Captured, running: Mapping[str, StepOptimizer]) -> dict[int, tf.Variable]:
    """Return this process's variables for those of the user's optimizers, by the ids of the user's."""
    copies = {}
    for step, step_optimizer in running.items():
        optimizer = captured.graph.train_steps[step].optimizer
        assert isinstance(optimizer, KerasOptimizer)
        copy = step_optimizer.running[0]
        assert isinstance(copy, RunningKeras)
        by_name = named_variables(optimizer.source)
        copies.update({id(inner(variable)): copy.named[name] for name, variable in by_name.items() if name in copy.named})
    return copies
