"""Habits of Keras scripts, each of which prints what it has computed: run by plain Keras, and unchanged on ranks."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

if __name__ == "__main__":  # tests only read the names
    keras.config.set_floatx("float64")
BATCH, CLASSES = 32, 4  # Keras's own size of a batch: for each other one programs are built again
DRAWN = np.random.default_rng(3)
X, Y = DRAWN.normal(size=(3 * BATCH, 16)), DRAWN.integers(0, CLASSES, 3 * BATCH)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def classifier(*between: Any) -> keras.Model:
    return keras.Sequential([keras.Input((16,)), layers.Dense(128, "relu"), *between, layers.Dense(CLASSES)])


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = layers.Dense(128, "relu"), layers.Dense(CLASSES)

    def call(self, x: Any) -> Any:
        return self.out(self.hidden(x))


def counts(model: keras.Model) -> list[str]:
    model.summary(print_fn=(said := []).append)
    return re.findall("params: *[0-9,]+", "".join(said))


class Batches(keras.utils.PyDataset):
    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.order = np.arange(len(X))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        return X[rows], Y[rows]

    def on_epoch_end(self) -> None:
        """Shuffle, as Keras has it do ahead of the first epoch, too."""
        np.random.default_rng(1).shuffle(self.order)


def generated() -> Iterator[Any]:
    return (Batches()[index % 3] for index in itertools.count())


def two_phases_with_callbacks(folder: Path) -> Iterator[Any]:
    """Train with validation and callbacks, freeze a layer, compile again, save, load, and go on."""
    model = classifier(layers.Dropout(0.2))
    model.compile("adam", LOSS, metrics=["accuracy"])
    seen = []

    class Watching(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            assert self.model is model
            seen.append([epoch, self.model.evaluate(X, Y, verbose=0), float(self.model.optimizer.learning_rate)])
            self.model.optimizer.learning_rate = 1e-3 / (epoch + 2)
            self.model.stop_training = epoch == 2

    callbacks = [Watching(), keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True)]
    history = model.fit(X, Y, batch_size=BATCH, epochs=4, validation_split=1 / 3, callbacks=callbacks, verbose=0)
    assert history.model is model and model.history is history and len(history.epoch) == 3
    yield history.history, seen
    yield model.evaluate(X, Y, verbose=0), model.predict(X, verbose=0)
    yield seen, counts(model)
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), LOSS, metrics=["accuracy"])
    yield model.evaluate(X, Y, verbose=0), int(model.optimizer.iterations)
    yield model.fit(X, Y, verbose=0).history, model.get_weights()
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    yield loaded.fit(Batches(), initial_epoch=1, epochs=3, shuffle=False, verbose=0).history, loaded.get_weights()
    yield [keras.models.load_model(folder / "best.keras").evaluate(X, Y, verbose=0), float(loaded.optimizer.iterations)]


def values_at_any_time(folder: Path) -> Iterator[Any]:
    """Read and assign values between steps, by the model, by its layers, by the optimizer, and by files."""
    model = classifier(layers.BatchNormalization())
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), LOSS, metrics=["accuracy"])
    yield model.predict(X, verbose=0), model.evaluate(X, Y, verbose=0)
    model.fit(X, Y, batch_size=BATCH, verbose=0)
    weights = model.get_weights()
    model.optimizer.learning_rate = 0.01
    yield model.fit(X, Y, batch_size=BATCH, epochs=2, initial_epoch=1, verbose=0).history
    model.set_weights(weights)
    yield model.evaluate(X, Y, verbose=0), model(X)
    model.layers[0].kernel.assign(model.layers[0].kernel * 0.5)
    yield [model.train_on_batch(X[:n], Y[:n]) for n in (BATCH, 7, 60)], model.get_weights()
    model.save_weights(folder / "all.weights.h5")
    model.fit(X, Y, batch_size=BATCH, verbose=0)
    model.load_weights(folder / "all.weights.h5")
    model.compile(model.optimizer, LOSS)
    yield model.fit(X, Y, batch_size=BATCH, verbose=0).history, model.get_weights(), int(model.optimizer.iterations)
    yield keras.Model(model.inputs, model.layers[0].output).predict(X, verbose=0)
    yield model.fit(X, Y, batch_size=30, verbose=0).history, model.test_on_batch(X, Y), model.predict_on_batch(X)


def all_kinds_of_data(folder: Path) -> Iterator[Any]:
    model = Subclassed()
    model.compile("rmsprop", LOSS, metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    shuffled = data.shuffle(len(X), seed=1).batch(16).prefetch(2)
    weights = {label: 0.5 + label for label in range(CLASSES)}
    yield model.fit(shuffled, epochs=2, validation_data=(X, Y), class_weight=weights, verbose=0).history
    yield model.fit(generated(), steps_per_epoch=3, epochs=2, shuffle=False, verbose=0).history
    yield model.fit(Batches(), shuffle=False, verbose=0).history, model.evaluate(Batches(), verbose=0)
    yield model.fit(Batches(workers=2, use_multiprocessing=True), shuffle=False, verbose=0).history
    yield model.fit(data.batch(30), verbose=0).history, model.predict(data.batch(16), verbose=0)
    yield int(model.optimizer.iterations), model.get_weights()
    other = Subclassed()
    other.compile("adam", LOSS)
    yield other.fit(generated(), steps_per_epoch=2, shuffle=False, verbose=0).history, other.get_weights()
    for weighed in ({"class_weight": weights}, {"sample_weight": np.linspace(0.5, 2, len(X))}):  # and smaller last batches
        yield other.fit(X, Y, batch_size=16, validation_split=0.3, verbose=0, **weighed).history, other.get_weights()


def models_that_take_turns(folder: Path) -> Iterator[Any]:
    """Train a GAN by single batches."""
    generator = keras.Sequential([keras.Input((8,)), layers.Dense(32, "relu"), layers.Dense(16)])
    hidden = layers.Dense(32, "relu"), layers.BatchNormalization()
    critic = keras.Sequential([keras.Input((16,)), *hidden, layers.Dense(1, "sigmoid")])
    critic.compile("adam", "binary_crossentropy")
    both = keras.Sequential([keras.Input((8,)), generator, critic])
    both.compile("adam", "binary_crossentropy")
    for _ in range(4):
        made = generator.predict(np.random.normal(size=(BATCH, 8)), verbose=0)
        critic.trainable = True
        yield critic.train_on_batch(np.concatenate([X[np.random.choice(len(X), BATCH)], made]), np.repeat([1.0, 0.0], BATCH))
        critic.trainable = False
        yield both.train_on_batch(np.random.normal(size=(BATCH, 8)), np.ones(BATCH))
    critic.compile("adam", "binary_crossentropy")  # of what isn't trainable, nor is once Keras has traced that
    yield critic.train_on_batch(X[:BATCH], np.ones(BATCH)), both.train_on_batch(X[:BATCH, :8], np.ones(BATCH))
    critic.trainable = True
    yield critic.train_on_batch(X[:BATCH], np.ones(BATCH)), generator.get_weights(), critic.get_weights()


def folds(folder: Path) -> Iterator[Any]:
    """Train a new model for each fold."""
    for fold in range(2):
        keras.backend.clear_session()
        model = keras.Model(x := keras.Input((16,)), layers.Dense(CLASSES, name="class")(layers.Dense(128, "relu")(x)))
        model.compile(keras.optimizers.Adam(1e-2), {"class": LOSS}, metrics={"class": ["accuracy"]})
        is_trained = np.arange(len(X)) % 2 != fold
        yield model.fit(X[is_trained], Y[is_trained], batch_size=10, epochs=2, verbose=0).history
        yield model.evaluate(X[~is_trained], Y[~is_trained], verbose=0)


def batches() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def loops_of_their_own(folder: Path) -> Iterator[Any]:
    """Clip gradients and update metrics, validate, save; train a GAN by two tapes; distil by numbers that aren't tensors."""
    between = layers.Dropout(0.1, seed=1), layers.BatchNormalization(), layers.ActivityRegularization(l2=1e-2)
    model, optimizer = classifier(*between), keras.optimizers.Adam(1e-2)
    accuracy, held = (keras.metrics.SparseCategoricalAccuracy() for _ in range(2))

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = LOSS(y, logits) + sum(model.losses)
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(y, logits)
        return {"loss": loss, "norm": norm}

    @tf.function
    def evaluation(x: Any, y: Any) -> Any:
        held.update_state(y, logits := model(x, training=False))
        return LOSS(y, logits)

    for _ in range(2):
        for x, y in batches():
            yield {name: value.numpy() for name, value in step(x, y).items()}
        yield float(accuracy.result()), int(optimizer.iterations), evaluation(X, Y), float(held.result())
        accuracy.reset_state()
        optimizer.learning_rate = 5e-3
    model.save(folder / "own.keras")
    yield keras.models.load_model(folder / "own.keras").get_weights(), counts(model)  # without the optimizer's

    class Gan:
        def __init__(self) -> None:
            self.generator = keras.Sequential([keras.Input((8,)), layers.Dense(64, "relu"), layers.Dense(16)])
            self.critic = keras.Sequential([keras.Input((16,)), layers.Dense(64, "relu"), layers.Dense(1)])
            self.optimizers = keras.optimizers.Adam(1e-3), keras.optimizers.SGD(0.1, momentum=0.9)
            self.loss, self.seeds = keras.losses.BinaryCrossentropy(from_logits=True), keras.random.SeedGenerator(1)

        @tf.function
        def train(self, real: Any) -> Any:
            with tf.GradientTape() as one, tf.GradientTape() as two:
                made = self.generator(keras.random.normal((tf.shape(real)[0], 8), seed=self.seeds), training=True)
                of_real, of_made = self.critic(real, training=True), self.critic(made, training=True)
                fooled = self.loss(tf.ones_like(of_made), of_made)
                told = self.loss(tf.ones_like(of_real), of_real) + self.loss(tf.zeros_like(of_made), of_made)
            for model, tape, loss, each in zip(
                (self.generator, self.critic), (one, two), (fooled, told), self.optimizers, strict=True
            ):
                each.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return fooled, told

    gan = Gan()
    yield [gan.train(x) for x, _ in batches()], gan.critic.get_weights()
    student, adamw = Subclassed(), keras.optimizers.AdamW(1e-2)

    @tf.function
    def distil(x: Any, y: Any, training: bool = True, temperature: float = 2.0) -> Any:
        soft = tf.nn.softmax(model(x, training=False) / temperature)
        with tf.GradientTape() as tape:
            logits = student(x, training=training)
            loss = LOSS(y, logits) + keras.losses.KLDivergence()(soft, tf.nn.softmax(logits / temperature))
        adamw.apply(tape.gradient(loss, student.trainable_weights), student.trainable_weights)
        return loss

    yield [distil(x, y, training=True) for x, y in batches()], student.predict(X, verbose=0)


