"""Find the plan that a user asks for: by the same options, wherever it is asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

from ..common.process.progress import Display
from ..plan.plan import Plan
from ..profiling.hardware import Hardware
from ..runtime.context import Context
from ..runtime.execute import HOROVOD
from ..search.options import find_answer
from ..search.request import Request, request_of
from ..sharding.constraints import Force
from ..sharding.model import Model
from .interleaved_timing import FirstValue
from .profile_guided import find_measured


@dataclass(frozen=True, kw_only=True)
class PlanningOptions:
    """The options of a search: see :func:`tensoropt.find_strategy`."""

    option: str = "mini_time"
    memory: int | str | None = None
    parallelism: int | Sequence[int] | None = None
    cluster: Hardware | str | None = None
    force: Force | None = None
    profile_budget: float | str | None = None
    without: Collection[str] = ()
    micro_batches: int | None = None
    verbose: int | str | bool = 1
    stages: int | Sequence[int] | None = None
    schedule: str | None = None
    batch_per_device: int | Sequence[int] | None = None

    @classmethod
    def split(cls, arguments: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the options that are among a function's arguments, and the other arguments."""
        names = {field.name for field in fields(cls)}
        others = {name: value for name, value in arguments.items() if name not in names}
        return cls(**{name: arguments[name] for name in arguments.keys() & names}), others

    def find(
        self,
        model: Model,
        hardware: Hardware,
        context: Context,
        display: Display,
        first_values: Callable[[], FirstValue],
        collectives: str,
        *,
        wants_frontier: bool = True,
        measuring: AbstractContextManager[Any] | None = None,
    ) -> Plan:
        """Return the plan that the options ask for; every rank must call it.

        Args:
            first_values: returns the function of variables' first values, so that plans can be measured.
            collectives: the implementation of collectives by which plans run.
            measuring: the context in which operators are measured.

        Raises:
            InputError: an option is malformed, or nothing fits.
        """
        request = self.request(model, hardware, collectives, display)
        if self.profile_budget is not None:
            with measuring or nullcontext():
                rest = context.on_first_rank, first_values, collectives
                return find_measured(self.option, request, self.parallelism, self.profile_budget, context.processes, *rest)
        request = replace(request, wants_frontier=wants_frontier)
        plan: Plan = context.on_first_rank(lambda: find_answer(self.option, request, self.parallelism))
        return plan

    def request(self, model: Model, hardware: Hardware, collectives: str, display: Display) -> Request:
        """Return what the options ask for of a model on some hardware; see :meth:`find`."""
        options = (self.memory, self.force, self.without, self.micro_batches, self.stages, self.schedule)
        request = request_of(model, hardware, *options)
        may_take_stages = self.stages is None and collectives != HOROVOD
        return replace(request, progress=display.update, may_take_stages=may_take_stages)
