"""Models that are searched in a second, and what for."""

from __future__ import annotations

import numpy as np
from helpers import zoo

from tensoropt import zoo as models
from tensoropt.ft.problem import INFEASIBLE
from tensoropt.profiling.hardware import named
from tensoropt.search.problem.strategy_problem import StrategyProblem

HARDWARE = named("v100-1x4")
SMALL = {
    "vgg16": lambda: models.vgg16(batch=8, image=32), "mlp": lambda: zoo.mlp().loss,
    "attention": lambda: zoo.attention().loss, "cnn": lambda: zoo.cnn().loss,
}  # fmt: skip


def settle_copies(built: StrategyProblem, states: np.ndarray, rng: np.random.Generator) -> bool:
    """Give the nodes of copies any states that are allowed beside those around them; whether there are such."""
    problem = built.problem
    for _ in range(3):
        for node in range(len(built.nodes), len(problem.nodes)):
            allowed = np.ones(problem.nodes[node].n_states, bool)
            for edge in problem.edges:
                if edge.target == node:
                    allowed &= edge.time_ns[states[edge.source]] < INFEASIBLE
                if edge.source == node:
                    allowed &= edge.time_ns[:, states[edge.target]] < INFEASIBLE
            if not allowed.any():
                return False
            states[node] = rng.choice(np.flatnonzero(allowed))
    return True
