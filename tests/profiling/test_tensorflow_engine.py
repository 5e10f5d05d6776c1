"""How many threads TensorFlow has within an operator, by what was asked for and where."""

from types import SimpleNamespace

import pytest

from tensoropt.profiling import tensorflow_engine
from tensoropt.profiling.tensorflow_engine import _threads_within_operators


@pytest.mark.parametrize(
    ("asked", "from_environment", "n_cores", "threads"),
    [(0, None, 4, 0), (2, None, 4, 2), (0, "1", 4, 1), (2, "1", 4, 2), (0, "0", 4, 0), (0, "all", 4, 0), (0, None, 1, 1)],
)
def test_threads_are_those_that_tensorflow_has(monkeypatch, asked, from_environment, n_cores, threads):
    """Stages whose ranks have one thread are predicted to run their operators in order."""
    if from_environment is None:
        monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    else:
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", from_environment)
    monkeypatch.setattr(tensorflow_engine.os, "sched_getaffinity", lambda _: set(range(n_cores)))
    threading = SimpleNamespace(get_intra_op_parallelism_threads=lambda: asked)
    tf = SimpleNamespace(config=SimpleNamespace(threading=threading))
    assert _threads_within_operators(tf) == threads
