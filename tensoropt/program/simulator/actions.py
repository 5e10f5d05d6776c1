"""Derive the actions of each node of a step under a strategy: a chain, one after the other.

The sums are those of Equation (3): on hardware where nothing overlaps the actions of all nodes together take a plan's
``time_us``, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from ...costs.config_costs import costs_of_config
from ...costs.operator_costs import OperatorCosting
from ...ir.graph import VARIABLE, Operator
from ...reschedule.halo import HaloStep
from ...reschedule.path import Path
from ...rules.rule import Config
from ...sharding.resharding import (
    BUCKET_BYTES,
    PathFinder,
    Resharding,
    ReshardingPaths,
    inner_reshardings,
    row_reshardings,
    update_reshardings,
)
from ...sharding.strategy import MADE_AGAIN, StrategyView
from ..gradient_flow import GradientFlow
from ..tasks import SHARED
from .network import COMPUTE, Action
from .step_graph import (
    BACKWARD,
    DEFERRED,
    FORWARD,
    HALVES,
    RECOMPUTE,
    REGATHER,
    RESHARD_BACK,
    RESHARE,
    ROWS,
    SHARE_BACK,
    UPDATE,
    StepNode,
)

Chain = tuple[Action, ...]


@dataclass(frozen=True)
class StepActions:
    """The actions of nodes, by the costs of operators and reshardings; what occurs again is looked up."""

    costing: OperatorCosting
    path_finder: PathFinder
    _of_operators: dict[tuple[StepNode, Config], Chain] = field(default_factory=dict, init=False, repr=False)
    _ways: dict[Resharding, tuple[Chain, Chain]] = field(default_factory=dict, init=False, repr=False)

    def chains(self, view: StrategyView, nodes: Iterable[StepNode]) -> list[Chain]:
        flow = GradientFlow(view, self.path_finder)
        return [self._chain(flow, node) for node in nodes]

    def _chain(self, flow: GradientFlow, node: StepNode) -> Chain:
        kind, view = node.kind, flow.view
        if kind in (FORWARD, BACKWARD, *HALVES, UPDATE, ROWS, RECOMPUTE):
            if kind == RECOMPUTE and node.name not in view.rematerialized:
                return ()  # a view of what was made again
            key = node, view.strategy.configs[node.name]
            if key not in self._of_operators:
                self._of_operators[key] = self._of_operator(flow, view.graph.operators[node.name], node)
            return self._of_operators[key]
        if not node.tensor or (node.site.kind == SHARED and node.tensor not in view.strategy.shared):
            return ()
        if kind in (REGATHER, RESHARE) and not self._is_charged(view, node):
            return ()
        forward, backward = self._of_resharding(flow.at(node.site, node.micro_batch).resharded(node.site)[1])
        return backward if kind in (SHARE_BACK, RESHARD_BACK) else forward

    def _is_charged(self, view: StrategyView, node: StepNode) -> bool:
        """Return whether a copy that is made again is regathered, and not just a view of what was made again."""
        graph = view.graph
        if node.kind == REGATHER:
            return view.residual(graph.operators[node.site.name], node.site.position).copy == MADE_AGAIN
        operands = ((op, i) for op in graph.consumers[node.tensor] for i, t in op.operands if t.name == node.tensor)
        return any(view.residual(*pair).shared == MADE_AGAIN for pair in operands if pair[0].name in view.interfaces)

    def _of_operator(self, flow: GradientFlow, op: Operator, node: StepNode) -> Chain:
        kind, micro_batch, view = node.kind, node.micro_batch, flow.view
        rule, config = view.rules[op.name], view.strategy.configs[op.name]
        if kind == ROWS:
            return self._forward(row_reshardings(op, rule, config))
        costs = costs_of_config(self.costing, op, rule, config)
        total_ns, backward_ns = costs.times_ns[:, 0].tolist()
        if kind == UPDATE:
            by_rows, updates = op.name in view.graph.lookups, view.graph.updates[op.name]
            own = update_reshardings(updates[node.number : node.number + 1], op.result, view.layout(op.result), by_rows)
            return _joined([*self._forward(own), *_computed(_share(total_ns, len(updates), node.number))])
        if op.type == VARIABLE:
            return ()
        n_runs = view.graph.n_runs(op.result.name) if op.outputs and micro_batch >= 0 else 1
        if kind == RECOMPUTE:
            return _computed(_share(total_ns - backward_ns, n_runs, micro_batch))
        run = flow.at(node.site, micro_batch).view  # of the full batch what is looked up ahead
        inside = partial(inner_reshardings, run.graph.operators[op.name], run.rules[op.name], config)
        if kind in (BACKWARD, *HALVES):
            wanted = view.differentiated(node.number)
            positions = frozenset(i for i, _ in op.operands if (op.name, i) in wanted)
            own_ns = _share(int(costs.by_pass_ns[positions][0]), n_runs, micro_batch)
            if kind == DEFERRED:
                return _computed(own_ns // 2)
            ways = [action for resharding in inside([positions]) for action in self._of_resharding(resharding)[1]]
            return _joined([*ways, *_computed(own_ns if kind == BACKWARD else own_ns - own_ns // 2)])
        return _joined([*self._forward(inside(())), *_computed(_share(total_ns - backward_ns, n_runs, micro_batch))])

    def _forward(self, reshardings: Iterable[Resharding]) -> Chain:
        return tuple(action for resharding in reshardings for action in self._of_resharding(resharding)[0])

    def _of_resharding(self, resharding: Resharding) -> tuple[Chain, Chain]:
        """Return the actions of a resharding's forward and backward path."""
        chains = self._ways.get(resharding)
        if chains is None:
            paths = self.path_finder.paths(resharding)
            forward = self._of_path(paths.forward, resharding.item_bytes)
            chains = self._ways[resharding] = forward, self._back(paths, resharding)
        return chains

    def _back(self, paths: ReshardingPaths, resharding: Resharding) -> Chain:
        if paths.backward is None:
            return ()
        if not paths.shares_bucket:
            return self._of_path(paths.backward, resharding.item_bytes)
        (step,) = paths.backward.steps
        assert not isinstance(step, HaloStep)
        n_bytes = step.n_bytes(resharding.shape, resharding.item_bytes)
        return (Action(step.kind, step.group_axes, BUCKET_BYTES, of_bucket=n_bytes),)

    def _of_path(self, path: Path, item_bytes: int) -> Chain:
        actions: list[Action] = []
        costs = self.path_finder.costs
        for step in path.steps:
            for kind, axes, n_bytes in step.charged(path.shape, item_bytes):
                if kind == "local":
                    actions += _computed(costs.time_ns(kind, step.source.mesh, axes, n_bytes))
                else:
                    actions.append(Action(kind, axes, n_bytes))
        return _joined(actions)


def _computed(time_ns: int) -> Chain:
    return (Action(COMPUTE, time_ns=time_ns),) if time_ns else ()


def _joined(actions: Iterable[Action]) -> Chain:
    """Return actions with computations that follow each other as one."""
    joined: list[Action] = []
    for action in actions:
        if joined and action.kind == joined[-1].kind == COMPUTE:
            joined[-1] = Action(COMPUTE, time_ns=joined[-1].time_ns + action.time_ns)
        else:
            joined.append(action)
    return tuple(joined)


def _share(time_ns: int, n_runs: int, number: int) -> int:
    """Return the time of one of several equal runs; the first has what can't be divided."""
    share, rest = divmod(time_ns, n_runs)
    return share + (rest if number == 0 else 0)