def gradients_that_add_up(folder: Path) -> Iterator[Any]:
    """Add gradients up in variables, and apply them every second step."""
    model, optimizer, steps = classifier(), keras.optimizers.Adam(1e-2), tf.Variable(0)
    sums = [tf.Variable(tf.zeros_like(each), trainable=False) for each in model.trainable_variables]

    def add(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True))
        for each, gradient in zip(sums, tape.gradient(loss, model.trainable_variables), strict=True):
            each.assign_add(gradient / 2)
        return loss

    def apply() -> None:
        optimizer.apply_gradients(zip(sums, model.trainable_variables, strict=True))
        for each in sums:
            each.assign(tf.zeros_like(each))

    @tf.function
    def step(x: Any, y: Any) -> Any:
        loss = add(x, y)
        steps.assign_add(1)
        if steps % 2 == 0:
            apply()
        return loss

    add_up, update = tf.function(add), tf.function(apply)

    @tf.function
    def norm(x: Any, y: Any) -> Any:
        """Take gradients to look at them."""
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x))
        return tf.linalg.global_norm(tape.gradient(loss, model.trainable_variables))

    yield [step(x, y) for x, y in batches().repeat(2)], model.get_weights(), int(optimizer.iterations), norm(X, Y)
    yield [add_up(x, y) for x, y in batches()], update(), model.get_weights(), int(optimizer.iterations), norm(X, Y)


