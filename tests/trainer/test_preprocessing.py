"""Models that take text, or use tables: what comes before the model's variables runs where a batch is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.mpirun import run_ranks
from trainer.models import assert_same_weights
from trainer.texts import BATCH, batches, model, plain

import tensoropt

WORKER = Path(__file__).with_name("preprocessing_worker.py")
RANKS = {"collectives": "emulated", "parallelism": 2, "cluster": "v100-1x2"}
TEXT = keras.Input((1,), dtype="string", name="text")


def test_raw_columns_train_as_on_one_device():
    trainer = tensoropt.parallelize(model(), keras.optimizers.SGD(0.1), "mse", batch_size=BATCH, **RANKS)
    assert not any(op.type.startswith(("LookupTable", "String")) for op in trainer.plan.operators)
    expected = plain()
    ours, theirs = (each.fit(batches(), epochs=2, verbose=0, shuffle=False) for each in (trainer, expected))
    np.testing.assert_allclose(ours.history["loss"], theirs.history["loss"], rtol=1e-6)
    assert_same_weights(trainer.get_weights(), expected.get_weights(), 1e-9, 1e-12)


# Keras 3.16 warns that its LSTM hands no mask on, which the Dense layer here doesn't ask for.
@pytest.mark.large
@pytest.mark.filterwarnings("ignore:Layer 'lstm.* was passed an input with a mask:UserWarning")
def test_a_recurrent_network_on_raw_text_trains_as_on_one_device():
    texts, labels = np.array(["a b", "b", "c a b a", "b c"]), np.array([1.0, 0.0, 1.0, 0.0])
    made = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        words = keras.layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=3)
        layers = [keras.layers.Embedding(4, 2, mask_zero=True), keras.layers.LSTM(2)]
        made.append(keras.Sequential([keras.Input((), dtype="string"), words, *layers, keras.layers.Dense(1)]))
    made[0].compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    trainer = tensoropt.parallelize(made[1], keras.optimizers.SGD(0.1), "mse", batch_size=4, **RANKS)
    ours, theirs = ([each.train_on_batch(texts, labels) for _ in range(2)] for each in (trainer, made[0]))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    predicted = (each.predict(tf.constant(texts[:3]), verbose=0) for each in (trainer, made[0]))
    np.testing.assert_allclose(*predicted, rtol=1e-6)


def test_a_captured_function_uses_a_table():
    table = keras.layers.StringLookup(vocabulary=["a", "b"])
    w, signature = tf.Variable(tf.range(3.0)), [tf.TensorSpec([4], tf.string)]
    captured = tensoropt.capture(lambda x: tf.reduce_sum(tf.gather(w, table(tf.strings.lower(x))) ** 2), signature)
    trainer = tensoropt.parallelize(captured, keras.optimizers.SGD(0.1), **RANKS)
    assert trainer.step(np.array(["A", "b", "b", "c"])) == pytest.approx(1 + 4 + 4)
    assert trainer.step(tf.constant(["A", "b", "b", "c"])) == pytest.approx(0.8**2 + 2 * 1.2**2)


class Joined(keras.layers.Layer):
    """Joins all texts of a batch to each of them."""

    def call(self, x: Any) -> Any:
        return tf.strings.join([x, tf.fill(tf.shape(x), tf.strings.reduce_join(x))])


@pytest.mark.parametrize(
    "layers, said",
    [([keras.layers.TextVectorization(vocabulary=["a"]), keras.layers.Embedding(4, 2), keras.layers.Flatten()],
      r"layer 'embedding\w*' \(Embedding\) of model '\w+' works on text, or on as many elements as a text has"),
     ([Joined(), keras.layers.Hashing(4), keras.layers.CategoryEncoding(4, output_mode="multi_hot")],
      r"layer 'joined' \(Joined\) .* isn't known to compute each sample by itself")],
)  # fmt: skip
def test_what_text_is_refused_for(layers, said):
    made = keras.Sequential([TEXT, *layers, keras.layers.Dense(1)]) if "embedding" not in said else None
    if made is None:
        x = layers[1](layers[0](TEXT))
        made = keras.Model(TEXT, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(x)))
    with pytest.raises(tensoropt.InputError, match=said):
        tensoropt.parallelize(made, "sgd", "mse", batch_size=4, **RANKS)


def test_text_that_a_model_gives_is_refused_where_it_is_asked_for():
    numbers = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(TEXT)
    made = keras.Model(TEXT, [keras.layers.Dense(1)(numbers), keras.layers.Identity()(TEXT)])
    with pytest.raises(tensoropt.InputError, match="gives text as a result of the model"):
        trainer = tensoropt.parallelize(made, "sgd", ["mse", None], batch_size=4, **RANKS)
        trainer.predict(tf.constant([["a"]] * 4), verbose=0)


def test_on_two_ranks_each_prepares_its_share_and_an_unknown_word_ends_all_with_one_sentence(everything: bool):
    result = run_ranks(2, WORKER, *(["all"] if everything else []), timeout=300)
    assert result.stdout.count("as on one device") == 2, result.stderr
    assert result.stdout.count("values decide") == 2 * everything
    assert result.stderr.count("found OOV values") == 1
    assert "can't take a value of this batch (preprocessing_worker.py" in result.stderr
    assert result.returncode == 2 and "Traceback" not in result.stderr
