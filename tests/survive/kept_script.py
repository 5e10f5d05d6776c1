"""An unchanged script that trains once; a rank of it is killed at a step that is told, and rank 0 writes what came of it."""

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np

EPOCHS, N_SAMPLES, BATCH = 3, 1024, 256


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N_SAMPLES, 256)), rng.normal(size=(N_SAMPLES, 8))


def compiled_model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(256, "tanh"), keras.layers.Dropout(0.2)])
    model.add(keras.layers.Dense(8))
    model.compile(keras.optimizers.Adam(1e-3), "mse", metrics=["mae"])
    return model


class Steps(keras.callbacks.Callback):
    """Writes each step as it ends, and takes its time where it is told."""

    def on_train_batch_end(self, batch, logs=None):
        line = [os.environ.get("TENSOROPT_ATTEMPT"), self.params["epoch"], batch, logs["loss"], random.random()]
        with open("steps.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        time.sleep(float(os.environ.get("NAP", "0")))

    def on_epoch_begin(self, epoch, logs=None):
        self.params["epoch"] = epoch


def die_after(n_steps):
    """Kill this rank once so many steps have ended."""
    while not os.path.exists("steps.jsonl") or Path("steps.jsonl").read_text().count("\n") < n_steps:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    keras.config.set_floatx("float64")
    if len(sys.argv) > 1 and os.environ["TENSOROPT_ATTEMPT"] == "0" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        threading.Thread(target=die_after, args=[int(sys.argv[1])], daemon=True).start()
    model = compiled_model()
    random.seed(2)
    history = model.fit(*data(), batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[Steps()])
    weights = [float(np.sum(np.abs(value))) for value in model.get_weights()]
    with open("result.json", "w") as file:
        json.dump({"history": history.history, "weights": weights, "n_updates": int(model.optimizer.iterations)}, file)


if __name__ == "__main__":
    main()
