"""Tell how many machines ranks are on, and how many ranks each has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ...common.errors import InputError, describe


def machine_shape(hosts: Sequence[str]) -> tuple[int, int]:
    """Return (machines, devices per machine) of ranks on these hosts.

    Raises:
        InputError: the ranks of a host aren't consecutive, or hosts have different numbers of ranks.
    """
    runs = [(host, len(list(ranks))) for host, ranks in groupby(hosts)]
    counts = [count for _, count in runs]
    if len({host for host, _ in runs}) < len(runs):
        raise InputError(
            describe(
                "ranks must be ordered by host",
                got=f"the hosts {', '.join(hosts)}",
                advice="start with mpirun --map-by slot, or order the hostfile by host",
            )
        )
    if len(set(counts)) == 1:
        return len(counts), counts[0]
    placement = ", ".join(f"{count} on {host}" for host, count in runs)
    raise InputError(
        describe(
            f"{len(hosts)} ranks on {len(counts)} machines aren't M machines times D devices",
            got=placement,
            expected="p devices of one machine, or the same number on every machine",
            advice=f"start {_neighbouring_counts(counts)}",
        )
    )


def _neighbouring_counts(counts: Sequence[int]) -> str:
    """Return text with the nearest counts of ranks that would work, below (on the devices seen) and above."""
    size, machines = sum(counts), len(counts)
    sizes = sorted(counts, reverse=True)
    nearest = max(((n * count, n, count) for n, count in enumerate(sizes, start=1)), key=lambda c: c[:2])
    machine_size = -(-size // machines)
    if machine_size * machines == size:
        return f"{nearest[0]} ({_shape_text(*nearest[1:])}) or place {size} as {_shape_text(machines, machine_size)}"
    return f"{nearest[0]} ({_shape_text(*nearest[1:])}) or {machine_size * machines} ({_shape_text(machines, machine_size)})"


def _shape_text(machines: int, devices: int) -> str:
    return f"one machine of {devices}" if machines == 1 else f"{machines} machines of {devices}"
