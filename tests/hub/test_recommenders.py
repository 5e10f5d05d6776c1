"""Models of Keras RS's layers, compiled, with steps and losses of their own as in its guides, train as by plain Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_rs
import numpy as np
import pytest
from keras import layers, ops

from .comparison import BATCH, N, adam, compared

USERS, MOVIES, WIDTH, K = 50, 30, 8, 4
RNG = np.random.default_rng(0)
USER = RNG.integers(0, USERS, N).astype("int32")
MOVIE = RNG.integers(0, MOVIES, N).astype("int32")
RATING = RNG.random(N)
HISTORY = RNG.integers(0, MOVIES, (N, 6)).astype("int32")
CLICKED = RNG.integers(0, 2, (N, 1)).astype("float64")

pytestmark = pytest.mark.usefixtures("float64", "graphs_as_built")


def compiled(model: keras.Model, loss: Any = None, **named: Any) -> keras.Model:
    model.compile(adam(), loss, jit_compile=False, **named)
    return model


class Retrieval(keras.Model):
    """Two towers; the movies nearest to a user are only looked for outside of training."""

    def __init__(self) -> None:
        super().__init__()
        self.user_embedding = layers.Embedding(USERS, WIDTH)
        self.movie_embedding = layers.Embedding(MOVIES, WIDTH)
        self.retrieval = keras_rs.layers.BruteForceRetrieval(k=K, return_scores=False)
        self.squared = keras.losses.MeanSquaredError()

    def build(self, input_shape: Any) -> None:
        self.user_embedding.build(input_shape)
        self.movie_embedding.build(input_shape)
        self.retrieval.candidate_embeddings = self.movie_embedding.embeddings
        self.retrieval.build(input_shape)
        super().build(input_shape)

    def call(self, user: Any, training: bool = False) -> Any:
        found = {"user": self.user_embedding(user)}
        if not training:
            found["movies"] = self.retrieval(found["user"])
        return found


class OwnLoss(Retrieval):
    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
        scores = ops.sum(y_pred["user"] * self.movie_embedding(y["movie"]), axis=1, keepdims=True)
        return self.squared(ops.expand_dims(y["rating"], -1), scores, sample_weight)


class OwnStep(Retrieval):
    """The other movies of a batch are the negatives: without those met twice, and only the hardest."""

    def __init__(self) -> None:
        super().__init__()
        self.correction = keras_rs.layers.SamplingProbabilityCorrection()
        self.accidental = keras_rs.layers.RemoveAccidentalHits()
        self.hardest = keras_rs.layers.HardNegativeMining(3)
        self.entropy = keras.losses.CategoricalCrossentropy(from_logits=True)
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]

    def train_step(self, data: Any) -> dict[str, Any]:
        import tensorflow as tf

        user, y = data
        with tf.GradientTape() as tape:
            movies = self.movie_embedding(y["movie"])
            logits = ops.matmul(self(user, training=True)["user"], ops.transpose(movies))
            labels = ops.eye(ops.shape(logits)[0], dtype=logits.dtype)
            logits = self.correction(logits, y["probability"])
            logits = self.accidental(logits, labels, y["movie"])
            loss = self.entropy(*reversed(self.hardest(logits, labels)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


class Sequential(OwnLoss):
    """The movies seen so far, read by a recurrent layer, are the query."""

    def __init__(self) -> None:
        super().__init__()
        self.user_embedding = keras.Sequential([layers.Embedding(MOVIES, WIDTH), layers.GRU(WIDTH)])


def retrieval(kind: type[Retrieval]) -> Callable[[], keras.Model]:
    return lambda: compiled(kind())


RETRIEVED: dict[str, tuple[type[Retrieval], Any, Any]] = {
    "own loss": (OwnLoss, USER, {"movie": MOVIE, "rating": RATING}),
    "own step": (OwnStep, USER, {"movie": MOVIE, "probability": RATING}),
    "sequential": (Sequential, HISTORY, {"movie": MOVIE, "rating": RATING}),
}


@pytest.mark.parametrize("name", RETRIEVED)
def test_retrieval_trains_as_by_plain_keras(name: str) -> None:
    kind, x, y = RETRIEVED[name]
    trainer = compared(retrieval(kind), None, x, y)
    movies = trainer.predict(x, BATCH, verbose=0)["movies"]
    trained = kind()
    trained(x[:1])
    trained.set_weights(trainer.get_weights()[: len(trained.weights)])
    np.testing.assert_array_equal(movies, trained.predict(x, verbose=0)["movies"])


def inputs() -> dict[str, Any]:
    return {name: keras.Input((), dtype="int32", name=name) for name in ("user", "movie")}


def vectors(given: dict[str, Any]) -> list[Any]:
    return [layers.Embedding(USERS, WIDTH)(given["user"]), layers.Embedding(MOVIES, WIDTH)(given["movie"])]


def deep_and_cross() -> keras.Model:
    given = inputs()
    x0 = layers.Concatenate()(vectors(given))
    x = keras_rs.layers.FeatureCross()(x0)
    x = keras_rs.layers.FeatureCross(projection_dim=3, diag_scale=0.1)(x0, x)
    return keras.Model(given, layers.Dense(1)(layers.Dense(8, activation="relu")(x)))


def dlrm(**options: Any) -> keras.Model:
    given = inputs() | {"numbers": keras.Input((3,), name="numbers")}
    below = layers.Dense(WIDTH, activation="relu")(given["numbers"])
    pairs = keras_rs.layers.DotInteraction(**options)([below, *vectors(given)])
    return keras.Model(given, layers.Dense(1)(ops.concatenate([below, pairs], axis=1)))


def bags() -> keras.Model:
    """What a user has seen, as the mean of a table's rows."""
    given = {"seen": keras.Input((6,), dtype="int32", name="seen"), "weights": keras.Input((6,), name="weights")}
    mean = keras_rs.layers.EmbedReduce(MOVIES, WIDTH, combiner="mean")(given["seen"], given["weights"])
    root = keras_rs.layers.EmbedReduce(MOVIES, WIDTH, combiner="sqrtn")(given["seen"])
    return keras.Model(given, layers.Dense(1)(ops.concatenate([mean, root], axis=1)))


