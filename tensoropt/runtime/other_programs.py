"""Run other programs of a planned model beside its training step: evaluations, predictions, steps on other batches.

They share the variables and optimizers of the planned step, and inherit from the plan what their graphs have in common with
it (:mod:`..sharding.propagation`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..costs.model_costs import costing_of
from ..plan.plan import Plan
from ..profiling.hardware import Hardware
from ..program.peak import peak_of
from ..sharding.model import Model
from ..sharding.propagation import inherited
from ..sharding.resharding import PlainCosts
from ..sharding.strategy import Strategy
from .engine import Engine
from .execution import Execution
from .pipeline.beside import engine_beside, peak_of_stages
from .pipeline.staged_engine import StagedEngine


def execute_beside(
    execution: Execution, model: Model, initial_value: Callable[[str], np.ndarray], micro_batches: int = 1
) -> Execution:
    """Build an engine for another program of the same model, which shares the variables of the first engine.

    Args:
        initial_value: returns the global initial value of a variable that the first engine doesn't have.
        micro_batches: in how many a training step runs.
    """
    first, plan = execution.engine, execution.plan
    if isinstance(first, StagedEngine):
        return replace(execution, engine=engine_beside(first, plan, model, initial_value, micro_batches))
    strategy = _strategy(plan, model, micro_batches)
    engine = Engine(
        model.view(strategy),
        plan.stages[0].path_finder(PlainCosts()),
        first.backend,
        initial_value,
        first.agree,
        first,
        per_micro_batch=model.in_micro_batches(micro_batches).view(strategy) if micro_batches > 1 else None,
        in_order=first.in_order,
        lag=first.lag,
        display=first.display,
    )
    return replace(execution, engine=engine)


def peak_beside(execution: Execution, model: Model, hardware: Hardware, micro_batches: int = 1) -> int:
    """Return the most memory that is alive at once on a device while :func:`execute_beside` runs a program.

    Raises:
        InputError: the program can't run in so many micro-batches.
    """
    first, plan = execution.engine, execution.plan
    if isinstance(first, StagedEngine):
        return peak_of_stages(first, plan, model, hardware, micro_batches)
    sliced = model.in_micro_batches(micro_batches, plan.mesh.n_devices)
    view = sliced.view(_strategy(plan, model, micro_batches))
    return peak_of(view, costing_of(sliced, hardware, plan.mesh), plan.stages[0].path_finder(PlainCosts())).n_bytes


def _strategy(plan: Plan, model: Model, micro_batches: int) -> Strategy:
    return inherited(model.in_micro_batches(micro_batches, plan.mesh.n_devices), plan.stages[0].strategy)
