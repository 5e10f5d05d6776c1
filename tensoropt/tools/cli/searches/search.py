"""Run ``tensoropt search``: find the frontier, a plan, or the curve of a model, for hardware that needn't be at hand.

It needs no ranks, no GPU and, unless it is given a profile budget, no measurement: the model is recorded
(:mod:`...offline`), and its costs come from the hardware's description.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ....common.errors import InputError, short
from ....common.memory_units import parse_memory
from ....common.process.garbage import nothing_collected
from ....common.process.progress import ended_soon
from ....common.process.tensorflow_import import import_tensorflow
from ....costs.objectives import MEMORY_TIME, PAIRS, TIME_COST, parse_objectives
from ....ft import ALGORITHMS, BY_DEFAULT, Budget
from ....profiling.hardware import Hardware, resolve
from ....runtime.ranks import display_here
from ....search.algorithms import BY_SIMULATION, MONTE_CARLO_SECONDS, OTHERS
from ....search.problem.choices import checked_choices
from ....search.problem.config_space import SPACES
from ..answers import OF_PLANS, add_training_arguments, files_read
from .curves import add_curve_arguments, batches_of, configured_of, workers_of
from .frontier_outputs import add_baselines, add_report_argument, baselines_of, check_outputs, with_baselines

if TYPE_CHECKING:
    from ....plan.plan import Plan
    from ....plan.scaling_curve import Curve
    from ....search.request import Request
    from ...recorded import Recorded

DEFAULT_DEVICE, PER_MACHINE = "v100", 8
OF_CURVE = 1
# A copy of those in options.py, which imports TensorFlow: help and errors are quick without it.
OPTIONS = ("mini_time", "mini_parallelism", "profiling")
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tensoropt search MODEL (--cluster NAME|FILE | --devices N) [OPTION ...]"
    add_model_arguments(parser)
    parser.add_argument("--option", choices=OPTIONS, default=OPTIONS[0], help=f"what to search for; default: {OPTIONS[0]}")
    add_curve_arguments(parser)
    parser.add_argument(
        "--algorithm", choices=(*ALGORITHMS, *OTHERS), default=ALGORITHMS[0], help=f"default: {ALGORITHMS[0]}"
    )
    parser.add_argument(
        "--objectives",
        metavar="A,B",
        default=",".join(MEMORY_TIME),
        help=f"the two costs to trade: {', '.join(','.join(pair) for pair in PAIRS)}; of a curve's points {TIME_COST}; "
        f"default: {','.join(MEMORY_TIME)}",
    )
    parser.add_argument("--plan", type=Path, metavar="OUT.json", help="write the chosen plan, which a run can load")
    parser.add_argument(
        "--frontier", type=Path, metavar="OUT.json", help="write the frontier with all its plans, for load_frontier"
    )
    parser.add_argument("--json", type=Path, metavar="OUT.json", help="write the points, or the curve of profiling")
    parser.add_argument("--plot", type=Path, metavar="OUT.png", help="draw the frontier, or the curve; needs Matplotlib")
    add_report_argument(parser)
    add_baselines(parser)
    for name, (metavar, text) in OF_PLANS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    of_python = "FILE.py:FUNCTION, which records and returns a loss or returns a Keras model"
    parser.add_argument("model", metavar="MODEL", help=f"zoo:NAME[:SIZE=N,...], {of_python}, or FILE.keras")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that commands share: the model, the hardware, and the limits of a search."""
    add_model_argument(parser)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--cluster", metavar="NAME|FILE", help="such as v100-2x8, machines x devices, or a hardware file")
    where.add_argument("--devices", metavar="N", help=f"N devices of {DEFAULT_DEVICE}, in machines of {PER_MACHINE}")
    parser.add_argument("--memory", metavar="SIZE", help="limit per device: 16GB (10^9), 15GiB (2^30); default: none")
    add_training_arguments(parser)
    parser.add_argument("--space", choices=SPACES, help="the search space; default: full while that is small, else compact")
    parser.add_argument(
        "--seconds",
        metavar="S",
        help=f"time for refining a frontier that is not exact; default: {BY_DEFAULT.seconds:g}, of a curve {OF_CURVE}; the "
        f"most time of --algorithm {' and '.join(BY_SIMULATION)}; default: {MONTE_CARLO_SECONDS:g}",
    )
    add_strictness(parser)
    parser.add_argument(
        "--gap",
        metavar="PERCENT",
        help=f"stop refining at this gap to the lower bound; default: {100 * BY_DEFAULT.gap:g}, or 0 with --seconds",
    )


def budget_of(arguments: argparse.Namespace) -> Budget | None:
    """Return the budget of the search; None where neither ``--seconds`` nor ``--gap`` is given.

    Raises:
        InputError: a number is out of range.
    """
    if arguments.seconds is None and arguments.gap is None:
        return None
    seconds = BY_DEFAULT.seconds
    if arguments.seconds is not None:
        seconds = amount_of(arguments.seconds, "--seconds", "number of seconds")
    gap = 0.0 if arguments.gap is None else amount_of(arguments.gap, "--gap", "percentage") / 100
    return Budget(seconds=seconds, gap=gap)


