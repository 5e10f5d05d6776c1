"""Optimizers, losses and metrics of random models, each drawn with its arguments."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from random_models.menus import Made


def _optimizer(name: str, **options: Any) -> Made:
    return Made(f"optimizers.{name}", tuple(options.items()))


OPTIMIZERS: tuple[Callable[[random.Random], Made], ...] = (
    lambda rng: _optimizer("SGD", learning_rate=0.05),
    lambda rng: _optimizer("SGD", learning_rate=0.05, momentum=0.9, nesterov=rng.random() < 0.5),
    lambda rng: _optimizer("Adam", learning_rate=0.01, amsgrad=rng.random() < 0.3),
    lambda rng: _optimizer("AdamW", learning_rate=0.01, weight_decay=0.1),
    lambda rng: _optimizer("RMSprop", learning_rate=0.01, momentum=rng.choice((0.0, 0.9)), centered=rng.random() < 0.5),
    lambda rng: _optimizer("Adagrad", learning_rate=0.05),
    lambda rng: _optimizer("Adadelta", learning_rate=0.5),
    lambda rng: _optimizer("Adamax", learning_rate=0.01),
    lambda rng: _optimizer("Nadam", learning_rate=0.01),
    lambda rng: _optimizer("Ftrl", learning_rate=0.05, l1_regularization_strength=rng.choice((0.0, 0.01))),
    lambda rng: _optimizer("Lion", learning_rate=0.01, weight_decay=rng.choice((None, 0.1))),
    lambda rng: _optimizer("Lamb", learning_rate=0.01),
    lambda rng: _optimizer("Adafactor", learning_rate=0.01),
)
CLIPPING = (("clipnorm", 0.1), ("global_clipnorm", 0.2), ("clipvalue", 0.02))


def drawn_optimizer(rng: random.Random) -> Made:
    """An optimizer, in half of the draws with clipping, averages, accumulation or a schedule."""
    made = rng.choice(OPTIMIZERS)(rng)
    options = dict(made.options)
    if rng.random() < 0.4:
        options.update([rng.choice(CLIPPING)])
    if rng.random() < 0.1:
        options.update(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=rng.choice((None, 2)))
    if rng.random() < 0.05:
        options["gradient_accumulation_steps"] = 2
    if rng.random() < 0.1:
        rate = (("initial_learning_rate", options["learning_rate"]), ("decay_steps", 5))
        options["learning_rate"] = Made("optimizers.schedules.CosineDecay", rate)
    return Made(made.name, tuple(options.items()))


@dataclass(frozen=True)
class Head:
    """The task that a model's result is trained for.

    Attributes:
        kind: of labels: ``classes``, ``one_hot``, ``reals``, ``bits``.
        activation: of the result.
        metrics: that go with it.
    """

    loss: Made
    kind: str
    activation: str | None = None
    metrics: tuple[str, ...] = ()


def _loss(name: str, **options: Any) -> Made:
    return Made(f"losses.{name}", tuple(options.items()))


def drawn_head(rng: random.Random, sees_whole_batch: bool) -> Head:
    """Return a loss with its labels and metrics; in micro-batches none sees the weights of the whole batch."""
    reductions = ("sum_over_batch_size",) * 6 + ("sum",) + ("mean_with_sample_weight",) * sees_whole_batch
    reduction = rng.choice(reductions)
    from_logits = rng.random() < 0.6
    probabilities = None if from_logits else "softmax"
    metrics = ("accuracy",) if rng.random() < 0.5 else ()
    heads = (
        Head(_loss("SparseCategoricalCrossentropy", from_logits=from_logits), "classes", probabilities, metrics),
        Head(_loss("SparseCategoricalCrossentropy", from_logits=from_logits), "classes", probabilities, metrics),
        Head(_loss("CategoricalCrossentropy", from_logits=from_logits), "one_hot", probabilities, metrics),
        Head(_loss("CategoricalCrossentropy", label_smoothing=0.1), "one_hot", "softmax", metrics),
        Head(_loss("CategoricalFocalCrossentropy"), "one_hot", "softmax", metrics),
        Head(_loss("KLDivergence"), "one_hot", "softmax"),
        Head(_loss("BinaryCrossentropy", from_logits=from_logits), "bits", None if from_logits else "sigmoid"),
        Head(_loss("BinaryFocalCrossentropy"), "bits", "sigmoid", metrics),
        Head(_loss("MeanSquaredError"), "reals", None, rng.choice(((), ("mae",), ("mse", "cosine_similarity")))),
        Head(_loss("MeanAbsoluteError"), "reals", None, rng.choice(((), ("mse",)))),
        Head(_loss("Huber", delta=0.5), "reals"),
        Head(_loss("LogCosh"), "reals"),
        Head(_loss("CosineSimilarity"), "reals"),
        Head(_loss("Poisson"), "bits", "softplus"),
    )
    head = rng.choice(heads)
    return replace(head, loss=Made(head.loss.name, (*head.loss.options, ("reduction", reduction))))