def distributed() -> keras.Model:
    """Two features of one table, and one of another."""
    table = keras_rs.layers.TableConfig("movies", MOVIES, WIDTH, placement="default_device")
    users = keras_rs.layers.TableConfig("users", USERS, WIDTH, placement="default_device")
    features = {
        "user": keras_rs.layers.FeatureConfig("user", users, (BATCH,), (BATCH, WIDTH)),
        "movie": keras_rs.layers.FeatureConfig("movie", table, (BATCH,), (BATCH, WIDTH)),
        "seen": keras_rs.layers.FeatureConfig("seen", table, (BATCH, 6), (BATCH, WIDTH)),
    }
    given = inputs() | {"seen": keras.Input((6,), dtype="int32", name="seen")}
    found = keras_rs.layers.DistributedEmbedding(features)(given)
    return keras.Model(given, layers.Dense(1)(layers.Concatenate()([found[name] for name in features])))


PAIRS = {"user": USER, "movie": MOVIE}
RANKING: dict[str, tuple[Callable[[], keras.Model], Any]] = {
    "deep and cross": (deep_and_cross, PAIRS),
    "dlrm": (dlrm, {**PAIRS, "numbers": RNG.normal(size=(N, 3))}),
    "dlrm, a triangle": (
        lambda: dlrm(self_interaction=True, skip_gather=True),
        {**PAIRS, "numbers": RNG.normal(size=(N, 3))},
    ),
    "bags": (bags, {"seen": HISTORY, "weights": RNG.random((N, 6))}),
    "distributed embedding": (distributed, {**PAIRS, "seen": HISTORY}),
}


@pytest.mark.parametrize("name", RANKING)
def test_ranking_trains_as_by_plain_keras(name: str) -> None:
    make, x = RANKING[name]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    compared(lambda: compiled(make(), loss, metrics=[keras.metrics.AUC(from_logits=True, name="auc")]), None, x, CLICKED)
