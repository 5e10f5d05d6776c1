"""Build the Problem of a graph: nodes, edges and arrays of costs, all that the search sees.

A node is an operator with its configs, or a fusion group of several (:mod:`.config_space`); :mod:`.edges` connects them by
edges and by further nodes. What is equal is built once and is one object: states by the node's signature
(:mod:`.node_states`), cost arrays by the two ends that they connect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from ...costs.operator_costs import OperatorCosting
from ...ft.problem import Problem
from ...ir.graph import Graph, Operator
from ...reschedule.mesh import Mesh
from ...rules.registry import rule_in_micro_batches, rule_of
from ...rules.rule import Config, why_invalid
from ...sharding.constraints import Force, allowed, force_by_name
from ...sharding.consumers import consumers_of
from .choices import Choices
from .config_space import FULL, Assignments, nodes_of, states_of
from .edge_costs import ReshardingArrays
from .edges import EdgeBuilder
from .fusion_groups import FusionGroup
from .node_states import Evaluation, States
from .remat_segments import NO_SEGMENTS, Segments, segments_of
from .strategy_problem import StrategyProblem


@dataclass
class ProblemBuilder:
    """A builder of the Problem of a graph's training steps on one mesh.

    Attributes:
        force: the degrees of operators' factors that a user insists on.
        progress: called with (nodes done, nodes).
        states: returns the configs of a node's states, where they are not to be all of the space.
        choices: what strategies may choose beside configs and shared copies.
    """

    costing: OperatorCosting
    mesh: Mesh
    space: str = FULL
    force: Force = field(default_factory=dict)
    progress: Callable[[int, int], None] | None = None
    states: Callable[[FusionGroup], Assignments] | None = None
    choices: Choices = field(default_factory=Choices)
    _valid: dict[tuple[object, ...], tuple[tuple[Config, ...], np.ndarray]] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.costing.graph

    def build(self) -> StrategyProblem:
        """Return the Problem of all operators that a training step runs, without rematerialization.

        Raises:
            InputError: ``force`` names what isn't there, or asks for a split that an operator can't have.
        """
        return self._connected(self._nodes, NO_SEGMENTS)

    def build_rematerializing(self) -> StrategyProblem | None:
        """Return the Problem with rematerialization; None where that can't save any memory.

        Raises:
            InputError: as :meth:`build`.
        """
        nodes = self._nodes
        segments = segments_of([node for node, _ in nodes], self.costing, self.mesh.n_devices)
        if not segments.nodes:
            return None
        rematerializing = list(nodes)
        for i, segment_node in segments.nodes.items():
            node, states = nodes[i]
            rematerializing[i] = node, self._evaluation.rematerializing(node, states, segment_node.indices)
        return self._connected(rematerializing, segments)

    def _connected(self, nodes: list[tuple[FusionGroup, States]], segments: Segments) -> StrategyProblem:
        edge_builder = EdgeBuilder(
            self._evaluation, self._arrays, nodes, self.space != FULL, self.choices, segments, self.tell
        )
        edge_builder.connect()
        problem = Problem(edge_builder.nodes.nodes(), tuple(edge_builder.edges))
        built = StrategyProblem(
            problem,
            self.mesh,
            self.space,
            tuple(nodes),
            tuple(edge_builder.shared),
            edge_builder.overlap_times.overlap(),
            tuple(edge_builder.choices),
            edge_builder.transients.transient(
                {i: states.rematerializes for i, (_, states) in enumerate(nodes)},
                {i: states.others for i, (_, states) in enumerate(nodes) if states.rematerialized},
            ),
        )
        # Only configs that operators can have both in a micro-batch and at the full batch.
        return built if self.graph.n_micro_batches == 1 else built.allowing(self._are_valid)

    def _are_valid(self, op: Operator, configs: tuple[Config, ...]) -> np.ndarray:
        """Return whether an operator can have configs of its node at the full batch; found once for equal layers."""
        graph = self.graph
        rule = rule_in_micro_batches(graph.full_batch.operators[op.name], graph.n_micro_batches, self.mesh.n_devices)
        key = rule.content, id(configs)
        if key not in self._valid:
            self._valid[key] = configs, np.array([not why_invalid(rule, config) for config in configs], bool)
        return self._valid[key][1]

    @cached_property
    def _nodes(self) -> list[tuple[FusionGroup, States]]:
        """The operators' nodes with their states, which both problems begin with."""
        self.force = force_by_name(self.graph, self.force)
        self.rules = {op.name: rule_of(op) for op in self.graph.step_operators}
        self._evaluation = evaluation = Evaluation(self.costing, self.rules, self.mesh)
        self._arrays = ReshardingArrays(self.costing.reshardings, self.graph, self.choices.zero)
        operators = self.graph.step_operators
        names = frozenset(op.name for op in operators if op.name in self.force)
        nodes = []
        groups = nodes_of(self.space, self.graph, self.rules, consumers_of(self.graph), names)
        for n_done, node in enumerate(groups):
            self.tell(n_done, 2 * len(groups))
            if self.states is not None:
                states = self.states(node)
                nodes.append((node, evaluation.states(node, partial(tuple, states), states)))
                continue
            degrees = tuple(sorted(self.force.get(node.operators[0].name, {}).items()))
            nodes.append((node, evaluation.states(node, self._assignments(node), degrees)))
        return nodes

    def tell(self, n_done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(n_done, total)

    def _assignments(self, node: FusionGroup) -> Callable[[], Assignments]:
        op = node.operators[0]
        degrees = self.force.get(op.name)

        def found() -> Assignments:
            states = states_of(self.space, node, self.rules, self.mesh, degrees)
            if degrees is None:
                return states
            configs = tuple(config for config, in states)
            return tuple((config,) for config in allowed(self.force, op, self.rules[op.name], self.mesh, configs))

        return found
