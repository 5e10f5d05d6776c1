"""One rank of a Keras model in stages, which rank 0 tells of as JSON: what it learnt, evaluated and predicted.

There are two stages, or as many as ``STAGES`` in the environment says, by the schedule that ``SCHEDULE`` does.
Its optimizer scales the loss. With ``NORMALISED`` it is one with batch normalisation, which takes its batch at once.
Where the folder has a checkpoint, it goes on from there. With ``FAULT`` in the environment rank 1 is killed, or sleeps, in
its second step.

    mpirun -n 2 keras_worker.py FOLDER EPOCHS
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
from pipeline.keras_models import BATCH, compiled, data, images, network, normalised_network, scaling

import tensoropt

RANK, SIZE = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
FAULTS = {"kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "sleep": lambda: time.sleep(600)}


def main(folder: Path, epochs: int) -> None:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    is_normalised = "NORMALISED" in os.environ
    model, micro_batches = (normalised_network(), 1) if is_normalised else (network(), 4)
    asked = {"stages": int(os.environ.get("STAGES", "2")), "schedule": os.environ.get("SCHEDULE")}
    trainer = tensoropt.parallelize(
        model, **compiled(None if is_normalised else scaling()), batch_size=BATCH, cluster=f"v100-1x{SIZE}",
        micro_batches=micro_batches, verbose=0, **asked,
    )  # fmt: skip
    x, y = images() if is_normalised else data(BATCH)
    if "FAULT" in os.environ:
        trainer.train_on_batch(x[:BATCH], y[:BATCH])
        if RANK == 1:
            print(f"fault at {time.time()}", flush=True)
            FAULTS[os.environ["FAULT"]]()
        trainer.train_on_batch(x[:BATCH], y[:BATCH])
    if any(folder.iterdir()):
        trainer.load(folder)
    seen = []

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            evaluated = self.model.evaluate(x[:8], y[:8], verbose=0)[0]
            seen.append((dict(logs), evaluated, len(self.model.get_weights())))
            self.model.optimizer.learning_rate = 5e-3

    callbacks = [Own()] if RANK == 0 else []
    fitting = {"epochs": epochs, "shuffle": False, "verbose": 0, "validation_data": (x[:8], y[:8])}
    history = trainer.fit(x, y, callbacks=callbacks, **fitting)
    trainer.save(folder / "ckpt")
    predicted, weights = trainer.predict(x[:8], batch_size=BATCH, verbose=0), trainer.get_weights()
    trainer.export_to(model)
    assert all((one == other).all() for one, other in zip(model.get_weights(), weights, strict=True))
    if RANK == 0:
        assert [logs for logs, _, _ in seen] == [
            {name: values[epoch] for name, values in history.history.items()} for epoch in range(len(seen))
        ]
        told = {"epochs": history.epoch, "history": history.history, "seen": [each[1] for each in seen]}
        told |= {"predicted": predicted.tolist(), "weights": [weight.tolist() for weight in weights]}
        print(json.dumps(told | {"plan": trainer.plan.brief()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
