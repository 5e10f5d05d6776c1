"""The measured times of collectives, by their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from . import checks
from .checks import HardwareError


@dataclass(frozen=True, slots=True)
class CollectiveTable:
    """The measured times of one kind of collective over one device partition, all groups at once.

    ``n_bytes`` is ascending, and ``time_us[i]`` belongs to ``n_bytes[i]``; the docstring of ``hardware_costs.py`` defines
    the bytes of each kind. ``spread[i]``, where it is known, is the difference of the upper and the lower quartile of its
    repeats, over the lower.
    """

    n_bytes: tuple[int, ...]
    time_us: tuple[float, ...]
    spread: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        sizes = checks.sequence(self.n_bytes, "bytes", "a list of sizes")
        times = checks.sequence(self.time_us, "time_us", "a list of times")
        sizes = tuple(checks.positive_integer(size, "bytes", "positive whole numbers") for size in sizes)
        times = tuple(checks.number(time, "time_us", "positive microseconds") for time in times)
        if len(sizes) < 2 or any(low >= high for low, high in pairwise(sizes)):
            raise checks.fail("bytes", list(sizes), "at least two sizes, each larger than the one before")
        if len(times) != len(sizes):
            raise checks.fail("time_us", list(times), f"one time for each of the {len(sizes)} sizes")
        spreads = checks.sequence(self.spread, "spread", "a list of relative spreads")
        spreads = tuple(checks.number(spread, "spread", "numbers of at least 0", least=0) for spread in spreads)
        if spreads and len(spreads) != len(sizes):
            raise checks.fail("spread", list(spreads), f"one for each of the {len(sizes)} sizes, or none")
        object.__setattr__(self, "n_bytes", sizes)
        object.__setattr__(self, "time_us", times)
        object.__setattr__(self, "spread", spreads)

    def to_json(self) -> dict[str, Any]:
        """Return what a hardware file has of it."""
        value = {"bytes": list(self.n_bytes), "time_us": list(self.time_us)}
        return {**value, "spread": list(self.spread)} if self.spread else value


def tables_from_json(kind: str, tables: object) -> dict[str, CollectiveTable]:
    """Read the tables of a kind of collective, by the axes of their groups.

    Raises:
        HardwareError: a field is missing, unknown or impossible.
    """
    result = {}
    for axes, value in checks.mapping(tables, f"collectives.{kind}", "an object from axes to tables").items():
        path = f"collectives.{kind}.{axes}"
        table = checks.fields(value, path, ("bytes", "time_us"), ("spread",))
        try:
            result[axes] = CollectiveTable(table["bytes"], table["time_us"], table.get("spread", ()))
        except HardwareError as error:
            raise HardwareError(f"{path}.{error}") from None
    return result
