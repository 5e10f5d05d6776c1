"""One rank of the tests of what a trainer answers under mpirun.

    mpirun -n 2 live_worker.py

Reads, assignments and refusals on two ranks, all in one run; at last rank 0 alone reads a sharded variable.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
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
    """Wrong or different values of one rank are refused on both; nothing changes."""
    trainer.fit(batches(8), verbose=0)
    before = trainer.get_weights()
    other = [each + RANK for each in before]
    assert "ranks 0 and 1 assign different values to '" in refusal(lambda: trainer.set_weights(other))
    wide = [*before[:-2], np.ones((8, 5 + RANK)), before[-1]]
    assert "on rank 1 set_weights (live_worker.py:" in refusal(lambda: trainer.set_weights(wide))
    assert "got 8 arrays" in refusal(lambda: trainer.set_weights(before[1 - RANK :]))
    split = [each for each in MODEL.weights if trainer.ranks.state[key_of(trainer, each)].layout.split_axes]
    assert "rank 0 reads '" in refusal(split[RANK].numpy)
    MODEL.set_weights([each + 1 for each in other])
    assert "ranks 0 and 1 assign different values to '" in refusal(lambda: trainer.fit(batches(8), verbose=0))
    MODEL.set_weights(before)
    for one, kept in zip(trainer.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, kept)
    trainer.set_weights([each + 1 for each in before])
    trainer.layers[-1].set_weights([np.full((8, 5), 2.0), np.arange(5)])
    expected = [*(each + 1 for each in before[:-2]), np.full((8, 5), 2.0), np.arange(5)]
    for one, wanted in zip(trainer.get_weights(), expected, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-6)
    trainer.set_weights(before)


def key_of(trainer: Any, variable: Any) -> str:
    return trainer.ranks.key_of(variable._value)


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
        np.testing.assert_array_equal(model.get_weights()[0], trainer.get_weights()[0])
        model.layers[-1].kernel.assign(np.ones((8, 5)))
        OPTIMIZER.weight_decay = 0.5

    trainer.fit(batches(16), verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)])
    np.testing.assert_array_equal(model.layers[-1].kernel, np.ones((8, 5)))
    assert [trainer.ranks.optimizer.running[0]._on[0].copy.weight_decay, OPTIMIZER.weight_decay] == [0.5, 0.5]
    trainer.fit(batches(8), verbose=0)
    weights = trainer.ranks.processes.gather(model.get_weights())
    assert all(map(np.array_equal, *weights))
    assert not np.array_equal(weights[0][-2], np.ones((8, 5)))


def drawn(first_other: int, n: int = 40) -> tf.data.Dataset:
    """Batches that are the same on both ranks up to the one of this number."""
    x, y = images(n * BATCH)
    x[first_other * BATCH :] += RANK
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def check_data(trainer: Any) -> None:
    """Batches that begin to differ later are noticed, in the first epoch at once; calls in callbacks don't count."""
    told = "ranks 0 and 1 have different data in batch {} of a pass through it"
    for begins in (1, 17):
        assert f"{told.format(begins + 1)}:" in refusal(lambda: trainer.fit(drawn(begins), verbose=0))  # noqa: B023
    other = tf.Variable(tf.zeros([], images(1)[0].dtype))  # not so in the second epoch, on rank 0
    data = drawn(40).enumerate().map(lambda n, each: (each[0] + tf.cast(n > 0, each[0].dtype) * other, each[1]))
    change = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: other.assign(1.0))
    assert f"{told.format(17)}, as" in refusal(lambda: trainer.fit(data, epochs=2, verbose=0, callbacks=[change]))
    assert told.format(17) in refusal(lambda: trainer.evaluate(drawn(16), verbose=0))
    assert told.format(17) in refusal(lambda: trainer.predict(drawn(16).map(lambda x, y: x), verbose=0))
    x, y = images(BATCH)

    def on_epoch_end(epoch: int, logs: Any) -> None:
        trainer.test_on_batch(x, y)

    trainer.fit(batches(16), verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)])
    told = "ranks 0 and 1 give different values for '{}' in call {} of train_on_batch"
    for _ in range(16):
        trainer.train_on_batch(x, y)
    assert told.format("labels", 17) in refusal(lambda: trainer.train_on_batch(x, (y + RANK) % 5))


def check_function() -> None:
    w = tf.Variable(tf.ones([4]))
    captured = tensoropt.capture(lambda x: tf.reduce_mean((x * w - 1.0) ** 2), [tf.TensorSpec([BATCH, 4])])
    trainer = tensoropt.parallelize(captured, keras.optimizers.SGD(0.1), cluster="v100-1x2")
    x = np.ones((BATCH, 4), np.float32)
    for _ in range(16):
        trainer.step(x)
    said = refusal(lambda: trainer.step(x + RANK))
    assert "in call 17 of trainer.step (live_worker.py:" in said, said


def check_run() -> None:
    """Feeds are compared, but for shares, which differ."""
    tensoropt.init(hardware="v100-1x2")
    x, y = tensoropt.placeholder("float32", shape=[BATCH, 4], name="x"), tensoropt.placeholder("float32", shape=[BATCH, 2])
    loss = tensoropt.reduce_mean((tensoropt.matmul(x, tensoropt.get_variable("w", shape=[4, 2])) - y) ** 2)
    train_op = tensoropt.GradientDescentOptimizer().minimize(loss)
    tensoropt.build_execution_graph(engine="tensorflow", plan=tensoropt.find_strategy(option="mini_time"))
    whole = {x: np.ones((BATCH, 4), np.float32), y: np.ones((BATCH, 2), np.float32)}
    share = {**whole, x: tensoropt.local(np.full((BATCH // 2, 4), RANK, np.float32))}
    for feeds in [whole, share] * 8:
        tensoropt.run(train_op, feeds)
    said = refusal(lambda: tensoropt.run(train_op, {**whole, x: whole[x] + RANK}))
    assert "ranks 0 and 1 give different values for 'x:0' in call 17 of tensoropt.run (live_worker.py:" in said, said
    assert "tensoropt.local(array)" in said


def main() -> None:
    check_weights(TRAINER)
    check_callbacks(TRAINER, MODEL)
    check_data(TRAINER)
    check_function()
    check_run()
    print(f"rank {RANK} done", flush=True)
    if RANK == 0:
        print([each.numpy().shape for each in MODEL.weights], "read alone")


if __name__ == "__main__":
    MODEL = network()
    OPTIMIZER = keras.optimizers.Adam(1e-2, weight_decay=0.01)
    TRAINER = tensoropt.parallelize(MODEL, OPTIMIZER, loss(), batch_size=BATCH, cluster="v100-1x2")
    TRAINER.fit(batches(16), verbose=0)
    main()
