"""One rank of the tests of what a trainer answers under mpirun.

mpirun -n 2 live_worker.py all      reads, assignments and refusals on two ranks, all in one run
mpirun -n 2 live_worker.py alone    rank 0 alone reads what is in pieces
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
import numpy as np
from trainer.models import BATCH, batches, images, loss, network

import tensoropt

RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])


def refusal(action: Callable[[], Any]) -> str:
    """The sentence with which something is refused; fails where it isn't, or ranks say different ones."""
    try:
        action()
    except tensoropt.InputError as error:
        said = TRAINER.ranks.processes.gather(str(error))
        assert said[0] == said[1], said
        return str(error)
    raise AssertionError("wasn't refused")


def check_weights(trainer: Any) -> None:
    """What one rank alone gives wrongly, or otherwise, is refused on both; nothing changes."""
    before = trainer.get_weights()
    other = [each + RANK for each in before]
    assert "ranks 0 and 1 assign different values to '" in refusal(lambda: trainer.set_weights(other))
    assert "ranks 0 and 1 assign different values to '" in refusal(lambda: trainer.weights[0].assign(other[0]))
    wide = [*before[:-2], np.ones((8, 5 + RANK)), before[-1]]
    assert "on rank 1 set_weights (live_worker.py:" in refusal(lambda: trainer.set_weights(wide))
    assert "got 8 arrays" in refusal(lambda: trainer.set_weights(before[1 - RANK :]))
    split = [each for each in trainer.weights if trainer.ranks.state[key_of(trainer, each)].layout.split_axes]
    assert "rank 0 reads '" in refusal(split[RANK].numpy)
    for one, kept in zip(trainer.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, kept)
    trainer.set_weights([each + 1 for each in before])
    trainer.layers[-1].set_weights([np.full((8, 5), 2.0), np.arange(5)])
    expected = [*(each + 1 for each in before[:-2]), np.full((8, 5), 2.0), np.arange(5)]
    for one, wanted in zip(trainer.get_weights(), expected, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-6)
    trainer.set_weights(before)


def key_of(trainer: Any, variable: Any) -> str:
    return trainer._key_of(variable._of._value)


def check_callbacks(trainer: Any, model: keras.Model) -> None:
    """Rank 0 alone reads and assigns in callbacks, while rank 1 waits."""
    seen = []

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            x = images(8)[0]
            predicted, called = self.model.predict(x, verbose=0), np.asarray(self.model(x))
            np.testing.assert_allclose(called, predicted, rtol=1e-4, atol=1e-5)
            kernel = self.model.layers[-1].kernel
            kernel.assign(np.asarray(kernel) * 0.0)
            np.testing.assert_array_equal(self.model.get_weights()[-2], np.zeros((8, 5)))
            seen.append(epoch)

    trainer.fit(batches(16), epochs=2, verbose=0, callbacks=[Own()])
    assert seen == ([0, 1] if RANK == 0 else [])
    np.testing.assert_array_equal(trainer.layers[-1].kernel, np.zeros((8, 5)))

    def on_epoch_end(epoch: int, logs: Any) -> None:
        model.get_weights()

    closing = keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)
    said = refusal(lambda: trainer.fit(batches(16), verbose=0, callbacks=[closing]))
    assert "is read at live_worker.py" in said


def main() -> None:
    if sys.argv[1] == "alone":
        if RANK == 0:
            print([each.numpy().shape for each in TRAINER.weights])
        return
    check_weights(TRAINER)
    check_callbacks(TRAINER, MODEL)
    print(f"rank {RANK} done")


if __name__ == "__main__":
    MODEL = network()
    TRAINER = tensoropt.parallelize(MODEL, keras.optimizers.Adam(1e-2), loss(), batch_size=BATCH, cluster="v100-1x2")
    TRAINER.fit(batches(16), verbose=0)
    main()