def a_strategy_that_runs_steps(folder: Path) -> Iterator[Any]:
    """Train as scripts of TensorFlow's strategies do: what each replica computes, and its mean over the global batch."""
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model, optimizer = classifier(), keras.optimizers.Adam(1e-2)
        of_sample = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def of_replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.nn.compute_average_loss(of_sample(y, logits), global_batch_size=BATCH)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        accuracy.update_state(y, logits)
        return loss

    @tf.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(of_replica, args=(x, y)), axis=None)

    for _ in range(2):
        yield [step(x, y) for x, y in strategy.experimental_distribute_dataset(batches())], float(accuracy.result())

    @tf.function
    def step_of(iterator: Any) -> Any:
        return strategy.run(of_replica, args=next(iterator))

    iterator = iter(strategy.experimental_distribute_dataset(batches()))
    yield [step_of(iterator) for _ in range(3)], [strategy.run(of_replica, batch) for batch in batches()], model(X)


def one_optimizer_for_two_phases(folder: Path) -> Iterator[Any]:
    """Freeze a layer and unfreeze it, compiled with the same optimizer, whose momentum stays."""
    model, optimizer = classifier(layers.BatchNormalization()), keras.optimizers.Adam(1e-2)
    for is_trainable in (True, False, True):
        model.layers[0].trainable = is_trainable
        model.compile(optimizer, LOSS, metrics=["accuracy"])
        yield model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0).history, int(optimizer.iterations)
    yield model.get_weights()


