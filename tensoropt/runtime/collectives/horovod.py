"""Collectives by Horovod's operators: inside the graph, with a process set for each group.

Horovod is optional, and often built for something else than what is installed: :func:`load_horovod` says so before anything
runs. Its operators wait for each other by name, so they need no order, and no thread of TensorFlow's waits in them. Horovod
itself names those for which only some ranks have come.

Its reduce-scatter isn't used: the second one of a name ends Horovod 0.28.1, whose cache of responses knows all operators but
this one ("No corresponding ResponseType for provided RequestType"). An all-to-all and a sum move as much.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import json
import math
import os
import re
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from ...common.errors import InputError, describe
from ...common.watchdog import timeout_s
from ...reschedule.layout import Axes, axes_text
from ...reschedule.mesh import Mesh
from ..error_handling import at_the_very_end

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

MAKE = "make it again with make horovod"
WARN_S = 60.0
"""After how long Horovod names collectives for which some ranks wait; half of a shorter timeout."""

_MOVES = frozenset({tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64, tf.bool})
# What it moves in place of elements that it doesn't know, by their size in bytes.
_MOVED_AS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64}


def load_horovod() -> Any:
    """The module ``horovod.tensorflow``.

    Raises:
        InputError: there is none, or it was built for another TensorFlow or MPI.
    """
    spec = find_spec("horovod")
    if spec is None or spec.origin is None:
        raise InputError(
            describe(
                "collectives='horovod' needs Horovod", got="none in this environment", advice="make it with make horovod"
            )
        )
    built_for = _built_for(Path(spec.origin).with_name("metadata.json"))
    if built_for != tf.__version__:
        raise InputError(
            describe("Horovod was built for another TensorFlow", got=built_for, expected=tf.__version__, advice=MAKE)
        )
    try:
        import horovod.tensorflow as hvd
    except (ImportError, OSError, tf.errors.OpError) as error:
        what = str(error).strip().splitlines()[0]
        raise InputError(describe("Horovod can't be loaded", got=what, advice=MAKE)) from error
    if not hvd.mpi_built():
        raise InputError(describe("Horovod was built without MPI", got="no MPI", expected="mpi4py's", advice=MAKE))
    libraries = mpi_libraries()
    if len(libraries) > 1:
        found = " and ".join(libraries)
        raise InputError(describe("Horovod was built for another MPI than mpi4py", got=found, expected="one", advice=MAKE))
    return hvd


def _built_for(metadata: Path) -> str:
    try:
        return str(json.loads(metadata.read_text()).get("tensorflow", "none"))
    except (OSError, ValueError):
        return "unknown"


def horovod_version() -> str:
    """Of the installed distribution, with the TensorFlow that it was built for."""
    return f"{importlib.metadata.version('horovod')} for TensorFlow {tf.__version__}"


def mpi_libraries(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """The MPI libraries that this process has loaded; none where the system doesn't tell."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/" in line}
    return sorted(path for path in paths if re.fullmatch(r"lib(mpi|mpich)\.(so.*|.*dylib)", Path(path).name))


def name_stalls(environ: MutableMapping[str, str], timeout: float) -> None:
    """Have Horovod name collectives for which some ranks wait, ahead of the timeout. A user's own setting stays."""
    if math.isinf(timeout):
        timeout = 2 * WARN_S
    # Whole seconds, of which 0 would be never.
    environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, math.floor(min(WARN_S, timeout / 2)))))


@dataclass
class _Running:
    """Horovod as it runs in this process.

    Attributes:
        members: their ranks in the world.
        sets: the numbers of process sets, by their members' ranks among these.
    """

    members: tuple[int, ...]
    sets: dict[tuple[int, ...], int] = field(default_factory=dict)


_running: list[_Running] = []
"""The one that is, if any: Horovod is started for a whole process."""


def _start(hvd: Any, comm: Comm) -> _Running:
    """Horovod for the ranks of a communicator; graphs that were built for others can't be run any more."""
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
    name_stalls(os.environ, timeout_s())
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    hvd.init(comm=comm)
    _running.append(_Running(members))
    # Horovod's own way is to go down with the first rank that ends, whatever the others still wait for.
    shutdown = hvd.mpi_ops._basics.shutdown
    if at_the_very_end(shutdown):
        atexit.unregister(shutdown)
    return _running[0]


