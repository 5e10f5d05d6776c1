"""Write what a stage of a pipeline exchanges with others: tensors and gradients that it sends, gradients that it is sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..ir.graph import Graph, Tensor
from ..sharding.stages import Crossing, Stages
from .forward import ForwardPass
from .tasks import BACKWARD, FEED, FORWARD, GRADIENT, RESULT, SEND, SENT, SUM, Site, Task, Value


@dataclass(frozen=True, slots=True)
class StageEnds:
    """The tensors that a stage of a pipeline is sent and those whose gradients it sends back.

    Attributes:
        received: what other stages compute. A micro-batch's is there from the beginning of its forward pass.
        returned: those of them whose gradients are sent back.
        divides: whether a backward pass runs first what these gradients need, see :func:`.deferral.divided`.
        in_passes: whether the bytes of each micro-batch's passes are counted; else those of a step, one after the other.
        sent: the tensors that it sends, in order. This and what follows is of a program that is run.
        given: the tensors whose gradients other stages send to it.
        late: those of ``returned`` whose gradients no pass of another stage waits for.
        added: tensors of variables whose gradients come in part from what the stage sent before its passes.
        are_consecutive: whether each micro-batch takes consecutive samples, whatever the number of the stage's devices.
        losses: the losses of training steps, by the steps' names, None for one that the stage doesn't compute; without one a
            backward pass begins with the loss that the stage is planned by.
    """

    received: frozenset[str] = frozenset()
    returned: frozenset[str] = frozenset()
    divides: bool = False
    in_passes: bool = True
    sent: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    late: frozenset[str] = frozenset()
    added: tuple[str, ...] = ()
    are_consecutive: bool = False
    losses: Mapping[str, Tensor | None] = field(default_factory=dict, hash=False)


NOTHING_CROSSES = StageEnds(in_passes=False)
"""The ends of a step that isn't cut."""


def ends_of(
    stages: Stages, stage: int, graph: Graph, sent: Sequence[Crossing], received: Sequence[Crossing],
    train_steps: Collection[str], divides: bool, tables: Collection[str] = (),
) -> StageEnds:  # fmt: skip
    """Return the ends of a stage in a function that runs some training steps.

    Args:
        graph: the stage's.
        tables: variables whose gradients come in part from what the stage sends before its passes.
    """
    trained, returned = ([c for c in crossings if c.has_gradient and train_steps] for crossings in (sent, received))
    is_cut, steps = graph.micro_batching is not None, stages.whole.graph.train_steps
    losses = {name: steps[name].loss for name in train_steps}
    return StageEnds(
        returned=frozenset(crossing.tensor for crossing in returned),
        divides=divides and bool(returned),
        sent=tuple(dict.fromkeys(crossing.tensor for crossing in sent)),
        given=tuple(dict.fromkeys([*(crossing.tensor for crossing in trained), *(tables if is_cut else ())])),
        late=frozenset(crossing.tensor for crossing in returned if not is_cut and crossing not in stages.awaited),
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


def fed_gradients(ends: StageEnds, forward: ForwardPass, n_runs: int) -> dict[Site, Value]:
    """Write the gradients that other stages send of the tensors that a step computes so often; return them."""
    gradients: dict[Site, Value] = {}
    for name in ends.given:
        if forward.view.graph.n_runs(name) == n_runs:
            site = Site(RESULT, name)
            gradients[site] = Value(site, GRADIENT)
            forward.append(Task(FEED, BACKWARD, site, (), (gradients[site],)))
    return gradients


def sent_back(forward: ForwardPass, arrived: dict[Site, Value], names: Collection[str]) -> list[Task]:
    """Return the sending of tensors' gradients as tasks; they are taken from those that have arrived."""
    sent = {Site(RESULT, name): arrived.pop(Site(RESULT, name), None) for name in sorted(names)}
    return [
        Task(SEND, BACKWARD, site, (value,), (), micro_batch=forward.micro_batch)
        for site, value in sent.items()
        if value is not None
    ]


def add_gradients(ends: StageEnds, forward: ForwardPass, arrived: dict[Site, Value]) -> None:
    """Add to the gradients that have arrived at variables those by what the stage sent before its passes."""
    for name in ends.added:
        site = Site(RESULT, name)
        fed = total = Value(site, GRADIENT, backward_pass=1)
        forward.append(Task(FEED, BACKWARD, site, (), (fed,)))
        if site in arrived:
            total = fed._replace(n_summed=2)
            forward.append(Task(SUM, BACKWARD, site, (arrived[site], fed), (total,)))
        arrived[site] = total