def layers_that_models_share(folder: Path) -> Iterator[Any]:
    """Train an autoencoder with a smaller last batch, and a classifier by the same encoder; export what was trained."""
    encoder = keras.Sequential([inputs := keras.Input((16,)), layers.Dense(64, "relu"), layers.Dense(8)])
    autoencoder = keras.Model(inputs, layers.Dense(16)(encoder(inputs)))
    classes = keras.Model(inputs, layers.Dense(CLASSES)(encoder(inputs)))
    autoencoder.compile("adam", "mse")
    classes.compile("adam", LOSS, metrics=["accuracy"])
    for _ in range(2):
        yield autoencoder.fit(X[:71], X[:71], batch_size=BATCH, verbose=0).history, encoder.predict(X, verbose=0)
        yield classes.fit(X, Y, batch_size=BATCH, verbose=0).history, autoencoder.evaluate(X, X, verbose=0)
    classes.export(folder / "exported", verbose=False)
    loaded = tf.saved_model.load(str(folder / "exported"))  # which has the variables
    yield loaded.serve(X), autoencoder.get_weights(), classes.get_weights()


def masks(folder: Path) -> Iterator[Any]:
    """Classify texts of several lengths, and tag each of their words."""
    words = DRAWN.integers(1, 30, (len(X), 10)) * (np.arange(10) < DRAWN.integers(3, 11, (len(X), 1)))
    model = keras.Sequential([layers.Embedding(30, 16, mask_zero=True), layers.LSTM(16), layers.Dense(CLASSES)])
    model.compile("adam", LOSS, metrics=["accuracy"])
    yield model.fit(words, Y, batch_size=BATCH, epochs=2, verbose=0).history, model.predict(words, verbose=0)
    read = layers.Bidirectional(layers.GRU(8, return_sequences=True))
    tags = keras.Sequential([keras.Input((None,)), layers.Embedding(30, 16, mask_zero=True), read, layers.Dense(5)])
    tags.compile("rmsprop", LOSS, metrics=["accuracy"], weighted_metrics=["accuracy"])
    yield tags.fit(words, words % 5, batch_size=BATCH, verbose=0).history, tags.evaluate(words, words % 5, verbose=0)


def loops_of_a_guide(folder: Path) -> Iterator[Any]:
    """Train a GAN by one tape after the other."""
    generator = keras.Sequential([keras.Input((8,)), layers.Dense(64), layers.LeakyReLU(), layers.Dense(16)])
    critic = keras.Sequential([keras.Input((16,)), layers.Dense(64), layers.LeakyReLU(), layers.Dense(1)])
    optimizers, seeds = (keras.optimizers.Adam(3e-4), keras.optimizers.Adam(4e-4)), keras.random.SeedGenerator(7)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def take_turns(real: Any) -> Any:
        n, ones, zeros = tf.shape(real)[0], tf.ones_like(real[:, :1]), tf.zeros_like(real[:, :1])
        both = tf.concat([generator(keras.random.normal((n, 8), seed=seeds)), real], 0)
        labels = tf.concat([ones, zeros], 0) + 0.05 * keras.random.uniform((2 * n, 1), seed=seeds)
        with tf.GradientTape() as tape:
            told = loss_of(labels, critic(both))
        optimizers[0].apply(tape.gradient(told, critic.trainable_weights), critic.trainable_weights)
        with tf.GradientTape() as tape:
            fooled = loss_of(zeros, critic(generator(keras.random.normal((n, 8), seed=seeds))))
        optimizers[1].apply(tape.gradient(fooled, generator.trainable_weights), generator.trainable_weights)
        return told, fooled

    yield [take_turns(x) for x, _ in batches()], generator(X[:, :8])


HABITS = {name: each for name, each in globals().items() if inspect.isgeneratorfunction(each)}


def plain(value: Any) -> Any:
    """Return a value for JSON."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else np.asarray(value).tolist()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        keras.utils.set_random_seed(3)
        for value in HABITS[name](Path(sys.argv[1])):
            print(json.dumps([name, plain(value)]), flush=True)
