"""Build a plan from a point of a frontier, each operator and resharding with its costs; check that they belong together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from typing import Any

from ..common.errors import InputError
from ..costs.config_costs import ConfigCosts, costs_of_config
from ..costs.operator_costs import OperatorCosting
from ..costs.resharding_costs import accumulator_bytes
from ..ir.graph import Operator, Tensor
from ..reschedule.layout import Layout, is_view
from ..reschedule.mesh import Mesh
from ..rules.config_arrays import ConfigArrays
from ..rules.configs import configs
from ..rules.registry import rule_of
from ..rules.rule import Config, Interface, OperandSharding, Rule
from ..sharding.consumers import Consumer, consumers_of, passes_to, sharding_of
from ..sharding.model import Model
from ..sharding.propagation import chosen_in_order
from ..sharding.resharding import (
    PathFinder,
    PlainCosts,
    Resharding,
    inner_reshardings,
    resharding_of,
    row_reshardings,
    update_reshardings,
)
from ..sharding.strategy import MADE_AGAIN, Strategy, StrategyView
from .record import PlannedOperator, PlannedResharding, ReshardedCopy
from .stage_plan import StagePlan


@dataclass(frozen=True, kw_only=True)
class CostEntry(ReshardedCopy):
    """The cost entry of one resharding of a strategy.

    Attributes:
        is_read: whether the backward pass reads the copy.
    """

    resharding: Resharding
    is_read: bool = False

    @property
    def copy_bytes(self) -> int:
        """The bytes of the copy on the device with the largest shard, if the backward pass reads it; else 0.

        0 also if the copy is the source itself or a view of it.
        """
        source, target = self.resharding.source, self.resharding.sharding.layout
        if not self.is_read or source == target or is_view(source, target):
            return 0
        return math.prod(target.largest_local_shape(self.resharding.shape)) * self.resharding.item_bytes

    def planned(self, path_finder: PathFinder) -> PlannedResharding | None:
        """Return the resharding's row in a plan; None if its paths are empty."""
        paths = path_finder.paths(self.resharding)
        if paths.is_free:
            return None
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(ReshardedCopy)}
        return PlannedResharding(
            **values,
            sharding=self.resharding.sharding,
            forward=paths.forward,
            backward=paths.backward,
            time_us=self.time_ns(path_finder) / 1e3,
            reduction=self.resharding.reduction,
            copy_bytes=self.copy_bytes,
            n_passes=self.resharding.n_passes if paths.backward is not None else 1,
            regathering_us=path_finder.forward_ns(self.resharding) * self.n_runs / 1e3 if self.is_regathered else 0.0,
        )

    def time_ns(self, path_finder: PathFinder) -> int:
        """Return the time of all executions per step.

        It is the sum of the forward path, the backward path in each pass in which a gradient comes back, and the forward
        path once more if the copy is regathered.
        """
        regathering_ns = path_finder.forward_ns(self.resharding) if self.is_regathered else 0
        return (path_finder.time_ns(self.resharding) + regathering_ns) * self.n_runs


def cost_entries(view: StrategyView, costing: OperatorCosting | None = None) -> Iterator[CostEntry]:
    """Yield the cost entry of every resharding of the training steps.

    Args:
        costing: says which copies the backward pass reads; without it, ``is_read`` is False in all entries.
    """
    graph = view.graph
    consumers = consumers_of(graph)
    for op in graph.step_operators:
        if op.updates is not None:
            continue
        differentiated, n_runs = view.backward.positions(op), graph.n_runs(op.result.name)
        config, entry = view.strategy.configs[op.name], partial(CostEntry, tensor=op.name, consumers=(op.name,))
        for resharding in inner_reshardings(op, view.rules[op.name], config, differentiated):
            yield entry(resharding=resharding, n_runs=n_runs)
        if op.name in graph.updates:
            has_rows = op.name in graph.lookups
            for resharding in update_reshardings(graph.updates[op.name], op.result, view.layout(op.result), has_rows):
                yield entry(resharding=resharding)
        if op.name in graph.lookup_operators:
            for resharding in row_reshardings(op, view.rules[op.name], config):
                yield entry(resharding=resharding, n_runs=n_runs)
        for tensor in op.outputs:
            users, shared = consumers.get(tensor.name, []), view.strategy.shared.get(tensor.name)
            if shared is not None and users:
                is_read = costing is not None and any(_is_read_shared(view, costing, tensor, consumer) for consumer in users)
                yield _entry(view, tensor, users, view.shared_resharding(tensor, shared), True, is_read)
            for consumer in users:
                is_read = costing is not None and costing.reads(consumer)
                resharding = view.resharding(tensor, sharding_of(view, tensor, consumer))
                yield _entry(view, tensor, [consumer], resharding, False, is_read)


