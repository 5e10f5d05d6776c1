"""Run other programs of a model in stages beside its training step: evaluations, predictions, steps on other batches.

An evaluation or a prediction runs the stages one after the other on the whole batch. A step on a batch of another size takes
one micro-batch after the other, so that it needs no more memory than one of them; one on a batch of the planned size, with
sample weights say, has as many in flight as planned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...costs.model_costs import costing_of
from ...ir.graph import PLACEHOLDER
from ...lowering.resharding.backends import EmulatedBackend
from ...plan.plan import Plan
from ...profiling.hardware import Hardware
from ...program.interleaved import Interleaving
from ...program.passes import Orders
from ...program.peak import peak_of
from ...program.schedule import pass_orders
from ...sharding.model import Model
from ...sharding.propagation import inherited
from ...sharding.resharding import PlainCosts
from ...sharding.stages_alike import StagesAlike
from ..engine import Engine
from .parts import StageView
from .staged_engine import StagedEngine
from .values_in_step import ValuesInStep


def engine_beside(
    first: StagedEngine, plan: Plan, model: Model, initial_value: Callable[[str], np.ndarray], micro_batches: int
) -> StagedEngine:
    """Build an engine for another program of the same model, which shares the variables of the first engine.

    Args:
        initial_value: returns the global initial value of a variable that the first engine doesn't have. All processes must
            ask for the same ones in the same order.
        micro_batches: in how many a training step runs.
    """
    stages, parts = _parts(first, model, micro_batches)
    views = tuple(
        StageView(whole.view(strategy := inherited(sliced, stage.strategy)), sliced.view(strategy), stage.devices)
        for (whole, sliced), stage in zip(parts, plan.stages, strict=True)
    )
    known = {entry.key for entry in first.state()}
    names = [op.name for op in model.graph.variables if op.name not in known]
    asked = [op.name for index in first.engines for op in views[index].whole.graph.variables if op.name not in known]
    values = ValuesInStep(initial_value, names, asked)
    is_emulated = isinstance(first.backend, EmulatedBackend)
    engines = {
        index: Engine(
            views[index].whole,
            plan.stages[index].path_finder(PlainCosts()),
            engine.backend,
            initial_value if is_emulated else values,
            engine.agree,
            engine,
            per_micro_batch=views[index].per_micro_batch if model.graph.train_steps else None,
            in_order=engine.in_order,
            lag=engine.lag,
            display=engine.display,
        )
        for index, engine in first.engines.items()
    }
    if not is_emulated:
        values.finish()
    orders = _orders(first, plan, model, micro_batches)
    return replace(first, stages=stages, views=views, orders=orders, engines=engines, _functions={})


def _orders(first: StagedEngine, plan: Plan, model: Model, micro_batches: int) -> Orders:
    """Return the order of passes: as planned if micro-batches are as large as planned, or else one after the other."""
    if _is_as_planned(first, plan, model, micro_batches):
        return plan.orders
    n, interleaving = len(plan.stages), plan.interleaving
    if interleaving is not None:
        interleaving = Interleaving(interleaving.n_submeshes, 1, (n // interleaving.n_submeshes,) * interleaving.n_submeshes)
    return pass_orders(plan.schedule, micro_batches, [1] * n, [0] * n, interleaving)


def _is_as_planned(first: StagedEngine, plan: Plan, model: Model, micro_batches: int) -> bool:
    """Return whether a program takes micro-batches that are as many and as large as planned."""
    planned = first.stages.whole.graph.operators
    fed = [op for op in model.graph.operators.values() if op.type == PLACEHOLDER and op.name in planned]
    is_as_large = bool(fed) and all(op.result.shape == planned[op.name].result.shape for op in fed)
    return is_as_large and micro_batches == plan.micro_batches


def peak_of_stages(first: StagedEngine, plan: Plan, model: Model, hardware: Hardware, micro_batches: int) -> int:
    """Return the most memory that is alive at once on a device while :func:`engine_beside` runs a program.

    Of interleaved stages it is the sum of those of a device, which don't all need most at once.

    Raises:
        InputError: the program can't run in so many micro-batches.
    """
    peaks: dict[tuple[int, ...], int] = {}
    for (_, sliced), stage in zip(_parts(first, model, micro_batches)[1], plan.stages, strict=True):
        view = sliced.view(inherited(sliced, stage.strategy))
        peak = peak_of(view, costing_of(sliced, hardware, stage.mesh), stage.path_finder(PlainCosts()))
        peaks[stage.devices] = peaks.get(stage.devices, 0) + peak.n_bytes
    # As many are in flight as planned then.
    trains_as_planned = bool(model.graph.train_steps) and _is_as_planned(first, plan, model, micro_batches)
    return max(*peaks.values(), plan.needed_bytes if trains_as_planned else 0)


def _parts(first: StagedEngine, model: Model, micro_batches: int) -> tuple[StagesAlike, list[tuple[Model, Model]]]:
    """Return a program in stages, and of each the model on the whole batch and that on a micro-batch.

    Raises:
        InputError: the program can't run in so many micro-batches.
    """
    planned = first.stages
    stages, graph = StagesAlike(model, planned.cuts, planned), model.graph
    if graph.train_steps:
        graph = model.in_micro_batches(micro_batches).graph
    return stages, [(part, replace(part, graph=stages.graph_of(part.index, graph))) for part in stages.models]
