"""Emit a function from its program: every operator of the function comes of a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ..ir.graph import Operator, Tensor, TrainStep
from ..lowering.emission import Assign, Sources, TaskEmission
from ..lowering.operators import Values
from ..lowering.resharding.reshard import Resharder
from ..optimizers.running_optimizer import PendingUpdate, RunningOptimizer
from ..program.gradient_flow import GradientFlow
from ..program.step import StepProgram
from ..program.tasks import OPERAND, RESULT, UPDATE, Site, Task
from ..sharding.consumers import HYPERPARAMETER
from ..sharding.resharding import PathFinder
from ..sharding.strategy import StrategyView

Gradients = list[list[Values | None]]
"""For each parameter its gradient, or those of the rows that its lookups found; None for one that isn't there."""
Train = Callable[[TrainStep, "StepEmission", Gradients, list[list[Values]]], PendingUpdate]


class StepEmission(TaskEmission):
    """The emission of a function that takes its batch at once.

    Attributes:
        n_forward: the number of TensorFlow's operators when the first backward pass began.
    """

    def __init__(
        self,
        program: StepProgram,
        view: StrategyView,
        path_finder: PathFinder,
        resharder: Resharder,
        sources: Sources,
        assign: Assign,
        optimizers: Mapping[str, RunningOptimizer],
        train: Train,
        train_steps: Sequence[str],
    ) -> None:
        """Take a program.

        Args:
            optimizers: those of the training steps, by the steps' names.
            train: returns the update of a training step, given the gradients and the indices that were looked up.
            train_steps: the names of the training steps.
        """
        flow, is_training = GradientFlow(view, path_finder), any(task.direction != "forward" for task in program.tasks)
        super().__init__(view, path_finder, resharder, program.aliases, flow, sources, assign, is_training)
        self.n_forward = 0
        self._program, self._optimizers, self._train, self._to_train = program, optimizers, train, list(train_steps)
        self._updates: dict[str, dict[str, Task]] = {name: {} for name in train_steps}
        self._n_updates = Counter(task.step for task in program.tasks if task.work == UPDATE)

    def results(self) -> list[Values]:
        """Emit all tasks; return the values of the tensors that the function returns."""
        tasks = self._program.tasks
        self.run(tasks[: self._program.n_forward])
        self.n_forward = len(tf.compat.v1.get_default_graph().get_operations())
        self.run(tasks[self._program.n_forward :])
        for name in tuple(self._to_train):
            self._apply(name)
        return [self.value(each) for each in self._program.fetched]

    def hyperparameter(self, step: TrainStep, tensor: Tensor) -> Values:
        """Return a value that the optimizer of a training step reads, on every rank."""
        return self.at(Site(OPERAND, step.name, HYPERPARAMETER - step.optimizer.tensors.index(tensor)))

    def _scaled(self, gradients: str, losses: Values) -> Values:
        step = self.view.graph.train_steps.get(gradients)
        return losses if step is None or step.loss is None else self._optimizers[gradients].scaled(losses)

    def _write(self, op: Operator, operands: list[Values]) -> list[Values]:
        """Emit an operator that updates a variable, or reads it, behind the training steps that it waits for."""
        for name in op.controls:
            self._apply(name)
        return super()._write(op, operands)

    def _update(self, task: Task) -> None:
        """Emit the update of a training step, when all of its gradients have been emitted."""
        updates = self._updates[task.step]
        updates[task.site.name] = task
        if len(updates) == self._n_updates[task.step]:
            self._apply(task.step)

    def _apply(self, name: str) -> None:
        """Emit the update of a training step that the function runs, once."""
        if name not in self._to_train:
            return
        self._to_train.remove(name)
        graph, step = self.view.graph, self.view.graph.train_steps[name]
        gradients: Gradients = []
        indices: list[list[Values]] = []
        for variable in step.variables:
            task = self._updates[name].get(variable)
            lookups = [graph.operators[each] for each in graph.lookups.get(variable, ())] if task is not None else []
            read = [] if task is None else [(value.site, self.values_or_none(value)) for value in task.reads]
            if lookups:
                gradients.append([dict(read).get(Site(RESULT, op.result.name)) for op in lookups])
            else:
                gradients.append([read[0][1] if read else None])
            indices.append([self.looked_up_indices(op) for op in lookups])
        update = self._train(step, self, gradients, indices)
        update.apply(update.sums)
