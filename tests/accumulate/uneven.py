"""A Keras model and its batches; run on ranks, fits in micro-batches that don't divide each rank's share of the batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from helpers.strategies import assert_close

import tensoropt
from tensoropt.runtime.ranks import current_processes

N_INPUTS, N_OUTPUTS, N_BATCHES = 6, 4, 2


def network() -> keras.Model:
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(12, activation="tanh"), keras.layers.Dense(N_OUTPUTS)]
    return keras.Sequential([keras.Input((N_INPUTS,)), *layers])


def how() -> dict[str, Any]:
    return {"optimizer": keras.optimizers.SGD(0.1, momentum=0.9), "loss": "mse"}


def batches(n_samples: int) -> list[dict[int, np.ndarray]]:
    """Inputs and labels, by how many numbers a sample has."""
    drawn = (np.random.default_rng([7, i]) for i in range(N_BATCHES))
    return [{n: rng.normal(size=(n_samples, n)) for n in (N_INPUTS, N_OUTPUTS)} for rng in drawn]


def main() -> None:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    rank, n_ranks, n_samples = current_processes().rank, current_processes().size, 8
    x, y = (np.concatenate([batch[n] for batch in batches(n_samples)]) for n in (N_INPUTS, N_OUTPUTS))
    given = {"batch_size": n_samples, "epochs": 1, "shuffle": False, "verbose": 0}
    trainer = tensoropt.parallelize(network(), **how(), batch_size=n_samples, micro_batches=4, cluster=f"v100-1x{n_ranks}")
    assert trainer.plan.micro_batches == 4 and trainer.plan.parallelism == n_ranks
    losses = trainer.fit(x, y, **given).history["loss"]
    weights = trainer.get_weights()
    if rank == 0:
        plain = network()
        plain.compile(**how(), jit_compile=False)
        assert_close(np.asarray(losses), np.asarray(plain.fit(x, y, **given).history["loss"]), 1e-10, "losses")
        for found, value in zip(weights, plain.get_weights(), strict=True):
            assert_close(found, value, 1e-10, "a weight")
        print(f"{n_samples} samples in 4 micro-batches on {n_ranks} ranks are trained as Keras does")


if __name__ == "__main__":
    main()