def _entry(
    view: StrategyView, tensor: Tensor, consumers: Sequence[Consumer], resharding: Resharding, is_shared: bool, is_read: bool
) -> CostEntry:
    if (n_passes := len(passes_to(view.backward, consumers))) > 1:
        resharding = replace(resharding, n_passes=n_passes)
    users = consumers if view.regathered or view.rematerialized else ()
    operands = ((view.graph.operators[t.name], t.position) for t in users if not t.is_step and not t.is_update)
    residuals = [view.residual(*operand) for operand in operands]
    accumulates = view.graph.accumulates(tensor.name)
    return CostEntry(
        tensor=tensor.name,
        consumers=tuple(consumer.name for consumer in consumers),
        resharding=resharding,
        is_shared=is_shared,
        is_regathered=any((of.shared if is_shared else of.copy) == MADE_AGAIN for of in residuals),
        is_read=is_read,
        is_regathered_with_source=not is_shared and any(of.is_with_source for of in residuals),
        n_runs=view.graph.n_runs(tensor.name),
        accumulator_bytes=accumulator_bytes(tensor, resharding) if accumulates else 0,
    )


def _is_read_shared(view: StrategyView, costing: OperatorCosting, tensor: Tensor, consumer: Consumer) -> bool:
    """Return whether the backward pass reads the shared copy for a consumer, as itself or as a view of it."""
    if not costing.reads(consumer):
        return False
    shared, layout = view.strategy.shared[tensor.name].layout, sharding_of(view, tensor, consumer).layout
    return shared == layout or is_view(shared, layout)


def planned_operators(view: StrategyView, costing: OperatorCosting) -> Iterator[PlannedOperator]:
    """Yield the row of each operator; operators that no training step runs have no costs."""
    step_names = {op.name for op in view.graph.step_operators}
    for name, interface in view.interfaces.items():
        op, rule, config = view.graph.operators[name], view.rules[name], view.strategy.configs[name]
        if name in step_names:
            yield planned_operator(costing, op, rule, config, interface, name in view.rematerialized)
        else:
            yield PlannedOperator(name, op.type, config, interface.results, 0, 0.0)


def planned_operator(
    costing: OperatorCosting, op: Operator, rule: Rule, config: Config, interface: Interface, is_rematerialized: bool
) -> PlannedOperator:
    """Return the row of an operator of a training step: its config, result layouts, memory and time."""
    costs = costs_of_config(costing, op, rule, config)
    memory, (time_ns, backward_ns) = int(costs.mem_bytes[0]), costs.times_ns[:, 0].tolist()
    if not is_rematerialized:
        return PlannedOperator(op.name, op.type, config, interface.results, memory, time_ns / 1e3)
    rematerialization_ns = time_ns - backward_ns  # of the forward pass once more
    freed = int(costs.saved_result_bytes[0])
    reduced = memory - freed, (time_ns + rematerialization_ns) / 1e3
    return PlannedOperator(op.name, op.type, config, interface.results, *reduced, True, rematerialization_ns / 1e3, freed)


def complete_configs(model: Model, steps: Strategy, costing: OperatorCosting) -> Strategy:
    """Add configs for the operators that no training step runs (metrics, predictions).

    The configs of the training steps stay. In program order, each further operator gets the config of least time: that of
    resharding its operands plus that of computing. Where training splits nothing, nothing is split.
    """
    is_unsplit = not any(config.used_axes for config in steps.configs.values())

    def choose(op: Operator, layouts: Mapping[str, Layout]) -> Config:
        step_config = steps.configs.get(op.name) or (Config.unsplit(steps.mesh) if is_unsplit else None)
        return step_config or _cheapest(op, layouts, costing, steps.mesh)

    return replace(steps, configs=chosen_in_order(model.graph, choose))


def _cheapest(op: Operator, layouts: Mapping[str, Layout], costing: OperatorCosting, mesh: Mesh) -> Config:
    """Return the config of an operator with the least time for resharding its operands and computing it."""
    rule = rule_of(op)
    options = configs(rule, mesh)
    if not op.operands:
        return options[0]
    costs = ConfigCosts(costing, op, ConfigArrays.of(rule, options))

    def time_ns(i: int) -> int:
        total, interface = int(costs.compute_ns[i]), costs.interfaces[i]
        for position, tensor in op.operands:
            sharding = OperandSharding(interface.operand(position).layout, None)
            total += costing.reshardings.time_ns(resharding_of(tensor, layouts[tensor.name], sharding))
        return total

    return options[min(range(len(options)), key=time_ns)]


def check_reshardings(view: StrategyView, stage: StagePlan) -> None:
    """Check that a stage's reshardings and rematerialized operators follow from its configs: its file may have been changed.

    Raises:
        InputError: they don't.
    """
    names = sorted(view.strategy.rematerialized - view.rematerialized)
    if names:
        op = view.graph.operators[names[0]]
        raise InputError(
            f"the plan computes {op.where()} again, which can't be done with the config "
            f"'{view.strategy.configs[op.name]}'; it was changed: find the strategy again"
        )
    path_finder = stage.path_finder(PlainCosts())
    row = attrgetter("tensor", "consumers", "sharding", "is_shared", "is_regathered", "n_runs", "n_passes")
    expected = set(map(row, filter(None, (entry.planned(path_finder) for entry in cost_entries(view)))))
    actual = set(map(row, stage.reshardings))
    if expected != actual:
        tensor, consumers, sharding, *flags = min(expected ^ actual, key=str)
        difference = "lacks" if (tensor, consumers, sharding, *flags) in expected else "has, against its configs,"
        raise InputError(
            f"the plan {difference} the resharding of {tensor} to {', '.join(consumers)} as {sharding}; it was changed: "
            "find the strategy again, with force= for what should differ"
        )
