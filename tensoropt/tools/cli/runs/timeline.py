"""Run ``mpirun -n N tensoropt timeline MODEL --plan PLAN``: write a trace of some steps for each rank, for a browser."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ....common.errors import InputError
from ....common.files import write_atomically
from ....common.process.tensorflow_import import import_tensorflow
from ....runtime.ranks import display_here
from ..searches.search import positive_number
from .check import add_plan_arguments

STEPS, FOLDER, ALL = 3, Path("timeline"), "all.json"
TITLES = ("rank", "step ms", "operators ms", "in collectives ms", "of that overlap ms", "neither ms")
START_OF_TRACE = '{"traceEvents"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "mpirun -n N tensoropt timeline MODEL --plan PLAN.json [--steps N] [--output FOLDER]"
    add_plan_arguments(parser)
    parser.add_argument("--steps", default=str(STEPS), metavar="N", help=f"how many steps are traced; default: {STEPS}")
    parser.add_argument(
        "--output", type=Path, default=FOLDER, metavar="FOLDER", help=f"the folder of the traces; default: {FOLDER}"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt timeline`` and return the exit code; every rank runs it."""
    steps = positive_number(arguments.steps, "--steps", "steps")
    import_tensorflow()
    from ....plan.plan import Plan
    from ....runtime.measuring.local_hardware import prepared_processes
    from ...offline import record_named
    from ...timeline import shares, trace_json, trace_steps

    plan = Plan.load(arguments.plan)
    processes = prepared_processes()
    # On all ranks, so that all end in the same way if the traces can't be written; before the work.
    traces = [arguments.output / f"rank{rank}.json" for rank in range(processes.size)]
    _make(arguments.output, [*traces, arguments.output / ALL])
    with display_here().phase("run of the plan"):
        recorded = record_named(arguments.model, arguments.optimizer, arguments.batch)
        ranks = trace_steps(plan, recorded.model, recorded.first_values(), processes, steps)
    if processes.rank == 0:
        rows = [[rank.rank, *(us / 1e3 for us in shares(rank, recorded.model.graph.operators))] for rank in ranks]
        print(tabulate(rows, TITLES, floatfmt=",.3f"), flush=True)
        for rank in ranks:
            write_trace(traces[rank.rank], trace_json([rank], plan, recorded.model))
        write_trace(arguments.output / ALL, trace_json(ranks, plan, recorded.model))
        print(f"wrote {arguments.output / ALL} and one for each rank; open them in ui.perfetto.dev or chrome://tracing")
    return 0


def _make(folder: Path, traces: Sequence[Path]) -> None:
    """Make the folder for the traces, and make sure that they can be written and replace nothing but traces."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"traces can't be saved in '{folder}': that is a file; give a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"traces can't be saved in '{folder}': {error.strerror}; give another --output") from error
    for file in traces:
        if file.exists() and not _is_trace(file):
            raise InputError(f"'{file}' is no trace, and one would replace it; give another --output")


def _is_trace(file: Path) -> bool:
    """Return whether a file begins as those that this command writes."""
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(len(START_OF_TRACE)) == START_OF_TRACE
    except OSError:
        return False


def write_trace(file: Path, value: dict[str, Any]) -> None:
    write_atomically(file, lambda partial: partial.write_text(json.dumps(value, separators=(",", ":")) + "\n"), "trace")
