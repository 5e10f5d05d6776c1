"""A rank that tells which machines there are, trains a model that is split over them, saves it, and goes on from the file.

Usage: two_machines_rank.py FOLDER, which all machines see
"""

import sys
from pathlib import Path

import keras
import numpy as np

import tensoropt
from tensoropt.runtime.ranks import current_processes

BATCH = 8


def network() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])


def main(folder: Path) -> None:
    processes = current_processes()
    total = sum(processes.gather(processes.rank + 1))
    random = np.random.default_rng(0)
    x, y = random.normal(size=(4 * BATCH, 6)), random.normal(size=(4 * BATCH, 3))
    losses = []
    for epochs in (1, 2):
        cluster = f"v100-{processes.machines}x{processes.devices_per_machine}"
        trainer = tensoropt.parallelize(network(), "adam", "mse", batch_size=BATCH, cluster=cluster)
        if epochs == 2:
            trainer.load(folder)
        losses += trainer.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0).history["loss"]
        trainer.save(folder / "ckpt")
    plain = network()
    plain.compile("adam", "mse", jit_compile=False)
    expected = plain.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    if processes.rank == 0:
        print(*processes.hosts, processes.machines, total, trainer.plan.mesh, trainer.plan.n_collectives > 0)


main(Path(sys.argv[1]))
