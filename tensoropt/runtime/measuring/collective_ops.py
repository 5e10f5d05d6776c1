"""Add single collectives to a graph as operators, to measure what they cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ...lowering.resharding.in_graph import InGraph
from ...lowering.resharding.path_callbacks import CollectiveRequest
from ...profiling.collective_tables import step_alone
from ...profiling.compute import Call
from ...reschedule.layout import Axes, block_bounds
from ...reschedule.mesh import Mesh
from ...reschedule.path import Path
from ..execute import graph_collectives
from ..ranks import Processes

Emitted = Callable[[str, Axes, int], Call]


def emitted_by(name: str, processes: Processes, mesh: Mesh) -> Emitted:
    """Return a function that adds one of TensorFlow's or Horovod's collectives to a graph, as lowering does.

    Every rank must call it; see :class:`...profiling.measuring_ranks.MeasuringProcess`.

    Raises:
        InputError: they can't be used here, or differ between ranks.
    """
    collectives, rank = graph_collectives(name, processes, mesh), processes.rank
    emitter = InGraph(collectives, rank)

    def of(kind: str, axes: Axes, n_bytes: int) -> Call:
        count = n_bytes // np.dtype(np.float32).itemsize
        bounds = [block_bounds(count, mesh.size_of(axes), member) for member in range(mesh.size_of(axes))]
        if kind == "all_to_all":
            counts = [[end - start for start, end in bounds]] * mesh.n_devices

            def exchange(tensor: tf.Tensor) -> tf.Tensor:
                # Lowering's all-to-all includes copies, whose cost is counted separately, so only the exchange is emitted.
                return collectives.all_to_all(axes, tensor, counts, "measured_all_to_all")

            return count, exchange
        step = step_alone(kind, mesh, axes)
        path = Path(step.source, step.target, (step,), (count,))

        def emit(shard: tf.Tensor) -> Any:
            return emitter.emit(path, [shard], CollectiveRequest("measured", "a measurement"))[0]

        start, end = bounds[mesh.index_along(axes, rank)]
        return (end - start if kind == "all_gather" else count), emit

    return of
