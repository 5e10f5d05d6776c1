"""One rank of the tests under mpirun: ``save``, ``load`` and ways to fail; prints a line for each thing that was done.

mpirun -n 4 worker.py save FOLDER/ckpt        mpirun -n 2 worker.py load FOLDER/ckpt
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from unittest.mock import patch

from runtime.checkpoint.states import Logical, assert_values, entries, layout_by_seed, replicated

from tensoropt.reschedule.layout import Layout
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.checkpoint import parts, restore, save, saving
from tensoropt.runtime.failures.error_handling import install_error_handling
from tensoropt.runtime.ranks import Processes, current_processes

SMALL = [
    Logical("kernel", (7, 5)), Logical("long", (1000, 33)), Logical("scalar", ()), Logical("two", (2,)),
    Logical("none", (0, 3)), Logical("half", (6, 5), "float16"), Logical("flag", (5,), "bool"),
    Logical("seed", (2,), "uint32"), Logical("train/kernel/momentum", (7, 5), "bfloat16", "train"),
    Logical("train/iteration", (), "int64", "train"),
]  # fmt: skip
LARGE = [Logical(f"w{i}", (1024, 512)) for i in range(4)]


def layouts_of(variables: list[Logical], mesh: Mesh) -> dict[str, Layout]:
    return {v.key: layout_by_seed(mesh, len(v.shape), 5 + i) for i, v in enumerate(variables)}


def main(prefix: str, *actions: str) -> None:
    processes = current_processes()
    install_error_handling(processes)
    for action in actions:
        if action == "part":
            processes = part_of(processes)
        elif action.startswith("load"):
            load(processes, f"{prefix}-{action.removeprefix('load-')}")
        elif action == "other":
            mesh = Mesh.of(processes.size)
            other = [Logical("kernel", (7, 6))]
            restore(f"{prefix}-plan", entries(other, replicated(other, mesh), [processes.rank]), processes)
        else:
            save_one(processes, prefix, action)
        print(f"rank {processes.rank}: {action} done", flush=True)


def load(processes: Processes, prefix: str) -> None:
    state = entries(SMALL, layouts_of(SMALL, Mesh.of(processes.size)), [processes.rank], zero=True)
    restore(prefix, state, processes)
    assert_values(SMALL, state, [processes.rank])


def save_one(processes: Processes, prefix: str, action: str) -> None:
    """``plan``: as a plan has it; ``replicated``; ``files``: in many files; ``large``, ``killed``: in place of ``plan``."""
    mesh = Mesh.of(processes.size)
    variables = LARGE if action in ("large", "killed") else SMALL
    layouts = replicated(variables, mesh) if action == "replicated" else layouts_of(variables, mesh)
    if action == "killed":
        kill_in_the_middle(processes)
    name = "plan" if variables is LARGE else action
    part, shard = (4096, 8192) if action == "files" else (parts.PART_BYTES, saving.SHARD_BYTES)
    with patch.object(parts, "PART_BYTES", part), patch.object(saving, "SHARD_BYTES", shard):
        state = entries(variables, layouts, [processes.rank])
        save(f"{prefix}-{name}", state, processes, {"epoch": 3})


def part_of(processes: Processes) -> Processes:
    """All ranks but the last, which waits."""
    idle = processes.rank == processes.size - 1
    part = processes.comm.Split(int(idle), processes.rank)
    if idle:
        processes.wait_for_others()
        raise SystemExit
    return processes.part(part)


def kill_in_the_middle(processes: Processes) -> None:
    """Rank 1 is killed when its values are written and not yet safe on the disk."""

    def killing(file: Path) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if processes.rank == 1:
        saving.make_safe = killing


if __name__ == "__main__":
    main(*sys.argv[1:])
