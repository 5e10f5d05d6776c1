"""Costs of rematerialized operators; a search that may choose them finds nothing worse."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from helpers.large import first
from helpers.searches import find_frontier
from remat.small import HARDWARE, SMALL, settle_copies

from tensoropt.costs.config_costs import costs_of_config
from tensoropt.ft import Budget
from tensoropt.ir.graph import VARIABLE
from tensoropt.plan.build import cost_entries
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.sharding.resharding import PathFinder
from tensoropt.tools.offline import record


@cache
def frontier(name: str, space: str, without: tuple[str, ...]) -> ModelFrontier:
    model = record(SMALL[name], name).model
    return find_frontier(model, HARDWARE, 4, space=space, budget=Budget(seconds=1.0), without=without)


CHOICES = [("full", ()), ("compact", ("reuse",)), ("full", ("reuse",)), ("compact", ())]
# By default attention, which reads tensors twice, with all choices, and a perceptron with fewer.
CASES = [("attention", *CHOICES[0]), ("mlp", *CHOICES[1])]
CASES += [case for name in ("attention", "mlp", "cnn", "vgg16") for each in CHOICES if (case := (name, *each)) not in CASES]


@pytest.mark.parametrize(("name", "space", "without"), first(2, CASES))
def test_a_strategy_takes_the_time_of_its_operators_and_reshardings(
    name: str, space: str, without: tuple[str, ...], everything: bool
) -> None:
    """States are random; in the full space an operator that reads a tensor twice is charged for both reshardings."""
    found = frontier(name, space, without)
    built, rng, n_rematerialized, n_checked = found.built, np.random.default_rng(0), 0, 0
    costing = found.costing
    path_finder = PathFinder(costing.reshardings.steps)
    for number in range(120 if everything else 60):
        states = random_states(found, rng, number % 3)
        if states is None:
            continue
        _, time_ns = built.problem.cost(states.tolist())
        strategy = built.strategy(states)
        view = found.model.view(strategy)
        assert view.rematerialized == strategy.rematerialized
        made = [entry for entry in cost_entries(view) if entry.is_shared and entry.is_regathered]
        if {copy.tensor for copy in strategy.regathered if copy.consumer is None} - {entry.tensor for entry in made}:
            continue  # a shared copy that is made again though nobody reads it is charged, and isn't executed
        n_checked += 1
        total = sum(entry.time_ns(path_finder) for entry in cost_entries(view))
        for name_of in view.interfaces:
            op, rule, config = view.graph.operators[name_of], view.rules[name_of], strategy.configs[name_of]
            whole_ns, backward_ns = costs_of_config(costing, op, rule, config).times_ns[:, 0].tolist()
            total += whole_ns + (whole_ns - backward_ns if name_of in view.rematerialized else 0)
        assert total == time_ns
        n_rematerialized += len(strategy.rematerialized)
    assert n_checked > 10 and (n_rematerialized or built.transient is None)


def random_states(found: ModelFrontier, rng: np.random.Generator, kind: int) -> np.ndarray | None:
    """A point's, or any, or any that compute all again that can be; then states of copies that are allowed beside them."""
    built = found.built
    states = found.found.strategies[rng.integers(len(found))].copy()
    for node, (_, possible) in enumerate(built.nodes):
        if kind == 1:
            states[node] = rng.integers(possible.n_states)
        if kind == 2 and possible.rematerializes.any():
            states[node] = rng.choice(np.flatnonzero(possible.rematerializes))
    return states if settle_copies(built, states, rng) else None


@pytest.mark.parametrize("name", first(1, ["attention", "vgg16"]))
def test_a_regathered_parameter_is_alive_while_its_segment_is_rematerialized(name: str) -> None:
    """Whether its copy is saved or regathered makes no difference to the segment of most memory."""
    found = frontier(name, "full", ())
    built, rng, n_seen = found.built, np.random.default_rng(1), 0
    assert built.transient is not None
    variables = {op.result.name for op in found.model.graph.step_operators if op.type == VARIABLE}
    nodes = {op.name: n for n, (node, _) in enumerate(built.nodes) for op in node.operators}
    of_variables = [c for c in built.choices if c.copy.tensor in variables and c.copy.consumer in nodes]
    for _ in range(60):
        states = random_states(found, rng, 2)
        if states is None:
            continue
        for choice in of_variables:
            consumer = nodes[str(choice.copy.consumer)]
            if (
                not built.nodes[consumer][1].rematerializes[states[consumer]]
                or not choice.is_regathered[states[choice.node]]
            ):
                continue
            for other in np.flatnonzero(~choice.is_regathered):
                kept = states.copy()
                kept[choice.node] = other
                (remade_bytes, rematerialization_ns), (saved_bytes, time_ns) = (
                    costs(found, each) for each in (states, kept)
                )
                if time_ns < rematerialization_ns and most_at_once(found, states, kept):
                    assert remade_bytes == saved_bytes
                    n_seen += 1
    assert n_seen > 5


def costs(found: ModelFrontier, states: np.ndarray) -> tuple[int, int]:
    """The memory of a strategy, transient memory included, and its time."""
    mem_bytes, time_ns = found.built.problem.cost(states.tolist())
    return mem_bytes + int(found.built.missing_bytes(states[None])[0]), time_ns


def most_at_once(found: ModelFrontier, *strategies: np.ndarray) -> bool:
    """Whether strategies differ in the block that has most at once, in each of them."""
    amounts = [found.built.transient.by_segment(found.built.problem, states[None])[:, 0] for states in strategies]
    (differing,) = np.nonzero(amounts[0] != amounts[1])
    return len(differing) == 1 and all(each.argmax() == differing[0] for each in amounts)
