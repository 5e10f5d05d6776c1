"""Write what a stage of a pipeline exchanges with others: tensors and gradients that it sends, gradients that it is sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..ir.graph import Graph, Tensor
from ..sharding.stages import Crossing, Stages
from .forward import ForwardPass
from .tasks import BACKWARD, FEED, FORWARD, GRADIENT, RESULT, SEND, SENT, SUM, Site, Task, Value

OfStep = tuple[str, str]
"""The name of a training step, and of a tensor that has a gradient of the step's loss."""


@dataclass(frozen=True, slots=True)
class StageEnds:
    """The tensors that a stage of a pipeline is sent and those whose gradients it sends back.

    Attributes:
        received: what other stages compute. A micro-batch's is there from the beginning of its forward pass.
        returned: training steps, each with the name of one of them whose gradient of the step's loss is sent back.
        divides: whether a backward pass runs first what these gradients need, see :func:`.deferral.divided`.
        in_passes: whether the bytes of each micro-batch's passes are counted; else those of a step, one after the other.
        sent: the tensors that it sends, in order. This and what follows is of a program that is run.
        given: training steps, each with the name of a tensor whose gradient other stages send to it.
        late: the tensors of ``returned`` whose gradients no pass of another stage waits for.
        added: training steps, each with a variable's tensor whose gradient comes in part from what the stage sent before its
            passes.
        are_consecutive: whether each micro-batch takes consecutive samples, whatever the number of the stage's devices.
        losses: the losses of training steps, by the steps' names, None for one that the stage doesn't compute; without one a
            backward pass begins with the loss that the stage is planned by.
    """

    received: frozenset[str] = frozenset()
    returned: frozenset[OfStep] = frozenset()
    divides: bool = False
    in_passes: bool = True
    sent: tuple[str, ...] = ()
    given: tuple[OfStep, ...] = ()
    late: frozenset[str] = frozenset()
    added: tuple[OfStep, ...] = ()
    are_consecutive: bool = False
    losses: Mapping[str, Tensor | None] = field(default_factory=dict, hash=False)

    def returned_of(self, step: str) -> frozenset[str]:
        """Return the tensors whose gradients of a step's loss are sent back."""
        return frozenset(tensor for name, tensor in self.returned if name == step)


NOTHING_CROSSES = StageEnds(in_passes=False)
"""The ends of a step that isn't cut."""


def ends_of(
    stages: Stages, stage: int, graph: Graph, sent: Sequence[Crossing], received: Sequence[Crossing],
    train_steps: Collection[str], divides: bool, tables: Collection[OfStep] = (),
) -> StageEnds:  # fmt: skip
    """Return the ends of a stage in a function that runs some training steps.

    Args:
        graph: the stage's.
        tables: as ``added``, whether or not the batch is taken at once.
    """
    trained, returned = (
        dict.fromkeys((step, each.tensor) for each in crossings for step in each.steps if step in train_steps)
        for crossings in (sent, received)
    )
    is_cut, steps = graph.micro_batching is not None, stages.whole.graph.train_steps
    losses = {name: steps[name].loss for name in train_steps}
    return StageEnds(
        returned=frozenset(returned),
        divides=divides and bool(returned),
        sent=tuple(dict.fromkeys(crossing.tensor for crossing in sent)),
        given=tuple(dict.fromkeys([*trained, *(tables if is_cut else ())])),
        late=frozenset(each.tensor for each in received if not is_cut and each not in stages.awaited),
        added=() if is_cut else tuple(tables),
        are_consecutive=stages.n > 1,
        losses={
            name: graph.tensors[loss.name] if stages.home(loss) == stage else None
            for name, loss in losses.items() if loss is not None
        },
    )  # fmt: skip


def send(ends: StageEnds, forward: ForwardPass, n_runs: int) -> None:
    """Write the sending of the tensors that a step computes so often."""
    graph = forward.view.graph
    for name in ends.sent:
        if graph.n_runs(name) == n_runs:
            value = forward.operand(Site(SENT, name), graph.tensors[name])
            forward.append(Task(SEND, FORWARD, Site(SENT, name), (value,), ()))


def fed_gradients(ends: StageEnds, forward: ForwardPass, n_runs: int, step: str, number: int) -> dict[Site, Value]:
    """Write the gradients of a step's loss that other stages send, of tensors that are computed so often; return them.

    Args:
        number: that of the backward pass.
    """
    gradients: dict[Site, Value] = {}
    for name in (tensor for of, tensor in ends.given if of == step):
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


def add_gradients(ends: StageEnds, forward: ForwardPass, arrived: dict[Site, Value], step: str, number: int) -> None:
    """Add to the gradients that have arrived at variables those by what the stage sent before its passes."""
    for name in (tensor for of, tensor in ends.added if of == step):
        site = Site(RESULT, name)
        fed = total = Value(site, GRADIENT, backward_pass=number)
        forward.append(Task(FEED, BACKWARD, site, (), (fed,), step=step))
        if site in arrived:
            total = fed._replace(n_summed=2)
            forward.append(Task(SUM, BACKWARD, site, (arrived[site], fed), (total,)))
        arrived[site] = total
