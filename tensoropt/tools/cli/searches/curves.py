"""The arguments of a curve, which ``tensoropt search --option profiling`` and ``recommend`` share."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager

from ....common.errors import InputError, short
from ....common.process.workers import n_workers, started_early
from ....profiling.available_memory import available_memory_bytes
from ....profiling.hardware import Hardware, resolve


def add_curve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parallelism",
        metavar="N[,N...]",
        help="how many of the devices to use, for a curve also machines x devices such as 2x4; default: all of them",
    )
    parser.add_argument(
        "--batch-per-device", metavar="B[,B...]", help="samples per step and device of a curve, so that the batch grows"
    )


def configured_of(arguments: argparse.Namespace, clusters: list[Hardware] | None = None) -> list[tuple[Hardware, int]]:
    """Return the hardware and the number of devices of each point that the arguments ask for.

    Args:
        clusters: the hardware; None for what ``--cluster`` names, separated by commas.

    Raises:
        InputError: there is no such hardware, or none of it has so many devices.
    """
    from ....plan.scaling_curve import configurations

    clusters = clusters or [resolve(name.strip()) for name in arguments.cluster.split(",")]
    counts = None if arguments.parallelism is None else [text.strip() for text in arguments.parallelism.split(",")]
    return configurations(clusters, counts and [int(text) if text.isdecimal() else text for text in counts])


def batches_of(arguments: argparse.Namespace) -> list[int | None]:
    """Return the samples per step and device that are asked for; None stands for the model's batch on all devices.

    Raises:
        InputError: one isn't a positive whole number, or the whole batch is given too.
    """
    if arguments.batch_per_device is None:
        return [None]
    texts = [text.strip() for text in arguments.batch_per_device.split(",")]
    if arguments.batch is not None:
        raise InputError("--batch is the whole batch and --batch-per-device that of a device; give one of them")
    if not all(text.isdecimal() and int(text) for text in texts):
        raise InputError(f"--batch-per-device takes positive numbers of samples, got {short(arguments.batch_per_device)}")
    return [int(text) for text in texts]


def workers_of(n_searches: int) -> AbstractContextManager[None]:
    """Start workers for a curve's points or stages on cores that the import of TensorFlow and a recording leave idle."""
    return started_early(min(n_workers(available_memory_bytes(1)), n_searches) - 1, "tensoropt.search.options")
