"""The step program as a graph that changes of configs leave as it is: what waits for what.

The nodes are the tasks of the program that has every resharding (:func:`..step.whole_program`), whatever the
strategy. What a task takes is a chain of actions (:mod:`.actions`), none where nothing has to be done, and follows from the
strategy. So a change of one operator's config changes the chains of a few nodes and nothing else. A strategy's own program
has the same tasks but for those that do nothing.

    forward, backward, update     an operator; a variable's update
    write                         to a variable by the model, or a read after that
    share, reshard                to the shared copy of a tensor; from there, or as produced, to a consumer
    loss                          the gradient of a loss, with which the backward pass begins
    share back, reshard back      the gradients' way: from each consumer, then together from the shared copy
    recompute, reshare, regather  in the backward pass: a rematerialized operator, regathered copies
    rows                          of a lookup whose table is updated by rows: its indices and gradients to every device
    join                          waits for others and takes nothing; not a task

A node waits for the tasks that write what its task reads; a sum of gradients is nothing but that. Beyond that

- an update that needs a sum over all gradients waits for all of them;
- a write to a variable waits for updates and writes that come before it;
- a pass begins when the one before it on its devices has been through, but for passes of one micro-batch in one stage;
- a message, of kind ``send``, waits for what is sent, and the stage that it goes to for the message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from ...common.errors import InputError
from ...sharding.resharding import PathFinder
from ...sharding.strategy import StrategyView
from .. import tasks as step_tasks
from ..gradient_flow import GradientFlow
from ..orders.passes import BACKWARD as BACKWARD_PASS
from ..orders.passes import PARAMETERS, WORKS, Orders, Pass
from ..orders.schedule import PLAIN, StepOrder
from ..step import StepProgram, whole_program
from ..tasks import COMPUTE, CUT, FEED, GLOBAL, OPERAND, OPERATOR, RESHARD, RESULT, SENT, SHARED, SUM, Site, Task, Value
from ..tasks import JOIN as JOIN_TASK

FORWARD, BACKWARD, UPDATE, WRITE, ROWS, LOSS, JOIN = "forward", "backward", "update", "write", "rows", "loss", "join"
SHARE, RESHARDED, SHARE_BACK, RESHARD_BACK = "share", "reshard", "share back", "reshard back"
RECOMPUTE, RESHARE, REGATHER, SEND = "recompute", "reshare", "regather", "send"
HALVES = BACK_FIRST, DEFERRED = "backward, what is sent", "backward, deferred"
"""The parts of an operator's gradients, where a stage defers those that no other waits for: each takes half of the time."""
_KINDS = {
    (COMPUTE, step_tasks.FORWARD): FORWARD, (FEED, step_tasks.FORWARD): FORWARD, (FEED, step_tasks.BACKWARD): LOSS,
    (COMPUTE, step_tasks.BACKWARD): BACKWARD, (COMPUTE, step_tasks.REMATERIALIZED): RECOMPUTE,
    (step_tasks.WRITE, step_tasks.FORWARD): WRITE, (step_tasks.SEND, step_tasks.FORWARD): SEND,
    (step_tasks.SEND, step_tasks.BACKWARD): SEND,
}  # fmt: skip
_KINDS_OF_RESHARDINGS = {
    (SHARED, step_tasks.FORWARD): SHARE, (OPERAND, step_tasks.FORWARD): RESHARDED, (GLOBAL, step_tasks.FORWARD): RESHARDED,
    (SENT, step_tasks.FORWARD): RESHARDED, (SHARED, step_tasks.BACKWARD): SHARE_BACK,
    (OPERAND, step_tasks.BACKWARD): RESHARD_BACK, (RESULT, step_tasks.BACKWARD): ROWS,
    (SHARED, step_tasks.REMATERIALIZED): RESHARE, (OPERAND, step_tasks.REMATERIALIZED): REGATHER,
}  # fmt: skip


