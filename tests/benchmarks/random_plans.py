"""Plans that benchmarks compare predictions by: of the frontier, and of random strategies from all over the space to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from oracles.idle_choices import without_idle_choices

from tensoropt.ft import Frontier
from tensoropt.ft.problem import INFEASIBLE
from tensoropt.plan.plan import Plan
from tensoropt.search.candidates.plan_points import frontier_of_whole
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.sharding.resharding import PathFinder


def chosen_plans(frontier: ModelFrontier, n_random: int, n_frontier: int, seed: int = 0) -> Iterator[tuple[str, Plan]]:
    """Yield plans of the frontier at equal distances, then plans of random strategies."""
    n_points = len(frontier.found)
    for point in dict.fromkeys(np.linspace(0, n_points - 1, n_frontier).round().astype(int).tolist()):
        yield "frontier", frontier_of_whole(frontier).plan(point)
    rng = np.random.default_rng(seed)
    problem = frontier.built.problem
    for number in range(1, n_random + 1):
        states = frontier.found.strategies[rng.integers(n_points)].copy()
        for node, _ in enumerate(states):
            if rng.random() < number / n_random:
                states[node] = rng.integers(problem.nodes[node].n_states)
        if not choose_copies(frontier, states, rng):
            continue
        states = without_idle(frontier, states)
        mem_bytes, time_ns = (np.array([cost], np.int64) for cost in problem.cost(states.tolist()))
        time_ns -= frontier.built.overlap_ns(states[None])
        mem_bytes += frontier.built.missing_bytes(states[None])
        alone = Frontier(mem_bytes, time_ns, states[None], {}, "random")
        yield "random", frontier_of_whole(replace(frontier, found=alone)).plan(0)


def without_idle(frontier: ModelFrontier, states: np.ndarray) -> np.ndarray:
    """Return the states without regathering and rematerialization that no step does, for which plans would be charged."""
    view = frontier.model.view(frontier.built.strategy(states))
    path_finder = PathFinder(frontier.costing.reshardings.steps)
    return frontier.built.states_of(without_idle_choices(view, path_finder).strategy)


def choose_copies(frontier: ModelFrontier, states: np.ndarray, rng: np.random.Generator) -> bool:
    """Give choices about copies random states that fit the operators' states; return whether there are such."""
    problem = frontier.built.problem
    for node in range(len(frontier.built.nodes), len(problem.nodes)):
        allowed = np.ones(problem.nodes[node].n_states, bool)
        for edge in problem.edges:
            # A choice about a shared copy comes before those about copies of it.
            if edge.target == node:
                allowed &= edge.time_ns[states[edge.source]] < INFEASIBLE
            if edge.source == node and edge.target < len(frontier.built.nodes):
                allowed &= edge.time_ns[:, states[edge.target]] < INFEASIBLE
        if not allowed.any():
            return False
        if not allowed[states[node]]:
            states[node] = rng.choice(np.flatnonzero(allowed))
    return True
