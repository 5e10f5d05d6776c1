"""Record a Keras model's training step without ranks, for a search."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ..common.dump import dump
from ..common.errors import InputError
from ..lowering.gradient_analysis import analyse
from ..optimizers.keras_optimizer import KerasOptimizer, keras_name
from ..sharding.model import Model
from ..trainer.capture.accepting import check_model
from ..trainer.capture.objective import Compilation, KerasObjective, OwnCompilation, own_methods
from ..trainer.capture.programs import TRAIN, capture_program
from ..trainer.capture.signature import assumed, signature_of
from .recorded import Recorded

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(),
    "momentum": lambda: keras.optimizers.SGD(momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(),
}
# The loss of a model that was compiled without one; a loss's cost is negligible.
LOSS = "mean_squared_error"


def load_keras(file: Path, name: str) -> keras.Model:
    """Load the model that ``model.save("FILE.keras")`` wrote; ``name`` is for messages.

    Raises:
        InputError: the file can't be loaded.
    """
    try:
        with warnings.catch_warnings():
            # Keras warns about optimizer slots that don't exist yet; a search needs none.
            warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
            warnings.filterwarnings("ignore", "A total of")
            return keras.models.load_model(file)
    except Exception as error:  # custom layers fail in any way
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"model {name!r} can't be loaded: {reason}; expected a file that model.save wrote") from error


def record_keras(make: Callable[[], keras.Model], name: str, optimizer: str | None, batch_size: int) -> Recorded:
    """Record a Keras model with the loss, metrics and optimizer it was compiled with.

    Args:
        make: returns the model, made or loaded.
        name: the model's name, for messages.
        optimizer: the optimizer (``sgd``, ``momentum``, ``adam``) for a model that wasn't compiled, None for ``sgd``; such a
            model gets a mean squared error as its loss.
        batch_size: samples per step, over all devices.

    Raises:
        InputError: the model isn't built, can't be captured, or was compiled with an optimizer and gets another.
    """
    started = time.perf_counter()
    model = make()
    check_model(model, compiles=False)
    compilation, chosen = _compiled(model, name, optimizer)
    signature = assumed(signature_of(model, compilation.loss, batch_size, None, False, None), model, compilation.loss)
    objective = KerasObjective(model, OwnCompilation(model) if own_methods(model) else compilation)
    objective._optimizer_to_count = chosen  # as a trainer does: the operators then have the same names

    def optimizer_of(applied: Any, variables: Sequence[Any]) -> KerasOptimizer:
        return KerasOptimizer.of(chosen if applied is None else applied, variables)

    captured = capture_program(TRAIN, objective, signature, optimizer_of)
    recorded = time.perf_counter()
    result = Model(captured.graph, analyse(captured.graph))
    dump("model", captured.graph)
    seconds = {"record": recorded - started, "import": time.perf_counter() - recorded}
    variables = captured.capture.variables

    def first_value(variable: str) -> np.ndarray:
        return np.asarray(variables[variable].numpy())

    return Recorded(name, result, (keras_name(chosen),), lambda: first_value, seconds)


def _compiled(model: keras.Model, name: str, optimizer: str | None) -> tuple[Compilation, Any]:
    config = model.get_compile_config() if model.compiled else None
    if not config or model.optimizer is None:
        return Compilation(LOSS, None, None, None), OPTIMIZERS[optimizer or "sgd"]()
    if optimizer is not None:
        raise InputError(
            f"model {name!r} is compiled with the optimizer {keras_name(model.optimizer)}, got --optimizer {optimizer}; "
            "leave out --optimizer, or compile the model with another"
        )
    loss = getattr(model, "loss", None) or LOSS
    metrics = {key: keras.saving.deserialize_keras_object(config.get(key)) for key in ("metrics", "weighted_metrics")}
    return Compilation(loss, config.get("loss_weights"), **metrics), model.optimizer
