"""Cut a model such that the stage that needs the most memory needs the least.

A stage holds its variables with their gradients and slots, and of each micro-batch in flight what its backward pass reads;
earlier stages have more in flight. All of it is counted as split over the stage's devices: the least that a plan can need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.graph import SOURCES, Graph
from ..program.schedule import least_in_flight
from ..sharding.model import Model
from ..sharding.stages import Stages
from .placement import elsewhere, why_not_placed
from .submeshes import Block


@dataclass(frozen=True, eq=False)
class _Places:
    """The places where a model may be cut: after each of N operators, in program order.

    Attributes:
        held: the bytes of the variables that are used first up to each operator, with gradients and slots, int64[N].
        saved: the bytes that a micro-batch saves up to each operator, int64[N].
        trained: how many variables are used up to each operator, int64[N].
    """

    names: Sequence[str]
    held: np.ndarray
    saved: np.ndarray
    trained: np.ndarray


def least_memory(
    model: Model, blocks: Sequence[Block], n_micro_batches: int, placed: Mapping[str, Block]
) -> Stages | None:
    """Return a model cut such that the device that needs the most memory needs the least.

    It is None if the model has too few variables, or if operators wouldn't be as they are placed.

    O(stages N^2) for N operators.

    Args:
        blocks: for each stage its devices.
        placed: the devices of the operators that a user placed, by name.
    """
    places, n_stages = _places(model, n_micro_batches), len(blocks)
    n, in_flight = len(places.names), least_in_flight(n_stages, n_micro_batches)
    others = [elsewhere(places.names, placed, block)[1:] for block in blocks]
    is_first = (places.trained > 0) & (others[0] == 0)
    most = np.where(is_first, (places.held + in_flight[0] * places.saved) / blocks[0].size, np.inf)
    before = []
    for stage in range(1, n_stages):
        # By start (row) and end (column) of a stage: the operators after start, up to end.
        of_stage = places.held + in_flight[stage] * places.saved
        own = (of_stage[None] - of_stage[:, None]) / blocks[stage].size
        trains = places.trained[None] > places.trained[:, None]
        trains &= others[stage][None] == others[stage][:, None]
        costs = np.where(trains, np.maximum(own, most[:, None]), np.inf)
        before.append(costs.argmin(axis=0))
        most = costs.min(axis=0)
    if np.isinf(most[-1]):
        return None
    at = n - 1
    cuts: list[str] = []
    for starts in reversed(before):
        at = int(starts[at])
        cuts.insert(0, places.names[at])
    stages = Stages(model, tuple(cuts))
    return stages if why_not_placed(stages, blocks, placed) is None else None


def most_bytes(stages: Stages, sizes: Sequence[int], n_micro_batches: int) -> float:
    """Return the bytes of the stage of a cut that needs the most, on a device, as :func:`least_memory` counts them.

    Args:
        sizes: for each stage the number of its devices.
    """
    places, in_flight = _places(stages.whole, n_micro_batches), least_in_flight(stages.n, n_micro_batches)
    ends = [*(places.names.index(name) for name in stages.cuts), len(places.names) - 1]
    held, saved = (np.diff(each[ends], prepend=0) for each in (places.held, places.saved))
    return float(((held + np.array(in_flight) * saved) / np.array(sizes)).max())


def _places(model: Model, n_micro_batches: int) -> _Places:
    graph = model.in_micro_batches(n_micro_batches).graph
    updates, in_step = graph.full_batch.updates, {op.name for op in graph.step_operators}
    names, held, saved, trained = [], [], [], []
    variables: set[str] = set()
    of_variables = of_micro_batch = 0
    read = _read(model, graph)
    for op in graph.operators.values():
        if op.name not in in_step or op.type in SOURCES or op.updates is not None:
            continue
        used = {graph.producers[tensor.name] for _, tensor in op.operands if graph.producers[tensor.name].is_trainable}
        for variable in used:
            if variable.name not in variables:
                variables.add(variable.name)
                slots = max((update.slots for update in updates.get(variable.name, ())), default=0)
                of_variables += (2 + slots) * variable.result.mem_bytes
        of_micro_batch += sum(tensor.mem_bytes for tensor in op.outputs if tensor.name in read)
        names.append(op.name)
        held.append(of_variables)
        saved.append(of_micro_batch)
        trained.append(len(variables))
    return _Places(names, *(np.array(each, np.int64) for each in (held, saved, trained)))


def _read(model: Model, graph: Graph) -> set[str]:
    """Return the names of the tensors that the backward pass reads."""
    operands = {
        tensor.name
        for name, position in model.backward.residual_operands
        if name in graph.operators
        for i, tensor in graph.operators[name].operands
        if i == position
    }
    return operands | set(model.backward.residual_results)
