"""Random programs in stages: a model, its cuts, devices, strategies, schedule and micro-batches, all from a seed."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import tensorflow as tf
from accumulate import models
from helpers import zoo as helped
from helpers.strategies import assert_close, evaluate_and_check, feeds_of, training_fetch
from pipeline.orders import OF_OWN_SUBMESHES, interleaved
from pipeline.staged import random_cuts, random_stage_view
from random_models.planning import as_plan
from zoo.small import SMALL

import tensoropt.zoo
from tensoropt.common.errors import InputError
from tensoropt.ft import Budget
from tensoropt.plan.options import request_of
from tensoropt.plan.options_with_stages import find_answer_with_stages
from tensoropt.plan.plan import Plan
from tensoropt.plan.submeshes import Block, blocks_of, is_submesh
from tensoropt.profiling.hardware import Hardware, named
from tensoropt.program.interleaved import INTERLEAVED
from tensoropt.program.schedule import SCHEDULES, ZERO_BUBBLE
from tensoropt.reschedule.simulate import gather
from tensoropt.runtime.execute import EMULATED
from tensoropt.runtime.pipeline.execute_staged import execute_staged
from tensoropt.runtime.pipeline.staged_engine import StagedEngine
from tensoropt.runtime.ranks import Processes
from tensoropt.sharding.stages import Stages

BATCH, MOST_STAGES, MOST_DRAWS = 8, 4, 30
IMPOSSIBLE = ("stages have their devices in the order of the program", "where operators are placed: each needs a variable")
WHOLE_BATCH = ("wide_resnet", "resnet101", "inception_v3", "bert_large")
"""Models that can't be taken in micro-batches: for batch normalisation, or for places that are those of the whole batch."""
OF_ZOO = tuple(name for name in SMALL if name not in WHOLE_BATCH)
NAMES = (*models.FUNCTIONS, *OF_ZOO)
NOTHING_SHOWN = {"makespan_ns": 0, "devices": [], "operators": [], "kinds": [], "tasks": ""}
WITHOUT_ADAM = ("sgd", "momentum", "nesterov")
"""For the zoo: of keys' biases gradients are zero but for rounding, of which Adam makes steps of full length."""


@contextmanager
def in_float64() -> Iterator[None]:
    """Have the zoo record in float64."""
    # The package has functions of the names of some modules.
    modules = [importlib.import_module(f"tensoropt.zoo.{name}") for name in ("layers", "language", "transformer")]
    before = [module.DTYPE for module in modules]
    try:
        for module in modules:
            module.DTYPE = tf.float64
        yield
    finally:
        for module, dtype in zip(modules, before, strict=True):
            module.DTYPE = dtype


def small_of_zoo(name: str) -> helped.Built:
    """Record one of the zoo's models at small sizes, in float64."""
    with in_float64():
        loss = tensoropt.zoo.find(name)(**{**SMALL[name], "batch": BATCH})
    inputs = {}
    for op in loss.graph.get_operations():
        if op.type == "Placeholder":
            tensor, drawn = op.outputs[0], [np.random.default_rng([17, step]) for step in range(helped.N_BATCHES)]
            shape, dtype = tensor.shape.as_list(), tensor.dtype
            values = [rng.integers(0, 2, shape) if dtype.is_integer else rng.normal(size=shape) for rng in drawn]
            inputs[tensor] = tuple(value.astype(dtype.as_numpy_dtype) for value in values)
    return helped.Built(loss, inputs, (loss,))


@cache
def recorded(name: str, optimizer: str) -> helped.Recorded:
    function: Callable[[], helped.Built] = models.FUNCTIONS.get(name) or partial(small_of_zoo, name)
    return helped.record(function, optimizer)


@dataclass(frozen=True)
class Program:
    """A model with a random plan in stages.

    Attributes:
        placed: the devices of the operators that were placed; empty where the plan wasn't searched.
    """

    model: helped.Recorded
    plan: Plan
    placed: dict[str, tuple[int, ...]]


