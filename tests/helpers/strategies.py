"""Random strategies and paths, running them, and what must hold of every run.

Everything random follows from a seed alone, so that all ranks of a run draw the same, and a failure can be run again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from oracles.shards import gather
from oracles.steps import legal_steps

from helpers import zoo
from tensoropt.ir.graph import Graph
from tensoropt.lowering.resharding.reshard import Backend, Collective
from tensoropt.plan.build import cost_entries
from tensoropt.plan.record import PlannedResharding
from tensoropt.program.fetch import Fetch
from tensoropt.program.orders.schedule import PLAIN, StepOrder
from tensoropt.reschedule.layout import Layout, Shape, axes_text, needs_communication
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import Path, StepCosts, cheapest_path
from tensoropt.rules.configs import configs
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Config, why_invalid
from tensoropt.runtime.engine import Engine
from tensoropt.runtime.step.functions import Feed
from tensoropt.runtime.step.parts import StageView
from tensoropt.runtime.step.stage_state import StageState
from tensoropt.sharding.consumers import consumers_of, sharding_of, shareable_copies
from tensoropt.sharding.model import Model
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.stages import Stages
from tensoropt.sharding.strategy import Copy, Strategy, StrategyView

LONGEST_DETOUR = 3
EXACT = 1e-10


class Link:
    """Costs under which no collective is free and bytes matter, so that paths take several steps."""

    def time_ns(self, kind: str, mesh: Mesh, axes: tuple[int, ...], n_bytes: int) -> int:
        return n_bytes // 100 if kind == "local" else 1000 + n_bytes


def random_strategy(
    model: zoo.Recorded,
    mesh: Mesh,
    seed: int,
    prefers: Callable[[Config], bool] | None = None,
    share_regathered: float = 0.0,
    share_rematerialized: float = 0.0,
    within: Graph | None = None,
) -> StrategyView:
    """A random config for every operator; for every tensor with several consumers a random one of their shardings, or none.

    Args:
        prefers: narrows the choice wherever an operator has such a config.
        share_regathered: the mean share of copies that are regathered in the backward pass.
        share_rematerialized: the mean share of operators that are rematerialized there.
        within: a graph of the same operators, which can have the configs, too.
    """
    rng = random.Random(seed)
    chosen = {}
    for name, op in model.graph.operators.items():
        possible = configs(rule_of(op), mesh)
        if within is not None:
            possible = [config for config in possible if not why_invalid(rule_of(within.operators[name]), config)]
        chosen[name] = rng.choice([config for config in possible if prefers and prefers(config)] or possible)
    view = model.model.view(Strategy(mesh, chosen))
    shared = {}
    for name, consumers in consumers_of(model.graph).items():
        if len(consumers) > 1:
            tensor = model.graph.tensors[name]
            sharding = rng.choice([None, *shareable_copies([sharding_of(view, tensor, consumer) for consumer in consumers])])
            if sharding is not None:
                shared[name] = sharding
    regathered = set()
    for name, consumers in consumers_of(model.graph).items() if share_regathered else ():
        each = dict.fromkeys(Copy(name, consumer.name) for consumer in consumers)
        regathered.update(copy for copy in [Copy(name), *each] if rng.random() < share_regathered)
    rematerialized = {name for name in chosen if share_rematerialized and rng.random() < share_rematerialized}
    strategy = Strategy(mesh, chosen, shared, frozenset(regathered), frozenset(rematerialized))
    return model.model.view(strategy)


def slides(config: Config) -> bool:
    """Whether a config splits a dimension along which windows slide, in an operator that has such."""
    return bool({"h", "w"}.intersection(config.assignment))


def detours(seed: int) -> Callable[[Layout, Layout, Shape, int, StepCosts], Path]:
    """A choice of paths that walks a few random legal steps before it takes the cheapest way.

    A path becomes partial on the way only if one of its ends is, and communicates only if it must, as everywhere.
    """

    def choose(source: Layout, target: Layout, shape: Shape, item_bytes: int, costs: StepCosts) -> Path:
        # From the text of the ends, since ranks need not ask for paths in the same order.
        rng = random.Random(f"{seed} {source} {target} {shape}")
        at, walked, communicates = source, [], needs_communication(source, target)
        for _ in range(rng.randint(0, LONGEST_DETOUR)):
            possible = [s for s in legal_steps(at, shape) if source.partial or target.partial or not s.target.partial]
            if not communicates:
                possible = [s for s in possible if not (s.communicates or needs_communication(s.target, target))]
            if possible:
                walked.append(rng.choice(possible))
                at = walked[-1].target
        rest = cheapest_path(at, target, shape, item_bytes, costs)
        return Path(source, target, (*walked, *rest.steps), shape)

    return choose


def random_router(seed: int) -> PathFinder:
    """Every second seed takes detours, and sums each gradient by itself."""
    return PathFinder(Link(), detours(seed), uses_buckets=False) if seed % 2 else PathFinder(Link())


def feeds_of(graph: Graph, batch: Mapping[str, np.ndarray]) -> dict[Feed, np.ndarray]:
    return {Feed(graph.tensors[name], False): value for name, value in batch.items()}


def training_fetch(model: zoo.Recorded) -> Fetch:
    return Fetch(((model.graph.tensors[model.loss], False),), tuple(model.graph.train_steps))


def engine_of(
    model: zoo.Recorded, view: StrategyView, path_finder: PathFinder, backend: Backend, in_order: bool = False
) -> Engine:
    return uncut_engine(view, path_finder, backend, lambda name: model.first_values[name], in_order)


def uncut_engine(
    view: StrategyView,
    path_finder: PathFinder,
    backend: Backend,
    initial_value: Callable[[str], np.ndarray],
    in_order: bool = False,
    per_micro_batch: StrategyView | None = None,
) -> Engine:
    """The engine of a strategy on a model that isn't cut."""
    sliced, devices = per_micro_batch or view, tuple(range(backend.mesh.n_devices))
    stages = Stages(Model(view.graph, view.backward), ())
    state = StageState(view, path_finder, backend, initial_value, in_order=in_order)
    orders = StepOrder(PLAIN, sliced.graph.n_micro_batches, (1,), (0,)).orders
    return Engine(stages, (StageView(view, sliced, devices),), orders, {0: state})


