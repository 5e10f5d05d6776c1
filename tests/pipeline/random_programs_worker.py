"""Train random programs in stages on these ranks, and hold losses and metrics to one device's.

    mpirun -n N python -m mpi4py tests/pipeline/random_programs_worker.py SEEDS

SEEDS are numbers, such as ``3,4`` or ``0-9``. Rank 0 draws the plans, and all ranks run them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from helpers.switches import graphs_as_built
from pipeline.random_programs import Program, check_training, engine_of, random_program

from tensoropt.plan.plan import Plan
from tensoropt.runtime.execute import MPI
from tensoropt.runtime.local_hardware import prepared_processes


def main(seeds: str) -> None:
    processes = prepared_processes()
    first, _, last = seeds.partition("-")
    for seed in range(int(first), int(last) + 1) if last else map(int, seeds.split(",")):
        program = random_program(seed, processes.size)
        value = processes.broadcast(program.plan.to_json())
        program = Program(program.model, replace(program.plan, stages=Plan.from_json(value).stages), program.placed)
        try:
            check_training(engine_of(program, processes, MPI), program.model)
        except Exception as error:
            error.add_note(f"program {seed} on {processes.size} ranks")
            raise
    if processes.rank == 0:
        print(f"programs {seeds} on {processes.size} ranks", flush=True)


if __name__ == "__main__":
    with graphs_as_built():
        main(sys.argv[1])
