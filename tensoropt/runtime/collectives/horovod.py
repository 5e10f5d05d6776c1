"""Run collectives by Horovod's operators, inside the graph, with a process set for each group.

Horovod is optional, and often built for another TensorFlow or MPI than the installed one: :func:`load_horovod` checks that
before anything runs. Its operators match each other by name, so they need no order, and no thread of TensorFlow waits in
them. Horovod itself reports collectives that only some ranks have reached.

Its reduce-scatter isn't used: the second one of a name ends Horovod 0.28.1, whose cache of responses knows all operators
except this one ("No corresponding ResponseType for provided RequestType"). An all-to-all and a sum move as much.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from ...common.errors import InputError, describe
from ...common.process.watchdog import timeout_s
from ...lowering.localise import opaque
from ...reschedule.layout import Axes, axes_text
from ...reschedule.mesh import Mesh
from ..failures.error_handling import at_the_very_end
from .element_types import packed, summable, summed, unpacked

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

MAKE = "make it again with make horovod"
WARN_S = 60.0
"""Seconds after which Horovod reports collectives in which some ranks wait; half of the timeout if that is shorter."""

_MOVES = frozenset({tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64, tf.bool})
# The types as which Horovod moves elements of unknown types, by their size in bytes.
_MOVED_AS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64}


def load_horovod() -> Any:
    """Return the module ``horovod.tensorflow``.

    Raises:
        InputError: there is none, it was built for another TensorFlow or MPI, or it can't be loaded.
    """
    spec = find_spec("horovod")
    if spec is None or spec.origin is None:
        raise InputError(
            describe(
                "collectives='horovod' needs Horovod", got="none in this environment", advice="make it with make horovod"
            )
        )
    try:
        metadata = json.loads(Path(spec.origin).with_name("metadata.json").read_text())
        built_for = str(metadata.get("tensorflow", "none"))
    except (OSError, ValueError):
        built_for = "unknown"
    if built_for != tf.__version__:
        raise InputError(
            describe("Horovod was built for another TensorFlow", got=built_for, expected=tf.__version__, advice=MAKE)
        )
    try:
        import horovod.tensorflow as hvd
    except (ImportError, OSError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(describe("Horovod can't be loaded", got=reason, advice=MAKE)) from error
    if not hvd.mpi_built():
        raise InputError(describe("Horovod was built without MPI", got="no MPI", expected="mpi4py's", advice=MAKE))
    libraries = mpi_libraries()
    if len(libraries) > 1:
        names = " and ".join(libraries)
        raise InputError(describe("Horovod was built for another MPI than mpi4py", got=names, expected="one", advice=MAKE))
    return hvd


def mpi_libraries(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Return the paths of the MPI libraries that this process has loaded; empty if the system doesn't say."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/" in line}
    return sorted(path for path in paths if re.fullmatch(r"lib(mpi|mpich)\.(so.*|.*dylib)", Path(path).name))


@dataclass
class _Running:
    """Horovod as it runs in this process.

    Attributes:
        members: the members' ranks in MPI's COMM_WORLD.
        sets: the numbers of process sets, by the ranks of their members among ``members``.
    """

    members: tuple[int, ...]
    sets: dict[tuple[int, ...], int] = field(default_factory=dict)


_running: list[_Running] = []
"""The running Horovod, if any: Horovod is started once for a whole process."""


def _start(hvd: Any, comm: Comm) -> _Running:
    """Start Horovod for the ranks of a communicator. Graphs that were built for other ranks can't run any more."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise InputError(
            describe(
                "Horovod calls MPI from a thread of its own, beside others",
                got=f"thread level {MPI.Query_thread()}",
                expected=f"{MPI.THREAD_MULTIPLE} (MPI_THREAD_MULTIPLE)",
                advice="leave mpi4py.rc.thread_level at 'multiple'",
            )
        )
    group = comm.Get_group()
    members = tuple(MPI.Group.Translate_ranks(group, range(comm.size), MPI.COMM_WORLD.Get_group()))
    if _running and _running[0].members == members:
        return _running[0]
    if _running:
        _running.clear()
        hvd.shutdown()
    elif hvd.is_initialized():
        raise InputError(
            describe(
                "Horovod is running already, and process sets can't be added to it",
                got="hvd.init() before build_execution_graph",
                advice="leave hvd.init() to TensorOpt",
            )
        )
    # Whole seconds; 0 would mean never.
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, math.floor(min(WARN_S, timeout_s() / 2)))))
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    hvd.init(comm=comm)
    _running.append(_Running(members))
    # By itself Horovod shuts down with the first rank that ends, whatever the others still wait for.
    shutdown = hvd.mpi_ops._basics.shutdown
    if at_the_very_end(shutdown):
        atexit.unregister(shutdown)
    return _running[0]


