"""Run other programs of a planned model beside its training step: evaluations, predictions, steps on other batches.

They share the variables and optimizers of the planned step, are cut into stages as it is, and inherit from the plan what
their graphs have in common with it (:mod:`..sharding.propagation`). An evaluation or a prediction runs the stages one after
the other on the whole batch. A step on a batch of another size takes one micro-batch after the other, so that it needs no
more memory than one of them; one on a batch of the planned size, with sample weights say, has as many in flight as planned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..costs.operator_costs import costing_of
from ..ir.graph import PLACEHOLDER
from ..plan.plan import Plan
from ..profiling.hardware import Hardware
from ..program.memory.peak import peak_of
from ..program.orders.interleaved import Interleaving, interleaved_orders
from ..sharding.model import Model
from ..sharding.propagation import inherited
from ..sharding.resharding import PlainCosts
from ..sharding.stages_alike import StagesAlike
from .engine import Engine
from .execution import Execution
from .step.parts import StageView
from .step.stage_state import StageState
from .step.values_in_step import ValuesInStep


def execute_beside(
    execution: Execution, model: Model, initial_value: Callable[[str], np.ndarray], micro_batches: int = 1
) -> Execution:
    """Build an engine for another program of the same model, which shares the variables of the first engine.

    Args:
        initial_value: returns the global initial value of a variable that the first engine doesn't have. All processes must
            ask for the same ones in the same order.
        micro_batches: in how many a training step runs.
    """
    first, plan = execution.engine, execution.plan
    stages, parts = _parts(first, model, micro_batches)
    views = tuple(
        StageView.of(full, sliced, inherited(sliced, stage.strategy), stage.devices)
        for (full, sliced), stage in zip(parts, plan.stages, strict=True)
    )
    keys = {entry.key for entry in first.state()}
    names = [op.name for op in model.graph.variables if op.name not in keys]
    own_names = [op.name for index in first.states for op in views[index].whole.graph.variables if op.name not in keys]
    values = ValuesInStep(initial_value, names, own_names)
    states = {
        index: StageState(
            views[index].whole, plan.stages[index].path_finder(PlainCosts()), state.backend,
            initial_value if execution.is_emulated else values, state.agree, state, in_order=state.in_order, lag=state.lag,
        )
        for index, state in first.states.items()
    }
    if not execution.is_emulated:
        values.finish()
    orders = plan.orders
    if not _is_as_planned(first, plan, model, micro_batches):  # one stage after the other
        n, n_submeshes = len(plan.stages), len(plan.submeshes)
        orders = interleaved_orders(n, micro_batches, Interleaving(n_submeshes, 1, (n // n_submeshes,) * n_submeshes))
    engine = replace(first, stages=stages, views=views, orders=orders, states=states, _functions={})
    return replace(execution, engine=engine)


def peak_beside(execution: Execution, model: Model, hardware: Hardware, micro_batches: int = 1) -> int:
    """Return the most memory that is alive at once on a device while :func:`execute_beside` runs a program.

    Of interleaved stages it is the sum of those of a device, which don't all need most at once.

    Raises:
        InputError: the program can't run in so many micro-batches.
    """
    first, plan = execution.engine, execution.plan
    peaks: dict[tuple[int, ...], int] = {}
    for (_, sliced), stage in zip(_parts(first, model, micro_batches)[1], plan.stages, strict=True):
        view = sliced.view(inherited(sliced, stage.strategy))
        peak = peak_of(view, costing_of(sliced, hardware, stage.mesh), stage.path_finder(PlainCosts()))
        peaks[stage.devices] = peaks.get(stage.devices, 0) + peak.n_bytes
    # As many are in flight as planned then.
    trains_as_planned = bool(model.graph.train_steps) and _is_as_planned(first, plan, model, micro_batches)
    return max(*peaks.values(), plan.needed_bytes if trains_as_planned else 0)


def _is_as_planned(first: Engine, plan: Plan, model: Model, micro_batches: int) -> bool:
    """Return whether a program takes micro-batches that are as many and as large as planned."""
    operators = first.stages.whole.graph.operators
    placeholders = [op for op in model.graph.operators.values() if op.type == PLACEHOLDER and op.name in operators]
    is_as_large = bool(placeholders) and all(op.result.shape == operators[op.name].result.shape for op in placeholders)
    return is_as_large and micro_batches == plan.micro_batches


def _parts(first: Engine, model: Model, micro_batches: int) -> tuple[StagesAlike, list[tuple[Model, Model]]]:
    """Return a program in stages, and of each the model on the whole batch and that on one of so many micro-batches."""
    first_stages = first.stages
    stages, graph = StagesAlike(model, first_stages.cuts, first_stages), model.graph
    if graph.train_steps:
        n_devices = first.backend.mesh.n_devices if first.is_everywhere else 1
        graph = model.in_micro_batches(micro_batches, n_devices).graph
    return stages, [(part, replace(part, graph=stages.graph_of(index, graph))) for index, part in enumerate(stages.models)]
