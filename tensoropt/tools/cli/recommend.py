"""Run ``tensoropt recommend``: the fewest devices that meet a memory limit and a deadline, and why not fewer.

From a frontier's or a curve's file it answers without TensorFlow; for a model it searches the curve first.
"""

from __future__ import annotations

import argparse
from typing import Any

from ...common.errors import InputError
from ...common.files import reading_value
from ...common.memory_units import parse_memory
from ...common.time_units import parse_time_us
from .answers import PRINTED, add_json_argument, add_training_arguments, answer, check_json_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tensoropt recommend``."""
    parser.usage = "tensoropt recommend MODEL|FRONTIER.json|CURVE.json --cluster NAME|FILE --memory SIZE [OPTION ...]"
    parser.add_argument(
        "subject", metavar="MODEL|FILE.json", help="a model, as for search; or what search --frontier wrote, or, for "
        "profiling, search --json"
    )  # fmt: skip
    parser.add_argument("--cluster", metavar="NAME|FILE", help="such as v100-2x8; a file names its own")
    parser.add_argument("--memory", metavar="SIZE", required=True, help="limit per device: 16GB (10^9), 15GiB (2^30)")
    parser.add_argument("--deadline", metavar="TIME", help="the longest that a step may take, such as 200ms; default: any")
    add_training_arguments(parser)
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt recommend`` and return the exit code: 0 if some number of devices does, else 1."""
    from ...report.frontier_rows import FrontierRows
    from ...report.reading import is_of_these, read_rows
    from ...report.recommendation import of_curve, of_frontier, recommendation_text

    limit = parse_memory(arguments.memory)
    deadline_us = None if arguments.deadline is None else parse_time_us(arguments.deadline, "--deadline")
    check_json_path(arguments, arguments.subject)
    if is_of_these(arguments.subject):
        if arguments.optimizer is not None or arguments.batch is not None:
            raise InputError(f"'{arguments.subject}' is searched: leave out --optimizer and --batch, or give the model")
        rows = read_rows(arguments.subject, "frontier", "curve")
        with reading_value("file", arguments.subject):
            if isinstance(rows, FrontierRows):
                told = of_frontier(rows, limit, deadline_us)
            else:
                assert isinstance(rows, dict)
                told = of_curve(rows, limit, deadline_us)
        _check_cluster(arguments.cluster, told["cluster"], arguments.subject)
    else:
        told = of_curve(_searched_curve(arguments, limit, deadline_us), limit, deadline_us)
    answer(arguments, told, recommendation_text(told))
    return 0 if told["devices"] is not None else 1


def _check_cluster(given: str | None, own: str, file: str) -> None:
    """Refuse another cluster than that of the file.

    Raises:
        InputError: it is another.
    """
    if given is not None and given != own:
        raise InputError(f"'{file}' is for the cluster {own}, got --cluster {given}; leave it out, or give the model")


def _searched_curve(arguments: argparse.Namespace, limit: int, deadline_us: float | None) -> dict[str, Any]:
    """Return the curve of a model within a limit as a JSON value; print what is known of each number of devices at once.

    Raises:
        InputError: no cluster is given, or there is no such model or cluster.
    """
    if arguments.cluster is None:
        raise InputError("recommend needs the cluster of a model: give --cluster, such as --cluster v100-2x8")
    from ...common.tensorflow_import import import_tensorflow
    from ...profiling.hardware import HardwareError, resolve
    from ...runtime.ranks import display_here

    try:
        hardware = resolve(arguments.cluster)
    except HardwareError as error:
        raise InputError(str(error)) from error
    import_tensorflow()
    from ...plan.asked import Request, assumptions
    from ...plan.options import profiling
    from ...plan.scaling_curve import Curve
    from ...report.recommendation import of_curve, row_text
    from ..offline import record_named

    def tell(text: str) -> None:
        if arguments.json != PRINTED:
            print(text, flush=True)

    def tell_row(of_one: Curve) -> None:
        tell(row_text(of_curve(of_one.to_json(), limit, deadline_us)))

    display = display_here()
    with display.phase("recording of the model"):
        recorded = record_named(arguments.subject, arguments.optimizer, arguments.batch)
    with display.phase("search for a plan"):
        request = Request(
            model=recorded.model, hardware=hardware, limit_bytes=limit, assumed=assumptions(hardware, recorded.model),
            progress=display.update, placed=recorded.model.placed, tell=tell,
        )  # fmt: skip
        return profiling(request, list(hardware.parallelisms()), tell_row).to_json()
