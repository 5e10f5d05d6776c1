"""Two training steps of a model: by plain Keras on one device, and by a strategy on emulated ones."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from helpers.strategies import uncut_engine
from oracles.shards import gather

from models.catalog import Entry
from tensoropt.ir.graph import Graph
from tensoropt.lowering.gradient_analysis import analyse
from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.optimizers.keras_optimizer import KerasOptimizer
from tensoropt.program.fetch import Fetch
from tensoropt.runtime.engine import Engine
from tensoropt.runtime.step.functions import Feed
from tensoropt.sharding.model import Model
from tensoropt.sharding.resharding import PathFinder, PlainCosts
from tensoropt.sharding.strategy import StrategyView
from tensoropt.trainer.capture.objective import Compilation, KerasObjective
from tensoropt.trainer.capture.programs import TRAIN, Captured, capture_program
from tensoropt.trainer.capture.signature import signature_of

N_STEPS = 2
# What is smaller than this, of the largest magnitude of its kind, is zero but for rounding.
ROUNDING = {"float64": 1e-12, "float32": 1e-5}
MakeOptimizer = Callable[[], keras.optimizers.Optimizer]
State = dict[str, np.ndarray]


def sgd() -> keras.optimizers.Optimizer:
    """SGD whose momentums after a first step are exactly the gradients times the learning rate."""
    return keras.optimizers.SGD(0.01, momentum=0.9)


@dataclass(frozen=True)
class Step:
    """The numbers of a training step.

    Attributes:
        variables: the model's, moving averages and seeds included, after the step.
        slots: the optimizer's, after the step.
    """

    loss: float
    variables: State
    slots: State


@dataclass(frozen=True)
class Case:
    """A model, captured, and what one device makes of it.

    Attributes:
        first_values: by the variable operator's name.
        expected: per step.
    """

    entry: Entry
    captured: Captured
    model: Model
    first_values: State
    expected: tuple[Step, ...]

    @property
    def graph(self) -> Graph:
        return self.model.graph


def case_of(entry: Entry, make_optimizer: MakeOptimizer = sgd, seed: int = 1) -> Case:
    """Capture a model, and train it on one device."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model = entry.make()
    program = captured(entry, model, make_optimizer)
    first_values = {name: variable.numpy() for name, variable in program.capture.variables.items()}
    planned = Model(program.graph, analyse(program.graph))
    return Case(entry, program, planned, first_values, tuple(on_one_device(entry, model, make_optimizer(), program)))


def captured(entry: Entry, model: keras.Model, make_optimizer: MakeOptimizer = sgd) -> Captured:
    """The model as ``tensoropt.parallelize`` would capture it."""
    objective = KerasObjective(model, Compilation(entry.loss, None, None, None))
    signature = signature_of(model, entry.loss, entry.batch_size, None, False, None)
    return capture_program(TRAIN, objective, signature, lambda _, trained: KerasOptimizer.of(make_optimizer(), trained))


def on_one_device(entry: Entry, model: keras.Model, optimizer: Any, program: Captured) -> Iterator[Step]:
    """Keras's own training step, run on successive batches; the model's variables are trained."""
    optimizer.build(model.trainable_variables)
    loss_of = entry.loss

    @tf.function(jit_compile=False)
    def step(inputs: list[Any], labels: Any) -> Any:
        with tf.GradientTape() as tape:
            predicted = model(inputs if len(inputs) > 1 else inputs[0], training=True)
            loss = loss_of(labels, predicted)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    names = {id(variable): name for name, variable in program.capture.variables.items()}
    for number in range(N_STEPS):
        inputs, labels = entry.batch(number)
        loss = float(step([tf.constant(value) for value in inputs], tf.constant(labels)))
        values = {names[id(v.value)]: v.numpy() for v in model.variables if id(v.value) in names}
        slots = {variable.path.partition("/")[2]: variable.numpy() for variable in optimizer.variables}
        yield Step(loss, values, slots)