class HorovodCollectives:
    """Collectives as operators of a graph, on flat tensors. Rank r of ``comm`` is device r of the mesh.

    Making a process set is itself a collective of all ranks. It happens when a graph that is being built first needs the
    set.

    Args:
        agree: checks that all ranks call it with the same text; raises on all of them if they don't.

    Raises:
        InputError: Horovod can't be used here, or differs between ranks.
    """

    joins = False
    """Horovod joins small collectives by itself."""
    in_rank_order, reduce_scatter, call = True, None, None
    """Nor has it an order of its own, in which messages between stages could stand."""

    def __init__(self, comm: Comm, mesh: Mesh, agree: Callable[[str], None]) -> None:
        hvd = load_horovod()
        agree(f"Horovod {importlib.metadata.version('horovod')} for TensorFlow {tf.__version__} on {mesh}")
        self._hvd, self._mesh, self._agree = hvd, mesh, agree
        self._running = _start(hvd, comm)
        self._rank = comm.rank
        self._numbers = count()

    def running(self) -> AbstractContextManager[None]:
        """Raise InputError if Horovod was started again for other ranks, which changes what process sets' numbers mean."""
        if not _running or _running[0] is not self._running:
            raise InputError("Horovod was started again for a plan with other devices; build the graph of this plan again")
        return nullcontext()

    def all_gather(self, axes: Axes, flat: tf.Tensor, counts: Sequence[int], name: str) -> tf.Tensor:
        """Return the members' tensors, concatenated in group order; Horovod finds out their sizes."""
        return unpacked(self._emit("horovod_allgather", axes, name, packed(flat, _MOVES, _MOVED_AS, "Horovod")), flat.dtype)

    def all_to_all(self, axes: Axes, flat: tf.Tensor, counts: Sequence[Sequence[int]], name: str) -> tf.Tensor:
        """Return what the members send to this rank, concatenated; rank r sends ``counts[r][i]`` elements to member i."""
        splits = opaque(list(counts[self._rank]), tf.int32)
        received, _ = self._emit("horovod_alltoall", axes, name, packed(flat, _MOVES, _MOVED_AS, "Horovod"), splits=splits)
        return unpacked(received, flat.dtype)

    def all_reduce(self, axes: Axes, value: tf.Tensor, op: str, name: str) -> tf.Tensor:
        """Return the members' tensors combined by "sum" or "max"."""
        reduce_op = {"sum": self._hvd.Sum, "max": self._hvd.Max}[op]
        factors = {"prescale_factor": 1.0, "postscale_factor": 1.0}
        total = self._emit("horovod_allreduce", axes, name, summable(value), reduce_op=reduce_op, **factors)
        return summed(total, value.dtype)

    def _emit(self, operator: str, axes: Axes, name: str, value: tf.Tensor, **arguments: Any) -> Any:
        emit = getattr(self._hvd.mpi_ops.MPI_LIB, operator)
        results = emit(value, name=name, process_set_id=self._process_set(axes), **arguments)
        op = (results if isinstance(results, tf.Tensor) else results[0]).op
        # Otherwise TensorFlow would merge two operators that look the same, on the ranks where they do.
        op._set_attr("_tensoropt_number", tf.compat.v1.AttrValue(i=next(self._numbers)))
        return results

    def _process_set(self, axes: Axes) -> int:
        """Return the number of the process set of this rank's group."""
        groups = sorted({self._mesh.group(axes, rank) for rank in range(self._mesh.n_devices)})
        sets = self._running.sets
        if len(groups) == 1:
            return 0  # all ranks: Horovod's own set
        if groups[0] not in sets:
            self._agree(f"process sets {axes_text(axes)}")
            for group in groups:
                sets[group] = self._hvd.add_process_set(list(group)).process_set_id
        return sets[self._mesh.group(axes, self._rank)]
