"""Keras Hub's backbones and tasks, small and with random weights, train as by plain Keras; nothing is downloaded.

Language models have inputs of shape (None, None), so that they are captured at their first batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_hub
import numpy as np
import pytest
from keras import layers

from .comparison import BATCH, N, adam, by_batches, compared

WORDS, LENGTH, CLASSES = 60, 10, 5
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(1, WORDS, (N, LENGTH + 1)).astype("int32")
MASK = (np.arange(LENGTH) < RNG.integers(4, LENGTH + 1, (N, 1))).astype("int32")
SEQUENCES = {"token_ids": TOKENS[:, :-1], "padding_mask": MASK}
SEGMENTS = {**SEQUENCES, "segment_ids": RNG.integers(0, 2, (N, LENGTH)).astype("int32")}
TRANSLATIONS = {
    "encoder_token_ids": TOKENS[:, :-1], "encoder_padding_mask": MASK,
    "decoder_token_ids": TOKENS[::-1, :-1].copy(), "decoder_padding_mask": MASK,
}  # fmt: skip
IMAGES = RNG.normal(size=(N, 32, 32, 3))
LABELS = RNG.integers(0, CLASSES, N)
hub = keras_hub.models

pytestmark = [
    pytest.mark.usefixtures("float64", "graphs_as_built"),
    # Of layers in T5, whose attention takes no mask of Keras's.
    pytest.mark.filterwarnings("ignore:Layer '.*' .of type T5.* was passed an input with a mask attached"),
    pytest.mark.filterwarnings("ignore:Layer '.*' looks like it has unbuilt state"),
]


def probabilities() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def next_words(backbone: keras.Model) -> keras.Model:
    """A model that says the next word at each place."""
    return keras.Model(backbone.input, backbone.token_embedding(backbone.output, reverse=True))


def classified(backbone: keras.Model, of: Callable[[Any], Any]) -> keras.Model:
    return keras.Model(backbone.input, layers.Dense(CLASSES)(of(backbone.output)))


def gpt2() -> keras.Model:
    return next_words(hub.GPT2Backbone(WORDS, 2, 2, 8, 16, dropout=0.0, max_sequence_length=16))


def llama() -> keras.Model:
    return next_words(hub.LlamaBackbone(WORDS, 1, 4, 8, 16, 2))


def gemma() -> keras.Model:
    return next_words(hub.GemmaBackbone(WORDS, 1, 4, 2, 8, 16, 4))


def bert() -> keras.Model:
    backbone = hub.BertBackbone(WORDS, 2, 2, 8, 16, dropout=0.0, max_sequence_length=16)
    return classified(backbone, lambda x: x["pooled_output"])


def f_net() -> keras.Model:
    return classified(hub.FNetBackbone(WORDS, 1, 8, 16, dropout=0.0, max_sequence_length=16), lambda x: x["pooled_output"])


def deberta() -> keras.Model:
    backbone = hub.DebertaV3Backbone(WORDS, 1, 2, 8, 16, dropout=0.0, max_sequence_length=16, bucket_size=4)
    return classified(backbone, lambda x: x[:, 0])


def t5() -> keras.Model:
    backbone = hub.T5Backbone(WORDS, 1, 2, 8, 16, dropout=0.0)
    output = backbone.token_embedding(backbone.output["decoder_sequence_output"], reverse=True)
    return keras.Model(backbone.input, output)


def vit() -> keras.Model:
    return classified(hub.ViTBackbone((32, 32, 3), 8, 2, 2, 8, 16), lambda x: x[:, 0])


def resnet() -> keras.Model:
    backbone = hub.ResNetBackbone([64], [3], [64], [1], [1], "basic_block", image_shape=(32, 32, 3))
    return classified(backbone, layers.GlobalAveragePooling2D())


def mit() -> keras.Model:
    backbone = hub.MiTBackbone([1, 1], 2, [1, 2], [2, 1], 0.0, [7, 3], [4, 2], (32, 32, 3), [8, 16])
    return classified(backbone, layers.GlobalAveragePooling2D())


SEQUENCE_MODELS = {"gpt2": gpt2, "llama": llama, "gemma": gemma}
CASES: dict[str, tuple[Callable[[], keras.Model], Any, Any]] = {
    **{name: (make, SEQUENCES, TOKENS[:, 1:]) for name, make in SEQUENCE_MODELS.items()},
    "bert": (bert, SEGMENTS, LABELS),
    "f_net": (f_net, {key: SEGMENTS[key] for key in ("token_ids", "segment_ids")}, LABELS),
    "deberta": (deberta, SEQUENCES, LABELS),
    "vit": (vit, IMAGES, LABELS),
    "resnet": (resnet, IMAGES, LABELS),
    "mit": (mit, IMAGES, LABELS),
}


@pytest.mark.parametrize("name", CASES)
def test_backbones_train_as_by_plain_keras(name: str) -> None:
    make, x, y = CASES[name]
    compared(make, probabilities(), x, y)


def test_t5_trains_as_by_plain_keras() -> None:
    """Where the size of a batch isn't known, plain Keras can't trace T5 in float64: its positions are of two types."""
    compared(t5, probabilities(), TRANSLATIONS, TOKENS[:, 1:], by_batches)


def causal_lm() -> keras.Model:
    task = hub.GPT2CausalLM(hub.GPT2Backbone(WORDS, 2, 2, 8, 16, dropout=0.0, max_sequence_length=16))
    task.compile(adam(), probabilities(), weighted_metrics=["accuracy"], jit_compile=False)
    return task


def text_classifier() -> keras.Model:
    backbone = hub.BertBackbone(WORDS, 2, 2, 8, 16, dropout=0.0, max_sequence_length=16)
    task = hub.BertTextClassifier(backbone, CLASSES, dropout=0.0)
    task.compile(adam(), probabilities(), metrics=["accuracy"], jit_compile=False)
    return task


TASKS = {"causal lm": (causal_lm, SEQUENCES, TOKENS[:, 1:]), "text classifier": (text_classifier, SEGMENTS, LABELS)}


@pytest.mark.parametrize("name", TASKS)
def test_compiled_tasks_without_a_preprocessor_train_as_by_plain_keras(name: str) -> None:
    make, x, y = TASKS[name]
    trainer = compared(make, None, x, y)
    assert trainer.batch_size == BATCH