def train_and_check(engine: Engine, model: zoo.Recorded, tolerance: float = EXACT) -> None:
    """Three steps: on every rank of this process the losses are those of one device."""
    fetch = training_fetch(model)
    for step, batch in enumerate(model.batches):
        (losses,) = engine.run(fetch, feeds_of(model.graph, batch))
        _assert_all_close(losses, model.reference.losses[step], tolerance, f"the loss of step {step}")
    assert_collectives_are_charged(engine, model)


def evaluate_and_check(engine: Engine, model: zoo.Recorded, tolerance: float = EXACT) -> None:
    """Check that the metrics after the steps are those of one device."""
    first = feeds_of(model.graph, model.batches[0])
    wanted = tuple((model.graph.resolve(name), False) for name in model.metrics)  # a recorded name may stand for another
    for name, values, expected in zip(model.metrics, engine.run(Fetch(wanted), first), model.reference.metrics, strict=True):
        _assert_all_close(values, expected, tolerance, f"metric {name}")


def _assert_all_close(values: Sequence[np.ndarray], expected: np.ndarray, tolerance: float, what: str) -> None:
    for value in values:
        assert value.tobytes() == values[0].tobytes(), f"{what} has other bits on another rank"
    assert_close(values[0], expected, tolerance, what)


def assert_variables(
    model: zoo.Recorded, view: StrategyView, shards: Mapping[str, Sequence[np.ndarray]], tolerance: float = EXACT
) -> None:
    """All variables, moving averages included, are those of one device; replicas are equal to the bit."""
    for op in model.graph.variables:
        whole = gather(shards[op.name], view.layout(op.result), op.result.shape)
        assert_close(whole, model.reference.variables[op.name], tolerance, f"variable {op.name}")


def local_shards(engine: Engine) -> dict[str, list[np.ndarray]]:
    """The shards of this process's ranks, by variable name."""
    return {name: [variable.numpy() for variable in variables] for name, variables in engine.states[0].variables.items()}


def assert_close(got: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    """No element differs by more than ``tolerance`` times the tensor's largest magnitude; whole numbers not at all."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape and got.dtype == expected.dtype, f"{what} is {got.dtype}{list(got.shape)}"
    if expected.dtype.kind != "f":
        assert np.array_equal(got, expected), f"{what}: {got} is not {expected}"
        return
    off, allowed = float(np.max(np.abs(got - expected))), tolerance * float(np.max(np.abs(expected)))
    assert off <= allowed, f"{what} is off by {off:.3g}, allowed are {allowed:.3g}"


def executed(log: Sequence[Collective]) -> Counter[tuple[str, str, Shape]]:
    return Counter((entry.kind, entry.axes, shape) for entry in log for _, shape in entry.parts)


def planned(reshardings: Iterable[PlannedResharding]) -> list[tuple[str, str, Shape]]:
    """The collectives of reshardings of a plan."""
    steps = ((path, step) for resharding in reshardings for path in resharding.paths for step in path.steps)
    return [(step.kind, axes_text(step.group_axes), path.shape) for path, step in steps if step.communicates]


def charged(view: StrategyView, path_finder: PathFinder) -> Counter[tuple[str, str, Shape]]:
    """The collectives of all reshardings that a strategy is charged for."""
    return Counter(planned(filter(None, (entry.planned(path_finder) for entry in cost_entries(view)))))


def assert_collectives_are_charged(engine: Engine, model: zoo.Recorded) -> None:
    """Compare exact multisets of (kind, axes, shape). Fetching the loss adds none: the step has it replicated anyway."""
    log = engine.function(training_fetch(model), tuple(feeds_of(model.graph, model.batches[0]))).log
    done, paid = executed(log), charged(engine.views[0].per_micro_batch, engine.states[0].path_finder)
    assert done == paid, f"executed but not charged: {dict(done - paid)}; charged but not executed: {dict(paid - done)}"
