"""Random cases: a Keras model, what it is trained for, and how it is planned, all of it from a seed.

A model has one or two inputs (images, sequences, words, vectors), a few layers behind each, residual connections, shared and
frozen layers, and one or two results. Making it again from the same seed gives the same layers, names and weights.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from random_models.menus import MOST_ELEMENTS, Entry, Made, Shape, batch_norm, drawn_entry, layer
from random_models.training import Head, drawn_head, drawn_optimizer

CLUSTERS = {2: ("v100-1x2",), 3: ("v100-1x3",), 4: ("v100-1x4", "v100-2x2"), 5: ("v100-1x5",), 6: ("v100-1x6", "v100-2x3")}
PLANS = ("random",) * 6 + ("fastest", "point", "force", "limit")
CHOICES = ("reuse", "remat", "zero", "accumulate")
VOCABULARY = 7
MERGES = ("Add", "Add", "Add", "Multiply", "Average", "Maximum", "Minimum", "Subtract", "Concatenate", "Concatenate")


@dataclass(frozen=True)
class CaseOptions:
    """The planning options of a case.

    Attributes:
        kind: ``random`` is any strategy; the others are found by the search: ``fastest``, any ``point`` of the frontier, by
            ``force``, or within a memory ``limit`` between the least and the most that points need.
        without: choices that the strategy is to do without.
    """

    kind: str
    cluster: str
    n_devices: int
    micro_batches: int | None
    without: tuple[str, ...]

    def __str__(self) -> str:
        slices = f", micro_batches={self.micro_batches}" if self.micro_batches else ""
        without = f", without={list(self.without)}" if self.without else ""
        return f"{self.kind} plan on {self.n_devices} of {self.cluster}{slices}{without}"


@dataclass(frozen=True)
class Case:
    """A case that a seed draws, but for the model.

    Attributes:
        batches: samples in each of the training batches.
        by_fit: whether ``fit`` goes through the batches, the last one smaller; else ``train_on_batch``.
        is_weighted: whether samples have weights.
        predicts: whether results for a batch are compared at the end.
    """

    seed: int
    dtype: str
    batches: tuple[int, ...]
    by_fit: bool
    is_weighted: bool
    predicts: bool
    options: CaseOptions

    @property
    def batch_size(self) -> int:
        return self.batches[0]

    @property
    def has_statistics(self) -> bool:
        """Whether layers may take statistics over the batch, which can't be in micro-batches."""
        return self.options.micro_batches is None


@dataclass(frozen=True)
class Training:
    """A model with all that it is compiled and fed with.

    Attributes:
        data: inputs, labels and, where samples have them, weights, one after the other for all batches.
        text: the layers in a line.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    loss: Any
    metrics: Any
    data: tuple[Any, ...]
    text: str


def drawn(seed: int) -> Case:
    """The case of a seed; every fifth computes in float32."""
    rng = random.Random(f"case {seed}")
    n_devices = rng.choice((2, 2, 2, 2, 3, 3, 4, 4, 5, 6))
    options = CaseOptions(
        rng.choice(PLANS),
        rng.choice(CLUSTERS[n_devices]),
        n_devices,
        rng.choice((2, 2, 3, 4)) if rng.random() < 0.2 else None,
        tuple(choice for choice in CHOICES[:3] if rng.random() < 0.15),
    )
    if options.micro_batches:
        batch_size = options.micro_batches * rng.choice((n_devices, n_devices, n_devices + 1))
    else:
        batch_size = rng.choice((4, 5, 6, 7, 8, 8, 9, 12))
    by_fit = rng.random() < 0.2
    sizes = [batch_size] * rng.choice((2, 3))
    if by_fit and rng.random() < 0.5:
        sizes[-1] = rng.randint(1, batch_size - 1)
    return Case(
        seed, "float32" if seed % 5 == 4 else "float64", tuple(sizes), by_fit, rng.random() < 0.15,
        rng.random() < 0.15, options,
    )  # fmt: skip


def made(case: Case) -> Training:
    """The model of a case and what it is trained on, made once more, in the type that Keras is set to."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(case.seed)
    building = _Building(random.Random(f"model {case.seed}"), case)
    model, heads = building.model()
    rng = np.random.default_rng(case.seed)
    for variable in model.trainable_variables:
        # Zeros and ones would hide what is wrong with biases and scales.
        variable.assign(variable.numpy() + 0.1 * rng.normal(size=variable.shape))
    n_samples = sum(case.batches)
    inputs = [_values(rng, tensor, n_samples) for tensor in model.inputs]
    labels = [_labels(rng, head, output.shape[1:], n_samples) for head, output in zip(heads, model.outputs, strict=True)]
    weights = [rng.uniform(0.5, 1.5, n_samples).astype(keras.config.floatx())] if case.is_weighted else []
    is_single = len(heads) == 1
    optimizer = drawn_optimizer(building.rng)
    text = f"{'; '.join(building.notes)} | {' and '.join(str(head.loss) for head in heads)} | {optimizer}"
    losses = [head.loss.make() for head in heads]
    metrics = [list(head.metrics) for head in heads]
    data = (_one(inputs), _one(labels), *weights)
    loss, metric = (losses[0], metrics[0]) if is_single else (losses, metrics if any(metrics) else None)
    return Training(model, optimizer.make(), loss, metric or None, data, text)