def amount_of(text: str, argument: str, noun: str) -> float:
    """Return the number of at least 0 that a text gives; raise InputError, which names the argument, if it gives none."""
    try:
        amount = float(text.removesuffix("%"))
    except ValueError:
        amount = -1.0
    if not 0 <= amount < math.inf:
        raise InputError(f"{argument} takes a {noun} of at least 0, got {short(text)}")
    return amount


def add_strictness(parser: argparse.ArgumentParser) -> None:
    """Add the argument that refuses hardware files measured under other circumstances."""
    parser.add_argument(
        "--strict", action="store_true", help="refuse a hardware file that was measured with another TensorFlow"
    )


def checked_measurement(hardware: Hardware, is_strict: bool, is_run_here: bool = False) -> None:
    """Print a warning if a hardware file was measured under other circumstances than now.

    Raises:
        InputError: it was, and ``is_strict``.
    """
    from ....runtime.measuring.local_hardware import warning_of

    warning = warning_of(hardware, is_strict, is_run_here)
    if warning:
        print(f"tensoropt: {warning}", file=sys.stderr, flush=True)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt search`` and return the exit code."""
    try:
        with contextlib.ExitStack() as during:
            is_interrupted = _search(arguments, during)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("search interrupted") from error
    if is_interrupted:
        print("tensoropt: search interrupted; this is the best that it had found", file=sys.stderr, flush=True)
    return INTERRUPTED if is_interrupted else 0


def _search(arguments: argparse.Namespace, during: contextlib.ExitStack) -> bool:
    """Search, and return whether Ctrl-C ended the search with a result.

    Everything that can be refused is refused before the search, which may be long.
    """
    configured = _configured(arguments)
    per_device = batches_of(arguments)
    limit = None if arguments.memory is None else parse_memory(arguments.memory)
    is_of_cost = arguments.option == "profiling" and sorted(arguments.objectives.split(",")) == sorted(TIME_COST.split(","))
    objectives, budget = MEMORY_TIME if is_of_cost else parse_objectives(arguments.objectives), budget_of(arguments)
    without = checked_choices(name.strip() for name in (arguments.without or "").split(",") if name.strip())
    requested = None if arguments.micro_batches is None else _count(arguments.micro_batches)
    baselines_of(arguments)
    stages = _stages(arguments)
    _check_outputs(arguments)
    if arguments.profile_budget is None:
        are_apart = any(n > hardware.levels[-1].count for hardware, n in configured)
        may_have_stages = are_apart if stages is None else any(count > 1 for count in stages)
        is_curve = arguments.option == "profiling"
        during.enter_context(ended_soon("search interrupted"))
        during.enter_context(workers_of(len(configured) * len(per_device) if is_curve else 1 + may_have_stages))
    with nothing_collected():
        import_tensorflow()
        from ....plan.scaling_curve import Curve
        from ....search.problem.splittable import check_usable
        from ....search.request import Request, assumptions, checked_micro_batches
        from ...offline import record_named
        from .search_report import SearchSetup, introduction, write_result
    clusters = list({hardware.name: hardware for hardware, _ in configured}.values())
    for hardware in clusters:
        checked_measurement(hardware, arguments.strict)
    display = display_here()
    with display.phase("recording of the model"):
        recorded_with = cache(lambda batch: record_named(arguments.model, arguments.optimizer, batch or arguments.batch))
        recorded = recorded_with(per_device[0] and per_device[0] * configured[0][1])
    for hardware, count in configured:
        check_usable(recorded.model.graph, hardware, count)
    micro_batches = checked_micro_batches(recorded.model, requested, without)
    setup = SearchSetup(recorded, clusters[0], arguments.option, arguments.algorithm)
    print(introduction(setup), flush=True)

    def request_of(recorded: Recorded, hardware: Hardware) -> Request:
        return Request(
            model=recorded.model,
            hardware=hardware,
            limit_bytes=limit,
            assumed=assumptions(hardware, recorded.model),
            algorithm=arguments.algorithm,
            progress=display.update,
            space=arguments.space,
            objectives=objectives,
            budget=budget,
            without=without,
            micro_batches=micro_batches,
            placed=recorded.model.placed,
            tell=lambda text: print(f"fits      {text}", flush=True),
            may_take_stages=stages is None,
            keeps_found=arguments.profile_budget is None,
            stages=stages,
            schedule=arguments.schedule,
        )

    with display.phase("search for a plan"):
        batches = [(hardware, count, batch and batch * count) for batch in per_device for hardware, count in configured]
        requests = [(request_of(recorded_with(batch), hardware), count) for hardware, count, batch in batches]
        result = _find(arguments, requests)
    compared = None
    if isinstance(result, Curve) and is_of_cost:
        for name in sorted({point.cluster for point in result.points if point.price_per_hour is None}):
            print(f"note      {name} is left out: its hardware file has no price_per_hour")
        result = result.of_time_and_cost()
    if not isinstance(result, Curve):
        result, compared = with_baselines(arguments, result, limit, display)
    write_result(arguments, setup, result, compared, display)
    return not isinstance(result, Curve) and result.frontier.is_interrupted


def _whole_number(text: str) -> int:
    """Return the whole number that a text gives; 0 if it gives none."""
    try:
        return int(text)
    except ValueError:
        return 0


def _count(text: str) -> int:
    count = _whole_number(text)
    if count < 1:
        raise InputError(f"--micro-batches takes a whole number from 1 up, got {short(text)}; give a divisor of the batch")
    return count


def _stages(arguments: argparse.Namespace) -> tuple[int, ...] | None:
    """Return the numbers of stages that are asked for, of which 1 stands for plans without; None if there are none.

    Raises:
        InputError: one isn't a positive number, or something that is asked for can't be had with stages.
    """
    if arguments.schedule is not None:
        from ....program.orders.schedule import check_schedule

        check_schedule(arguments.schedule)
    if arguments.stages is None:
        return None
    return tuple(positive_number(text, "--stages", "stages") for text in arguments.stages.split(","))


def _find(arguments: argparse.Namespace, points: list[tuple[Request, int]]) -> Plan | Curve:
    from ....search.options import find_answer, profiling

    request, counts = points[0][0], [count for _, count in points]
    if arguments.profile_budget is not None:
        from ....runtime.ranks import current_processes
        from ....tuning.profile_guided import find_measured

        budget, processes = arguments.profile_budget, current_processes()
        return find_measured(arguments.option, request, counts, budget, processes)
    if arguments.option == "profiling":
        return profiling(points)
    return find_answer(arguments.option, request, counts)


def _configured(arguments: argparse.Namespace) -> list[tuple[Hardware, int]]:
    """Return the hardware and the parallelisms to search.

    They are those asked for, else all that the hardware has, or for mini_time only the largest.
    """
    if arguments.option == "profiling":
        several = arguments.devices is None and "," in arguments.cluster
        return configured_of(arguments, None if several else [hardware_of(arguments)])
    if arguments.batch_per_device is not None:
        raise InputError(
            "--batch-per-device makes the batch of each point of a curve; add --option profiling, or give --batch"
        )
    hardware = hardware_of(arguments)
    if arguments.parallelism is None:
        possible = list(hardware.parallelisms())
        return [(hardware, count) for count in (possible[-1:] if arguments.option == "mini_time" else possible)]
    counts = [positive_number(text, "--parallelism") for text in arguments.parallelism.split(",")]
    if arguments.option == "mini_time" and len(counts) > 1:
        raise InputError(
            f"--option mini_time takes one --parallelism, got {counts}; --option profiling compares several, and "
            "mini_parallelism takes the fewest devices that fit"
        )
    for count in counts:
        hardware.mesh(count)
    return [(hardware, count) for count in counts]


def hardware_of(arguments: argparse.Namespace) -> Hardware:
    """Return the hardware that ``--cluster`` names, or ``--devices``: a part of one machine, or full machines.

    Raises:
        InputError: there is no such hardware, or the devices don't fill machines.
    """
    if arguments.devices is None:
        return resolve(arguments.cluster)
    n_devices = positive_number(arguments.devices, "--devices")
    machines, rest = divmod(n_devices, PER_MACHINE)
    if n_devices <= PER_MACHINE:
        return resolve(f"{DEFAULT_DEVICE}-1x{n_devices}")
    if rest:
        lower = machines * PER_MACHINE
        raise InputError(
            f"--devices {n_devices} doesn't fill machines of {PER_MACHINE}; nearest are {lower} and {lower + PER_MACHINE}; "
            f"--cluster names other machines, such as {DEFAULT_DEVICE}-1x{n_devices}"
        )
    return resolve(f"{DEFAULT_DEVICE}-{machines}x{PER_MACHINE}")


def positive_number(text: str, argument: str, noun: str = "devices") -> int:
    """Return the number of devices, or of what ``noun`` says, that a text gives.

    Raises:
        InputError: the text is no positive whole number; ``argument`` is named in the message.
    """
    number = _whole_number(text)
    if number < 1:
        raise InputError(f"{argument} takes a positive number of {noun}, got {short(text)}")
    return number


def _check_outputs(arguments: argparse.Namespace) -> None:
    if arguments.option == "profiling":
        for file, noun in ((arguments.plan, "plan"), (arguments.frontier, "frontier"), (arguments.report, "report")):
            if file is not None:
                raise InputError(
                    f"--option profiling makes a curve and no {noun}; leave out --{noun}, or write the curve by --json"
                )
    outputs = {"--plan": arguments.plan, "--frontier": arguments.frontier, "--json": arguments.json}
    check_outputs({**outputs, "--plot": arguments.plot, "--report": arguments.report}, files_read(arguments))
