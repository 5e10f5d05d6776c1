"""The parts of a model in stages as they run: the strategy of each stage, and what a function asks of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...common.errors import InputError
from ...ir.graph import PLACEHOLDER, Graph
from ...ir.micro_batching import MicroBatch
from ...program.fetch import Fetch, operators_of
from ...program.orders.passes import Orders
from ...program.stage_ends import ahead_alone
from ...sharding.model import Model
from ...sharding.stages import Stages
from ...sharding.strategy import Strategy, StrategyView
from .functions import names
from .stage_state import StageState
from .transfers import EmulatedTransfers, Transfers


@dataclass(frozen=True)
class StageView:
    """The strategy of a stage on its graph and on that of one micro-batch, and the numbers of its devices."""

    whole: StrategyView
    per_micro_batch: StrategyView
    devices: tuple[int, ...]

    @classmethod
    def of(cls, whole: Model, sliced: Model, strategy: Strategy, devices: tuple[int, ...]) -> StageView:
        """Return a strategy on a stage's model and on that of a micro-batch, which may be the same."""
        view = whole.view(strategy)
        return cls(view, view if sliced.graph is whole.graph else sliced.view(strategy), devices)


@dataclass
class RunningStages:
    """A model in its stages, as this process runs them.

    Attributes:
        stages: the model, cut into stages.
        views: each stage's strategy.
        orders: the order of the passes of each stage, or of each submesh that several share.
        states: by number, the stages that this process builds, with their variables and optimizers.
        transfers: returns what carries messages between the stages of one function.
        machine_of: for each device the number of its machine.
    """

    stages: Stages
    views: tuple[StageView, ...]
    orders: Orders
    states: Mapping[int, StageState]
    transfers: Callable[[], Transfers] = EmulatedTransfers
    machine_of: tuple[int, ...] = ()

    @property
    def graph(self) -> Graph:
        """The graph of the whole model."""
        return self.stages.whole.graph

    @cached_property
    def is_everywhere(self) -> bool:
        """Whether every rank has a part of every stage, and so can be fed its share of the batch."""
        return len({view.devices for view in self.views}) == 1

    @cached_property
    def micro_batches(self) -> tuple[tuple[MicroBatch, ...], ...]:
        """The micro-batches of each stage, none where the program doesn't train.

        They take the same samples in all stages, however many devices these have.
        """
        parts = [view.per_micro_batch.graph.micro_batching for view in self.views]
        n_devices = self.views[0].whole.strategy.mesh.n_devices if self.is_everywhere else 1
        return tuple(() if part is None else tuple(MicroBatch(part, i, n_devices) for i in range(part.n)) for part in parts)

    def micro_batches_of(self, fetch: Fetch, stage: int) -> tuple[MicroBatch, ...]:
        """Return the micro-batches in which a stage runs a function; none if it takes the batch as a whole."""
        return self.micro_batches[stage] if fetch.train_steps else ()


@dataclass(frozen=True, slots=True)
class StagePart:
    """The part of a function that one stage runs.

    Attributes:
        fetch: its fetches.
        ahead: the names of those that it runs on the whole batch ahead of all micro-batches, for other stages.
    """

    fetch: Fetch
    needed: set[str]
    ahead: frozenset[str] = frozenset()


def parts_of(stages: Stages, views: Sequence[StageView], fetch: Fetch, fed_names: set[str]) -> list[StagePart]:
    """Return what each stage does in a function.

    Args:
        fed_names: the names of the tensors that are fed.

    Raises:
        InputError: a placeholder that is needed isn't fed.
    """
    requests: set[tuple[str, int]] = set()
    parts: list[StagePart] = []
    whole = stages.whole.graph.operators
    for stage in reversed(range(stages.n)):
        graph = views[stage].whole.graph
        tensors = tuple(fetched for fetched in fetch.tensors if stages.home(fetched[0]) == stage)
        operators = tuple(name for name in fetch.operators if name in graph.operators)
        own_fetch = Fetch(tensors, fetch.train_steps, operators)
        outgoing = (crossing for crossing in stages.crossings if crossing.source == stage and not crossing.is_ahead)
        roots = [graph.tensors[crossing.tensor] for crossing in outgoing if (crossing.tensor, crossing.target) in requests]
        incoming = {crossing.tensor for crossing in stages.crossings if crossing.target == stage}
        members = operators_of(graph, own_fetch, fed_names) | graph.ancestors(roots, (), fed_names)
        members = {n for n in members if n in whole or graph.operators[n].type == PLACEHOLDER}  # not a stand-in loss
        members -= ahead_alone(stages, graph, own_fetch, members)
        for name in sorted(members):
            op = graph.operators[name]
            if op.type == PLACEHOLDER and op.result.name in incoming:
                requests.add((op.result.name, stage))
                members.discard(name)
        _check_fed(graph, members, fetch)
        parts.insert(0, StagePart(own_fetch, members))
    return [
        replace(part, ahead=_run_ahead(stages, views[stage].whole.graph, stage, requests, fed_names, fetch))
        for stage, part in enumerate(parts)
    ]


def _run_ahead(
    stages: Stages, graph: Graph, stage: int, requests: set[tuple[str, int]], fed_names: set[str], fetch: Fetch
) -> frozenset[str]:
    """Return the names of the operators that a stage runs ahead, for other stages."""
    rows = [crossing for crossing in stages.crossings if crossing.source == stage and crossing.is_ahead]
    ancestors = graph.ancestors([graph.tensors[r.tensor] for r in rows if (r.tensor, r.target) in requests], (), fed_names)
    _check_fed(graph, ancestors, fetch)
    return frozenset(ancestors)


def _check_fed(graph: Graph, operators: Collection[str], fetch: Fetch) -> None:
    """Raise InputError if a placeholder that operators need isn't fed: the first in program order."""
    for op in graph.operators.values():
        if op.name in operators and op.type == PLACEHOLDER:
            raise InputError(f"placeholder '{op.name}' ({op.source}) isn't fed, but {names(fetch)} needs it; feed it")
