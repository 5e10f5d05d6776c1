"""Record a model without a session, so that a laptop can search for its plans: no ranks, no measurement, nothing runs.

A model is ``zoo:NAME[:SIZE=N,...]``, ``FILE.keras`` or ``FILE.py:FUNCTION[:SIZE=N,...]``. The function is called with its
sizes alone. It records with ``tensoropt.*`` names (or TensorFlow's own) and returns its loss; or it calls ``minimize``
itself and returns nothing; or it returns a Keras model.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import tensorflow as tf

from .. import zoo
from ..common.dump import dump
from ..common.errors import InputError, TensorOptError, short
from ..frontend.importer import import_graph
from ..frontend.initial_values import FirstValues
from ..frontend.recording import Recording
from ..ir.invariants import check_graph
from ..lowering.gradient_analysis import analyse
from ..session.recording_optimizers import AdamOptimizer, GradientDescentOptimizer, MomentumOptimizer
from ..session.session import standing_in
from ..sharding.micro_batches import with_batch
from ..sharding.model import Model
from .offline_keras import load_keras, record_keras
from .recorded import Recorded

OPTIMIZERS = {"sgd": GradientDescentOptimizer, "momentum": MomentumOptimizer, "adam": AdamOptimizer}
DEFAULT_OPTIMIZER = "sgd"
SEED = 0
# Samples per step of a Keras model, which doesn't say how many.
KERAS_BATCH = 256


class _Recorder:
    """The stand-in for a session while a model function runs: it only records."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def recording_for(self, caller: str) -> Recording:
        return self._recording

    def __getattr__(self, name: str) -> Any:
        raise InputError(f"a model function only records: {name} is for a script of its own, after tensoropt.init()")


def record_named(name: str, optimizer: str | None = None, batch_size: int | None = None) -> Recorded:
    """Record ``zoo:NAME[:SIZE=N,...]``, ``FILE.py:FUNCTION[:SIZE=N,...]`` or ``FILE.keras``.

    Args:
        optimizer: the optimizer of a model that has no training step of its own: ``sgd``, ``momentum`` or ``adam``; None for
            ``sgd``. A model that names its own takes none.
        batch_size: samples per step of a Keras model or a zoo model; None for ``KERAS_BATCH`` or the zoo's own. A function
            that records its loss defines the batch itself and takes none.

    Raises:
        InputError: there is no such model, it can't be recorded (the message says where it failed), or it can't take the
            optimizer or the batch.
    """
    if batch_size is not None and batch_size < 1:
        raise InputError(f"model {name!r}: --batch takes a positive number of samples, got {batch_size}")
    if name.endswith(".keras"):
        if not Path(name).is_file():
            raise InputError(f"model {name!r}: file '{name}' isn't there; expected what model.save('FILE.keras') wrote")
        return record_keras(lambda: load_keras(Path(name), name), name, optimizer, batch_size or KERAS_BATCH)
    of_zoo, separator, target = name.partition(":")
    if of_zoo == "zoo" and separator:
        return record(zoo.sized(target, batch_size), name, optimizer)
    of_file, _, sizes = name.rpartition(":") if "=" in name.rpartition(":")[2] else (name, "", "")
    where, separator, target = of_file.rpartition(":")
    if not separator or not where or not target:
        raise InputError(f"model {name!r}: expected zoo:NAME (zoo: lists them), FILE.py:FUNCTION or FILE.keras")
    path = Path(where)
    if path.suffix != ".py" or not path.is_file():
        problem = "isn't there" if path.suffix == ".py" else "isn't a Python file"
        raise InputError(f"model {name!r}: file '{where}' {problem}; expected zoo:NAME or FILE.py:FUNCTION")

    def made() -> object:
        function = _function_in(path, target)
        return function(**zoo.sizes_of(function, sizes, name)) if sizes else function()

    return record(made, name, optimizer, path, batch_size)


