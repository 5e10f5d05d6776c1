"""Draws run, on emulated devices or on real ranks, and held to one device's numbers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.strategies import assert_close, assert_collectives_are_charged, evaluate_and_check, feeds_of, training_fetch
from oracles.shards import gather

from one_device.drawing import Draw, plan_of, refusal
from one_device.models import MODELS
from tensoropt.common.errors import InputError
from tensoropt.ir.graph import Tensor
from tensoropt.plan.plan import Plan
from tensoropt.program.tasks import Task
from tensoropt.runtime.engine import Engine
from tensoropt.runtime.execute import EMULATED, checked_collectives
from tensoropt.runtime.execution import execute
from tensoropt.runtime.ranks import Processes
from tensoropt.runtime.step.step_emission import StepEmission

ALONE = Processes(0, 1, ("here",))


def check(draw: Draw, processes: Processes = ALONE) -> bool:
    """Check that a draw trains with one device's numbers, or is refused as it is listed; return whether it trains.

    Several processes each run one of the devices; rank 0 draws the plan.
    """
    expected = refusal(draw)
    try:
        if expected is None:
            _check_trained(draw, processes)
        else:
            _check_refused(draw, expected)
    except Exception as error:
        error.add_note(str(draw))
        raise
    return expected is None


def _check_refused(draw: Draw, expected: str) -> None:
    try:
        plan_of(draw)
    except InputError as error:
        assert re.search(expected, str(error)), f"refused, but not by {expected!r}: {error}"
    else:
        raise AssertionError(f"there is a plan, which is to be refused by {expected!r}")


def _check_trained(draw: Draw, processes: Processes) -> None:
    plan = plan_of(draw)
    value = json.loads(json.dumps(plan.to_json()))
    plan = Plan.from_json(value if processes.is_alone else processes.broadcast(value))
    check_numbers(draw, engine_of(draw, plan, processes), processes)


def check_numbers(draw: Draw, engine: Engine, processes: Processes) -> None:
    """Check that three steps have one device's losses, and then metrics and variables."""
    model = draw.model
    fetch, tolerance = training_fetch(model), MODELS[draw.name].tolerance
    inner = _inner(draw) if engine.stages.n > 1 and draw.seed % 2 else []
    fetch = replace(fetch, tensors=(*fetch.tensors, *((tensor, is_local) for tensor in inner for is_local in (True, False))))
    with held_to_programs():
        for step, batch in enumerate(model.batches):
            losses, *values = engine.run(fetch, feeds_of(model.graph, batch))
            _check_shards(engine, inner, values, processes)
            for loss in losses:
                assert loss.tobytes() == losses[0].tobytes(), f"the loss of step {step} has other bits on another rank"
            assert_close(losses[0], model.reference.losses[step], tolerance, f"the loss of step {step}")
        if engine.stages.n == 1:
            assert_collectives_are_charged(engine, model)
        evaluate_and_check(engine, model, tolerance)  # type: ignore[arg-type]
    _check_variables(draw, engine, processes)


def _inner(draw: Draw) -> list[Tensor]:
    """Return some tensors of the training step, of any stages."""
    graph = draw.model.graph
    names = graph.operators_of(graph.train_steps["train"])
    return draw.rng.sample([t for op in graph.operators.values() if op.name in names for t in op.outputs], 3)


def _check_shards(engine: Engine, tensors: Sequence[Tensor], values: Sequence[Any], processes: Processes) -> None:
    """Check that what ranks fetch of tensors by themselves makes up the whole; ranks of other stages have nothing of it."""
    for number, tensor in enumerate(tensors):
        own, whole = values[2 * number : 2 * number + 2]
        view = engine.views[engine.stages.home(tensor)]
        assert processes.is_alone or len(own) == (processes.rank in view.devices)
        shards = own if processes.is_alone else [shard for each in processes.comm.allgather(own) for shard in each]
        made = gather(shards, view.whole.layout(tensor).with_partial(()), tensor.shape)
        assert_close(made, whole[0], 1e-12, f"shards of {tensor.name}")


@contextmanager
def held_to_programs() -> Iterator[None]:
    """Hold that whatever is emitted, pass by pass, is the tasks of its program: all of them, each once."""
    emitted: dict[StepEmission, Counter[Task]] = {}
    with pytest.MonkeyPatch.context() as patched:
        emit = StepEmission._emit

        def watched(self: StepEmission, task: Task) -> None:
            emitted.setdefault(self, Counter())[task] += 1
            emit(self, task)

        patched.setattr(StepEmission, "_emit", watched)
        yield
    assert emitted and all(tasks == Counter(each._program.tasks) for each, tasks in emitted.items())


def engine_of(draw: Draw, plan: Plan, processes: Processes) -> Engine:
    """Return the engine that runs a plan on these processes."""
    values, collectives = draw.model.first_values, EMULATED if processes.is_alone else checked_collectives(None)
    engine = execute(plan, draw.model.model, lambda name: values[name], processes, collectives).engine
    if engine.stages.n == 1:
        engine.states[0].in_order |= draw.in_order
    elif processes.is_alone:
        engine.machine_of = tuple(sorted(draw.rng.choices((0, 1), k=draw.n_devices)))
    return engine


def _check_variables(draw: Draw, engine: Engine, processes: Processes) -> None:
    """Check that all variables have one device's values, and replicas the same bits."""
    model, tolerance = draw.model, MODELS[draw.name].tolerance
    held = [entry for entry in engine.state() if entry.step is None]
    assert sorted(entry.key for entry in held) == sorted(op.name for op in model.graph.variables)
    own = {entry.key: {r: v.numpy() for r, v in zip(entry.ranks, entry.variables, strict=True)} for entry in held}
    everywhere: list[Mapping[str, Mapping[int, np.ndarray]]] = [own] if processes.is_alone else processes.comm.allgather(own)
    for entry in held:
        shards = {rank: value for each in everywhere for rank, value in each[entry.key].items()}
        whole = gather([shards[rank] for rank in sorted(shards)], entry.layout, entry.shape)
        if entry.key.endswith("key/bias"):  # whose gradient is zero, since attention is that of differences
            assert np.abs(whole).max() < 1e-12
        else:
            assert_close(whole, model.reference.variables[entry.key], tolerance, f"variable {entry.key}")


def over_links(processes: Processes) -> Processes:
    """Return the ranks as if each had a machine of its own: they nap, and sums of gradients have a chain of their own."""
    return replace(processes, hosts=tuple(map(str, range(processes.size))), ranks_per_core=2.0)
