"""TensorOpt: automatic parallel training for TensorFlow.

The API mirrors TensorFlow by being TensorFlow: after :func:`init` every TensorFlow name (``tensoropt.matmul``,
``tensoropt.nn.conv2d``) records into a private graph, until :func:`build_execution_graph`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .curve import Curve
    from .forcing import Force
    from .plan import Plan
    from .profiling.hardware import Hardware
    from .saved_frontier import SavedFrontier
    from .session import Session

__version__ = "0.1.0"

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

_OWN = {
    "GradientDescentOptimizer": "recording",
    "MomentumOptimizer": "recording",
    "AdamOptimizer": "recording",
    "softmax_cross_entropy": "recording",
    "current_session": "session",
    "load_checkpoint": "checkpoint",
    "InputError": "errors",
    "TensorOptError": "errors",
}


def init(hardware: Hardware | str | None = None, seed: int | None = None) -> Session:
    """Start a session: connect the ranks, measure the hardware, and begin to record.

    Args:
        hardware: a description to plan for instead of measuring: an object, a cluster's name, or a file.
        seed: of the recorded graph, as ``tf.compat.v1.set_random_seed``; drawn by rank 0 if None.

    Returns:
        The session: its ``processes`` know this process's rank, its ``hardware`` what was found.

    Raises:
        InputError: the ranks are neither p devices of one machine nor M machines times D; no such hardware.
    """
    from .quiet import import_tensorflow

    import_tensorflow()
    from .session import start

    return start(hardware, seed)


def find_strategy(
    option: str = "mini_time",
    memory: int | str | None = None,
    parallelism: int | Sequence[int] | None = None,
    cluster: Hardware | str | None = None,
    force: Force | None = None,
) -> Plan | Curve:
    """Search the recorded model's strategies by Frontier-Tracking.

    Args:
        option: ``mini_time``: least time within the memory limit; ``mini_parallelism``: fewest devices that fit;
            ``profiling``: least time for each parallelism, without running.
        memory: limit per device, bytes or ``'16GB'`` or ``'15GiB'``; by default the device's own memory over 1.1.
        parallelism: a number of devices, or a list of them for ``profiling`` and ``mini_parallelism``; by default those
            at hand.
        cluster: plan for this hardware instead of the one at hand: a name such as ``v100-2x8``, or a file.
        force: degrees of operators' factors, such as ``{"MatMul_1": {"m": 2}}``, by the operator's name or type.

    Returns:
        A :class:`~tensoropt.plan.Plan`, or for ``profiling`` a :class:`~tensoropt.curve.Curve`.

    Raises:
        InputError: wrong use, or nothing fits: the message says what would.
    """
    from .session import current_session

    return current_session().find_strategy(option, memory, parallelism, cluster, force)


def load_plan(file: str | os.PathLike[str]) -> Plan:
    """A plan that ``plan.save`` wrote, to be used without a search.

    Raises:
        InputError: the file is missing, cut off, or not a plan.
    """
    from .plan import Plan

    return Plan.load(file)


def load_frontier(file: str | os.PathLike[str]) -> SavedFrontier:
    """A frontier that ``plan.frontier.save`` wrote: every plan of it, without a search and without the model.

    Raises:
        InputError: the file is missing, cut off, changed, or not a frontier.
    """
    from .saved_frontier import SavedFrontier

    return SavedFrontier.load(file)


def build_execution_graph(
    engine: str = "tensorflow", plan: Plan | str | None = None, collectives: str | None = None
) -> None:
    """Build this rank's graph for a plan and give the variables their first values; eager mode is back afterwards.

    Args:
        engine: what computes; ``tensorflow``.
        plan: a plan, or the file of one.
        collectives: ``mpi`` (default), or ``emulated``: all ranks in this process. ``TENSOROPT_COLLECTIVES`` sets it too.

    Raises:
        InputError: the plan is for another model or for more devices than there are.
    """
    from .session import current_session

    current_session().build(engine, plan, collectives)


def run(fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
    """Run what the fetches need, as ``tf.compat.v1.Session.run`` does; every rank must make the same calls.

    Args:
        fetches: tensors, operations, names, or nested structures of them; values come back whole on every rank, those
            wrapped in :func:`local` as this rank's piece.
        feed_dict: full batches on every rank, or this rank's share wrapped in :func:`local`.
    """
    from .session import current_session

    return current_session().run(fetches, feed_dict)


def local(value: Any) -> Any:
    """Mark a fed array as this rank's share of the batch, or a fetch as this rank's piece."""
    from .fetching import Local

    return Local(value)


def __getattr__(name: str) -> Any:
    """TensorFlow's names, and this package's own that are loaded when first used."""
    from .quiet import import_tensorflow

    if name.startswith("_"):
        raise AttributeError(f"module 'tensoropt' has no attribute {name!r}")
    if name == "zoo":
        return importlib.import_module(".zoo", __name__)
    import_tensorflow()
    if name in _OWN:
        return getattr(importlib.import_module(f".{_OWN[name]}", __name__), name)
    from .forwarding import forwarded

    return forwarded(name)