class HorovodCollectives:
    """Collectives as operators of a graph, on flat tensors; rank r of ``comm`` is device r of the mesh.

    Making a process set is itself a collective of all ranks: it is made when a graph that is being built first needs it.

    Args:
        agree: says whether all ranks mean the same, in one text; raises on all of them where they don't.

    Raises:
        InputError: Horovod can't be used here, or not the same one on all ranks.
    """

    def __init__(self, comm: Comm, mesh: Mesh, agree: Callable[[str], None]) -> None:
        hvd = load_horovod()
        agree(f"Horovod {horovod_version()} on {mesh}")
        self._hvd, self._mesh, self._agree = hvd, mesh, agree
        self._running = _start(hvd, comm)
        self._rank = comm.rank
        self._numbers = count()

    def check_running(self) -> None:
        """Raises InputError where Horovod was started for other ranks since: numbers of process sets mean others then."""
        if not _running or _running[0] is not self._running:
            raise InputError("Horovod was started again for a plan with other devices; build the graph of this plan again")

    def all_gather(self, axes: Axes, flat: tf.Tensor, name: str) -> tf.Tensor:
        """The members' tensors, one after the other in group order."""
        return _unpacked(self._emit("horovod_allgather", axes, name, _packed(flat)), flat.dtype)

    def all_to_all(self, axes: Axes, flat: tf.Tensor, counts: tf.Tensor, name: str) -> tf.Tensor:
        """What the members send to this rank, one after the other; ``counts[i]`` elements go to member i."""
        received, _ = self._emit("horovod_alltoall", axes, name, _packed(flat), splits=counts)
        return _unpacked(received, flat.dtype)

    def all_reduce(self, axes: Axes, value: tf.Tensor, op: str, name: str) -> tf.Tensor:
        """The members' tensors combined by "sum" or "max"."""
        reduce_op = {"sum": self._hvd.Sum, "max": self._hvd.Max}[op]
        factors = {"prescale_factor": 1.0, "postscale_factor": 1.0}
        summed = self._emit("horovod_allreduce", axes, name, _summable(value), reduce_op=reduce_op, **factors)
        return _summed(summed, value.dtype)

    def _emit(self, operator: str, axes: Axes, name: str, value: tf.Tensor, **arguments: Any) -> Any:
        emit = getattr(self._hvd.mpi_ops.MPI_LIB, operator)
        results = emit(value, name=name, process_set_id=self._process_set(axes), **arguments)
        op = (results if isinstance(results, tf.Tensor) else results[0]).op
        # Else TensorFlow would run two that look the same as one, on the ranks where they do.
        op._set_attr("_tensoropt_number", tf.compat.v1.AttrValue(i=next(self._numbers)))
        return results

    def _process_set(self, axes: Axes) -> int:
        """The number of the set of this rank's group."""
        groups = sorted({self._mesh.group(axes, rank) for rank in range(self._mesh.n_devices)})
        sets = self._running.sets
        if len(groups) == 1:
            return 0  # all ranks: Horovod's own
        if groups[0] not in sets:
            self._agree(f"process sets {axes_text(axes)}")
            for group in groups:
                sets[group] = self._hvd.add_process_set(list(group)).process_set_id
        return sets[self._mesh.group(axes, self._rank)]


def _packed(value: tf.Tensor) -> tf.Tensor:
    """Elements as Horovod can move them."""
    if value.dtype.is_complex:
        return _pairs(value)
    if value.dtype in _MOVES:
        return value
    try:
        return tf.bitcast(value, _MOVED_AS[value.dtype.size])
    except (KeyError, TypeError) as error:
        raise InputError(
            describe("Horovod can't move these elements", got=value.dtype.name, advice="take collectives='mpi', which can")
        ) from error


def _unpacked(moved: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype.is_complex:
        return _of_pairs(moved)
    return moved if moved.dtype == dtype else tf.bitcast(moved, dtype)


def _summable(value: tf.Tensor) -> tf.Tensor:
    """Elements as Horovod can sum them."""
    return _pairs(value) if value.dtype.is_complex else tf.cast(value, sum_type(value.dtype))


def _summed(total: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return _of_pairs(total) if dtype.is_complex else tf.cast(total, dtype)


def _pairs(value: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.math.real(value), tf.math.imag(value)], axis=-1)


def _of_pairs(pairs: tf.Tensor) -> tf.Tensor:
    return tf.complex(pairs[..., 0], pairs[..., 1])


def sum_type(dtype: tf.DType) -> tf.DType:
    """The type in which elements of a (real) type are summed: types of 16 bits and less in wider ones, as in the NumPy sums.

    What leaves an integer's range wraps around alike.
    """
    if dtype.is_floating:
        return tf.float32 if dtype.size <= 2 else dtype
    if dtype.is_bool or dtype.size <= 2:
        return tf.int32
    return tf.int64 if dtype.is_unsigned else dtype
