"""Cuts of least memory: none of all others needs less."""

from __future__ import annotations

import itertools

import accumulate.models as models
import pytest

from tensoropt.ir.graph import SOURCES
from tensoropt.plan.memory_cuts import least_memory
from tensoropt.plan.submeshes import blocks_of
from tensoropt.sharding.model import Model


def most_bytes(model: Model, n_micro_batches: int, cuts: tuple[str, ...]) -> int:
    """Return the bytes of the stage that needs the most, of the variables that it uses first and of what it saves."""
    graph = model.in_micro_batches(n_micro_batches).graph
    read = {
        dict(graph.operators[name].operands)[position].name
        for name, position in model.backward.residual_operands
        if name in graph.operators
    } | model.backward.residual_results  # fmt: skip
    needed, stage, seen = [0] * (len(cuts) + 1), 0, set()
    for op in graph.step_operators:
        if op.type in SOURCES or op.updates is not None:
            continue
        in_flight = min(len(cuts) + 1 - stage, n_micro_batches)
        needed[stage] += in_flight * sum(tensor.mem_bytes for tensor in op.outputs if tensor.name in read)
        for _, tensor in op.operands:
            variable = graph.producers[tensor.name]
            if variable.is_trainable and variable.name not in seen:
                seen.add(variable.name)
                (update,) = graph.full_batch.updates[variable.name]
                needed[stage] += (2 + update.slots) * tensor.mem_bytes
        stage += stage < len(cuts) and op.name == cuts[stage]
    return max(needed)


def trains_everywhere(model: Model, cuts: tuple[str, ...]) -> bool:
    """Return whether each stage uses a variable that no earlier one does."""
    graph, stage, seen, trains = model.graph, 0, set(), [False] * (len(cuts) + 1)
    for op in graph.step_operators:
        if op.type in SOURCES or op.updates is not None:
            continue
        used = {graph.producers[t.name].name for _, t in op.operands if graph.producers[t.name].is_trainable}
        trains[stage] |= bool(used - seen)
        seen |= used
        stage += stage < len(cuts) and op.name == cuts[stage]
    return all(trains)


@pytest.mark.parametrize("n_stages", [2, 3])
@pytest.mark.parametrize("name", ["mlp", "attention", "tied"])
def test_no_other_cut_needs_less(name: str, n_stages: int) -> None:
    model = models.recorded(name, "adam").model
    operators = [op.name for op in model.graph.step_operators if op.type not in SOURCES and op.updates is None]
    all_cuts = [cuts for cuts in itertools.combinations(operators[:-1], n_stages - 1) if trains_everywhere(model, cuts)]
    found = least_memory(model, blocks_of((1,) * n_stages), 4, {})
    assert found is not None and found.cuts in all_cuts
    least = min(most_bytes(model, 4, cuts) for cuts in all_cuts)
    assert most_bytes(model, 4, found.cuts) == least


def test_a_model_of_too_few_variables_has_none() -> None:
    assert least_memory(models.recorded("dropping_out", "sgd").model, blocks_of((1,) * 5), 4, {}) is None
