"""The step program: its invariants hold for random strategies, it reads as text, and the lowering emits just its tasks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import accumulate.models
import composite.models
import pytest
from helpers import zoo
from helpers.large import first
from helpers.strategies import engine_of, feeds_of, random_router, random_strategy

from tensoropt.ir.body import ALIASES
from tensoropt.ir.graph import CONSTANT, PLACEHOLDER
from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.program.fetch import Fetch
from tensoropt.program.invariants import check_program
from tensoropt.program.step import StepProgram, step_program
from tensoropt.program.tasks import (
    BACKWARD,
    COMMUNICATING,
    COMPUTE,
    COMPUTING,
    FEED,
    FORWARD,
    OPERATOR,
    OVERLAPPABLE,
    REMATERIALIZED,
    RESHARD,
    RESULT,
    SUM,
    UPDATE,
    WRITE,
    Site,
    Task,
)
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.step import function_emission as emission
from tensoropt.runtime.step.step_emission import StepEmission
from tensoropt.sharding.strategy import StrategyView

MODELS = (zoo.mlp, zoo.cnn, zoo.attention, zoo.windows, zoo.broadcasting, *composite.models.MODELS)


@pytest.mark.parametrize("function", MODELS)
def test_invariants_hold_for_random_strategies(function: Callable[[], zoo.Built]) -> None:
    model = zoo.record(function, "adam")
    for seed in range(12):
        view = random_strategy(model, Mesh.of(2, 2), seed, share_regathered=0.5, share_rematerialized=0.5 * (seed % 3))
        program = step_program(view, random_router(seed))
        check_program(program, model.graph)
        updated = [task.site.name for task in program.tasks if task.work == UPDATE]
        assert sorted(updated) == sorted(op.name for op in model.graph.variables if op.is_trainable)


@pytest.mark.parametrize("name", accumulate.models.FUNCTIONS)
def test_invariants_hold_in_micro_batches(name: str) -> None:
    for seed in range(6):
        shares = {"share_regathered": 0.5, "share_rematerialized": 0.5 * (seed % 3)}
        view = accumulate.models.random_view(name, "adam", (2, 4)[seed % 2], Mesh.of(2), seed, **shares)[1]
        program = step_program(view, random_router(seed))
        check_program(program, view.graph)
        assert {task.micro_batch for task in program.tasks} == {-1, *range(view.graph.n_micro_batches)}


def test_gradients_of_rows_may_overlap() -> None:
    streams = set[str]()
    for seed in range(6):
        view = accumulate.models.random_view("looking_up", "sgd", 2, Mesh.of(2), seed)[1]
        rows = {Site(RESULT, view.graph.operators[name].result.name) for name in view.graph.lookup_operators}
        tasks = [task for task in step_program(view, random_router(seed)).tasks if task.site in rows]
        streams |= {task.stream for task in tasks if (task.work, task.direction) == (RESHARD, BACKWARD)}
    assert OVERLAPPABLE in streams and COMMUNICATING not in streams


@pytest.mark.parametrize("seed", first(1, range(12)))
@pytest.mark.parametrize("function", (zoo.cnn, zoo.attention))
def test_the_lowering_emits_the_tasks_of_the_program(
    function: Callable[[], zoo.Built], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted: list[Task] = []
    emit = StepEmission._emit

    def watched(self: StepEmission, task: Task) -> None:
        emitted.append(task)
        emit(self, task)

    monkeypatch.setattr(StepEmission, "_emit", watched)
    model, view = a_strategy(function, seed)
    built(model, view, seed)
    given = {feed.tensor.name for feed in feeds_of(model.graph, model.batches[0])}
    program = step_program(view, random_router(seed), fetch=Fetch((), ("train",)), given=given)
    assert emitted == list(program.tasks)
    # A function is that of all training steps, but for what is fetched.
    assert program.tasks == step_program(view, random_router(seed)).tasks


def a_strategy(function: Callable[[], zoo.Built], seed: int) -> tuple[zoo.Recorded, StrategyView]:
    model = zoo.record(function, "sgd")
    return model, random_strategy(model, Mesh.of(2, 2), seed, share_regathered=0.5, share_rematerialized=0.5)


def built(model: zoo.Recorded, view: StrategyView, seed: int) -> Counter[str]:
    """The names of the operators in the function of a step, without what tells those of the same name apart."""
    built = engine_of(model, view, random_router(seed), EmulatedBackend(view.strategy.mesh))
    function = built.function(Fetch((), ("train",)), tuple(feeds_of(model.graph, model.batches[0])))
    return Counter(re.sub(r"_\d+(?=/|$)", "", op.name) for op in function.call.graph.get_operations())


def with_readers(program: StepProgram, left_out: Task) -> set[Task]:
    """A task, and those that can't run without what it writes."""
    found, missing = {left_out}, set(left_out.writes)
    for task in program.tasks:
        reads = any(program.source(value) in missing for value in (*task.all_reads, *task.after))
        if reads or (task.work == UPDATE and task.site == left_out.site):
            found.add(task)
            missing.update(task.writes)
    return found