class StepNode(NamedTuple):
    """A task of a step; of a bucket, what is done for one of its gradients.

    Attributes:
        kind: one of the kinds of the module docstring.
        site: the task's site; of ``rows``, the lookup.
        tensor: the tensor that is resharded; empty for others.
        micro_batch: the task's micro-batch; -1 for what is done once a step.
        number: the number of the backward pass; of an update, its number among the updates of its variable.
        stage: the number of the stage whose task it is.
    """

    kind: str
    site: Site
    tensor: str = ""
    micro_batch: int = -1
    number: int = 0
    stage: int = 0

    @property
    def name(self) -> str:
        """The name of the tensor that is resharded, or else of the operator."""
        return self.tensor or self.site.name

    def __str__(self) -> str:
        to = f" for {self.site}" if self.site.kind == OPERAND else ""
        return f"{self.kind} {self.name}{to}" + (f", micro-batch {self.micro_batch + 1}" if self.micro_batch >= 0 else "")


@dataclass(frozen=True, eq=False)
class StepGraph:
    """The nodes of a step, in an order in which each comes after those that it waits for.

    Attributes:
        waits_for: the numbers of the nodes that each waits for.
        by_operator: the numbers of the nodes whose actions depend on an operator's config, by its name.
        by_tensor: the numbers of the nodes whose actions depend on a tensor's shared copy, by its name.
    """

    nodes: tuple[StepNode, ...]
    waits_for: tuple[tuple[int, ...], ...]
    by_operator: Mapping[str, Sequence[int]]
    by_tensor: Mapping[str, Sequence[int]]

    @cached_property
    def leads_to(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the nodes that wait for each."""
        followers: list[list[int]] = [[] for _ in self.nodes]
        for number, sources in enumerate(self.waits_for):
            for before in sources:
                followers[before].append(number)
        return tuple(map(tuple, followers))

    def touched(self, operators: Iterable[str], tensors: Iterable[str] = ()) -> list[int]:
        """Return the numbers of the nodes whose actions may differ if these operators' configs, or tensors' copies, do."""
        numbers = dict.fromkeys(number for name in operators for number in self.by_operator.get(name, ()))
        numbers.update(dict.fromkeys(number for name in tensors for number in self.by_tensor.get(name, ())))
        return list(numbers)


def step_graph(view: StrategyView, path_finder: PathFinder) -> StepGraph:
    """Return the nodes of the training steps of a model.

    They depend on the strategy in this alone: what is rematerialized or regathered has nodes, and a tensor with one consumer
    has a node for its shared copy if the strategy shares it.

    Raises:
        InputError: a loss needs gradients or updated values, so that there are several passes, one after the other.
    """
    program = whole_program(view, path_finder)
    orders = StepOrder(PLAIN, view.graph.n_micro_batches, (1,), (0,)).orders
    return stages_graph([StageProgram(view, program, GradientFlow(view, path_finder))], orders)


@dataclass(frozen=True)
class StageProgram:
    """The program of a stage, which has every resharding.

    Attributes:
        senders: by tensor name and, of its gradient, the training step, the stages that send it to this one.
    """

    view: StrategyView
    program: StepProgram
    flow: GradientFlow
    senders: Mapping[tuple[str, str], Sequence[int]] = field(default_factory=dict)


def stages_graph(stages: Sequence[StageProgram], orders: Orders) -> StepGraph:
    """Return the nodes of a step in stages, whose passes run in these orders; see :func:`step_graph`."""
    if any(stage.view.graph.is_sequential for stage in stages):
        raise InputError(
            "the model's steps run one after the other within a step: a loss needs gradients, or values that were updated; "
            "only steps with one forward and one backward pass can be simulated"
        )
    return _Building(stages, orders).build()


def task_nodes(program: StepProgram, flow: GradientFlow) -> Iterator[tuple[Task, tuple[StepNode, ...]]]:
    """Yield the tasks of a program with their nodes: one, for a bucket one for each gradient, for a sum of gradients none.

    A placeholder that each micro-batch feeds by itself has no node beside theirs.
    """
    n_updates: Counter[str] = Counter()
    computed = [task for task in program.tasks if (task.work, task.direction) == (COMPUTE, step_tasks.BACKWARD)]
    n_parts = Counter((task.site, task.micro_batch, task.writes[0].backward_pass) for task in computed if task.writes)
    written: Counter[tuple[object, ...]] = Counter()
    for task in program.tasks:
        number = next((value.backward_pass for value in (*task.writes, *task.reads)), 0)
        if task.work in (SUM, JOIN_TASK, CUT) or (task.work == FEED and not task.writes):
            yield task, ()
        elif task.work == RESHARD:
            yield task, tuple(_of_resharding(task, *ends, flow) for ends in zip(task.reads, task.writes, strict=True))
        elif task.work == step_tasks.UPDATE:
            yield task, (StepNode(UPDATE, task.site, "", -1, n_updates[task.site.name]),)
            n_updates[task.site.name] += 1
        else:
            kind, key = _KINDS[task.work, task.direction], (task.site, task.micro_batch, number)
            if kind == BACKWARD and n_parts[key] > 1:
                kind, written[key] = HALVES[written[key]], 1
            yield task, (StepNode(kind, task.site, "", task.micro_batch, number),)


def _of_resharding(task: Task, read: Value, result: Value, flow: GradientFlow) -> StepNode:
    kind, site = _KINDS_OF_RESHARDINGS[task.site.kind, task.direction], result.site
    if kind == ROWS:
        return StepNode(kind, Site(OPERATOR, flow.view.graph.producers[site.name].name), "", read.micro_batch)
    return StepNode(kind, site, flow.resharded_tensor(site).name, task.micro_batch, result.backward_pass)


class _Building:
    """The graph under construction."""

    def __init__(self, stages: Sequence[StageProgram], orders: Orders) -> None:
        self.stages, self.at = stages, 0
        self._before = {after: before for order in orders for before, after in pairwise(order)}
        self._defers = {run.stage for order in orders for run in order if run.work == PARAMETERS}
        self.waits: dict[StepNode, dict[StepNode, None]] = {}
        # Of a stage by value the nodes after which it is there; by variable the last node that wrote to it.
        self._made: dict[Value, tuple[StepNode, ...]] = {}
        self._written: dict[str, StepNode] = {}
        # The nodes of each pass, the pass of each node, and the joins that wait for the end of a pass.
        self._nodes_of: dict[Pass, list[StepNode]] = {}
        self._pass_of: dict[StepNode, Pass] = {}
        self._ends: dict[StepNode, Pass] = {}
        self._all_gradients: dict[StepNode, None] = {}
        self._summing: list[StepNode] = []

    def build(self) -> StepGraph:
        for number, stage in enumerate(self.stages):
            self.at, self._made, self._written = number, {}, {}
            for index, (task, nodes) in enumerate(task_nodes(stage.program, stage.flow)):
                self._add(task, tuple(node._replace(stage=number) for node in nodes), self._pass_at(index))
        for join, run in self._ends.items():
            before = [run._replace(work=work) for work in WORKS[: WORKS.index(run.work) + 1]]
            last_nodes = [node for earlier in before for node in self._nodes_of.get(earlier, ())]
            waited_for = {before for node in last_nodes for before in self.waits[node]}
            self.waits[join] = dict.fromkeys(node for node in last_nodes if node not in waited_for)
        if self._summing:
            join = StepNode(JOIN, Site(OPERATOR, "all gradients"))
            self.waits[join] = self._all_gradients
            self.waits.update((node, {join: None}) for node in self._summing)
        return self._sorted()

    def _pass_at(self, index: int) -> Pass | None:
        """Return the pass of a stage's task, given its index; None of what comes before or after all passes."""
        passes = self.stages[self.at].program.passes
        at = bisect_right(passes, index) - 1
        if not 0 <= at < len(passes) - 1:
            return None
        work = WORKS[at % 3]
        return Pass(self.at, at // 3, BACKWARD_PASS if work == PARAMETERS and self.at not in self._defers else work)

    def _add(self, task: Task, nodes: tuple[StepNode, ...], run: Pass | None) -> None:
        needs = dict.fromkeys(node for value in (*task.all_reads, *task.after) for node in self._after(value))
        if task.work == FEED and not task.reads and task.writes:  # it may come from other stages, in messages
            name, number = task.writes[0].site.name, task.writes[0].backward_pass
            message = StepNode(SEND, Site(RESULT if task.step else SENT, name), "", task.micro_batch, number)
            senders = self.stages[self.at].senders.get((name, task.step), ())
            needs.update(dict.fromkeys(message._replace(stage=stage) for stage in senders))
        if not nodes:
            self._made.update(dict.fromkeys(task.writes, tuple(needs)))
            return
        (node,) = nodes  # the whole program has no buckets
        graph = self.stages[self.at].view.graph
        if node.kind == UPDATE:
            if any(update.sums for update in graph.updates[node.name]):
                self._all_gradients.update(needs)
                self._summing.append(node)
            self._written[node.name] = node
        if node.kind == WRITE:
            variable = graph.operators[node.name].updates
            assert variable is not None
            needs.update(dict.fromkeys([self._written[variable]] if variable in self._written else ()))
            self._written[variable] = node
        if run is not None and task.micro_batch >= 0:
            before = self._before.get(run)
            begins = not any(self._pass_of.get(need) == run for need in needs)
            if begins and before is not None and before[:2] != run[:2]:
                needs[self._end_of(before)] = None
            self._pass_of[node] = run
            if node.kind != SEND:  # nobody waits for a message but the stage that it goes to
                self._nodes_of.setdefault(run, []).append(node)
        self.waits[node] = needs
        self._made.update(dict.fromkeys(task.writes, nodes))

    def _after(self, value: Value) -> tuple[StepNode, ...]:
        """Return the nodes after which a value is there."""
        while value not in self._made:
            value = self.stages[self.at].program.aliases[value]
        return self._made[value]

    def _end_of(self, run: Pass) -> StepNode:
        """Return the node that waits for the end of a pass, and of those before it of its micro-batch and stage."""
        join = StepNode(JOIN, Site(OPERATOR, "micro-batch"), "", run.micro_batch, WORKS.index(run.work), run.stage)
        self.waits.setdefault(join, {})
        self._ends[join] = run
        return join

    def _sorted(self) -> StepGraph:
        """Return the nodes in topological order; of several that could come next the one that was added first."""
        unsorted = list(self.waits)
        number = {node: i for i, node in enumerate(unsorted)}
        sorter = TopologicalSorter({i: [number[before] for before in self.waits[node]] for i, node in enumerate(unsorted)})
        sorter.prepare()
        heap: list[int] = []
        position: dict[int, int] = {}
        while sorter.is_active():
            for i in sorter.get_ready():
                heappush(heap, i)
            first = heappop(heap)
            position[first] = len(position)
            sorter.done(first)
        nodes = tuple(unsorted[i] for i in position)
        waits_for = tuple(tuple(sorted(position[number[before]] for before in self.waits[node])) for node in nodes)
        by_operator: dict[str, list[int]] = {}
        by_tensor: dict[str, list[int]] = {}
        for at, node in enumerate(nodes):
            for name in self._decided_by(node):
                by_operator.setdefault(name, []).append(at)
            if node.tensor:
                by_tensor.setdefault(node.tensor, []).append(at)
        return StepGraph(nodes, waits_for, by_operator, by_tensor)

    def _decided_by(self, node: StepNode) -> set[str]:
        """Return the names of the operators on whose configs a node's actions depend."""
        graph = self.stages[node.stage].view.graph
        operators, names = graph.operators, set()
        if node.tensor:
            producer = graph.producers[node.tensor]
            names.add(producer.updates or producer.name)
        if node.site.name in operators and node.site.kind in (OPERATOR, OPERAND):
            names.add(operators[node.site.name].updates or node.site.name)
        return names