def described(case: Case, text: str) -> str:
    """A case in a line."""
    how = "fit" if case.by_fit else "train_on_batch"
    weighted = ", weighted samples" if case.is_weighted else ""
    return f"seed {case.seed}: {case.dtype}, batches {list(case.batches)} by {how}{weighted}; {case.options}; {text}"


def _one(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _values(rng: np.random.Generator, tensor: Any, n_samples: int) -> np.ndarray:
    shape = (n_samples, *tensor.shape[1:])
    if tensor.dtype == "int32":
        return rng.integers(0, VOCABULARY, shape).astype(np.int32)
    return rng.normal(size=shape).astype(keras.config.floatx())


def _labels(rng: np.random.Generator, head: Head, shape: Shape, n_samples: int) -> np.ndarray:
    if head.kind == "classes":
        return rng.integers(0, shape[-1], (n_samples, *shape[:-1]))
    if head.kind == "one_hot":
        drawn = np.eye(shape[-1])[rng.integers(0, shape[-1], (n_samples, *shape[:-1]))]
    elif head.kind == "bits":
        drawn = rng.integers(0, 2, (n_samples, *shape))
    else:
        drawn = rng.normal(size=(n_samples, *shape))
    return drawn.astype(keras.config.floatx())


@dataclass
class _Building:
    """Makes a model as it is drawn, and takes notes of it."""

    rng: random.Random
    case: Case

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        self.left_out = () if self.case.has_statistics else (batch_norm,)

    def model(self) -> tuple[keras.Model, list[Head]]:
        rng = self.rng
        if rng.random() < 0.2:
            return self._sequential()
        inputs, ends = [], []
        for _ in range(1 if rng.random() < 0.85 else 2):
            given, x = self._input()
            inputs.append(given)
            ends.append(self._layers(x, rng.randint(1, 3)))
        x = ends[0] if len(ends) == 1 else self._merged(ends)
        outputs, heads = [], []
        for _ in range(1 if rng.random() < 0.85 else 2):
            x = self._layers(x, rng.randint(0, 1))
            head = drawn_head(rng, self.case.has_statistics)
            heads.append(head)
            outputs.append(self._result(x, head))
        return keras.Model(inputs, outputs), heads

    def _sequential(self) -> tuple[keras.Model, list[Head]]:
        shape = self._shape()
        self.notes.append(f"Sequential {shape}")
        model = keras.Sequential([keras.Input(shape)])
        for _ in range(self.rng.randint(1, 3)):
            entry = self._entry(model.outputs[0].shape[1:] if model.layers else shape, only_layers=True)
            model.add(entry.make())
        head = drawn_head(self.rng, self.case.has_statistics)
        if len(model.outputs[0].shape) > 2 and self._is_pooled():
            model.add(self._noted(layer("Flatten")).make())
        model.add(self._noted(layer("Dense", units=self.rng.choice((2, 3, 4, 5)), activation=head.activation)).make())
        return model, [head]

    def _is_pooled(self) -> bool:
        """Return whether a result is one for a sample; Keras takes weights of samples for no others."""
        return self.case.is_weighted or self.rng.random() < 0.7

    def _noted(self, entry: Any) -> Any:
        self.notes.append(str(entry))
        return entry

    def _shape(self) -> Shape:
        rng = self.rng
        kind = rng.choice(("image", "image", "sequence", "sequence", "vector"))
        if kind == "image":
            return (rng.choice((4, 5, 6, 8)), rng.choice((4, 5, 6, 8)), rng.choice((1, 2, 3, 4)))
        return (rng.choice((3, 4, 5, 6)), rng.choice((2, 3, 4, 6))) if kind == "sequence" else (rng.choice((3, 4, 6, 8)),)

    def _input(self) -> tuple[Any, Any]:
        rng = self.rng
        if rng.random() < 0.2:
            given = keras.Input((rng.choice((3, 4, 5, 6)),), dtype="int32")
            options = {"mask_zero": True} if rng.random() < 0.2 else {}
            entry = layer("Embedding", input_dim=VOCABULARY, output_dim=rng.choice((2, 4, 6)), **options)
            self.notes.append(f"words {given.shape[1:]}")
            return given, self._noted(entry).make()(given)
        shape = self._shape()
        self.notes.append(f"input {shape}")
        given = keras.Input(shape)
        return given, given

    def _entry(self, shape: Shape, only_layers: bool) -> Entry:
        """One whose result isn't too large."""
        while True:
            entry = drawn_entry(self.rng, shape, self.left_out)
            if only_layers and (not isinstance(entry, Made) or entry.name.endswith("MultiHeadAttention")):
                continue
            size = 1
            for extent in shape:
                size *= extent
            grows = str(entry).startswith(("UpSampling", "RepeatVector", "ZeroPadding", "Conv2DTranspose", "concatenate"))
            if not (grows and 2 * size > MOST_ELEMENTS):
                return self._noted(entry)

    def _layers(self, x: Any, n: int) -> Any:
        for _ in range(n):
            drawn = self.rng.random()
            if drawn < 0.25:
                x = self._residual(x)
            elif drawn < 0.3:
                x = self._shared(x)
            else:
                x = self._called(self._entry(x.shape[1:], only_layers=False), x)
        return x

    def _called(self, entry: Entry, x: Any) -> Any:
        if not isinstance(entry, Made):
            return entry.call(x)
        made = entry.make()
        if self.rng.random() < 0.06:
            made.trainable = False
            self.notes[-1] += " frozen"
        if entry.name.endswith("MultiHeadAttention"):
            return made(x, x, use_causal_mask=self.rng.random() < 0.3)
        return made(x)

    def _residual(self, x: Any) -> Any:
        """A connection that skips some layers and joins their result."""
        self.notes.append("(")
        y = x
        for _ in range(self.rng.randint(1, 2)):
            y = self._called(self._noted(drawn_entry(self.rng, y.shape[1:], self.left_out, keeps_shape=True)), y)
        merge = self.rng.choice(MERGES)
        if y.shape[-1] != x.shape[-1] and merge != "Concatenate":
            y = self._noted(layer("Dense", units=x.shape[-1])).make()(y)
        self.notes.append(f") {merge}")
        return getattr(keras.layers, merge)()([x, y])

    def _shared(self, x: Any) -> Any:
        """A layer, or a model in the model, that is called twice."""
        width = x.shape[-1]
        parts = [layer("Dense", units=width, activation="tanh")]
        if self.rng.random() < 0.5:
            parts.append(layer("LayerNormalization"))
        shared = keras.Sequential([part.make() for part in parts]) if len(parts) > 1 else parts[0].make()
        self.notes.append(f"twice {', '.join(map(str, parts))}")
        return shared(x) if self.rng.random() < 0.3 else shared(shared(x))

    def _merged(self, ends: list[Any]) -> Any:
        if all(len(x.shape) == 3 for x in ends) and self.rng.random() < 0.6:
            entry = layer("MultiHeadAttention", num_heads=2, key_dim=3)
            return self._noted(entry).make()(*ends)
        merge = self.rng.choice(MERGES)
        units = self.rng.choice((3, 4, 6))
        flat = []
        for x in ends:
            x = x if len(x.shape) == 2 else self._noted(layer("Flatten")).make()(x)
            flat.append(self._noted(layer("Dense", units=units, activation="tanh")).make()(x))
        self.notes.append(merge)
        return getattr(keras.layers, merge)()(flat)

    def _result(self, x: Any, head: Head) -> Any:
        if len(x.shape) > 2 and self._is_pooled():
            pools = {3: "GlobalAveragePooling1D", 4: "GlobalAveragePooling2D"}
            x = self._noted(layer(self.rng.choice(("Flatten", pools[len(x.shape)])))).make()(x)
        entry = layer("Dense", units=self.rng.choice((2, 3, 4, 5)), activation=head.activation)
        return self._noted(entry).make()(x)