def by_strategy(case: Case, view: StrategyView, path_finder: PathFinder | None = None) -> Iterator[Step]:
    """The same steps by a strategy, all ranks in this process."""
    mesh = view.strategy.mesh
    backend = EmulatedBackend(mesh)
    engine = uncut_engine(view, path_finder or PathFinder(PlainCosts()), backend, lambda name: case.first_values[name])
    fetch = Fetch(((case.captured.results[0], False),), (TRAIN,))
    for number in range(N_STEPS):
        inputs, labels = case.entry.batch(number)
        given = zip(case.captured.inputs, [*inputs, labels], strict=True)
        feeds = {Feed(tensor, False): value.astype(tensor.dtype).reshape(tensor.shape) for tensor, value in given}
        (losses,) = engine.run(fetch, feeds)
        assert len({loss.tobytes() for loss in losses}) == 1, f"ranks have different losses: {losses}"
        yield Step(float(losses[0]), *_state(engine))


def without_gradient(case: Case) -> set[str]:
    """Variables whose gradient is zero but for rounding, and the optimizer's that belong to them.

    Of what an optimizer divides by its own magnitude, as Adam does, only rounding is left: one device has no better number.
    """
    slots = {name: value for name, value in case.expected[0].slots.items() if name.endswith("_momentum")}
    scale = max(np.max(np.abs(value)) for value in slots.values())
    small = ROUNDING[next(iter(slots.values())).dtype.name] * scale
    zero = {name.removesuffix("_momentum") for name, value in slots.items() if np.max(np.abs(value)) <= small}
    variables = {name for name in case.first_values if name.replace("/", "_") in zero}
    return variables | {name for name in case.expected[0].slots if name.rpartition("_")[0] in zero}


def _state(engine: Engine) -> tuple[State, State]:
    variables: State = {}
    slots: State = {}
    for entry in engine.state():
        whole = gather([variable.numpy() for variable in entry.variables], entry.layout, entry.shape)
        if entry.step is None:
            variables[entry.key] = whole
        else:
            slots[entry.key.removeprefix(f"{entry.step}/")] = whole
    return variables, slots


@dataclass(frozen=True)
class Distance:
    """The distance of a number or a tensor from its expected value, relative to the largest magnitude."""

    step: int
    name: str
    ratio: float

    def __str__(self) -> str:
        return f"step {self.step}: {self.name} is off by {self.ratio:.2g} of its largest magnitude"


def differences(case: Case, found: Iterator[Step], tolerance: float, but: Container[str] = ()) -> list[str]:
    """The differences from one device of more than ``tolerance`` times its largest magnitude, worst first, as text."""
    off = [each for each in distances(case.expected, found, but) if each.ratio > tolerance]
    return [str(each) for each in sorted(off, key=lambda each: -each.ratio)]


def distances(expected: Iterable[Step], found: Iterable[Step], but: Container[str] = ()) -> Iterator[Distance]:
    """The distances of everything that steps compute.

    What is zero but for rounding (the gradient of a bias ahead of a normalisation) must be that in both.
    """
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        yield Distance(number, "loss", ratio(np.asarray(ours.loss), np.asarray(theirs.loss), 0.0))
        for kind, got, wanted in (("", ours.variables, theirs.variables), ("slot ", ours.slots, theirs.slots)):
            missing = set(wanted) - set(got)
            assert not missing, f"{sorted(missing)[:3]} aren't among {sorted(got)[:5]}"
            scale = max((np.max(np.abs(v)) for v in wanted.values() if v.dtype.kind == "f" and v.size), default=0.0)
            for name, value in wanted.items():
                if name not in but:
                    assert got[name].shape == value.shape, f"{name} has shape {got[name].shape}, not {value.shape}"
                    yield Distance(number, kind + name, ratio(got[name], value, float(scale)))


def ratio(got: np.ndarray, expected: np.ndarray, scale: float) -> float:
    """Return the largest difference over the largest magnitude expected; 0 where both are but rounding of ``scale``."""
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(got, expected) else np.inf
    largest = float(np.max(np.abs(expected), initial=0.0))
    difference = float(np.max(np.abs(got - expected), initial=0.0))
    # Not a number is larger than no bound.
    if not np.isfinite(difference):
        return np.inf
    if difference == 0.0 or max(difference, largest) <= ROUNDING[expected.dtype.name] * scale:
        return 0.0
    return difference / largest if largest else np.inf
