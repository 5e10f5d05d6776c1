"""Read the hosts of a run and their slots, as mpirun takes them: ``--host alpha:4,beta:4``, or a hostfile.

Tell also how many machines ranks are on, and how many ranks each has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from ...common.errors import InputError, describe

_LINE = re.compile(r"(?:(\S+)\s+slots\s*=\s*)?(\d+)")
_HANDED_ON = ("TENSOROPT_", "TF_", "KERAS_", "OMP_", "PYTHON", "NCCL_", "OMPI_ALLOW_RUN_AS_ROOT")
"""Beginnings of the names of environment variables that ranks on other hosts have as well."""


class Host(NamedTuple):
    """A host, and how many ranks it takes; this one if it has no name."""

    name: str
    slots: int


def hosts_of(text: str) -> list[Host]:
    """Return the hosts that ``--host`` names, with one rank each by default; raise InputError if a number isn't one."""
    hosts = []
    for part in text.split(","):
        name, _, slots = part.strip().partition(":")
        if not name or not (slots or "1").isdecimal():
            raise InputError(describe("--host takes hosts with their slots", got=repr(text), expected="alpha:4,beta:4"))
        hosts.append(Host(name, int(slots or 1)))
    return hosts


def hosts_in(file: Path) -> list[Host]:
    """Return the hosts of a hostfile; a number alone is this host's slots.

    Raises:
        InputError: it can't be read, or a line isn't a host with its slots.
    """
    try:
        lines = [line for text in file.read_text().splitlines() if (line := text.partition("#")[0].strip())]
    except (OSError, ValueError) as error:
        raise InputError(describe(f"hostfile '{file}' can't be read", got=str(error))) from error
    hosts = []
    for line in lines or [""]:
        match = _LINE.fullmatch(line)
        if match is None or (match[1] is None and len(lines) > 1):
            raise InputError(describe(f"a line of hostfile '{file}'", got=repr(line), expected="such as 'alpha slots=4'"))
        hosts.append(Host(match[1] or "", int(match[2])))
    return hosts


def host_options(hosts: Sequence[Host], environ: Mapping[str, str]) -> list[str]:
    """Return mpirun's options for these hosts, which hand environment variables on to them; none without hosts."""
    if not any(host.name for host in hosts):
        return []
    names = sorted(name for name in environ if name.startswith(_HANDED_ON))
    return [
        "--host",
        ",".join(f"{name}:{slots}" for name, slots in hosts),
        *(part for name in names for part in ("-x", name)),
    ]


def hosts_of_allocation(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many hosts the batch system's job has, as far as Slurm says."""
    text = environ.get("SLURM_JOB_NUM_NODES", "1")
    return max(1, int(text)) if text.isdecimal() else 1


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
