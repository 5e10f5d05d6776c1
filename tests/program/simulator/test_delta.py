"""The delta simulation gives the full one's timeline, to the nanosecond."""

from __future__ import annotations

import random

import pytest
from helpers.large import first
from program.simulator.simulating import CLUSTERS, RANDOM, Simulated

from tensoropt.search.flexflow.simulated_position import DeltaSimulation

MODELS = ("lenet5", "rnnlm", "alexnet", "transformer", "inception_v3", "resnet101", "rnntc", "nmt")
EACH = 6


def holds(simulated: Simulated, seed: int, n: int) -> None:
    """Make random changes, keep some, and hold the delta simulation against the full one after each."""
    rng = random.Random(seed)
    simulation = DeltaSimulation(simulated.graph, simulated.chains(simulated.view), simulated.network)
    for nodes, view in simulated.changes(rng, n):
        expected_ns, timeline = simulated.full(view)
        assert simulation.try_chains(simulated.of_nodes(view, nodes)) == expected_ns
        if rng.random() < 0.5:
            simulation.keep()
            simulated.view = view
            chains = simulated.chains(view)
            acting = [each for each in simulation.events() if chains[each.node]]
            assert simulation.makespan_ns == expected_ns and acting == timeline


@pytest.mark.parametrize(("name", "cluster", "seed"), first(20, [
    (name, cluster, seed) for seed in range(37) for name in MODELS for cluster in CLUSTERS
]))  # fmt: skip
def test_random_changes_give_the_full_simulation_s_timeline(name, cluster, seed):
    holds(Simulated.of(name, CLUSTERS[cluster](), seed), seed, EACH)


@pytest.mark.parametrize("seed", first(4, range(100)))
def test_so_they_do_on_random_graphs(seed):
    cluster = list(CLUSTERS)[seed % len(CLUSTERS)]
    holds(Simulated.of(f"{RANDOM}{seed}", CLUSTERS[cluster](), seed), seed, 2 * EACH)


def test_a_change_that_is_not_kept_leaves_no_trace():
    simulated = Simulated.of("lenet5", CLUSTERS["p100"](), 3)
    simulation = DeltaSimulation(simulated.graph, simulated.chains(simulated.view), simulated.network)
    before = simulation.makespan_ns, simulation.events()
    tried = [
        simulation.try_chains(simulated.of_nodes(view, nodes)) for nodes, view in simulated.changes(random.Random(3), 20)
    ]
    assert len(set(tried)) > 5
    assert (simulation.makespan_ns, simulation.events()) == before
