"""Small models with steps of their own, as Keras's examples have them, the data they learn, and plain Keras's own fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from helpers.switches import floats
from trainer.models import assert_alike, assert_same_weights

import tensoropt

BATCH = 8
SPLIT: Mapping[str, Any] = {"MatMul": {"n": 2}}


class Vae(keras.Model):
    """A variational autoencoder without ``call``: its trackers are its metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dense(8)])
        self.decoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(6)])
        self.seeds = keras.random.SeedGenerator(5)
        self.total = keras.metrics.Mean(name="loss")
        self.divergence = keras.metrics.Mean(name="kl")

    @property
    def metrics(self) -> list[Any]:
        return [self.total, self.divergence]

    def losses_of(self, x: Any) -> tuple[Any, Any]:
        mean, log_var = tf.split(self.encoder(x), 2, axis=1)
        z = mean + tf.exp(0.5 * log_var) * keras.random.normal(tf.shape(mean), seed=self.seeds)
        error = tf.reduce_mean(tf.reduce_sum(tf.square(x - self.decoder(z)), axis=1))
        return error, tf.reduce_mean(-0.5 * tf.reduce_sum(1 + log_var - tf.square(mean) - tf.exp(log_var), axis=1))

    def train_step(self, x: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            error, divergence = self.losses_of(x)
            loss = error + divergence
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total.update_state(loss)
        self.divergence.update_state(divergence)
        return {"loss": self.total.result(), "kl": self.divergence.result()}

    def test_step(self, x: Any) -> dict[str, Any]:
        error, divergence = self.losses_of(x)
        self.total.update_state(error + divergence)
        self.divergence.update_state(divergence)
        return {"loss": self.total.result(), "kl": self.divergence.result()}


class Distiller(keras.Model):
    """A student that learns from a frozen teacher, by ``compute_loss``."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])
        self.student = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(3)])
        self.teacher.trainable = False
        self.build((None, 6))

    def call(self, x: Any) -> Any:
        return self.student(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True) -> Any:  # type: ignore[no-untyped-def]
        soft = keras.ops.softmax(self.teacher(x, training=False) / 3.0)
        return 0.3 * super().compute_loss(x, y, y_pred, sample_weight) + 0.7 * keras.ops.mean(
            keras.losses.kl_divergence(soft, keras.ops.softmax(y_pred / 3.0))
        )


class Diffusion(keras.Model):
    """A denoising step with gradients clipped by hand and moving averages of the weights, which a second network holds."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.average = denoiser(), denoiser()
        self.average.set_weights(self.network.get_weights())
        self.seeds = keras.random.SeedGenerator(3)
        self.build((None, 6))

    def call(self, x: Any) -> Any:
        return self.average(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x = data[0] if isinstance(data, tuple) else data
        noise = keras.random.normal(tf.shape(x), seed=self.seeds)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.network(x + 0.3 * noise, training=True) - noise))
        gradients = tape.gradient(loss, self.network.trainable_weights)
        gradients = [tf.clip_by_norm(each, 0.5) for each in gradients]
        gradients, norm = tf.clip_by_global_norm(gradients, 0.6)
        self.optimizer.apply(gradients, self.network.trainable_weights)
        for weight, average in zip(self.network.weights, self.average.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return {"loss": loss, "norm": norm}


class Gan(keras.Model):
    """A generator and a critic with an optimizer each; the critic learns twice a step, and its slope is penalised."""

    def __init__(self) -> None:
        super().__init__()
        seen = [keras.layers.Conv1D(4, 3, activation="leaky_relu"), keras.layers.Flatten(), keras.layers.Dense(1)]
        self.critic = keras.Sequential([keras.Input((6,)), keras.layers.Reshape((6, 1)), *seen])
        self.generator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(6)])
        self.seeds = keras.random.SeedGenerator(3)

    def compile(self, critic_optimizer: Any, generator_optimizer: Any) -> None:
        super().compile()
        self.critic_optimizer, self.generator_optimizer = critic_optimizer, generator_optimizer

    def made(self, n: Any) -> Any:
        return self.generator(keras.random.normal((n, 4), seed=self.seeds), training=True)

    def penalty(self, between: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(between)
            score = self.critic(between, training=True)
        slope = tape.gradient(score, [between])[0]
        return tf.reduce_mean(tf.square(tf.sqrt(tf.reduce_sum(tf.square(slope), axis=1)) - 1.0))

    def train_step(self, real: Any) -> dict[str, Any]:
        n = tf.shape(real)[0]
        for _ in range(2):
            with tf.GradientTape() as tape:
                made = self.made(n)
                loss = tf.reduce_mean(self.critic(made, training=True)) - tf.reduce_mean(self.critic(real, training=True))
                loss += 10.0 * self.penalty(real + 0.5 * (made - real))
            gradients = tape.gradient(loss, self.critic.trainable_variables)
            self.critic_optimizer.apply_gradients(zip(gradients, self.critic.trainable_variables, strict=True))
        with tf.GradientTape() as tape:
            of_generator = -tf.reduce_mean(self.critic(self.made(n), training=True))
        gradients = tape.gradient(of_generator, self.generator.trainable_variables)
        self.generator_optimizer.apply_gradients(zip(gradients, self.generator.trainable_variables, strict=True))
        return {"d_loss": loss, "g_loss": of_generator}


class Mixed(keras.Sequential):
    """Two losses of one tape, a target that the tape doesn't see, a tape inside of its own block, weights kept small."""

    def train_step(self, data: Any) -> dict[str, Any]:
        (x, y), weights = data, self.trainable_variables
        target = 0.9 * self(tf.reverse(x, [0]))
        with tf.GradientTape(persistent=True) as tape:
            predicted = self(x, training=True)
            loss, sizes = self.compute_loss(y=y, y_pred=predicted), tf.square(predicted)
        with tf.GradientTape() as other:
            error = tf.reduce_mean(tf.square(self(x) - target))
            of_error = other.gradient(error, weights)
        both = zip(tape.gradient(loss, weights), tape.gradient(sizes, weights), of_error, strict=True)
        self.optimizer.apply([a + 0.01 * b + c for a, b, c in both], weights)
        for weight in weights:
            weight.assign(tf.clip_by_value(weight, -0.6, 0.6))
        return {"loss": loss, "error": error}


class Twice(keras.Sequential):
    """Two optimizers of all weights: the second one starts from what the first has made of them."""

    def compile(self, first: Any, second: Any, loss: Any) -> None:
        super().compile(first, loss)
        self.second = second

    def train_step(self, data: Any) -> dict[str, Any]:
        (x, y), weights = data, self.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = [tape.gradient(loss, weights) for _ in range(2)]
        self.optimizer.apply(gradients[0], weights)
        self.second.apply(gradients[1], weights)
        return {"loss": loss}


def denoiser() -> keras.Model:
    layers = [keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(6)]
    return keras.Sequential(layers)


def vae() -> keras.Model:
    model = Vae()
    model.compile(keras.optimizers.Adam(1e-2))
    return model


def distiller() -> keras.Model:
    model = Distiller()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    return model


def diffusion() -> keras.Model:
    model = Diffusion()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    return model


def gan() -> keras.Model:
    model = Gan()
    model.compile(keras.optimizers.Adam(1e-2, beta_1=0.5), keras.optimizers.RMSprop(1e-2))
    return model


def mixed() -> keras.Model:
    model = Mixed([keras.Input((6,)), keras.layers.Dense(8, "silu"), keras.layers.Dense(3)])
    optimizer = keras.optimizers.AdamW(1e-2, global_clipnorm=0.5)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def twice() -> keras.Model:
    model = Twice([keras.Input((6,)), keras.layers.Dense(8, "silu"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, weight_decay=0.5), keras.optimizers.SGD(0.5), loss)
    return model


class Spectral(keras.Sequential):
    """Layers that normalise their kernels when they are called: gradients are taken at the values that are assigned."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def spectral() -> keras.Model:
    layers = [keras.layers.SpectralNormalization(keras.layers.Dense(8, "tanh")), keras.layers.Dense(3)]
    model = Spectral([keras.Input((6,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, jit_compile=False)
    return model


def inputs(n: int = 24) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, 6))


def labelled() -> tuple[np.ndarray, np.ndarray]:
    return inputs(), np.random.default_rng(1).integers(0, 3, 24)


@dataclass(frozen=True)
class Case:
    """A compiled model and its data: ``x``, or ``x`` and ``y``, which ``parallelize`` is shown or which ``fit`` shows."""

    model: Callable[[], keras.Model]
    data: Callable[[], Any]
    is_shown: bool = True
    evaluates: bool = True
    force: Mapping[str, Any] = field(default_factory=lambda: SPLIT)


CASES = {
    "vae": Case(vae, inputs, is_shown=False),
    "distiller": Case(distiller, labelled),
    "diffusion": Case(diffusion, inputs, evaluates=False),
    "spectral": Case(spectral, labelled, evaluates=False),
    "mixed": Case(mixed, labelled, is_shown=False, evaluates=False),
    "twice": Case(twice, labelled, is_shown=False, evaluates=False),
    "gan": Case(gan, inputs, is_shown=False, evaluates=False, force={"MatMul": {"m": 2}}),
}


class Loop:
    """A custom training loop: its model, optimizer, metric and step."""

    def __init__(self, reads: bool = False) -> None:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(16, "relu", name="hidden"), keras.layers.Dense(3, name="out")]
        self.model = keras.Sequential([keras.Input((6,)), *layers], name="classifier")
        self.optimizer, self.seen = keras.optimizers.Adam(1e-2), keras.metrics.SparseCategoricalAccuracy()
        self.optimizer.build(self.model.trainable_variables)
        self.reads = reads

    def step(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            predicted = self.model(x, training=True)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply([0.5 * each for each in gradients], self.model.trainable_variables)
        self.seen.update_state(y, predicted)
        return loss * tf.cast(self.optimizer.iterations, loss.dtype) if self.reads else loss

    def run(self, step: Callable[..., Any], n_epochs: int = 2) -> list[float]:
        """Return the losses and each epoch's accuracy; the last batch of an epoch has half of the samples."""
        (x, y), found = labelled(), []
        for _ in range(n_epochs):
            self.seen.reset_state()
            found += [float(step(x[i : i + BATCH], y[i : i + BATCH])) for i in (0, 8, 20)]
            found.append(float(self.seen.result()))
        return found


def loop_of(kind: str = "", **where: Any) -> tuple[Loop, Any]:
    """A custom training loop, and its step under a plan."""
    loop = Loop(reads=kind == "read")
    given = {"model": loop.model, "optimizer": loop.optimizer, "batch_size": BATCH, "force": SPLIT}
    data = (labelled()[0][:BATCH], labelled()[1][:BATCH])
    return loop, tensoropt.training_step(loop.step, data=data if kind else None, **given, **where)


def check_loop(path: str, **where: Any) -> None:
    """Check that a custom training loop gives TensorFlow's own numbers, also after it is saved, loaded and exported."""
    with floats("float64"):
        plain = Loop()
        expected = plain.run(tf.function(plain.step))
        loop, step = loop_of(**where)
        np.testing.assert_allclose(loop.run(step), expected, rtol=1e-9)
        step.save(path)
        further = plain.run(plain.step, 1)
        other, loaded = loop_of("shown", **where)
        loaded.load(path)
        np.testing.assert_allclose(other.run(loaded, 1), further, rtol=1e-9)
        loaded.export()
        assert loaded.plan.n_collectives
        assert_same_weights(other.model.get_weights(), plain.model.get_weights(), 1e-9, 1e-12)


def compared(make: Callable[[], keras.Model], use: Callable[[Any], Any], **options: Any) -> Any:
    """Check that what a use of a model's trainer gives, and its weights, are those of plain Keras; return the trainer."""
    with floats("float64"):
        keras.utils.set_random_seed(1)
        plain = make()
        expected = use(plain)
        keras.utils.set_random_seed(1)
        trainer = tensoropt.parallelize(make(), **{"batch_size": BATCH, "force": SPLIT, **options})
        assert_alike([use(trainer), trainer.get_weights()], [expected, plain.get_weights()])
    return trainer


def check(name: str, **where: Any) -> Any:
    """Check that fit and evaluate under a plan give plain Keras's history, results and weights; return the trainer."""
    case, names = CASES[name], []
    data = case.data()
    x, y = data if isinstance(data, tuple) else (data, None)

    def use(model: Any) -> Any:
        history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
        names.append(list(history))
        return history, model.evaluate(x, y, batch_size=BATCH, verbose=0) if case.evaluates else ()

    trainer = compared(case.model, use, data=data if case.is_shown else None, force=case.force, **where)
    assert names[0] == names[1]
    return trainer
