"""Run ``tensoropt simulate MODEL --plan PLAN``: what each device and link of a cluster does in a plan's step, and when.

It needs no ranks and runs nothing: the times of operators and links come from the cluster's description.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ....common.errors import InputError
from ....common.files import check_writable
from ....common.process.tensorflow_import import import_tensorflow
from ....profiling.hardware import Hardware, HardwareError, resolve
from ....runtime.ranks import display_here
from ..answers import add_json_argument, answer, check_apart, check_json_path, files_read
from ..searches.search import add_strictness, checked_measurement
from .check import add_plan_arguments
from .timeline import write_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tensoropt simulate MODEL --plan PLAN.json [--cluster NAME|FILE] [OPTION ...]"
    add_plan_arguments(parser)
    parser.add_argument(
        "--cluster", metavar="NAME|FILE", help="the hardware to simulate; default: that which the plan was found for"
    )
    add_strictness(parser)
    parser.add_argument("--trace", type=Path, metavar="OUT.json", help="write the timeline, for ui.perfetto.dev")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt simulate`` and return the exit code."""
    check_json_path(arguments, arguments.trace, arguments.plan, *files_read(arguments))
    if arguments.trace is not None:
        check_writable(arguments.trace, "trace")
        check_apart(arguments.trace, "--trace", arguments.plan, *files_read(arguments))
    import_tensorflow()
    from ....plan.plan import Plan
    from ....plan.simulation import simulate_plan
    from ...offline import record_named
    from ...simulated_trace import simulated_trace_json

    plan = Plan.load(arguments.plan)
    hardware = _hardware(arguments.cluster, plan.assumed.get("hardware"))
    checked_measurement(hardware, arguments.strict)
    display = display_here()
    with display.phase("recording of the model"):
        recorded = record_named(arguments.model, arguments.optimizer, arguments.batch)
    with display.phase("simulation"):
        simulation = simulate_plan(plan, recorded.model, hardware)
    text = simulation.report()
    if arguments.trace is not None:
        write_trace(arguments.trace, simulated_trace_json(simulation))
        text += f"\nwrote {arguments.trace}; open it in ui.perfetto.dev or chrome://tracing"
    return answer(arguments, simulation.to_json(), text)


def _hardware(name: str | None, assumed: Any) -> Hardware:
    """Return the cluster that was given, or the shipped one that the plan was found for."""
    if name is not None:
        return resolve(name)
    try:
        return resolve(assumed if isinstance(assumed, str) else "")
    except HardwareError as error:
        raise InputError(
            f"the plan was found for the hardware {assumed!r}, which doesn't ship with TensorOpt; give its file, or another "
            "cluster, by --cluster"
        ) from error
