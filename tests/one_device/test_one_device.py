"""Whatever the model, strategy, stages, order of passes, rematerialization and micro-batches: one device's numbers.

Losses of three steps, metrics and all variables after them, to 1e-10 of each tensor's largest magnitude in float64, by plans
that were written to JSON and read back; without stages also the collectives that are charged. What can't be is refused by a
sentence that is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.large import first
from helpers.mpirun import run_ranks
from helpers.searches import find_frontier, plans_of
from helpers.strategies import feeds_of, training_fetch

from one_device.drawing import drawn, plan_of, refusal
from one_device.models import recorded
from one_device.running import ALONE, check, engine_of
from tensoropt.profiling.hardware import named
from tensoropt.program.step import StepProgram, step_program
from tensoropt.program.tasks import BACKWARD, COMPUTE, CUT, FEED, FORWARD, JOIN, SEND, SENT, Task
from tensoropt.runtime.step import function_emission as emission

WORKER = Path(__file__).with_name("worker.py")
N_EMULATED, N_RUNS, IN_A_RUN = 1700, 75, 4
"""How many are drawn in all. By default 45 are emulated, three optimized, six take more steps, and two runs are on ranks."""

AHEAD = [(13, 4), (625, 4), (1453, 4), (2065, 4), (2569, 4)]  # seeds, and devices: a stage looks up rows ahead


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize(("seed", "n"), first(45, ((seed, None) for seed in range(N_EMULATED))) + first(2, AHEAD))
def test_emulated_devices_give_one_device_numbers(seed: int, n: int | None) -> None:
    check(drawn(seed, n))


@pytest.mark.parametrize("seed", first(3, (7, 12, 18, 21, 25, 30)))
def test_numbers_stay_with_tensorflows_graph_optimizer(seed: int) -> None:
    """TensorFlow's graph optimizer merges equal operators and removes control dependencies."""
    check(replace(drawn(seed), rematerialized=0.8, regathered=0.3))


@pytest.mark.parametrize("seed", first(6, range(60)))
def test_several_training_steps_give_one_device_numbers(seed: int) -> None:
    check(drawn(seed, name="adversarial"))


@pytest.mark.parametrize("run", first(2, range(N_RUNS)))
def test_ranks_give_one_device_numbers(run: int) -> None:
    n_ranks = (4, 2, 3)[run % 3]
    seeds = [3 * (run * IN_A_RUN + number) for number in range(IN_A_RUN - 1)]  # of all kinds of models in a few runs
    result = run_ranks(n_ranks, "-m", "mpi4py", WORKER, *seeds, f"{run}:adversarial", timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"of {IN_A_RUN} draws trained on {n_ranks} ranks" in result.stdout


@pytest.mark.parametrize("seeds", first(0, [((0, 1, 2, 3, 10),), ((11, 12, 13, 14, 15),)]))
def test_stages_by_tensorflow_s_collectives_give_one_device_numbers(seeds: tuple[int, ...]) -> None:
    """Two or three stages, of which some are of several ranks: their collectives and messages are one chain."""
    result = run_ranks(4, "-m", "mpi4py", WORKER, *seeds, timeout=280, env={"TENSOROPT_COLLECTIVES": "tensorflow"})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "5 of 5 draws trained on 4 ranks" in result.stdout


def test_a_plan_in_micro_batches_of_one_sample_is_for_its_model() -> None:
    """There a reshape's dimensions have other names than in the whole batch."""
    model = recorded("attention of 8", "sgd").model
    found = plans_of(find_frontier(model, named("v100-1x2"), 2, micro_batches=8))
    for point in range(len(found)):
        found.plan(point).check_for(model)


EXCHANGES: Mapping[str, Callable[[Task], bool]] = {
    "send": lambda task: (task.work, task.direction) == (SEND, FORWARD),
    "send back": lambda task: (task.work, task.direction) == (SEND, BACKWARD),
    "receive": lambda task: task.work == FEED and "/received_" in task.site.name and bool(task.writes),
    "receive a gradient": lambda task: (task.work, task.direction, task.reads) == (FEED, BACKWARD, ()),
    "join micro-batches": lambda task: task.work == JOIN,
    "look up ahead": lambda task: (task.work, task.site.name, task.micro_batch) == (COMPUTE, "Gather", -1),
    "cut ahead": lambda task: task.work == CUT,
    "send ahead": lambda task: (task.work, task.direction) == (SEND, FORWARD),
    "receive a gradient of what was sent ahead": lambda task: (task.direction, task.site.kind) == (BACKWARD, SENT),
    "join gradients of what was sent ahead": lambda task: (task.work, task.direction) == (JOIN, BACKWARD),
}


@pytest.mark.parametrize("kind", EXCHANGES)
def test_what_no_task_exchanges_is_not_there(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a task that sends or receives a tensor or its gradient, or joins a tensor's parts, a step can't be built."""
    of_stages = (draw for seed in range(99) if (draw := drawn(seed)).n_stages == 2 and draw.n > 1 and not refusal(draw))
    draw = drawn(*AHEAD[0]) if "ahead" in kind else next(of_stages)
    engine, feeds = engine_of(draw, plan_of(draw), ALONE), feeds_of(draw.model.graph, draw.model.batches[0])
    n_left_out = 0

    def without_one(*given: Any, **options: Any) -> StepProgram:
        nonlocal n_left_out
        program = step_program(*given, **options)
        at = next((i for i, task in enumerate(program.tasks) if EXCHANGES[kind](task)), None)
        if at is None or n_left_out:
            return program
        n_left_out += 1
        passes = tuple(place - (place > at) for place in program.passes)
        return replace(program, tasks=program.tasks[:at] + program.tasks[at + 1 :], passes=passes)

    monkeypatch.setattr(emission, "step_program", without_one)
    with pytest.raises(KeyError):  # the message that was to come, or the value that it brings
        engine.function(training_fetch(draw.model), tuple(feeds))
    assert n_left_out == 1