def record(
    function: Callable[[], object],
    name: str,
    optimizer: str | None = None,
    file: Path | None = None,
    batch_size: int | None = None,
) -> Recorded:
    """Record the model that a function makes.

    Args:
        function: the model function; it is called in a recording graph of its own.
        name: the model's name, for messages.
        optimizer: as in :func:`record_named`.
        file: the file of the function; error messages name the line in it.
        batch_size: as in :func:`record_named`.

    Raises:
        InputError: the function failed, recorded nothing to train, or can't take the optimizer or the batch.
    """
    started = time.perf_counter()
    recording = Recording(SEED)
    try:
        with standing_in(_Recorder(recording)):
            result = function()
        recording.close()
    except BaseException as error:
        with contextlib.suppress(InputError):
            recording.close()
        if not isinstance(error, (Exception, SystemExit)):
            raise
        raise InputError(_failure(name, error, file)) from error
    if isinstance(result, tf.keras.Model):
        # Called again, since the variables of this model belong to the recording.
        return record_keras(lambda: cast("tf.keras.Model", function()), name, optimizer, batch_size or KERAS_BATCH)
    steps, gradients = recording.updates()
    if not steps:
        _minimize(recording, result, name, optimizer or DEFAULT_OPTIMIZER)
        steps, gradients = recording.updates()
    elif optimizer is not None:
        own = " and ".join(dict.fromkeys(str(step.optimizer) for step in steps))
        raise InputError(
            f"model {name!r} minimizes its loss by {own} itself, got --optimizer {optimizer}; leave out --optimizer, or "
            "return the loss instead"
        )
    recorded = time.perf_counter()
    graph = import_graph(recording.graph, steps, gradients=gradients)
    if batch_size is not None and graph.batch and batch_size < graph.batch and graph.batch % batch_size == 0:
        graph = with_batch(graph, batch_size)
    elif batch_size not in (None, graph.batch):
        batch_text = f"of {graph.batch}" if graph.batch else "(which none of its placeholders tells)"
        raise InputError(
            f"model {name!r} records a batch {batch_text}, got a batch of {batch_size}; give a divisor of it, or change the "
            "batch where the model is recorded"
        )
    if os.environ.get("TENSOROPT_CHECK") == "1":
        check_graph(graph)
    model = Model(graph, analyse(graph), placed=recording.placed_in(graph.operators))
    dump("model", graph)
    seconds = {"record": recorded - started, "import": time.perf_counter() - recorded}
    optimizers = tuple(dict.fromkeys(str(step.optimizer) for step in steps))
    return Recorded(name, model, optimizers, lambda: FirstValues(recording.graph), seconds)


def _minimize(recording: Recording, loss: object, name: str, optimizer: str) -> None:
    """Record a training step for a function that returned its loss."""
    if isinstance(loss, tf.Tensor) and recording.has(loss):
        try:
            with recording.graph.as_default(), standing_in(_Recorder(recording)):
                OPTIMIZERS[optimizer]().minimize(loss)
        except InputError as error:
            raise InputError(f"model {name!r} can't be trained: {error}") from error
        return
    if loss is None and not recording.graph.get_operations():
        raise InputError(
            f"model {name!r} recorded nothing; the function must make its model with tensoropt.* names and return its loss"
        )
    raise InputError(
        f"model {name!r} has no training step: its function returned {short(loss)}; expected its loss, a scalar that it "
        "recorded, a Keras model, or a call of an optimizer's minimize(loss)"
    )


def _function_in(path: Path, name: str) -> Callable[[], object]:
    """Run a file as a module and return a function in it."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # As if Python ran the file: modules beside it can be imported, and its classes find their module.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == path.stem]
        functions = [key for key in own if callable(vars(module)[key])]
        near = difflib.get_close_matches(name, functions, n=3, cutoff=0.4) or functions
        contents = f"it has {', '.join(near)}" if near else "it defines no functions"
        raise InputError(f"'{path}' has no function {name!r}; {contents}")
    return function


def _failure(name: str, error: BaseException, file: Path | None) -> str:
    """Return one sentence for the error that a model function raised, with the line in the user's file."""
    place = ""
    if file is not None:
        if isinstance(error, SyntaxError) and error.filename is not None:
            lines = [error.lineno]
        else:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if os.path.abspath(frame.filename) == str(file.resolve())]
        place = f" ({file.name}:{lines[-1]})" if lines else ""
    if isinstance(error, TensorOptError):
        return f"model {name!r} can't be recorded{place}: {error}"
    if isinstance(error, SystemExit):
        return f"model {name!r} failed{place}: it ended Python by SystemExit({error.code!r})"
    message = next((line for line in str(error).splitlines() if line.strip()), "").strip()
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"model {name!r} failed{place}: {text}"
