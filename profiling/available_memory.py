"""Measure how much memory a rank may use on a CPU: the free memory of container and machine, over the local ranks.

A container's limit is that of its control group, of version 1 or 2, or of any group above it. Pages of files that the
group has read count as used there, but the kernel gives them back when asked, so inactive ones count as free.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 62
"""Version 1 writes "no limit" as the largest multiple of a page below 2**63."""


def available_memory_bytes(local_ranks: int, root: Path = Path("/")) -> int:
    """Return the free bytes for each of ``local_ranks`` processes on this machine.

    Args:
        root: the folder that holds ``proc`` and ``sys``.

    Raises:
        ValueError: fewer than one rank.
    """
    if local_ranks < 1:
        raise ValueError(f"memory is shared by at least 1 rank on this machine, got {local_ranks}")
    return max(1, min(_machine_free_bytes(root), *_group_free_bytes(root), _UNLIMITED) // local_ranks)


def _machine_free_bytes(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kilobytes = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines) if value}
    return kilobytes.get("MemAvailable", kilobytes["MemTotal"]) * 1024


def _group_free_bytes(root: Path) -> Iterator[int]:
    """Yield the free bytes of every control group with a limit that this process is in."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers == "":
            mount = root / "sys/fs/cgroup"
            files = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be the host's, which isn't mounted here: then the mount itself is the group.
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts) + 1):
            free = _free_bytes(mount.joinpath(*parts[:depth]), *files)
            if free is not None:
                yield free


def _free_bytes(group: Path, limit_file: str, usage_file: str, reclaimable: str) -> int | None:
    try:
        limit = int((group / limit_file).read_text())
        usage = int((group / usage_file).read_text())
        counters = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or the limit is "max"
        return None
    if limit >= _UNLIMITED:
        return None
    return max(0, limit - usage + int(counters.get(reclaimable, 0)))
