"""Run ``mpirun -n N tensoropt check MODEL --plan PLAN``: run a plan and print predictions beside measurements."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tabulate import tabulate

from ....common.errors import InputError
from ....common.memory_units import memory_text
from ....common.process.tensorflow_import import import_tensorflow
from ....common.words import counted
from ....runtime.ranks import display_here
from ..answers import add_json_argument, add_training_arguments, answer, check_json_path, files_read
from ..searches.search import add_model_argument, add_strictness, checked_measurement, positive_number

if TYPE_CHECKING:
    from ...plan_check import Compared, PlanCheck

STEPS, MOST_WRONG, NAME_WIDTH = 20, 5, 60
UNSEEN = "not measured: TensorFlow reports no allocations on this CPU unless TF_ENABLE_ONEDNN_OPTS=1 is set"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "mpirun -n N tensoropt check MODEL --plan PLAN.json [--steps N] [OPTION ...]"
    add_plan_arguments(parser)
    parser.add_argument("--steps", default=str(STEPS), metavar="N", help=f"how many steps are timed; default: {STEPS}")
    parser.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="the hardware whose costs measured collectives are compared with; default: these devices",
    )
    add_strictness(parser)
    add_json_argument(parser)


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which model runs, by which plan."""
    add_model_argument(parser)
    parser.add_argument("--plan", type=Path, metavar="PLAN.json", required=True, help="of search --plan or plan.save")
    add_training_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt check`` and return the exit code; every rank runs it."""
    steps = positive_number(arguments.steps, "--steps", "steps")
    check_json_path(arguments, arguments.plan, *files_read(arguments))
    import_tensorflow()
    from ....plan.plan import Plan
    from ....runtime.context import resolve_cluster
    from ....runtime.measuring.local_hardware import hardware_here, prepared_processes
    from ...offline import record_named
    from ...plan_check import check_plan, comparison_json

    plan = Plan.load(arguments.plan)
    processes = prepared_processes()
    if arguments.cluster is None:
        hardware = hardware_here(processes)
    else:
        hardware = resolve_cluster(arguments.cluster)
        checked_measurement(hardware, arguments.strict, is_run_here=True)
    try:
        hardware.mesh(plan.parallelism)
    except ValueError as error:
        raise InputError(f"the plan is for {counted(plan.parallelism, 'device')}: {error}") from error
    with display_here().phase("run of the plan"):
        recorded = record_named(arguments.model, arguments.optimizer, arguments.batch)
        check = check_plan(plan, recorded.model, recorded.first_values(), processes, steps, hardware)
    if processes.rank == 0:
        return answer(arguments, comparison_json(check), comparison_text(check))
    return 0


def comparison_text(check: PlanCheck) -> str:
    """Return tables of predictions beside measurements."""
    ordered = sorted(check.steps_us)
    low, high = (ordered[i * (len(ordered) - 1) // 4] for i in (1, 3))
    totals = [
        [*_times(check.step), f"quartiles {low / 1e3:,.3f} to {high / 1e3:,.3f} ms"],
        [*_times(check.compute), "the slowest rank, outside of collectives"],
        [*_times(check.network), "reshardings with collectives, without waiting for others"],
        ["waiting", "", f"{check.waiting_us / 1e3:,.3f} ms", "", "for other ranks, in collectives; no plan predicts it"],
        [
            "memory",
            memory_text(round(check.memory.predicted)),
            memory_text(round(check.memory.measured)) if check.memory_bytes else "",
            _percent(check.memory),
            "peak by rank: " + ", ".join(map(memory_text, check.memory_bytes)) if check.memory_bytes else UNSEEN,
        ],
    ]
    parts = [tabulate(totals, ("", "predicted", "measured", "error", ""), disable_numparse=True)]
    for title, rows, count in (
        ("collectives", check.collectives, len(check.collectives)),
        (f"the {MOST_WRONG} operators most wrong", check.operators, MOST_WRONG),
        (f"the {MOST_WRONG} edges most wrong, by where they lead", check.edges, MOST_WRONG),
    ):
        if rows:
            worst = sorted(rows, key=lambda row: -row.off)[:count]
            cells = [[*_times(row), str(row.count)] for row in worst]
            parts.append(tabulate(cells, (title, "predicted", "measured", "error", "times"), disable_numparse=True))
    return "\n\n".join(parts)


def _times(row: Compared) -> list[str]:
    name = row.name if len(row.name) <= NAME_WIDTH else f"{row.name[: NAME_WIDTH - 4]} ..."
    return [name, f"{row.predicted / 1e3:,.3f} ms", f"{row.measured / 1e3:,.3f} ms", _percent(row)]


def _percent(row: Compared) -> str:
    return "" if row.error is None else f"{row.error:+.0%}"
