"""Run ``tensoropt recommend``: the fewest, fastest or cheapest devices that do, why not others, the largest that fits.

From a frontier's or a curve's file it answers without TensorFlow; for a model it searches the curve first.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from ....common.errors import InputError, short
from ....common.memory_units import parse_memory
from ....common.process.garbage import nothing_collected
from ....common.time_units import parse_time_us
from ..answers import PRINTED, add_json_argument, add_training_arguments, answer, check_json_path
from .curves import add_curve_arguments, batches_of, configured_of, workers_of

if TYPE_CHECKING:
    from ....profiling.hardware import Hardware
    from ....report.recommendation import Wanted
    from ....sharding.model import Model

NEAR = 64
"""The largest size that fits is searched until the next one that was tried is larger by this part of it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tensoropt recommend MODEL|FRONTIER.json|CURVE.json [--cluster NAME|FILE[,...]] [OPTION ...]"
    parser.add_argument(
        "subject", metavar="MODEL|FILE.json", help="a model, as for search; or what search --frontier wrote, or, for "
        "profiling, search --json"
    )  # fmt: skip
    parser.add_argument("--cluster", metavar="NAME|FILE[,...]", help="such as v100-2x8; a file names its own")
    parser.add_argument(
        "--memory", metavar="SIZE", help="limit per device: 16GB (10^9), 15GiB (2^30); default: the device's own"
    )
    parser.add_argument("--step-within", metavar="TIME", help="the longest that a step may take, such as 200ms")
    parser.add_argument("--samples", metavar="N", help="the samples to train on, such as 1e9")
    parser.add_argument("--finish-within", metavar="TIME", help="the cheapest that trains on --samples in this time: 8h")
    parser.add_argument("--spend", metavar="MONEY", help="the fastest that trains on --samples for this sum: 100USD")
    parser.add_argument(
        "--largest", metavar="batch|SIZE", help="the largest batch, or size of a model's function (layers), that fits"
    )
    add_curve_arguments(parser)
    add_training_arguments(parser)
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt recommend`` and return the exit code: 0 if some devices do, else 1."""
    from ....report.frontier_rows import FrontierRows
    from ....report.reading import read_as
    from ....report.recommendation import of_curve, of_frontier, recommendation_text

    conditions = _conditions(arguments)
    check_json_path(arguments, arguments.subject)
    if arguments.subject.endswith(".json"):
        for name in ("optimizer", "batch", "parallelism", "batch_per_device", "largest"):
            if getattr(arguments, name) is not None:
                option = name.replace("_", "-")
                raise InputError(f"'{arguments.subject}' is searched: leave out --{option}, or give the model")
        advice = read_as(
            arguments.subject,
            frontier=lambda value: of_frontier(FrontierRows(value), conditions),
            curve=lambda value: of_curve(value, conditions),
        )
        if arguments.cluster not in (None, advice["cluster"]):
            raise InputError(
                f"'{arguments.subject}' is for the cluster {advice['cluster']}, got --cluster {arguments.cluster}; leave it "
                "out, or give the model"
            )
    else:
        advice = of_curve(_searched_curve(arguments, conditions), conditions)
    answer(arguments, advice, recommendation_text(advice))
    return 0 if advice["devices"] is not None else 1


def _conditions(arguments: argparse.Namespace) -> Wanted:
    from ....report.recommendation import Wanted

    if (arguments.samples is None) != (arguments.spend is None and arguments.finish_within is None):
        raise InputError("--samples goes with --spend or --finish-within: how much may training on so many samples cost?")
    return Wanted(
        arguments.memory and parse_memory(arguments.memory),
        arguments.step_within and parse_time_us(arguments.step_within, "--step-within"),
        arguments.finish_within and parse_time_us(arguments.finish_within, "--finish-within"),
        arguments.spend and _amount(arguments.spend, "--spend", "100USD"),
        arguments.samples and _amount(arguments.samples, "--samples", "1e9"),
    )


def _amount(text: str, option: str, example: str) -> float:
    match = re.fullmatch(r"([\d.]+(e\+?\d+)?)([A-Z]{3})?", text.strip())
    if match is None or match[1].count(".") > 1 or not float(match[1]):
        raise InputError(f"{option} takes an amount above 0, such as {example}, got {short(text)}")
    return float(match[1])


def _searched_curve(arguments: argparse.Namespace, conditions: Wanted) -> dict[str, Any]:
    """Return the curve of a model, of the largest one that does where that is asked for; print each point at once."""
    from ....report.recommendation import of_curve

    if arguments.cluster is None:
        raise InputError("recommend needs the cluster of a model: give --cluster, such as --cluster v100-2x8")
    configured, size, name = configured_of(arguments), arguments.largest, arguments.subject
    if not size:
        with workers_of(len(configured) * len(batches_of(arguments))):
            return _curve(arguments, conditions, configured, name)
    if size != "batch" and name.endswith(".keras"):
        raise InputError(f"--largest takes batch, or a size of a model's function, got {short(size)} of a file; give batch")
    configured = [max(configured, key=lambda pair: pair[1])]
    step, curves = configured[0][1] if size == "batch" else 1, dict[int, dict[str, Any]]()

    def is_enough(value: int) -> bool:
        of_size = name if size == "batch" else f"{name}{',' if '=' in name.rpartition(':')[2] else ':'}{size}={value}"
        batch = value if size == "batch" else None
        curves[value] = _curve(arguments, conditions, configured, of_size, batch, f"{size} {value}: ")
        return of_curve(curves[value], conditions)["devices"] is not None

    fits = largest(is_enough, step)
    if fits is None:
        raise InputError(f"not even {size} {step} does on {step} devices; ask for more devices or memory")
    _tell(arguments, f"the largest {size} that does: {fits}; {min(value for value in curves if value > fits)} doesn't")
    return curves[fits]


def largest(does: Callable[[int], bool], step: int) -> int | None:
    """Return the largest multiple of ``step`` that does, to within a part in ``NEAR``; None if not even ``step`` does."""
    if not does(step):
        return None
    low, high = step, 2 * step
    while does(high):
        low, high = high, 2 * high
    while high - low > max(step, low // NEAR):
        middle = (low + high) // 2 // step * step
        low, high = (middle, high) if does(middle) else (low, middle)
    return low


def _tell(arguments: argparse.Namespace, text: str) -> None:
    if arguments.json != PRINTED:
        print(text, flush=True)


def _curve(
    arguments: argparse.Namespace, conditions: Wanted, configured: list[tuple[Hardware, int]], name: str,
    batch: int | None = None, before: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return the curve of a model, with a batch or its own, as a JSON value; ``before`` is put before each printed point."""
    from ....common.process.tensorflow_import import import_tensorflow
    from ....runtime.ranks import display_here

    with nothing_collected():
        import_tensorflow()
        from ....report.recommendation import of_curve, row_text
        from ....search.options import profiling
        from ....search.request import ONCE, Request, assumptions, limit_of
        from ...offline import record_named

    display, batches = display_here(), batches_of(arguments)

    @cache
    def recorded(own: int | None) -> Model:
        with display.phase("recording of the model"):
            return record_named(name, arguments.optimizer, own or batch or arguments.batch).model

    def request(hardware: Hardware, own: int | None) -> Request:
        model, limit = recorded(own), limit_of(arguments.memory, hardware)
        return Request(
            model, hardware, limit, assumed=assumptions(hardware, model), progress=display.update, placed=model.placed,
            tell=lambda text: _tell(arguments, text), may_take_stages=True, budget=ONCE if arguments.largest else None,
        )  # fmt: skip

    with display.phase("search for a plan"):
        points = [(request(hardware, size and size * count), count) for size in batches for hardware, count in configured]
        curve = profiling(points, lambda point: _tell(arguments, before + row_text(of_curve(point.to_json(), conditions))))
    return curve.to_json()
