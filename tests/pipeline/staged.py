"""Random strategies for the stages of a model, and engines that run them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import tensorflow as tf
from accumulate import models
from helpers import zoo
from helpers.strategies import assert_close, feeds_of, random_router, random_strategy, training_fetch
from pipeline.orders import interleaved

import tensoropt
from tensoropt.common.errors import InputError
from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.plan.plan import Plan
from tensoropt.program.orders.interleaved import INTERLEAVED
from tensoropt.program.orders.schedule import StepOrder
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import why_invalid
from tensoropt.runtime.engine import Engine
from tensoropt.runtime.execution import execute
from tensoropt.runtime.ranks import Processes
from tensoropt.runtime.step.parts import StageView
from tensoropt.runtime.step.stage_state import StageState
from tensoropt.runtime.step.transfers import EmulatedTransfers
from tensoropt.search.stages.placement import blocks_of
from tensoropt.sharding.stages import StageModel, Stages


def layers(batch: int = 8, width: int = 16, joined: int = 1, n: int = 4) -> zoo.Built:
    """Return some layers; ``joined`` samples are one at the end, so that no micro-batch has fewer."""
    api = tf.compat.v1
    x = value = api.placeholder(api.float64, [batch, width], name="x")
    for layer in range(n):
        value = api.tanh(api.matmul(value, api.get_variable(f"w{layer}", [width, width], api.float64)))
    if joined > 1:
        value = api.reshape(value, [batch // joined, joined * width])
    return zoo.Built(api.reduce_mean(api.square(value - 1.0)), {x: zoo._reals(12, batch, width)}, ())


def tanh_layers(n: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Record layers of 16 by 16, and return the placeholder that the first reads and the result of the last."""
    x = hidden = tensoropt.placeholder(tensoropt.float64, [8, 16])
    for layer in range(n):
        hidden = tensoropt.tanh(tensoropt.matmul(hidden, tensoropt.get_variable(f"w{layer}", [16, 16], tensoropt.float64)))
    return x, hidden


def random_cuts(model: zoo.Recorded, n_stages: int, seed: int) -> Stages:
    """Return a model cut at random places, such that each stage trains something."""
    rng = random.Random(seed)
    graph = model.graph
    names = [op.name for op in graph.step_operators if op.operands]
    while True:
        cuts = tuple(sorted(rng.sample(range(len(names) - 1), n_stages - 1)))
        stages = Stages(model.model, tuple(names[i] for i in cuts))
        try:
            if len(stages.models) == n_stages:
                return stages
        except InputError:
            continue


def check_losses(plan: Plan, model: zoo.Recorded) -> None:
    """Check that a plan's emulated ranks train with one device's losses."""
    execution = execute(
        plan, model.model, lambda variable: model.first_values[variable], Processes(0, 1, ("here",)), "emulated"
    )
    for step, batch in enumerate(model.batches):
        ((loss, *_),) = execution.engine.run(training_fetch(model), feeds_of(model.graph, batch))
        assert_close(loss, model.reference.losses[step], 1e-10, f"the loss of step {step}")


def random_stage_view(
    stage: StageModel, n: int, mesh: Mesh, seed: int, devices: tuple[int, ...], *shares: float
) -> StageView:
    """Return a random strategy of a stage that its full batch and its micro-batches can have."""
    rng, sliced = random.Random(seed), stage.in_micro_batches(n)
    model = zoo.Recorded(sliced, "", (), {}, (), None)  # type: ignore[arg-type]
    while True:
        view = random_strategy(model, mesh, rng.randrange(10**6), None, *shares)
        configs = view.strategy.configs
        if not any(why_invalid(rule_of(stage.graph.operators[name]), config) for name, config in configs.items()):
            return StageView(stage.view(view.strategy), view, devices)


def random_engine(
    name: str, optimizer: str, n: int, meshes: Sequence[Mesh], seed: int, schedule: str = "1f1b"
) -> tuple[zoo.Recorded, Engine]:
    """Return a model and the emulated engine of a random strategy in stages."""
    return random_engine_of(models.recorded(name, optimizer), n, meshes, seed, schedule)


def random_engine_of(
    model: zoo.Recorded, n: int, meshes: Sequence[Mesh], seed: int, schedule: str = "1f1b"
) -> tuple[zoo.Recorded, Engine]:
    """Return a model and the emulated engine of a random strategy in stages.

    Each mesh has a stage, two where they are interleaved, as far as each stage trains a variable.
    """
    per_mesh = 1 + (schedule == INTERLEAVED)
    meshes = meshes[: sum(op.is_trainable for op in model.graph.variables) // per_mesh]
    n_stages, blocks = len(meshes) * per_mesh, blocks_of([mesh.n_devices for mesh in meshes])
    stages = random_cuts(model, n_stages, seed)
    views = [
        random_stage_view(part, n, meshes[index % len(meshes)], seed * 7 + index, blocks[index % len(meshes)].devices)
        for index, part in enumerate(stages.models)
    ]
    in_flight = [random.Random(seed + index).randint(1, n) for index in range(n_stages)]
    engines = {
        index: StageState(
            view.whole, random_router(seed), EmulatedBackend(view.whole.strategy.mesh),
            lambda variable: model.first_values[variable],
        )
        for index, view in enumerate(views)
    }  # fmt: skip
    deferred = [random.Random(seed - index).randint(0, n) for index in range(n_stages)]
    if schedule == INTERLEAVED:
        orders = interleaved(random.Random(seed), n_stages, n, len(meshes)).orders
    else:
        orders = StepOrder(schedule, n, tuple(in_flight), tuple(deferred)).orders
    machine_of = sorted(random.Random(seed).choices((0, 1), k=blocks[-1].end))
    return model, Engine(stages, tuple(views), orders, engines, EmulatedTransfers, tuple(machine_of))
