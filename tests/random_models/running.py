"""Random cases run: by plain Keras on one device, by a plan on emulated ones, and what is to be made of what differs.

| outcome | what it means |
|---|---|
| same | losses, metrics, weights, moving statistics, the optimizer's variables and predictions are those of one device |
| refused | TensorOpt said in a sentence what it doesn't do |
| rounding | in float32 something differs that is the same in float64 |
| unstable | something differs in float64, no more than plain Keras's own numbers do where gradients change by a last bit |
| wrong | something else differs |
| failed | another error |
| not by Keras | plain Keras itself can't train the model, or comes to what is no number |

What is unstable is, most often, what an optimizer that divides gradients by their own magnitude, or takes their signs, makes
of a gradient that is zero but for rounding, such as that of a bias ahead of a normalisation.
"""

from __future__ import annotations

import os
import re
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from helpers.switches import floats
from models.training import ratio

import tensoropt
from random_models.drawing import Case, Training, described, made
from random_models.planning import plan_of
from tensoropt.common.errors import TensorOptError
from tensoropt.tuning import asked_plan

SAME, REFUSED, ROUNDING, UNSTABLE = "same", "refused", "rounding", "unstable"
WRONG, FAILED, NOT_BY_KERAS = "wrong", "failed", "not by Keras"
FAULTS = (WRONG, FAILED)
TOLERANCES = {"float64": 1e-9, "float32": 2e-4}
FLOORS = {"float64": 1e-14, "float32": 5e-6}
"""What weights of magnitude one are rounded by: an update that cancels nearly all of one leaves no better number."""
N_CHANGES, CHANGED_BY = 3, 10.0
"""How often weights and gradients are changed by a last bit, and how many times as much as that a plan may be off."""
Numbers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """The numbers of a case.

    Attributes:
        text: the case in a line.
        reason: a sentence, or what differs.
    """

    seed: int
    kind: str
    text: str
    reason: str = ""

    @property
    def is_fault(self) -> bool:
        return self.kind in FAULTS

    @property
    def reason_in_general(self) -> str:
        """The reason without names and numbers."""
        plain = re.sub(r"'[^']*'|\([^)]*\)|\[[^\]]*\]", "..", self.reason.partition("\n")[0])
        return re.sub(r"\d+", "N", plain)[:150]

    def __str__(self) -> str:
        reason = f"\n    {self.reason}" if self.reason else ""
        return f"{self.kind}: {self.text}{reason}"


def run(case: Case) -> Outcome:
    """Train by both, and compare; what differs in float32 is looked at in float64."""
    try:
        text, off = _differing(case)
        if not off:
            return Outcome(case.seed, SAME, text)
        if case.dtype == "float32":
            in_single, case = off, replace(case, dtype="float64")
            _, off = _differing(case)
            if not off:
                return Outcome(case.seed, ROUNDING, text, _told(in_single))
        return Outcome(case.seed, WRONG if _is_stable(case, off) else UNSTABLE, text, _told(off))
    except _Ended as ended:
        return Outcome(case.seed, ended.kind, described(case, ended.text), ended.reason)


class _Ended(Exception):
    def __init__(self, kind: str, text: str, reason: str) -> None:
        super().__init__(kind)
        self.kind, self.text, self.reason = kind, text, reason


def by_keras(case: Case, training: Training) -> Numbers:
    """The numbers of plain Keras on one device; the model is trained."""
    model = training.model
    model.compile(training.optimizer, training.loss, metrics=training.metrics, jit_compile=False)
    numbers = _logs(case, training, model)
    numbers.update({f"model/{variable.path}": variable.numpy() for variable in model.variables})
    numbers.update(_of_optimizer(model.optimizer.variables))
    return numbers


def _of_optimizer(variables: Iterable[keras.Variable]) -> dict[str, np.ndarray]:
    """Values by name, numbered: paths, and the numbers that Keras gives, depend on where an optimizer is built."""
    found: dict[str, np.ndarray] = {}
    for variable in variables:
        key = f"optimizer/{re.sub(r'_[0-9]+$', '', variable.name)}"
        found[f"{key} {sum(name.rpartition(' ')[0] == key for name in found)}"] = variable.numpy()
    return found


def by_plan(case: Case, training: Training) -> Numbers:
    """The same by a plan, all ranks in this process."""
    options = case.options
    with mock.patch.object(asked_plan, "find_answer", partial(_planned, case)):
        trainer = tensoropt.parallelize(
            training.model, training.optimizer, training.loss, training.metrics, batch_size=case.batch_size,
            sample_weight=case.is_weighted, parallelism=options.n_devices, cluster=options.cluster,
            without=options.without, micro_batches=options.micro_batches, collectives="emulated",
        )  # fmt: skip
    numbers = _logs(case, training, trainer)
    with trainer.as_trained() as (model, pairs):
        numbers.update({f"model/{variable.path}": variable.numpy() for variable in model.variables})
        numbers.update(_of_optimizer(variable for variable, entry in pairs if entry.step is not None))
    return numbers


def _planned(case: Case, option: str, request: Any, *_: object) -> Any:
    return plan_of(case.options, case.seed, request, option)


