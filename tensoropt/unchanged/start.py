"""Begin to train the script's models on all ranks: what ``tensoropt run`` does ahead of a script, and ``auto`` within it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..common.errors import InputError
from ..common.process.garbage import nothing_collected
from ..common.process.imports import around_import
from ..runtime.failures.error_handling import refuse_at_end
from ..runtime.ranks import Processes, current_processes, install_error_handling
from .effects import say_once, share_seed, share_streams

TENSORFLOW = "tensorflow"
KERAS = "keras"
OF_NO_MODEL = (
    "the script trained no Keras model by fit or train_on_batch, so that each of {size} ranks did all of its work; run "
    "it by python, or if it is written for ranks by tensoropt run --as-written"
)
_started: dict[str, Any] | None = None


def start(options: Mapping[str, Any]) -> Processes:
    """Have the script's Keras models trained on all ranks from now on, and return the ranks.

    Called again, it changes the options of models that are trained from then on.

    Args:
        options: the fields of :class:`..trainer.parallelize.TrainingOptions` that are not as by default.
    """
    global _started
    processes = current_processes()
    install_error_handling(processes)
    if _started is not None:
        _started.update(options)
        return processes
    _started = dict(options)
    refuse_at_end(untrained)
    _check_backend()
    if os.environ.pop("TF_CONFIG", None):
        say_once("TF_CONFIG is left aside: ranks know each other by MPI")
    seed = share_seed(processes)
    share_streams(processes)
    if KERAS in sys.modules:
        _begin(seed)
    else:
        around_import(KERAS, partial(_beginning, seed))
    return processes


def untrained() -> InputError | None:
    """Return the error of a script that has trained nothing on several ranks, by Keras or by its own calls of TensorOpt."""
    live, session = (sys.modules.get(f"tensoropt.{name}") for name in ("trainer.variables.live", "session.session"))
    has_trained = (live is not None and live.Live.count > 0) or (session is not None and session._current is not None)
    size = current_processes().size
    return None if has_trained or size == 1 else InputError(OF_NO_MODEL.format(size=size))


@contextmanager
def _beginning(seed: int) -> Iterator[None]:
    _check_backend()  # ahead of an import of what may not be installed
    with nothing_collected():
        yield
        _begin(seed)


def _begin(seed: int) -> None:
    """Hand models over, once Keras is imported, and TensorFlow by it."""
    import keras

    _check_backend(keras.backend.backend())  # which a file of Keras's settings may name, too
    from ..trainer.seeding import seed_tensorflow
    from .models import hand_over
    from .strategies import answer_strategies

    seed_tensorflow(seed)
    answer_strategies()
    assert _started is not None
    hand_over(_started)


def _check_backend(given_backend: str | None = None) -> None:
    backend = given_backend or os.environ.get("KERAS_BACKEND", TENSORFLOW)
    if backend != TENSORFLOW:
        raise InputError(
            f"Keras's backend is {backend!r}, by KERAS_BACKEND or by the script; models are trained on several ranks as "
            "TensorFlow's graphs: leave it out, or set it to 'tensorflow'"
        )
