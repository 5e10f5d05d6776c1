"""From a point of a frontier, or any strategy, to a plan: every operator and every delivery with what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .costing import OperatorCosting
from .deliveries import Delivery, PlainCosts, Router, delivery_of, differentiated_operands, inner_deliveries
from .errors import InputError
from .frontier import Model, ModelFrontier
from .ir import Operator
from .optimizers.deliveries import update_deliveries
from .optimizers.rows import row_deliveries
from .plan import Plan, PlannedDelivery, PlannedOperator
from .reschedule.layout import Layout
from .reschedule.mesh import Mesh
from .rules.registry import rule_of
from .rules.rule import Config, Demand, configs, interface
from .strategy import Strategy, StrategyView
from .takers import demand_of, takers_of


@dataclass(frozen=True, slots=True)
class Charge:
    """A delivery that a strategy is charged for; inside of an operator, ``tensor`` names it."""

    tensor: str
    takers: tuple[str, ...]
    delivery: Delivery
    is_shared: bool


def charges(view: StrategyView) -> Iterator[Charge]:
    """Every delivery of the training steps, each as often as it is executed."""
    graph = view.graph
    takers = takers_of(graph)
    for op in graph.step_operators:
        if op.updates is not None:
            continue
        differentiated = differentiated_operands(op, view.gradients)
        config = view.strategy.configs[op.name]
        for delivery in inner_deliveries(op, view.rules[op.name], config, differentiated):
            yield Charge(op.name, (op.name,), delivery, False)
        if op.name in graph.updates:
            by_rows = op.name in graph.lookups
            for delivery in update_deliveries(graph.updates[op.name], op.result, view.layout(op.result), by_rows):
                yield Charge(op.name, (op.name,), delivery, False)
        if op.name in graph.lookup_operators:
            for delivery in row_deliveries(op, view.rules[op.name], config):
                yield Charge(op.name, (op.name,), delivery, False)
        for tensor in op.outputs:
            those = takers.get(tensor.name, [])
            shared = view.strategy.shared.get(tensor.name)
            if shared is not None and those:
                names = tuple(taker.name for taker in those)
                yield Charge(tensor.name, names, delivery_of(tensor, view.layout(tensor), shared), True)
            for taker in those:
                delivery = view.delivery(tensor, demand_of(view, tensor, taker))
                yield Charge(tensor.name, (taker.name,), delivery, False)


def check_deliveries(view: StrategyView, plan: Plan) -> None:
    """Hold a plan's deliveries against those that its configs lead to: a file may have been changed by hand.

    Raises:
        InputError: they differ.
    """
    router = plan.router(PlainCosts())
    expected = {
        (charge.tensor, charge.takers, charge.delivery.demand, charge.is_shared)
        for charge in charges(view)
        if not router.route(charge.delivery).is_free
    }
    planned = {(d.tensor, d.takers, d.demand, d.is_shared) for d in plan.deliveries}
    if expected != planned:
        tensor, takers, demand, _ = min(expected ^ planned, key=str)
        difference = "lacks" if (tensor, takers, demand, _) in expected else "has, against its configs,"
        raise InputError(
            f"the plan {difference} the delivery of {tensor} to {', '.join(takers)} as {demand}; it was changed: find the "
            "strategy again, with force= for what should differ"
        )


def plan_of(frontier: ModelFrontier, point: int, option: str, assumed: dict[str, object]) -> Plan:
    """The plan of one point."""
    found, costs = frontier.found, frontier.costs
    states = found.strategies[point]
    steps = frontier.built.strategy(states)
    strategy = complete(frontier.model, steps, frontier.costing)
    view = StrategyView(frontier.model.graph, strategy, frontier.model.backward.gradients)
    router = Router(frontier.costing.deliveries.steps)
    deliveries = []
    for charge in charges(view):
        route = router.route(charge.delivery)
        if not route.is_free:
            deliveries.append(
                PlannedDelivery(
                    charge.tensor,
                    charge.takers,
                    charge.delivery.demand,
                    charge.is_shared,
                    route.forward,
                    route.backward,
                    router.time_ns(charge.delivery) / 1e3,
                    charge.delivery.reduction,
                )
            )
    return Plan(
        frontier.mesh,
        tuple(_planned_operators(view, frontier.costing)),
        tuple(deliveries),
        int(costs.mem_bytes[point]),
        int(costs.time_ns[point]) / 1e3,
        int(costs.compute_ns[point]) / 1e3,
        frontier.model.graph.digest,
        found.exact,
        option,
        assumed,
        frontier.table(point),
        frontier,
        point,
        int(costs.hidden_ns[point]) / 1e3,
    )


def _planned_operators(view: StrategyView, costing: OperatorCosting) -> Iterator[PlannedOperator]:
    in_step = {op.name for op in view.graph.step_operators}
    for name, seen in view.interfaces.items():
        op, rule, config = view.graph.operators[name], view.rules[name], view.strategy.configs[name]
        memory = costing.mem_bytes(op, rule, config, seen) if name in in_step else 0
        time_ns = costing.compute_time_ns(op, rule, config, seen) if name in in_step else 0
        yield PlannedOperator(name, op.type, config, seen.results, memory, time_ns / 1e3)


def complete(model: Model, steps: Strategy, costing: OperatorCosting) -> Strategy:
    """Add configs for the operators that no training step runs (metrics, predictions).

    They follow what the training steps decided: in program order, each takes the config whose operands are delivered and
    that computes in the least time.
    """
    chosen = dict(steps.configs)
    layouts: dict[str, Layout] = {}
    for op in model.graph.operators.values():
        if op.updates is not None:
            # What is read after an update lies as the variable does.
            layouts.update({tensor.name: layouts[model.graph.operators[op.updates].result.name] for tensor in op.outputs})
            continue
        if op.name not in chosen:
            chosen[op.name] = _cheapest(op, layouts, costing, steps.mesh)
        seen = interface(rule_of(op), chosen[op.name])
        layouts.update({tensor.name: layout for tensor, layout in zip(op.outputs, seen.results, strict=True)})
    return Strategy(steps.mesh, chosen, steps.shared)


def _cheapest(op: Operator, layouts: dict[str, Layout], costing: OperatorCosting, mesh: Mesh) -> Config:
    rule = rule_of(op)
    if not op.operands:
        return configs(rule, mesh)[0]

    def time_ns(config: Config) -> int:
        seen = interface(rule, config)
        total = costing.compute_time_ns(op, rule, config, seen)
        for position, tensor in op.operands:
            demand = seen.operands[position]
            assert demand is not None
            wanted = Demand(demand.layout, None)
            total += costing.deliveries.time_ns(delivery_of(tensor, layouts[tensor.name], wanted))
        return total

    return min(configs(rule, mesh), key=time_ns)

