"""Check the invariants of a step program.

- Each value is written once, and before it is read.
- A micro-batch reads its own values and those that are made once a step.
- Each gradient is used once: passed on through an operator or a resharding, summed, or applied by an update.
- Where an operator's gradient reads that of a result, and where a variable is updated, the gradients of all consumers of the
  tensor are in it, each once.
- No value of a variable is read after its update.
- What is made again waits for gradients that have arrived.
- Only reshardings are in a stream of communication. (The order of a stream is the program's, which is one for all ranks.)
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.graph import Graph
from .step import StepProgram
from .tasks import BACKWARD, COMPUTE, COMPUTING, FEED, REMATERIALIZED, RESHARD, RESULT, SUM, UPDATE, Site, Task, Value

AROUND = 3
"""So many tasks before and after the one at fault are shown."""


def check_program(program: StepProgram, graph: Graph) -> None:
    """Check a program of a graph against the invariants of the module docstring.

    Raises:
        AssertionError: an invariant is broken; the message names the task at fault and prints those around it.
    """
    _Check(program, graph).run()


class _Check:
    """The state of a check after some of the tasks."""

    def __init__(self, program: StepProgram, graph: Graph) -> None:
        self.program, self.graph = program, graph
        self._written: set[Value] = set()
        self._used: set[Value] = set()
        # By gradient, the operands of which it has the gradients; by tensor and backward pass, those written so far.
        self._parts: dict[Value, list[Value]] = {}
        self._of_tensor: dict[tuple[str, int, int], list[Value]] = {}
        self._complete: dict[tuple[str, int, int], int] = {}
        self._updated: set[Site] = set()
        self._index = 0

    def run(self) -> None:
        for index, task in enumerate(self.program.tasks):
            self._index = index
            self._check_reads(task)
            if task.direction == BACKWARD or task.work == UPDATE:
                self._check_gradients(task)
            for value in task.writes:
                self._hold(value not in self._written, f"{value} is written a second time")
                self._written.add(value)
            if task.work == UPDATE:
                self._updated.add(Site(RESULT, self.graph.operators[task.site.name].result.name))
            is_alone = task.stream == COMPUTING or task.work == RESHARD
            self._hold(is_alone, f"{task.work} is in the stream of {task.stream}")

    def _hold(self, holds: bool, fault: str) -> None:
        """Raise AssertionError with the tasks around the current one if something doesn't hold."""
        if holds:
            return
        first, tasks = max(0, self._index - AROUND), self.program.tasks
        around = [
            f"{'-> ' if number == self._index else '   '}{number}: {task}"
            for number, task in enumerate(tasks[first : self._index + AROUND + 1], first)
        ]
        raise AssertionError("\n".join([f"step program, task {self._index}: {fault}; around it:", *around]))

    def _check_reads(self, task: Task) -> None:
        for value in (*task.all_reads, *task.after):
            source = value
            while source not in self._written and source in self.program.aliases:
                source = self.program.aliases[source]
            self._hold(source in self._written, f"{value} is read, which no earlier task writes")
            belongs = task.micro_batch < 0 or source.micro_batch in (-1, task.micro_batch)
            self._hold(belongs, f"{value} is read in micro-batch {task.micro_batch}")
            is_old = source.site in self._updated and not source.is_gradient
            self._hold(not is_old, f"{value} is read after the update of its variable")
        for value in task.after:
            self._hold(value.is_gradient, f"{task.site} is made again after {value}, which isn't a gradient")
        waits = task.direction != REMATERIALIZED or bool(task.after)
        self._hold(waits, f"{task.site} is made again, and waits for nothing")

    def _check_gradients(self, task: Task) -> None:
        """Check that gradients are used once, and that none is left out of a sum."""
        gradients = [value for value in task.all_reads if value.is_gradient]
        for value in gradients:
            self._hold(value not in self._used, f"{value} is used a second time")
            self._used.add(value)
        if task.work == FEED:
            self._parts.update((value, []) for value in task.writes)
        elif task.work == SUM:
            parts = [part for value in gradients for part in self._parts[value]]
            self._hold(len(set(parts)) == len(parts), f"{task.writes[0]} has a gradient twice")
            self._parts[task.writes[0]] = parts
        elif task.work == RESHARD:
            for value, returned in zip(gradients, task.writes, strict=True):
                self._parts[returned] = self._parts[value]
        elif task.work == COMPUTE:
            op = self.graph.operators[task.site.name]
            for index, value in task.gradients:
                self._complete_at(op.outputs[index].name, task, value)
            for value in task.writes:
                self._add_part(op.operand(value.site.position).name, value)
        else:
            for value in gradients if task.site.name not in self.graph.lookups else ():
                self._complete_at(self.graph.operators[task.site.name].result.name, task, value)

    def _add_part(self, name: str, value: Value) -> None:
        """Note that an operand's gradient is one of its tensor's."""
        self._parts[value] = [value]
        key = name, value.micro_batch, value.backward_pass
        self._of_tensor.setdefault(key, []).append(value)
        self._hold(key not in self._complete, f"{value} comes after the gradient of {name} has been used")

    def _complete_at(self, name: str, task: Task, value: Value) -> None:
        """Check that a gradient has all that have come to its tensor."""
        parts = set(self._parts[value])
        micro_batches = {part.micro_batch for part in parts} | {task.micro_batch}
        expected: set[Value] = set()
        for micro_batch in micro_batches:
            key = name, micro_batch, value.backward_pass
            expected.update(self._of_tensor.get(key, ()))
            self._complete[key] = self._index
        missing = expected - parts
        self._hold(not missing, f"{value} lacks {_names(missing)}")
        self._hold(parts <= expected, f"{value} has {_names(parts - expected)}, which isn't a gradient of {name}")


def _names(values: Iterable[Value]) -> str:
    return ", ".join(sorted(map(str, values)))
