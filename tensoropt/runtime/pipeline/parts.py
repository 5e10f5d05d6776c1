"""The parts of a model in stages as they run: the strategy of each stage, and what a function asks of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ...ir.graph import Graph
from ...ir.micro_batching import MicroBatch
from ...program.fetch import Fetch
from ...program.passes import Orders
from ...sharding.stages import Stages
from ...sharding.strategy import StrategyView
from ..engine import Engine
from ..functions import Feed
from .transfers import Transfers


@dataclass(frozen=True)
class StageView:
    """The strategy of a stage on its graph and on that of one micro-batch, and the numbers of its devices."""

    whole: StrategyView
    per_micro_batch: StrategyView
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StagePart:
    """The part of a function that one stage runs.

    Attributes:
        fetch: its fetches.
        needed: the names of its operators.
        ahead: the names of those that it runs on the whole batch ahead of all micro-batches, for other stages.
    """

    fetch: Fetch
    needed: set[str]
    ahead: frozenset[str] = frozenset()


class Staged(Protocol):
    """The engine of a model in stages, as an emission needs it (:class:`.staged_engine.StagedEngine`)."""

    stages: Stages
    views: tuple[StageView, ...]
    orders: Orders
    engines: Mapping[int, Engine]

    @property
    def transfers(self) -> Callable[[], Transfers]: ...

    @property
    def machine_of(self) -> tuple[int, ...]: ...

    @property
    def graph(self) -> Graph: ...

    @property
    def micro_batches(self) -> tuple[tuple[MicroBatch, ...], ...]: ...

    def of_feed(self, fetch: Fetch, feed: Feed, stage: int) -> tuple[MicroBatch, ...]:
        """Return the micro-batches into which a stage's feed is cut."""
        ...
