"""Cut a model such that the stage that needs the most memory needs the least.

Its needs are those of :mod:`.stage_needs` at the level of the fewest bytes. Earlier stages have more micro-batches in
flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..program.schedule import least_in_flight
from ..sharding.model import Model
from ..sharding.stages import Stages
from .placement import elsewhere, why_not_placed
from .stage_needs import StageNeeds
from .submeshes import Block


def least_memory(
    model: Model, needs: StageNeeds, blocks: Sequence[Block], n_micro_batches: int, placed: Mapping[str, Block]
) -> Stages | None:
    """Return a model cut such that the device that needs the most memory needs the least.

    It is None if the model has too few variables, or if operators wouldn't be as they are placed.

    O(stages N^2) for N operators.

    Args:
        blocks: for each stage its devices.
        placed: the devices of the operators that a user placed, by name.
    """
    n, in_flight = len(needs.names), least_in_flight(len(blocks), n_micro_batches)
    places = np.arange(n + 1)
    starts, ends = places[:, None], places[None]
    most, before = np.where(places == 0, 0.0, np.inf), []
    for count, block in zip(in_flight, blocks, strict=True):
        # By start (row) and end (column) of a stage.
        own = needs.least_bytes(starts, ends, count) / block.size
        others = elsewhere(needs.names, placed, block)
        trains = (needs.trained[ends] > needs.trained[starts]) & (others[ends] == others[starts])
        costs = np.where(trains, np.maximum(own, most[:, None]), np.inf)
        before.append(costs.argmin(axis=0))
        most = costs.min(axis=0)
    if np.isinf(most[-1]):
        return None
    at = n
    cuts: list[str] = []
    for of_stage in reversed(before[1:]):
        at = int(of_stage[at])
        cuts.insert(0, needs.names[at - 1])
    stages = Stages(model, tuple(cuts))
    return stages if why_not_placed(stages, blocks, placed) is None else None


def least_bytes(stages: Stages, needs: StageNeeds, sizes: Sequence[int], n_micro_batches: int) -> list[float]:
    """Return the bytes that each stage of a cut needs at least, on a device, as :func:`least_memory` counts them.

    Args:
        sizes: for each stage the number of its devices.
    """
    in_flight = least_in_flight(stages.n, n_micro_batches)
    at = [0, *(needs.names.index(name) + 1 for name in stages.cuts), len(needs.names)]
    of_stages = zip(at[:-1], at[1:], in_flight, sizes, strict=True)
    return [float(needs.least_bytes(start, end, count)) / size for start, end, count, size in of_stages]
