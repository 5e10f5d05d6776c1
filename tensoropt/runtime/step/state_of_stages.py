"""The state of a model: the entries of all stages, as one state that every process describes alike.

A process holds the shards of its own stages alone. Of the others it knows the entries, without shards. What each stage has
for itself, such as an optimizer's count of steps, is one entry, replicated on the devices of all stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...common.errors import InputError
from ...lowering.variables import StateEntry
from ...reschedule.layout import Layout
from ...reschedule.mesh import Mesh


@dataclass(frozen=True, slots=True)
class StageEntries:
    """The entries of one stage, as its state has them.

    Attributes:
        averages: the keys of each parameter and of its moving average, where an optimizer keeps such.
    """

    first_device: int
    entries: tuple[StateEntry, ...]
    averages: tuple[tuple[str, str], ...] = ()

    @property
    def described(self) -> StageEntries:
        """The same without shards, to be sent to other processes."""
        return replace(self, entries=tuple(replace(entry, variables=(), ranks=()) for entry in self.entries))


def state_of_all(stages: Sequence[StageEntries], n_devices: int) -> tuple[StateEntry, ...]:
    """Return the entries of all stages: those of the model first, then those of the optimizers.

    Raises:
        InputError: what all stages have is split in one of them.
    """
    holders: dict[str, list[tuple[StageEntries, StateEntry]]] = {}
    for stage in stages:
        for entry in stage.entries:
            holders.setdefault(entry.key, []).append((stage, entry))
    entries = [entry for key, group in holders.items() for entry in _merged(key, group, len(stages), n_devices)]
    return tuple(sorted(entries, key=lambda entry: entry.step is not None))


def _merged(key: str, group: list[tuple[StageEntries, StateEntry]], n_stages: int, n_devices: int) -> list[StateEntry]:
    """Return the entries for what stages have under one key; what all devices hold is as its stage has it."""
    _, entry = group[0]
    if len(group) == 1 and entry.layout.mesh.n_devices == n_devices:
        return [entry]
    if len(group) < n_stages or entry.parameter is not None:
        # Keras counts equal paths of parameters in each stage for itself: a parameter's own key tells them apart.
        return [
            replace(part, key=key if number == 0 else f"{key}_{part.parameter}", first_device=stage.first_device)
            for number, (stage, part) in enumerate(group)
        ]
    if any(part.layout.split_axes for _, part in group):
        raise InputError(f"'{key}', which each stage has, is split over the devices of one; use stages=1")
    ranks = [stage.first_device + rank for stage, part in group for rank in part.ranks]
    variables = [variable for _, part in group for variable in part.variables]
    layout = Layout.replicated(Mesh.of(n_devices), len(entry.shape))
    return [replace(entry, layout=layout, ranks=tuple(ranks), variables=tuple(variables))]
