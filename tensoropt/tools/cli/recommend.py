"""Run ``tensoropt recommend``: the fewest, fastest or cheapest devices that do, why not others, the largest that fits.

From a frontier's or a curve's file it answers without TensorFlow; for a model it searches the curve first.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...common.errors import InputError, short
from ...common.files import reading_value
from ...common.memory_units import parse_memory
from ...common.time_units import parse_time_us
from .answers import PRINTED, add_json_argument, add_training_arguments, answer, check_json_path
from .curves import add_curve_arguments, asked_of, batches_of, clusters_of, configured_of, recorded_by_batch

if TYPE_CHECKING:
    from ...plan.asked import Request
    from ...profiling.hardware import Hardware
    from ...report.recommendation import Wanted
    from ..recorded import Recorded

NEAR = 64
"""The largest size that fits is searched until the next one that was tried is larger by this part of it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tensoropt recommend``."""
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
        "--largest", metavar="batch|SIZE", help="the largest batch, or size of a model of the zoo such as layers, that fits"
    )
    add_curve_arguments(parser)
    add_training_arguments(parser)
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt recommend`` and return the exit code: 0 if some devices do, else 1."""
    from ...report.frontier_rows import FrontierRows
    from ...report.reading import is_of_these, read_rows
    from ...report.recommendation import of_curve, of_frontier, recommendation_text

    wanted = _wanted(arguments)
    check_json_path(arguments, arguments.subject)
    if is_of_these(arguments.subject):
        given = [
            name for name in ("optimizer", "batch", "parallelism", "batch_per_device", "largest") if getattr(arguments, name)
        ]
        if given:
            raise InputError(
                f"'{arguments.subject}' is searched: leave out --{given[0].replace('_', '-')}, or give the model"
            )
        rows = read_rows(arguments.subject, "frontier", "curve")
        with reading_value("file", arguments.subject):
            assert isinstance(rows, (FrontierRows, dict))
            told = of_frontier(rows, wanted) if isinstance(rows, FrontierRows) else of_curve(rows, wanted)
        if arguments.cluster not in (None, told["cluster"]):
            raise InputError(
                f"'{arguments.subject}' is for the cluster {told['cluster']}, got --cluster {arguments.cluster}; leave it "
                "out, or give the model"
            )
    else:
        found = _largest(arguments, wanted) if arguments.largest else _searched_curve(arguments, wanted)
        told = of_curve(found, wanted)
    answer(arguments, told, recommendation_text(told))
    return 0 if told["devices"] is not None else 1


def _wanted(arguments: argparse.Namespace) -> Wanted:
    """Return what devices have to meet.

    Raises:
        InputError: a limit isn't an amount above 0, or samples are given without one that they count for, or the reverse.
    """
    from ...report.recommendation import Wanted

    if (arguments.samples is None) != (arguments.spend is None and arguments.finish_within is None):
        raise InputError("--samples goes with --spend or --finish-within: how much may training on so many samples cost?")
    times = [None if text is None else parse_time_us(text, option) for text, option in (
        (arguments.step_within, "--step-within"), (arguments.finish_within, "--finish-within"))]  # fmt: skip
    spend = None if arguments.spend is None else _amount(re.sub("[A-Z]{3}$", "", arguments.spend), "--spend", "100USD")
    samples = None if arguments.samples is None else _amount(arguments.samples, "--samples", "1e9")
    limit = None if arguments.memory is None else parse_memory(arguments.memory)
    return Wanted(limit, times[0], times[1], spend, samples)


def _amount(text: str, option: str, such: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = 0.0
    if not 0 < amount < float("inf"):
        raise InputError(f"{option} takes an amount above 0, such as {such}, got {short(text)}")
    return amount


def _searched_curve(arguments: argparse.Namespace, wanted: Wanted) -> dict[str, Any]:
    """Return the curve of a model as a JSON value; print what is known of each number of devices at once.

    Raises:
        InputError: no cluster is given, or there is no such model or cluster.
    """
    configured, batches = _configured(arguments), batches_of(arguments)
    search = _Search(arguments, wanted)
    return search.curve(configured, batches, recorded_by_batch(arguments, arguments.subject))


def _configured(arguments: argparse.Namespace) -> list[tuple[Hardware, int]]:
    if arguments.cluster is None:
        raise InputError("recommend needs the cluster of a model: give --cluster, such as --cluster v100-2x8")
    return configured_of(arguments, clusters_of(arguments.cluster))


def _largest(arguments: argparse.Namespace, wanted: Wanted) -> dict[str, Any]:
    """Return the curve of the models that were tried for the largest batch or size that does, on the most devices asked for.

    Raises:
        InputError: the size isn't one of a model of the zoo, or not even the least does.
    """
    hardware, count = max(_configured(arguments), key=lambda each: each[1])
    size, is_batch = arguments.largest, arguments.largest == "batch"
    if not is_batch and not arguments.subject.startswith("zoo:"):
        raise InputError(
            f"--largest {short(size)} takes batch, or for a model of the zoo one of its sizes; give --largest batch"
        )
    search, step = _Search(arguments, wanted), count if is_batch else 1
    curves: dict[int, dict[str, Any]] = {}

    def does(value: int) -> bool:
        from ...report.recommendation import of_curve

        name = (
            arguments.subject if is_batch else f"{arguments.subject}{',' if '=' in arguments.subject else ':'}{size}={value}"
        )
        search.tell(f"{size} {value}:")
        curves[value] = search.curve(
            [(hardware, count)], None, recorded_by_batch(arguments, name), value if is_batch else None
        )
        return of_curve(curves[value], wanted)["devices"] is not None

    fits = largest(does, step)
    if fits is None:
        raise InputError(
            f"not even {size} {step} does on {count} devices of {hardware.name}; ask for more devices or memory"
        )
    search.tell(f"the largest {size} that does: {fits}; {min(value for value in curves if value > fits)} doesn't")
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


class _Search:
    """Searches of curves that print their points as they come."""

    def __init__(self, arguments: argparse.Namespace, wanted: Wanted) -> None:
        from ...common.tensorflow_import import import_tensorflow
        from ...runtime.ranks import display_here

        import_tensorflow()
        self.arguments, self.wanted, self.display = arguments, wanted, display_here()

    def tell(self, text: str) -> None:
        if self.arguments.json != PRINTED:
            print(text, flush=True)

    def curve(
        self,
        configured: list[tuple[Hardware, int]],
        batches: list[int] | None,
        recorded: Callable[[int | None], Recorded],
        batch: int | None = None,
    ) -> dict[str, Any]:
        """Return the curve of a model as a JSON value."""
        from ...plan.asked import Request, assumptions, limit_of
        from ...plan.options import profiling
        from ...plan.request import ONCE
        from ...plan.scaling_curve import Curve
        from ...report.recommendation import of_curve, row_text

        def request_of(recorded: Recorded, hardware: Hardware) -> Request:
            limit = limit_of(self.arguments.memory, hardware)
            model, assumed = recorded.model, assumptions(hardware, recorded.model)
            return Request(
                model, hardware, limit, assumed=assumed, progress=self.display.update, placed=model.placed, tell=self.tell,
                may_take_stages=True, budget=ONCE if self.arguments.largest else None,
            )  # fmt: skip

        def tell_row(of_one: Curve) -> None:
            self.tell(row_text(of_curve(of_one.to_json(), self.wanted)))

        with self.display.phase("search for a plan"):
            asked = asked_of(configured, batches, lambda own: recorded(own or batch), request_of)
            return profiling(asked, tell_row).to_json()
