"""Build the engine that runs a plan on this process's ranks."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..common.dump import dump
from ..common.errors import InputError
from ..common.process.progress import NOT_SHOWN, Display
from ..common.process.watchdog import CRITICAL
from ..common.settings import LAG
from ..lowering.resharding.backends import CommunicatingBackend, EmulatedBackend
from ..lowering.resharding.reshard import Backend
from ..plan.build import check_reshardings
from ..plan.plan import Plan
from ..program.invariants import check_program
from ..program.step import step_program
from ..sharding.model import Model
from ..sharding.resharding import PathFinder, PlainCosts
from .engine import Engine
from .execute import EMULATED, HOROVOD, Agreement, check_ranks, communicating, runs_in_order, same_on_all, taking_part
from .gpus import make_deterministic
from .memory_check import PlanMemory, check_available_memory, state_bytes
from .ranks import Processes
from .step.parts import StageView
from .step.stage_state import StageState
from .step.values_in_step import ValuesInStep


@dataclass(frozen=True)
class Execution:
    """A plan with the engine that runs it.

    Attributes:
        processes: the ranks that take part.
    """

    plan: Plan
    engine: Engine
    processes: Processes

    @property
    def is_emulated(self) -> bool:
        """Return whether all ranks of all stages run in this process."""
        return isinstance(self.engine.backend, EmulatedBackend)

    def statistics(self, parameter_bytes: int) -> dict[str, Any]:
        """Return figures of the plan for a training log. Every rank must call it.

        ``collectives_per_step`` counts the collectives of the training step as it was last built with its fetches.
        """
        local = self.engine.local_parameter_bytes
        if not self.is_emulated:
            local = self.processes.gather(local[0])
        return {
            "split_operators": self.plan.n_split_operators,
            "collectives_per_step": self.engine.collectives_per_step,
            "parameter_bytes": parameter_bytes,
            "parameter_bytes_per_rank": local,
        }


def execute(
    plan: Plan,
    model: Model,
    initial_value: Callable[[str], np.ndarray],
    processes: Processes,
    collectives: str,
    display: Display = NOT_SHOWN,
    values_are_exchanged: bool = False,
) -> Execution:
    """Build the engine of a plan, with the variables at their initial values. A rank without work ends here.

    Args:
        initial_value: returns the global initial value of a variable, given by its operator's name.
        display: shows what is done, also while the engine builds its functions.
        values_are_exchanged: whether all processes must ask for the same initial values in the same order.

    Raises:
        InputError: the plan is for another model or for more devices than there are, or has stages and Horovod is asked for.
        OutOfMemoryError: the plan needs more memory than is available.
    """
    stages = plan.cut(model)
    if len(plan.submeshes) > 1 and collectives == HOROVOD:
        raise InputError("a plan with stages runs by other collectives than 'horovod'; choose 'mpi' or 'tensorflow'")
    check_ranks(plan, processes, collectives)
    if plan.parallelism > 1:
        make_deterministic()
    views = tuple(
        StageView.of(part, part.in_micro_batches(plan.micro_batches), stage.strategy, stage.devices)
        for stage, part in zip(plan.stages, stages.models, strict=True)
    )
    path_finders = [stage.path_finder(PlainCosts()) for stage in plan.stages]
    _check_programs(plan, views, path_finders, processes)
    part = stage_part = processes
    backends: dict[int, Backend] = {number: EmulatedBackend(stage.mesh) for number, stage in enumerate(plan.stages)}
    agree, is_ordered, options = Agreement(stage_part, None), False, dict[str, Any](machine_of=(0,) * plan.parallelism)
    if collectives == EMULATED:
        memory = PlanMemory.of(plan)
        state = sum(len(view.devices) * state_bytes(view.whole) for view in views)
        check_available_memory(state, processes.local_size, memory)
    else:
        state = max(sum(state_bytes(view.whole) for view in views if view.devices == devices) for devices in plan.submeshes)
        memory = PlanMemory.of(plan, partial(processes.broadcast, what="what plans need"))
        check_available_memory(max(state, plan.peak_bytes or 0), processes.local_size, memory)
        part = taking_part(plan.parallelism, processes)
        numbers = [number for number, view in enumerate(views) if part.rank in view.devices]
        stage_part = part if len(plan.submeshes) == 1 else _stage_processes(part, numbers[0])
        backend, prepare = communicating(plan.stages[numbers[0]].mesh, stage_part, collectives, stage_part is not part)
        backends, agree, is_ordered = dict.fromkeys(numbers, backend), Agreement(stage_part, prepare), runs_in_order(part)
    names = [op.name for op in model.graph.variables] if values_are_exchanged and collectives != EMULATED else []
    own_names = [op.name for number in backends for op in views[number].whole.graph.variables]
    values = ValuesInStep(initial_value, names, own_names) if names else initial_value
    with display.phase("first values of the variables"):
        states = {
            number: StageState(
                views[number].whole, path_finders[number], backend, values, agree, in_order=is_ordered, lag=_lag(backend)
            )
            for number, backend in backends.items()
        }
        if isinstance(values, ValuesInStep):
            values.finish()
            for stage_state in states.values():
                stage_state.initial_value = initial_value
    options |= {} if stage_part is part else _joining(plan, part)
    engine = Engine(stages, views, plan.orders, states, display=display, out_of_memory=memory.sentence, **options)
    # Not the part: what ranks exchange beside steps is compared with what others do, if all of it takes one communicator.
    return Execution(plan, engine, processes)


def _lag(backend: Backend) -> float:
    """Return for how many operators the backward pass goes on while a gradient is on its way."""
    return math.inf if isinstance(backend, CommunicatingBackend) and backend.overlappable is not None else LAG


def _check_programs(plan: Plan, views: tuple[StageView, ...], path_finders: list[PathFinder], processes: Processes) -> None:
    """Check the stages' reshardings and, if that is asked for, their programs, which are dumped if asked for."""
    programs = []
    for stage, view, path_finder in zip(plan.stages, views, path_finders, strict=True):
        check_reshardings(view.per_micro_batch, stage)
        programs.append(partial(step_program, view.per_micro_batch, path_finder))
        if os.environ.get("TENSOROPT_CHECK") == "1":
            check_program(programs[-1](), view.per_micro_batch.graph)
    if processes.rank == 0:
        dump("program", *programs)


def _joining(plan: Plan, part: Processes) -> dict[str, Any]:
    """Return how an engine of this rank's stages, of a plan on several submeshes, is joined with those of others."""
    from .step.messages import MpiTransfers, Sending

    sending, messages = Sending(), part.comm.Dup()
    same_on_all(part)(f"the plan {hashlib.sha256(json.dumps(plan.to_json(), sort_keys=True).encode()).hexdigest()[:16]}")
    return {
        "transfers": lambda: MpiTransfers(messages, part.waiting[CRITICAL], sending),
        "machine_of": tuple(part.hosts.index(host) for host in part.hosts),
        "joined": part,
    }


def _stage_processes(part: Processes, stage: int) -> Processes:
    """Return the ranks of a stage.

    They have collectives of their own, so many as they need: only steps, which all take, are counted among all ranks.
    """
    with part.waiting_in("the choice of stages"):
        comm = part.comm.Split(stage, part.rank)
    return replace(part.part(comm), parent=None)