KINDS = (
    *((work, FORWARD) for work in (FEED, COMPUTE, RESHARD, WRITE)),
    *((work, BACKWARD) for work in (FEED, COMPUTE, RESHARD, SUM, UPDATE)),
    *((work, REMATERIALIZED) for work in (COMPUTE, RESHARD)),
)


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_what_is_no_task_is_not_emitted(kind: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, view = a_strategy(zoo.cnn, 0)
    types = {name: op.type for name, op in model.graph.operators.items()}
    whole = step_program(view, random_router(0))
    task = next(
        each
        for each in whole.tasks
        if (each.work, each.direction) == kind
        and types.get(each.site.name) not in (*ALIASES, CONSTANT, PLACEHOLDER)
        and (each.work != RESHARD or each.stream != COMPUTING)
    )
    dependent = with_readers(whole, task)
    names = []
    for left_out in (dependent - {task}, dependent):
        tasks = tuple(each for each in whole.tasks if each not in left_out)
        n_forward = sum(each.direction == FORWARD for each in tasks)
        program = replace(whole, tasks=tasks, passes=(0, n_forward, len(tasks), len(tasks)))
        monkeypatch.setattr(emission, "step_program", lambda *_, program=program, **__: program)
        names.append(built(model, view, 0))
    with_it, without_it = names
    assert with_it > without_it, f"without {task} there is as much: {without_it - with_it}"


def two_layers() -> zoo.Built:
    api = zoo.tf.compat.v1
    x = api.placeholder(api.float64, [8, 4], name="x")
    w = api.get_variable("w", [4, 4], api.float64)
    value = api.matmul(api.tanh(api.matmul(x, w, name="first"), name="tanh"), w, name="second")
    drawn = tuple(zoo.np.ones((zoo.N_BATCHES, 8, 4)))
    return zoo.Built(api.reduce_sum(value, name="loss"), {x: drawn}, ())


def program_of_two_layers() -> tuple[zoo.Recorded, StepProgram]:
    model = zoo.record(two_layers, "sgd")
    view = random_strategy(model, Mesh.of(1), 0)
    return model, step_program(replace(view, strategy=replace(view.strategy, shared={})), random_router(0))


def test_a_program_reads_as_one_line_a_task() -> None:
    _, program = program_of_two_layers()
    assert str(program).splitlines()[-7:] == [
        "feed gradient of train[-1]: train[-1] -> d(train[-1])",
        "compute gradient of loss: d(train[-1]) -> d(loss[0])",
        "compute gradient of second: d(loss[0]), second[0], second[1] -> d(second[0]), d(second[1])",
        "compute gradient of tanh: d(second[0]), tanh:0 -> d(tanh[0])",
        "compute gradient of first: d(tanh[0]), first[0] -> d(first[1])",
        "sum gradient of w:0: d(second[1]), d(first[1]) -> d(w:0)+2",
        "update gradient of w: d(w:0)+2 -> nothing",
    ]


def without(program: StepProgram, drop: Callable[[Task], bool]) -> StepProgram:
    return replace(program, tasks=tuple(task for task in program.tasks if not drop(task)))


def swapped(program: StepProgram, work: str) -> StepProgram:
    """The program with the last task of a kind before the one ahead of it."""
    tasks = list(program.tasks)
    index = max(i for i, task in enumerate(tasks) if task.work == work)
    tasks[index - 1 : index + 1] = tasks[index], tasks[index - 1]
    return replace(program, tasks=tuple(tasks))


FAULTS: dict[str, tuple[Callable[[StepProgram], StepProgram], str]] = {
    "a task is missing": (
        lambda program: without(program, lambda task: task.site == Site(OPERATOR, "tanh") and task.direction == BACKWARD),
        r"d\(tanh\[0\]\) is read, which no earlier task writes",
    ),
    "a task comes twice": (
        lambda program: replace(program, tasks=(*program.tasks, program.tasks[-3])),
        "is used a second time",
    ),
    "a gradient isn't summed": (
        lambda program: replace(
            program,
            tasks=(
                *(task for task in program.tasks if task.work not in (SUM, UPDATE)),
                replace(program.tasks[-1], reads=program.tasks[-2].reads[:1]),
            ),
        ),
        r"d\(second\[1\]\) lacks d\(first\[1\]\)",
    ),
    "a sum comes too early": (lambda program: swapped(program, SUM), "is read, which no earlier task writes"),
    "an update comes before its gradient": (lambda program: swapped(program, UPDATE), "which no earlier task writes"),
    "an operator communicates": (
        lambda program: replace(
            program,
            tasks=tuple(replace(task, stream="communication") if task.work == COMPUTE else task for task in program.tasks),
        ),
        "compute is in the stream of communication",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_program_is_refused_with_the_tasks_around(fault: str) -> None:
    model, program = program_of_two_layers()
    check_program(program, model.graph)
    broken, message = FAULTS[fault]
    with pytest.raises(AssertionError, match=message) as error:
        check_program(broken(program), model.graph)
    marked = [line for line in str(error.value).splitlines() if line.startswith("-> ")]
    assert len(marked) == 1 and len(str(error.value).splitlines()) >= 4


def test_an_old_value_of_a_variable_is_not_read_after_its_update() -> None:
    model, program = program_of_two_layers()
    *tasks, update = program.tasks
    late = replace(program, tasks=(*tasks, update, Task(RESHARD, BACKWARD, update.site, (tasks[-4].reads[1],), ())))
    with pytest.raises(AssertionError, match="is read after the update of its variable"):
        check_program(late, model.graph)
