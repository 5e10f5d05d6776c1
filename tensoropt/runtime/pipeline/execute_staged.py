"""Build the engine that runs a plan with stages on this process's ranks."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...common.errors import InputError
from ...common.progress import Display
from ...common.settings import LAG
from ...common.watchdog import CRITICAL
from ...lowering.resharding.backends import CommunicatingBackend, EmulatedBackend
from ...lowering.resharding.reshard import Backend
from ...plan.plan import Plan
from ...sharding.model import Model
from ...sharding.resharding import PlainCosts
from ...sharding.stages import Stages
from ..collectives.single import SingleCommunicator
from ..engine import Engine
from ..execute import EMULATED, HOROVOD, Agreement, Prepare, by_mpi, check_ranks, runs_in_order, same_on_all, taking_part
from ..gpus import make_deterministic
from ..memory_check import check_available_memory
from ..ranks import Processes
from .parts import StageView
from .staged_engine import StagedEngine
from .transfers import EmulatedTransfers
from .values_in_step import ValuesInStep


def staged_engine(
    plan: Plan,
    model: Model,
    initial_value: Callable[[str], np.ndarray],
    processes: Processes,
    collectives: str,
    display: Display,
    values_are_exchanged: bool,
) -> tuple[StagedEngine, Processes]:
    """Return the engine of a plan with stages, and the ranks that take part; see :func:`..execution.execute`.

    Raises:
        InputError: the plan is for another model or for more devices than there are, or Horovod is asked for.
        OutOfMemoryError: the plan needs more memory than is available.
    """
    if collectives == HOROVOD:
        raise InputError("a plan with stages runs by collectives='mpi' or 'emulated', got 'horovod'; choose one of these")
    check_ranks(plan, processes, collectives)
    if plan.parallelism > 1:
        make_deterministic()
    stages = plan.cut(model)
    views = tuple(
        StageView(
            part.view(stage.strategy),
            part.in_micro_batches(plan.micro_batches).view(stage.strategy),
            stage.devices,
        )
        for stage, part in zip(plan.stages, stages.models, strict=True)
    )
    if collectives == EMULATED:
        of_submeshes = {stage.devices: stage.peak_bytes or 0 for stage in plan.stages}
        n_bytes = sum(len(devices) * of_each for devices, of_each in of_submeshes.items())
        check_available_memory(n_bytes, processes.local_size)
        with display.phase("first values of the variables"):
            engines = {
                index: _engine(plan, index, view, EmulatedBackend(view.whole.strategy.mesh), initial_value, display)
                for index, view in enumerate(views)
            }
        one_machine = (0,) * plan.parallelism
        engine = StagedEngine(stages, views, plan.orders, engines, EmulatedTransfers, one_machine)
        return engine, processes
    check_available_memory(plan.needed_bytes, processes.local_size)
    names = [op.name for op in model.graph.variables] if values_are_exchanged else []
    engine, part = _of_rank(plan, stages, views, initial_value, names, processes, display)
    engine.initial_value = initial_value
    return engine, part


def _engine(
    plan: Plan,
    index: int,
    view: StageView,
    backend: Backend,
    initial_value: Callable[[str], np.ndarray],
    display: Display,
    agree: Agreement | None = None,
    in_order: bool = False,
) -> Engine:
    has_two_chains = isinstance(backend, CommunicatingBackend) and backend.overlappable is not None
    return Engine(
        view.whole,
        plan.stages[index].path_finder(PlainCosts()),
        backend,
        initial_value,
        agree or (lambda digest, log: None),
        per_micro_batch=view.per_micro_batch,
        in_order=in_order,
        lag=math.inf if has_two_chains else LAG,
        display=display,
    )


def _of_rank(
    plan: Plan,
    stages: Stages,
    views: tuple[StageView, ...],
    initial_value: Callable[[str], np.ndarray],
    names: Sequence[str],
    processes: Processes,
    display: Display,
) -> tuple[StagedEngine, Processes]:
    """Return the engine of this rank's stage, or of its stages.

    Args:
        names: the variables whose first values all processes must ask for in this order; none: each asks as it needs.
    """
    from .messages import MpiTransfers, Sending

    part = taking_part(plan.parallelism, processes)
    numbers = [number for number, stage in enumerate(plan.stages) if part.rank in stage.devices]
    with part.waiting_in("the choice of stages"):
        comm = part.comm.Split(numbers[0], part.rank)
    # Stages have collectives of their own, so many as they need: only steps, which all take, are counted among all ranks.
    own = replace(part.part(comm), parent=None)
    mesh = views[numbers[0]].whole.strategy.mesh
    backend: Backend = CommunicatingBackend(mesh, 0, SingleCommunicator())
    prepare: Prepare | None = None
    if mesh.n_devices > 1:
        backend, prepare = by_mpi(mesh, own)
    in_order = runs_in_order(part)
    agreement = Agreement(own, prepare)
    asked = [op.name for number in numbers for op in views[number].whole.graph.variables]
    values = ValuesInStep(initial_value, names, asked) if names else initial_value
    with display.phase("first values of the variables"):
        engines = {
            number: _engine(plan, number, views[number], backend, values, display, agreement, in_order) for number in numbers
        }
        if isinstance(values, ValuesInStep):
            values.finish()
    sending, messages = Sending(), part.comm.Dup()
    agree = same_on_all(part)
    agree(f"the plan {hashlib.sha256(json.dumps(plan.to_json(), sort_keys=True).encode()).hexdigest()[:16]}")

    def of_stage(what: str, stage: int, value: Any) -> Any:
        first = plan.stages[stage].devices[0]
        found = part.gather(value if part.rank == first else None, what)[first]
        assert found is not None
        return found

    return (
        StagedEngine(
            stages,
            views,
            plan.orders,
            engines,
            lambda: MpiTransfers(messages, part.waiting[CRITICAL], sending),
            tuple(part.hosts.index(host) for host in part.hosts),
            partial(of_stage, "what a step returns"),
            partial(of_stage, "the description of a stage"),
            agree,
            part.begin_collective,
            part.gather,
        ),
        part,
    )
