"""One rank of the tests under mpirun.

mpirun -n 2 worker.py data FOLDER       data that each rank would draw differently, and callbacks that rank 0 alone has
mpirun -n 2 worker.py data FOLDER unsplit    the same by a plan that splits nothing
mpirun -n 2 worker.py models            models that differ between the ranks
mpirun -n 2 worker.py callback          a callback that fails
mpirun -n 2 worker.py threads           prints how many threads TensorFlow may take
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from trainer.models import BATCH, METRICS, batches, images, loss, network, samples_after

import tensoropt
from tensoropt.profiling.hardware import Hardware, Origin, named

RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])


def parallelized(model: keras.Model | None = None, cluster: Hardware | None = None):
    cluster = cluster or f"v100-1x{os.environ['OMPI_COMM_WORLD_SIZE']}"
    model = model or network()
    return tensoropt.parallelize(
        model, keras.optimizers.Adam(1e-2), loss(), metrics=METRICS, batch_size=BATCH, cluster=cluster
    )


def measured() -> Hardware:
    """A description as if it had been measured: there one device is compared too, and a tiny model isn't split."""
    return replace(named(f"v100-1x{os.environ['OMPI_COMM_WORLD_SIZE']}"), measured=Origin("2026-01-01", "", 0))


def data(folder: Path, how: str) -> None:
    """Every rank draws from a generator of its own; what rank 0 drew is what must have been learnt."""
    trainer = parallelized(cluster=measured() if how == "unsplit" else None)
    statistics = trainer.ranks.execution.statistics
    assert (trainer.plan.n_split_operators == 0) == (how == "unsplit"), trainer.plan
    random = np.random.default_rng(RANK)
    x, y = images(40)
    drawn = []

    def generated():
        mine = []
        drawn.append(mine)
        for size in (BATCH, BATCH, 1, BATCH):
            mine.append([int(i) for i in random.permutation(len(x))[:size]])
            yield x[mine[-1]], y[mine[-1]]

    specs = (tf.TensorSpec([None, 6, 6, 2], tf.float32), tf.TensorSpec([None], tf.int64))
    seen = []

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((self.model.evaluate(x[:5], y[:5], verbose=0)[0], len(self.model.get_weights())))
            self.model.optimizer.learning_rate = 0.02
            self.model.stop_training = epoch == 1
            logs["rate"] = 0.02 + epoch  # for the history

    callbacks = [Own(), keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras")] if RANK == 0 else []
    history = trainer.fit(
        tf.data.Dataset.from_generator(generated, output_signature=specs), epochs=5, verbose=0, callbacks=callbacks
    )
    assert len(history.epoch) == 2 and history.history["rate"] == [0.02, 1.02]
    assert (statistics(0)["collectives_per_step"] == 0) == (how == "unsplit")
    n = samples_after(how)
    evaluated = trainer.evaluate(batches(n), verbose=0)
    predicted = trainer.predict(x[: n // 2], batch_size=BATCH, verbose=0)
    assert float(trainer.optimizer.learning_rate) == np.float32(0.02)
    trainer.save_weights(folder / "last.weights.h5")
    everyone = trainer.ranks.processes.gather([float(np.sum(weight)) for weight in trainer.get_weights()])
    assert everyone[0] == everyone[1]
    if RANK == 0:
        assert len(seen) == 2
        # The first was opened only to see that ranks differ, and may be read ahead of what is learnt.
        learnt = [part for parts in drawn[1:3] for part in parts]
        told = {"drawn": learnt, "history": history.history, "seen": seen}
        told |= {"evaluated": evaluated, "predicted": predicted.tolist()}
        (folder / "drawn.json").write_text(json.dumps(told))


def numbered_by_rank() -> None:
    if RANK == 0:
        keras.layers.Dense(1)  # one more, which Keras counts
    parallelized()


def main() -> None:
    what, *rest = sys.argv[1:]
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    if what == "models":
        try:
            numbered_by_rank()
        except tensoropt.InputError as error:
            print(f"refused: {error}", flush=True)
        parallelized(network(units=8 + RANK))
    elif what == "callback":

        def fail(epoch: int, logs: object) -> None:
            raise ValueError("the user's own mistake")

        def interrupt(epoch: int, logs: object) -> None:
            raise KeyboardInterrupt

        trainer = parallelized()
        try:
            trainer.fit(batches(8), verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=interrupt)])
        except KeyboardInterrupt:
            print(f"rank {RANK} was interrupted, with {len(trainer.get_weights())} weights")
        trainer.fit(batches(8), verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=fail)])
    elif what == "threads":
        # Whatever starts the runtime ahead of parallelize.
        tf.Variable(0.0)
        print(f"rank {RANK}: {os.environ['TF_NUM_INTRAOP_THREADS']} threads")
    else:
        data(Path(rest[0]), *rest[1:])
    print(f"rank {RANK} done")


if __name__ == "__main__":
    main()
