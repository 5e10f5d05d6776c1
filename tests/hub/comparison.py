"""Train a model by a trainer on two emulated devices and by plain Keras, and hold all numbers against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import tensoropt

BATCH = 8
N = 20
"""Samples: two batches, and one that is smaller."""


def adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(1e-3)


def fitted(model: Any, x: Any, y: Any) -> dict[str, list[float]]:
    """Train for two epochs, whose last batch is smaller."""
    found: dict[str, list[float]] = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    return found


def by_batches(model: Any, x: Any, y: Any) -> dict[str, list[float]]:
    """Train on two whole batches, whose shapes are known while the model is traced."""
    parts = (slice(i, i + BATCH) for i in (0, BATCH))
    losses = [model.train_on_batch({key: each[part] for key, each in x.items()}, y[part]) for part in parts]
    return {"loss": losses}


def compared(
    make: Callable[[], keras.Model], loss: Any, x: Any, y: Any, train: Callable[..., Any] = fitted, **options: Any
) -> Any:
    """Compare what training returns, and the weights after it; return the trainer.

    Args:
        make: makes the model, compiled if ``loss`` is None: then the trainer takes the model's own compilation.
        train: trains a model on data, and returns numbers by name.
    """
    keras.utils.set_random_seed(1)
    model = make()
    where = {"batch_size": BATCH, "cluster": "v100-1x2", "parallelism": 2, "collectives": "emulated", **options}
    compilation = {} if loss is None else {"optimizer": adam(), "loss": loss}
    trainer = tensoropt.parallelize(model, **compilation, **where)
    found = train(trainer, x, y)
    keras.utils.set_random_seed(1)
    plain = make()
    if loss is not None:
        plain.compile(adam(), loss, jit_compile=False)
    expected = train(plain, x, y)
    assert list(found) == list(expected), (list(found), list(expected))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-9, err_msg=name)
    for variable, one, other in zip(plain.weights, trainer.get_weights(), plain.get_weights(), strict=True):
        scale = np.max(np.abs(other), initial=1e-3)
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9 * scale, err_msg=variable.path)
    assert any(op.config.used_axes for op in trainer.plan.operators), trainer.plan
    return trainer
