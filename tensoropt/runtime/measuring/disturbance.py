"""Tell whether other work on the machine disturbed a measurement, so that its numbers hold for that moment alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...profiling.collective_tables import quartiles_apart
from ...profiling.hardware import Hardware
from ..ranks import Processes

MOST_WAITED, MOST_APART = 0.25, 0.5
"""The largest :class:`Disturbance` of a measurement that counts as undisturbed."""
LASTING = 0.5
"""The share of waiting above which a second measurement would wait as well."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """The extent to which other work disturbed a measurement.

    Attributes:
        waited: the share of the time that threads of the slowest rank had work and no core to do it on. It is 0 where there
            are fewer cores than ranks, which wait for each other then; for one rank, whose own threads may do so; and where
            the system doesn't tell.
        apart: how far the quartiles of a collective's repeats lie apart, over the lower one; the median over all.
    """

    waited: float
    apart: float

    @property
    def is_large(self) -> bool:
        return self.waited > MOST_WAITED or self.apart > MOST_APART

    def __str__(self) -> str:
        return (
            f"other work disturbs these devices (ranks waited for a core in {self.waited:.0%} of the time, and repeats of a "
            f"collective differ by {self.apart:.0%})"
        )


def measured_with_disturbance(processes: Processes, measure: Callable[[], Hardware]) -> tuple[Hardware, Disturbance]:
    """Return what was measured, and how much other work disturbed that, equal on all ranks; every rank must call it."""
    ran_s, waited_s = core_times_s()
    hardware = measure()
    now_ran_s, now_waited_s = core_times_s()
    ran_s, waited_s = now_ran_s - ran_s, now_waited_s - waited_s
    has_cores = not processes.is_alone and (os.cpu_count() or 1) >= processes.local_size
    share = waited_s / (ran_s + waited_s) if has_cores and waited_s > 0 else 0.0
    return hardware, Disturbance(processes.gather_max(share), quartiles_apart(hardware.collectives))


def core_times_s() -> tuple[float, float]:
    """Return for how long this process's threads have run, and for how long they have waited for a core; 0 if unknown."""
    ran_ns = waited_ns = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        try:
            ran_text, waited_text, _ = thread.read_text().split()
        except (OSError, ValueError):
            continue
        ran_ns, waited_ns = ran_ns + int(ran_text), waited_ns + int(waited_text)
    return ran_ns / 1e9, waited_ns / 1e9
