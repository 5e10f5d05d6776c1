"""Write the updates of variables, each as soon as its gradient has arrived and its old value has been read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..ir.graph import TrainStep
from .gradient_flow import GradientFlow
from .tasks import BACKWARD, OPERATOR, RESHARD, RESULT, RETURNED, UPDATE, Site, Task, Value, source_of


@dataclass
class Updates:
    """The updates of variables that are to be written.

    Attributes:
        tasks: the tasks of the step, which updates are put between.
        aliases: values that are another value's memory.
        dense: variables' names with the training step, and what each is updated by, the gradient first.
        rows: names of variables that are updated by rows, with the training step, the gradients of what lookups found, and
            the lookups' sites.
    """

    flow: GradientFlow
    tasks: list[Task]
    aliases: Mapping[Value, Value]
    dense: list[tuple[str, str, tuple[Value, ...]]] = field(default_factory=list)
    rows: list[tuple[str, str, list[tuple[Value, Site]], tuple[Value, ...]]] = field(default_factory=list)

    def add(
        self,
        step: TrainStep,
        arrived: Mapping[Site, Value],
        rows: Mapping[Site, Sequence[Value]],
        values: Mapping[str, Value],
        hyperparameters: Sequence[Value],
    ) -> None:
        """Add the updates of a training step.

        Args:
            arrived: the gradients that nothing passed on.
            rows: the gradients of lookups' results in all micro-batches.
            values: what the model computed to update a variable by, by the variable's name.
            hyperparameters: values of the optimizer that the model computes.
        """
        graph, others = self.flow.view.graph, tuple(hyperparameters)
        for name in step.variables:
            lookups = graph.lookups.get(name, ())
            sites = [Site(RESULT, graph.operators[lookup].result.name) for lookup in lookups]
            site = Site(RESULT, graph.operators[name].result.name)
            if lookups:
                gradients = [(value, row_site) for row_site in sites for value in rows.get(row_site, ())]
                self.rows.append((name, step.name, gradients, others))
            elif name in values:
                self.dense.append((name, step.name, (values[name], *others)))
            elif site in arrived:
                self.dense.append((name, step.name, (arrived[site], *others)))

    def write(self, start: int) -> None:
        """Write the updates; those of variables that are updated by rows come last.

        Args:
            start: the index of the first task that needs gradients.
        """
        used: dict[Value | Site, int] = {}
        for index, task in enumerate(self.tasks[start:], start):
            used.update(dict.fromkeys(task.writes, index))
            used.update((source_of(value, self.aliases).site, index) for value in task.reads if not value.is_gradient)
        later: dict[int, list[Task]] = {}
        for name, step, reads in self.dense:
            task = Task(UPDATE, BACKWARD, Site(OPERATOR, name), reads, (), step=step)
            sources = (source_of(value, self.aliases) for value in reads)
            needs = Site(RESULT, self.flow.view.graph.operators[name].result.name), *sources
            last = max((used[need] for need in needs if need in used), default=len(self.tasks) - 1)
            later.setdefault(last + 1, []).append(task)
        for index in sorted(later, reverse=True):
            self.tasks[index:index] = later[index]
        for name, step, gradients, others in self.rows:
            returned = []
            for gradient, site in gradients:
                returned.append(gradient._replace(site=site, version=RETURNED, n_summed=0))
                path = self.flow.path_finder.paths(self.flow.resharded(site)[1]).forward
                stream = self.flow.stream(path, is_overlappable=True)
                self.tasks.append(Task(RESHARD, BACKWARD, site, (gradient,), (returned[-1],), stream=stream))
            self.tasks.append(Task(UPDATE, BACKWARD, Site(OPERATOR, name), (*returned, *others), (), step=step))
