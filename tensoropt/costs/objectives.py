"""Name the two costs that a search trades against each other, and hold all costs of strategies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..common.errors import InputError, short

Objectives = tuple[str, str]
MEMORY_TIME: Objectives = ("memory", "time")
TIME_COST = "time,cost"
"""The pair of costs by which points of a scaling curve are compared: time of a step, and its price."""
PAIRS: tuple[Objectives, ...] = (MEMORY_TIME, ("memory", "network"), ("time", "network"))


@dataclass(frozen=True, slots=True, eq=False)
class StrategyCosts:
    """All costs of P strategies, int64[P] each, whatever pair of costs was searched.

    Attributes:
        time_ns: the time of a step: compute plus network, less their overlap.
        overlap_ns: the overlap: network time during which the device computes.
    """

    mem_bytes: np.ndarray
    time_ns: np.ndarray
    compute_ns: np.ndarray
    overlap_ns: np.ndarray

    @property
    def network_ns(self) -> np.ndarray:
        difference: np.ndarray = self.time_ns + self.overlap_ns - self.compute_ns
        return difference

    def pair(self, objectives: Objectives) -> tuple[np.ndarray, np.ndarray]:
        """Return the two costs that were searched."""
        of_name = {"memory": self.mem_bytes, "time": self.time_ns, "network": self.network_ns}
        first, second = objectives
        return of_name[first], of_name[second]


def parse_objectives(text: str) -> Objectives:
    """Return the pair of costs that a text such as ``memory,network`` names; the order doesn't matter.

    Raises:
        InputError: the text names no pair of costs that can be searched.
    """
    names = {name.strip() for name in text.split(",")}
    for pair in PAIRS:
        if names == set(pair) and text.count(",") == 1:
            return pair
    choices = " or ".join([*(",".join(pair) for pair in PAIRS), f"{TIME_COST} with --option profiling"])
    raise InputError(f"--objectives takes two costs, {choices}, got {short(text)}")
