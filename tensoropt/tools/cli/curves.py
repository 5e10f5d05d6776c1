"""The arguments and the search of a curve, which ``tensoropt search --option profiling`` and ``recommend`` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ...common.errors import InputError, short
from ...profiling.hardware import Hardware, HardwareError, resolve

if TYPE_CHECKING:
    from ...plan.asked import Request
    from ..recorded import Recorded


def add_curve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say over what a curve is."""
    parser.add_argument(
        "--parallelism",
        metavar="N[,N...]",
        help="how many of the devices to use, for a curve also machines x devices such as 2x4; default: all of them",
    )
    parser.add_argument(
        "--batch-per-device", metavar="B[,B...]", help="samples per step and device of a curve, so that the batch grows"
    )


def configured_of(arguments: argparse.Namespace, clusters: Sequence[Hardware]) -> list[tuple[Hardware, int]]:
    """Return the hardware and the number of devices of each point that the arguments ask for.

    Raises:
        InputError: none of the hardware has so many devices.
    """
    from ...plan.scaling_curve import configurations

    given = None if arguments.parallelism is None else [text.strip() for text in arguments.parallelism.split(",")]
    return configurations(clusters, given and [int(text) if text.isdecimal() else text for text in given])


def clusters_of(names: str) -> list[Hardware]:
    """Return the hardware of names and files that are separated by commas.

    Raises:
        InputError: there is no such hardware.
    """
    try:
        return [resolve(name.strip()) for name in names.split(",")]
    except HardwareError as error:
        raise InputError(str(error)) from error


def batches_of(arguments: argparse.Namespace) -> list[int] | None:
    """Return the samples per step and device that are asked for; None where the model's batch is meant.

    Raises:
        InputError: one isn't a positive whole number, or the whole batch is given too.
    """
    if arguments.batch_per_device is None:
        return None
    if arguments.batch is not None:
        raise InputError("--batch is the whole batch and --batch-per-device that of a device; give one of them")
    texts = [text.strip() for text in arguments.batch_per_device.split(",")]
    if not all(text.isdecimal() and int(text) for text in texts):
        raise InputError(f"--batch-per-device takes positive numbers of samples, got {short(arguments.batch_per_device)}")
    return [int(text) for text in texts]


def recorded_by_batch(arguments: argparse.Namespace, name: str) -> Callable[[int | None], Recorded]:
    """Return the function that records the model with a batch, or with its own, once each."""
    from ..offline import record_named

    return cache(lambda batch: record_named(name, arguments.optimizer, batch or arguments.batch))


def asked_of(
    configured: Sequence[tuple[Hardware, int]],
    batch_per_device: Sequence[int] | None,
    recorded: Callable[[int | None], Recorded],
    request_of: Callable[[Recorded, Hardware], Request],
) -> list[tuple[Request, int]]:
    """Return the request and the number of devices of each point of a curve."""
    per_device: Sequence[int | None] = batch_per_device or (None,)
    return [
        (request_of(recorded(each and each * count), hardware), count)
        for each in per_device
        for hardware, count in configured
    ]
