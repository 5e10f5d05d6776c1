"""Write what a stage of a pipeline exchanges with others: tensors and gradients that it sends, gradients that it is sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..ir.graph import Graph, Tensor
from ..sharding.stages import Crossing, Stages
from .fetch import Fetch
from .forward import ForwardPass
from .tasks import BACKWARD, CUT, FEED, FORWARD, GRADIENT, JOIN, RESULT, SEND, SENT, SUM, Site, Task, Value

OfStep = tuple[str, str]
"""The name of a training step, and of a tensor that has a gradient of the step's loss."""


@dataclass(frozen=True, slots=True)
class StageEnds:
    """The tensors that a stage of a pipeline is sent and those whose gradients it sends back.

    Attributes:
        received: what other stages compute. A micro-batch's is there from the beginning of its forward pass.
        returned: training steps, each with the name of one of them whose gradient of the step's loss is sent back.
        divides: whether a backward pass runs first what these gradients need, see :func:`.deferral.divided`.
        counts_passes: whether the bytes of each micro-batch's passes are counted; else those of a step, one after the other.
        awaited: the names of the operators whose gradients stand for those that other stages send: each sums what is sent,
            for the loss by which the stage is planned.
        sent: the tensors that it sends, in order. This and what follows is of a program that is run.
        given: training steps, each with the name of a tensor whose gradient other stages send to it.
        late: the tensors of ``returned`` whose gradients no pass of another stage waits for.
        ahead: the tensors that it sends before its passes, of all micro-batches; gradients of these come behind its passes.
            They are rows that it looks up ahead; of a batch that is trained at once also what follows from its variables.
        are_consecutive: whether each micro-batch takes consecutive samples, whatever the number of the stage's devices.
        losses: the losses of training steps, by the steps' names, None for one that the stage doesn't compute; without one a
            backward pass begins with the loss that the stage is planned by.
    """

    received: frozenset[str] = frozenset()
    returned: frozenset[OfStep] = frozenset()
    divides: bool = False
    counts_passes: bool = True
    awaited: frozenset[str] = frozenset()
    sent: tuple[str, ...] = ()
    given: tuple[OfStep, ...] = ()
    late: frozenset[str] = frozenset()
    ahead: tuple[str, ...] = ()
    are_consecutive: bool = False
    losses: Mapping[str, Tensor | None] = field(default_factory=dict, hash=False)

    def returned_of(self, step: str) -> frozenset[str]:
        """Return the tensors whose gradients of a step's loss are sent back."""
        return frozenset(tensor for name, tensor in self.returned if name == step)


NOTHING_CROSSES = StageEnds(counts_passes=False)
"""The ends of a step that isn't cut."""


def ends_of(
    stages: Stages, stage: int, graph: Graph, sent: Sequence[Crossing], received: Sequence[Crossing],
    train_steps: Collection[str], divides: bool,
) -> StageEnds:  # fmt: skip
    """Return the ends of a stage, whose graph is given, in a function that runs some training steps."""
    trained, returned = (
        dict.fromkeys((step, each.tensor) for each in crossings for step in each.steps if step in train_steps)
        for crossings in (sent, received)
    )
    is_at_once, steps = graph.micro_batching is None, stages.whole.graph.train_steps
    losses = {name: steps[name].loss for name in train_steps}
    arriving = {graph.producers[each.tensor].name for each in received}
    early = [
        each
        for each in sent
        if each.is_ahead or (is_at_once and train_steps and each not in stages.awaited
                             and arriving.isdisjoint(graph.ancestors([graph.tensors[each.tensor]])))
    ]  # fmt: skip
    return StageEnds(
        returned=frozenset(returned),
        divides=divides and bool(returned),
        sent=tuple(dict.fromkeys(crossing.tensor for crossing in sent if crossing not in early)),
        given=tuple(trained),
        late=frozenset(each.tensor for each in received if is_at_once and each not in stages.awaited),
        ahead=tuple(dict.fromkeys(crossing.tensor for crossing in early)),
        are_consecutive=stages.n > 1,
        losses={
            name: graph.tensors[loss.name] if stages.home(loss) == stage else None
            for name, loss in losses.items() if loss is not None
        },
    )  # fmt: skip


def send(names: Collection[str], forward: ForwardPass, n_runs: int) -> None:
    """Write the sending of those tensors that a step computes so often."""
    graph = forward.view.graph
    for name in names:
        if graph.n_runs(name) == n_runs:
            value = forward.operand(Site(SENT, name), graph.tensors[name])
            forward.append(Task(SEND, FORWARD, Site(SENT, name), (value,), ()))


