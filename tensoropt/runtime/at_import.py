"""Prepare a process for what TensorFlow and MPI read when they start: a user's script may start them before it calls us."""

from __future__ import annotations

import os

from ..common.process.launched import launched_as
from ..common.process.tensorflow_import import watch_import


def prepare_process() -> None:
    """Set what must be set before TensorFlow or MPI starts; modules are imported where there is something to set."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    watch_import()
    if not {"TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"} <= os.environ.keys():
        # A Keras model that is built before parallelize is called starts TensorFlow, whose threads are fixed from then on.
        from .ranks import limit_threads

        limit_threads()
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        # Whoever imports mpi4py.MPI next starts MPI, which reads its settings then.
        from .mpi_start import send_at_once

        send_at_once()
    if launched_as() is not None:
        # TensorFlow sees the GPUs that are visible when it starts, and its server brings devices of its own.
        from .collectives.tensorflow_server import start_if_asked

        start_if_asked()