def _logs(case: Case, training: Training, trained: keras.Model) -> dict[str, np.ndarray]:
    """Train, and what that says: losses, metrics and predictions."""
    inputs, *rest = training.data
    if case.by_fit:
        labels, weights = rest[0], rest[1] if case.is_weighted else None
        options: dict[str, Any] = {"batch_size": case.batch_size, "shuffle": False, "verbose": 0}
        history = trained.fit(inputs, labels, sample_weight=weights, **options).history
        # Of a last batch that is smaller the trainer averages results' own losses by samples, as its page says.
        is_own = len(training.model.outputs) > 1 and len(set(case.batches)) > 1
        numbers = {
            f"log/{name}": np.asarray(values) for name, values in history.items() if not (is_own and name.endswith("_loss"))
        }
    else:
        numbers, start = {}, 0
        for step, size in enumerate(case.batches):
            given = keras.tree.map_structure(lambda value, a=start, b=start + size: value[a:b], training.data)
            weights = given[2] if case.is_weighted else None
            logs = trained.train_on_batch(given[0], given[1], sample_weight=weights, return_dict=True)
            numbers.update({f"log/{name} of step {step}": np.asarray(value) for name, value in logs.items()})
            start += size
    if case.predicts:
        first = keras.tree.map_structure(lambda value: value[: case.batch_size], inputs)
        results = trained.predict(first, batch_size=case.batch_size, verbose=0)
        numbers.update({f"result/{i}": value for i, value in enumerate(keras.tree.flatten(results))})
    return numbers


def _differing(case: Case) -> tuple[str, dict[str, float]]:
    """The case in a line, and what differs by more than the tolerance, of its largest magnitude."""
    with _numbers_of_one_device(case.dtype):
        training = _made(case)
        expected = _by_keras(case, training)
        try:
            found = by_plan(case, made(case))
        except TensorOptError as error:
            raise _Ended(REFUSED, training.text, str(error)) from error
        except Exception as error:
            raise _Ended(FAILED, training.text, _trace(error)) from error
        off = distances(expected, found)
        return described(case, training.text), {n: r for n, r in off.items() if r > TOLERANCES[case.dtype]}


def _made(case: Case) -> Training:
    try:
        return made(case)
    except Exception as error:
        raise _Ended(NOT_BY_KERAS, "not made", _trace(error)) from error


def _by_keras(case: Case, training: Training) -> Numbers:
    try:
        expected = by_keras(case, training)
    except Exception as error:
        raise _Ended(NOT_BY_KERAS, training.text, _trace(error)) from error
    if not all(np.all(np.isfinite(value)) for value in expected.values()):
        raise _Ended(NOT_BY_KERAS, training.text, "not all are numbers")
    return expected


def distances(expected: Numbers, found: Numbers) -> dict[str, float]:
    """The distance of everything from its expected value, of its largest magnitude; infinite where one is missing."""
    off = dict.fromkeys(expected.keys() ^ found.keys(), np.inf)
    scales: dict[str, float] = {}
    for name, value in expected.items():
        if value.dtype.kind == "f" and value.size:
            kind = name.partition("/")[0]
            scales[kind] = max(scales.get(kind, 0.0), float(np.max(np.abs(value))))
    for name in expected.keys() & found.keys():
        value, got = expected[name], found[name]
        if got.shape != value.shape:
            off[name] = np.inf
        else:
            # A loss is a number of its own: what is small isn't rounding of another.
            scale = 0.0 if name.startswith("log/") else scales.get(name.partition("/")[0], 0.0)
            is_rounding = value.dtype.kind == "f" and np.allclose(got, value, rtol=0.0, atol=FLOORS[value.dtype.name])
            off[name] = 0.0 if is_rounding else ratio(got, value, scale)
    return off


def _is_stable(case: Case, off: Mapping[str, float]) -> bool:
    """Whether plain Keras's own numbers, of what a plan differs in, don't move as much by a last bit here and there."""
    worst = dict.fromkeys(off, 0.0)
    with _numbers_of_one_device(case.dtype):
        expected = _by_keras(case, made(case))
        rng = np.random.default_rng(case.seed)
        for _ in range(N_CHANGES):
            training = made(case)
            for variable in training.model.trainable_variables:
                value = variable.numpy()
                variable.assign(np.where(rng.random(value.shape) < 0.5, value, np.nextafter(value, np.inf)))
            _change_gradients(training.optimizer, rng)
            moved = distances(expected, _by_keras(case, training))
            worst = {name: max(most, moved.get(name, 0.0)) for name, most in worst.items()}
    return any(ratio > CHANGED_BY * worst[name] for name, ratio in off.items())


def _change_gradients(optimizer: keras.optimizers.Optimizer, rng: np.random.Generator) -> None:
    """Have an optimizer take gradients that are off as if they had been added up in another order."""
    apply = optimizer.apply

    def changed(gradient: Any) -> Any:
        if gradient is None:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(changed(gradient.values), gradient.indices, gradient.dense_shape)
        off = rng.uniform(-4.0, 4.0, gradient.shape) * np.finfo(gradient.dtype.as_numpy_dtype).eps
        return gradient + tf.cast(off, gradient.dtype) * tf.reduce_max(tf.abs(gradient))

    def applied(gradients: Any, variables: Any = None) -> Any:
        return apply([changed(gradient) for gradient in gradients], variables)

    optimizer.apply = applied


@contextmanager
def _numbers_of_one_device(dtype: str) -> Iterator[None]:
    """Keras computes in this type, random operators draw as on one device, and nothing is measured."""
    with mock.patch.dict(os.environ, TENSOROPT_CACHE="off"), floats(dtype), warnings.catch_warnings():
        # The functions of models that are held one after the other look to TensorFlow like one that changes.
        warnings.simplefilter("ignore")
        yield


def _told(off: Mapping[str, float], most: int = 4) -> str:
    worst = sorted(off.items(), key=lambda each: -each[1])
    return f"{len(off)} differ: " + "; ".join(f"{name} by {by:.1e}" for name, by in worst[:most])


def _trace(error: Exception) -> str:
    """The error, and the last places that it came through."""
    said = f"{type(error).__name__}: {str(error).strip()[:600]}"
    return said + "\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])
