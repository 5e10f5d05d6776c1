"""Hold what a stage has on the ranks that this process builds: variables, optimizers, and how often operators have drawn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from ...common.settings import LAG
from ...ir.graph import Graph, Operator, TrainStep
from ...ir.optimizer import Optimizer
from ...lowering.operators import Values
from ...lowering.resharding.reshard import Backend, Collective
from ...lowering.variables import StateEntry, local_variables
from ...optimizers.classic import Classic
from ...optimizers.classic_running import RunningClassic
from ...optimizers.running_optimizer import Emission, PendingUpdate, RunningOptimizer, Shards
from ...rules.random import FROM_SEED
from ...sharding.resharding import PathFinder
from ...sharding.strategy import StrategyView

UPDATE_OPERATORS = {"AssignVariableOp": "assign", "AssignAddVariableOp": "assign_add", "AssignSubVariableOp": "assign_sub"}


@dataclass
class StageState:
    """A stage under a strategy, with its variables; a model that isn't cut is one stage.

    Attributes:
        backend: carries out the paths.
        initial_value: returns the global initial value of a variable, given by its operator's name.
        agree: called with a digest and the log of collectives of each function before its first run; raises if the stage's
            ranks differ, and prepares the collectives.
        first: the stage in another engine, whose variables and optimizers this one shares where it has the same; or None.
        in_order: whether the backward pass runs in a fixed order; see :mod:`...lowering.order`.
        lag: for at most this many operators the backward pass goes on while a gradient is on its way; see the same module.
        variables: by operator name, a variable's shards on the ranks that are built here.
        optimizers: the optimizer of each training step, by the step's name.
        runs: by the names of random operators with a seed, how often each has drawn, whatever was fetched.
        runs_before: how often each had drawn before this process, for those that are yet to be built.
    """

    view: StrategyView
    path_finder: PathFinder
    backend: Backend
    initial_value: Callable[[str], np.ndarray]
    agree: Callable[[str, Sequence[Collective]], None] = lambda digest, log: None
    first: StageState | None = None
    in_order: bool = False
    lag: float = LAG
    variables: dict[str, list[tf.Variable]] = field(default_factory=dict)
    optimizers: dict[str, RunningOptimizer] = field(default_factory=dict)
    runs: dict[str, tf.Variable] = field(default_factory=dict)
    runs_before: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # TensorFlow mustn't merge additions: AddN starts with whichever operand's memory becomes free first. Replicas, which
        # each rank computes, would differ in the last bit from run to run, and drift apart.
        if tf.config.optimizer.get_experimental_options().get("arithmetic_optimization", True):
            tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
        if self.first is not None:
            self.variables = self.first.variables  # what this one adds, others share, too
            self.optimizers.update(self.first.optimizers)
        for op in self.graph.variables:
            if op.name not in self.variables:
                self.variables[op.name] = self._first_variables(op)
        for step in self.graph.train_steps.values():
            if step.name not in self.optimizers:
                shared = self.optimizers.get(step.of)
                running = _started(step.optimizer, self._shards(step)) if shared is None else shared
                self.optimizers[step.name] = running

    @property
    def graph(self) -> Graph:
        """The graph of the strategy."""
        return self.view.graph

    def _shards(self, step: TrainStep) -> Shards:
        tensors = tuple(self.graph.operators[name].result for name in step.variables)
        layouts = tuple(self.view.layout(tensor) for tensor in tensors)
        shards = tuple(tuple(self.variables[name]) for name in step.variables)
        mesh, ranks = self.view.strategy.mesh, tuple(self.backend.ranks)
        return Shards(step.name, step.variables, tensors, layouts, mesh, ranks, shards)

    def _first_variables(self, op: Operator) -> list[tf.Variable]:
        replicated = self.initial_value(op.name)
        return local_variables(replicated, op.result, self.view.layout(op.result), self.backend.ranks, op.name)

    def initialize(self) -> None:
        """Reset all variables, the optimizers' too, to their initial values."""
        for op in self.graph.variables:
            for variable, value in zip(self.variables[op.name], self._first_variables(op), strict=True):
                variable.assign(value)
        for optimizer in dict.fromkeys(self.optimizers.values()):
            optimizer.reset()

    def state(self) -> tuple[StateEntry, ...]:
        """Return all variables in a fixed order: the model's, then those of each training step's optimizer."""
        entries = [
            StateEntry(
                op.name, op.result.shape, op.result.dtype, self.view.layout(op.result), tuple(self.variables[op.name]),
                tuple(self.backend.ranks),
            )
            for op in self.graph.variables
        ]
        optimizers = dict.fromkeys(self.optimizers.values())
        return tuple(entries + [entry for optimizer in optimizers for entry in optimizer.state()])

    @property
    def local_parameter_bytes(self) -> list[int]:
        """Return, for each rank that is built here, the bytes of its shards of the trainable variables."""
        totals = [0] * len(self.backend.ranks)
        for op in self.graph.variables:
            if op.is_trainable:
                for i, rank in enumerate(self.backend.ranks):
                    local = self.view.layout(op.result).local_shape(op.result.shape, rank)
                    totals[i] += int(np.prod(local)) * op.result.item_bytes
        return totals

    def add_runs(self, names: Collection[str]) -> None:
        """Make the counts of the random operators of a function that is about to be built."""
        for name in sorted(names):
            if self.graph.operators[name].type in FROM_SEED and name not in self.runs:
                self.runs[name] = tf.Variable(tf.constant(self.runs_before.get(name, 0), tf.int64), trainable=False)

    def count_runs(self, names: Collection[str]) -> None:
        """Emit, at the end of a function, that its random operators have drawn once more."""
        for name, count in sorted(self.runs.items()):
            if name in names:
                count.assign_add(1)

    def read(self, name: str) -> Values:
        """Emit the reading of a variable's shards, given its name."""
        return [variable.value() for variable in self.variables[name]]

    def update(self, op: Operator, operands: list[Values]) -> list[Values]:
        """Emit an operator that updates a variable or reads it; of one that draws, how often it has drawn."""
        if op.type in FROM_SEED:
            return [[self.runs[op.name].value()] * len(self.backend.ranks)]
        assert op.updates is not None
        variables = self.variables[op.updates]
        if op.type in UPDATE_OPERATORS:
            for variable, value in zip(variables, operands[0], strict=True):
                getattr(variable, UPDATE_OPERATORS[op.type])(value)
            return []
        return [self.read(op.updates)]

    def update_of(self, step: TrainStep, emission: Emission) -> PendingUpdate:
        """Return the update of a training step, by gradients of which those of rows are on every rank."""
        pending, condition = self.optimizers[step.name].train(emission), step.optimizer.condition
        is_applied = None if condition is None else emission.replicated(condition)[0]

        def apply(sums: Values | None) -> None:
            if is_applied is None:
                pending.apply(sums)
            else:  # there is no collective in it
                tf.cond(is_applied, lambda: pending.apply(sums), lambda: None)
            for variable in self.variables[step.step_counter] if step.step_counter is not None else ():
                variable.assign_add(tf.ones([], variable.dtype))

        return PendingUpdate(pending.sums, apply)


def _started(optimizer: Optimizer, shards: Shards) -> RunningOptimizer:
    """Return the optimizer at work on the parameters that this process holds."""
    if isinstance(optimizer, Classic):
        return RunningClassic(optimizer, shards)
    # Importing Keras takes a second, which a model without it needn't wait for.
    from ...optimizers.keras_optimizer import KerasOptimizer
    from ...optimizers.keras_running import RunningKeras

    assert isinstance(optimizer, KerasOptimizer)
    return RunningKeras(optimizer, shards)