def fed_gradients(ends: StageEnds, forward: ForwardPass, n_runs: int, step: str, number: int) -> dict[Site, Value]:
    """Write the gradients of a step's loss that other stages send, of tensors that are computed so often; return them.

    Args:
        number: that of the backward pass.
    """
    gradients: dict[Site, Value] = {}
    for name in (tensor for of, tensor in ends.given if of == step and tensor not in ends.ahead):
        if forward.view.graph.n_runs(name) == n_runs:
            site = Site(RESULT, name)
            gradients[site] = Value(site, GRADIENT, backward_pass=number)
            forward.append(Task(FEED, BACKWARD, site, (), (gradients[site],), step=step))
    return gradients


def sent_back(forward: ForwardPass, arrived: dict[Site, Value], names: Collection[str], step: str) -> list[Task]:
    """Return the sending of tensors' gradients of a step's loss as tasks; they are taken from those that have arrived."""
    sent = {Site(RESULT, name): arrived.pop(Site(RESULT, name), None) for name in sorted(names)}
    return [
        Task(SEND, BACKWARD, site, (value,), (), micro_batch=forward.micro_batch, step=step)
        for site, value in sent.items()
        if value is not None
    ]


# What is sent before the passes


def ahead_alone(stages: Stages, graph: Graph, fetch: Fetch, operators: set[str]) -> set[str]:
    """Return the lookups that a stage runs ahead alone: nothing that it needs otherwise uses their rows."""
    fetched = {tensor.name for tensor, _ in fetch.tensors}
    return {
        name
        for name in operators.intersection(stages.ahead.lookups)
        if graph.operators[name].result.name not in fetched
        and not any(
            op.name in operators and op.name in stages.whole.graph.operators
            for op in graph.consumers.get(graph.operators[name].result.name, ())
        )
    }


def send_ahead(ends: StageEnds, ahead: ForwardPass) -> None:
    """Write the sending of the rows that micro-batches take, those of the first one first.

    Every rank has the rows of the whole batch, which are cut.
    """
    of_tensors = []
    for name in ends.ahead:
        site = Site(SENT, name)
        rows = ahead.operand(site, ahead.view.graph.tensors[name])
        of_tensors.append(_in_micro_batches(Value(site), ahead))
        ahead.append(Task(CUT, FORWARD, site, (rows,), of_tensors[-1]))
    values = (value for of_micro_batch in zip(*of_tensors, strict=True) for value in of_micro_batch)
    ahead.tasks += (Task(SEND, FORWARD, value.site, (value,), (), micro_batch=value.micro_batch) for value in values)


def add_gradients_ahead(
    ends: StageEnds, ahead: ForwardPass, arrived: dict[Site, Value], starts: Collection[str], step: str, number: int,
    own: int,
) -> None:  # fmt: skip
    """Write the backward pass of what was sent before the passes; add its gradients to those that have arrived.

    Args:
        starts: the tensors with respect to which gradients are taken.
        number: that of the backward pass of other stages.
        own: that which the gradients have.
    """
    seeds: dict[Site, Value] = {}
    for name in (tensor for of, tensor in ends.given if of == step and tensor in ends.ahead):
        sent = Value(Site(SENT, name), GRADIENT, backward_pass=number)
        is_cut = ahead.view.graph.n_runs(name) > 1
        parts = _in_micro_batches(sent, ahead) if is_cut else (sent,)
        ahead.tasks += (Task(FEED, BACKWARD, sent.site, (), (v,), micro_batch=v.micro_batch, step=step) for v in parts)
        if is_cut:
            ahead.append(Task(JOIN, BACKWARD, Site(RESULT, name), parts, (sent,)))
        seeds[Site(RESULT, name)] = sent
    for site, value in (ahead.back(seeds, starts, own) if seeds else {}).items():
        total = value
        if site in arrived:
            total = Value(site, GRADIENT, 2, backward_pass=own)
            ahead.append(Task(SUM, BACKWARD, site, (arrived[site], value), (total,)))
        arrived[site] = total


def _in_micro_batches(value: Value, ahead: ForwardPass) -> tuple[Value, ...]:
    return tuple(value._replace(micro_batch=index) for index in range(ahead.view.graph.n_micro_batches))