def devices_of(seed: int) -> int:
    """Return the number of emulated devices of a seed's program."""
    return (4, 6, 8)[(seed + seed // len(NAMES)) % 3]


def random_program(seed: int, n_devices: int) -> Program:
    """Return the program of a seed: one in four is searched with some of its operators placed, others are at random."""
    rng = random.Random(f"program {seed} on {n_devices}")
    name = NAMES[seed % len(NAMES)]
    model = recorded(name, rng.choice(WITHOUT_ADAM if name in OF_ZOO else sorted(helped.HYPERPARAMETERS)))
    shapes = [f"v100-1x{n_devices}", *([f"v100-2x{n_devices // 2}"] if n_devices % 2 == 0 else [])]
    hardware = named(rng.choice(shapes))
    n_trained = sum(op.is_trainable for op in model.graph.variables)
    schedules = (*SCHEDULES, INTERLEAVED) if n_trained >= MOST_STAGES else OF_OWN_SUBMESHES
    n, schedule = rng.choice((2, 2, 2, 4)), rng.choice(schedules)
    per_block = 2 if schedule == INTERLEAVED else 1
    blocks = _random_blocks(rng, hardware, rng.randint(2, min(MOST_STAGES // per_block, n_trained // per_block, n_devices)))
    stages = random_cuts(model, len(blocks) * per_block, rng.randrange(10**6))
    if schedule != INTERLEAVED and rng.random() < 0.25:
        return _placed(rng, model, stages, blocks, hardware, n, schedule)
    return Program(model, random_plan(rng, model, stages, blocks * per_block, hardware, n, schedule), {})


def random_plan(
    rng: random.Random,
    model: helped.Recorded,
    stages: Stages,
    blocks: tuple[Block, ...],
    hardware: Hardware,
    n: int,
    schedule: str,
) -> Plan:
    """Return a plan of a model in stages, with random strategies, micro-batches in flight and deferred."""
    planned, n_submeshes = [], len(set(blocks))
    order = interleaved(rng, stages.n, n, n_submeshes) if n_submeshes < stages.n else None
    for part, last_operator, block in zip(stages.models, (*stages.cuts, ""), blocks, strict=True):
        mesh = hardware.mesh(block.size)
        shares = (rng.choice((0.0, 0.3)), rng.choice((0.0, 0.3)))
        view = random_stage_view(part, n, mesh, rng.randrange(10**6), block.devices, *shares)
        (stage,) = as_plan(view.per_micro_batch, rng.randrange(1000), part, hardware, n).stages
        in_flight, deferred = rng.randint(1, n), rng.randint(0, n) if schedule == ZERO_BUBBLE else 0
        in_flight = in_flight if order is None else order.in_flight[part.index]
        held = {"in_flight": in_flight, "deferred": deferred, "peak_bytes": 0}
        own = tuple(replace(op, is_stand_in=op.name not in model.graph.operators) for op in stage.operators)
        planned.append(replace(stage, devices=block.devices, last_operator=last_operator, operators=own, **held))
    return Plan(
        stages=tuple(planned),
        mesh=hardware.mesh(hardware.n_devices),
        exact=False,
        option="random",
        schedule=schedule,
        interleaving=order and order.interleaving,
        micro_batches=n,
        time_us=0.0,
        model_digest=model.graph.digest,
        timeline=NOTHING_SHOWN,
    )


def _random_blocks(rng: random.Random, hardware: Hardware, n_stages: int) -> tuple[Block, ...]:
    """Return random numbers of devices for stages, as stages can have them."""
    n_devices = hardware.n_devices
    while True:
        ends = [0, *sorted(rng.sample(range(1, n_devices), n_stages - 1)), n_devices]
        blocks = blocks_of(np.diff(ends).tolist())
        if all(is_submesh(hardware, block) for block in blocks):
            return blocks


def _placed(
    rng: random.Random,
    model: helped.Recorded,
    stages: Stages,
    blocks: tuple[Block, ...],
    hardware: Hardware,
    n: int,
    schedule: str,
) -> Program:
    """Return a program whose plan is searched, with an operator of some stages placed.

    What is drawn may be refused, since stages have their devices in the order of the program and each needs a trained
    variable between the operators placed: then others are drawn.
    """
    for _ in range(MOST_DRAWS):
        placed = _random_placement(rng, model, stages, blocks)
        force = {name: {"devices": list(devices)} for name, devices in placed.items()}
        request = replace(request_of(model.model, hardware, None, force, micro_batches=n), budget=Budget(seconds=0))
        try:
            plan = find_answer_with_stages("mini_time", request, hardware.n_devices, (stages.n,), schedule)
        except InputError as error:
            if not any(sentence in str(error) for sentence in IMPOSSIBLE):
                raise
            continue
        assert isinstance(plan, Plan)
        return Program(model, plan, placed)
    raise AssertionError(f"no placement of {MOST_DRAWS} is possible")


def _random_placement(
    rng: random.Random, model: helped.Recorded, stages: Stages, blocks: tuple[Block, ...]
) -> dict[str, tuple[int, ...]]:
    """Return the devices of one operator that uses a trained variable, of each of some stages."""
    placed = {}
    for number in rng.sample(range(stages.n), rng.randint(1, stages.n)):
        members = [name for name in model.graph.operators if name in stages.members[number]]
        trained = [op.name for op in model.graph.variables if op.is_trainable]
        used = [op.name for name in members if name in trained for op in model.graph.consumers[_result(model, name)]]
        placed[rng.choice([name for name in used if name in members])] = blocks[number].devices
    return placed


def _result(model: helped.Recorded, name: str) -> str:
    return model.graph.operators[name].result.name


def engine_of(program: Program, processes: Processes, collectives: str) -> StagedEngine:
    """Return the engine that runs a program on these processes."""
    values = program.model.first_values
    return execute_staged(program.plan, program.model.model, lambda name: values[name], processes, collectives).engine


def check_training(engine: StagedEngine, model: helped.Recorded, tolerance: float = 1e-10) -> None:
    """Check that three steps have one device's losses, and an evaluation after them its metrics."""
    fetch = training_fetch(model)
    for step, batch in enumerate(model.batches):
        ((loss,),) = engine.run(fetch, feeds_of(model.graph, batch))
        assert_close(loss, model.reference.losses[step], tolerance, f"the loss of step {step}")
    evaluate_and_check(engine, model, tolerance)  # type: ignore[arg-type]


def check_emulated(program: Program) -> None:
    """Check that a program has one device's losses, variables and metrics, all ranks emulated, and is where it is placed."""
    for operator, devices in program.placed.items():
        (stage,) = (each for each in program.plan.stages if operator in {op.name for op in each.operators})
        assert stage.devices == devices
    engine, model = engine_of(program, Processes(0, 1, ("here",)), EMULATED), program.model
    check_numbers(model, engine)


def check_numbers(model: helped.Recorded, engine: StagedEngine, tolerance: float = 1e-10) -> None:
    """Check that three steps have one device's losses, variables and metrics, all ranks emulated."""
    check_training(engine, model, tolerance)
    check_variables(engine, model, tolerance)


def check_variables(engine: StagedEngine, model: helped.Recorded, tolerance: float = 1e-10) -> None:
    """Check that all variables of emulated stages have one device's values, each in one stage."""
    held = []
    for stage, part in engine.engines.items():
        held += part.variables
        for variable, shards in part.variables.items():
            result = part.graph.operators[variable].result
            whole = gather([shard.numpy() for shard in shards], part.view.layout(result), result.shape)
            if variable.endswith("key/bias"):  # whose gradient is zero, since attention is that of differences
                assert np.abs(whole).max() < 1e-12
            elif variable in model.reference.variables:
                assert_close(whole, model.reference.variables[variable], tolerance, f"variable {variable} of stage {stage}")
    assert sorted(held) == sorted(op.name for op in model.graph.variables)
