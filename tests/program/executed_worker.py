"""Trace a step of random strategies on each rank, and hold what ran against the step program, for ``test_executed.py``.

TensorFlow's graph optimizer is off, so that each operator of the graph runs under its own name. What needs no kernel leaves
no trace: views, and gradients that are another gradient (an addition's) or a constant (a sum's). Of operators that have a
kernel for each task and each operand's gradient, kernels are counted; others are held to have run, and nothing else. Then
draws in two stages, of a rank or two each, with messages counted, too. A rank that finds a difference ends all ranks.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any

from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensorflow as tf
from helpers import zoo
from helpers.strategies import engine_of, feeds_of, random_router, random_strategy, training_fetch
from one_device.drawing import Draw, drawn, plan_of
from one_device.running import engine_of as stages_engine_of

from tensoropt.ir.body import ALIASES
from tensoropt.lowering.resharding.backends import CommunicatingBackend
from tensoropt.plan.plan import Plan
from tensoropt.profiling.collective_tables import device_partitions
from tensoropt.profiling.trace import OperatorEvent, traced_step
from tensoropt.program.step import StepProgram, step_program
from tensoropt.program.tasks import BACKWARD, COMPUTE, COMPUTING, FEED, FORWARD, REMATERIALIZED, SEND, SUM, UPDATE, Value
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.collectives.mpi import MpiCommunicator
from tensoropt.runtime.measuring.local_hardware import prepared_processes
from tensoropt.runtime.ranks import Processes
from tensoropt.runtime.step import function_emission as emission
from tensoropt.sharding.resharding import PathFinder, inner_reshardings
from tensoropt.sharding.strategy import StrategyView

COMM = MPI.COMM_WORLD
MODELS = (zoo.mlp, zoo.cnn, zoo.attention)
GRADIENT_KERNELS = {
    "BatchMatMulV2": ("BatchMatMulV2",), "BiasAdd": ("BiasAddGrad",),
    "Conv2D": ("Conv2DBackpropFilter", "Conv2DBackpropInput"), "Einsum": ("Einsum",), "MatMul": ("MatMul",),
    "MaxPool": ("MaxPoolGrad",), "Relu": ("ReluGrad",), "Rsqrt": ("RsqrtGrad",), "Sigmoid": ("SigmoidGrad",),
    "Tanh": ("TanhGrad",),
}  # fmt: skip
"""Types whose gradients have a kernel of their own for each operand, whatever the shapes, and the types of these kernels."""
Kernels = Counter[tuple[str, str]]
"""How many kernels ran, by the model's operator and their type."""
_PASS = r"(?:micro_batch_\d+/)?gradients(?:_\d+)?/"
_SCOPE = rf"{_PASS}(?:(?:gradients(?:_\d+)?/)?rematerialized(?:_\d+)?/)?"
_GRADIENT, _AGAIN = re.compile(_SCOPE + r"(.+?)_grad(?:_\d+)?/"), re.compile(rf"{_PASS}rematerialized(?:_\d+)?/(.+)")
_MICRO_BATCH = re.compile(r"micro_batch_\d+/")


def operator_of(name: str, operators: Container[str]) -> str | None:
    """The model's operator that TensorFlow's operator is, or is a part of."""
    while name and name not in operators:
        name = name.rpartition("/")[0]
    return name or None


def ran(events: tuple[OperatorEvent, ...], view: StrategyView) -> dict[str, Kernels]:
    """How many kernels ran for each operator, by direction."""
    found: dict[str, Kernels] = {way: Counter() for way in (FORWARD, BACKWARD, REMATERIALIZED)}
    operators = {op.name for op in view.graph.step_operators if op.updates is None}
    for event in events:
        gradient, again = _GRADIENT.match(event.name), _AGAIN.match(event.name)
        way = BACKWARD if gradient else REMATERIALIZED if again else FORWARD
        match = gradient or again
        name = operator_of(_MICRO_BATCH.sub("", match[1] if match else event.name, count=1), operators)
        if name is not None:
            found[way][name, event.type] += 1
    return found


def expected(program: StepProgram, view: StrategyView, way: str) -> Counter[str]:
    """How many tasks compute each operator, without views, and without what is made again and then not read."""
    read: set[Value] = set()
    found: Counter[str] = Counter()
    for task in reversed(program.tasks):
        if task.direction == REMATERIALIZED and task.stream == COMPUTING and read.isdisjoint(task.writes):
            continue
        read.update(map(program.source, task.all_reads))
        if (task.work, task.direction) == (COMPUTE, way) and view.graph.operators[task.site.name].type not in ALIASES:
            found[task.site.name] += 1
    return found


def n_gradients(program: StepProgram, view: StrategyView) -> Counter[str]:
    """How many kernels compute the gradients of each operator whose type is in ``GRADIENT_KERNELS``."""
    found: Counter[str] = Counter()
    for task in program.tasks:
        if (task.work, task.direction) == (COMPUTE, BACKWARD):
            kind = view.graph.operators[task.site.name].type
            # An addition's gradient is its result's; that of the bias is a sum.
            found[task.site.name] += sum(kind != "BiasAdd" or value.site.position == 1 for value in task.writes)
    return Counter({name: n for name, n in found.items() if view.graph.operators[name].type in GRADIENT_KERNELS})


def is_written_out(name: str, view: StrategyView) -> bool:
    """Whether an operator is lowered to others with names of their own: a mean of a part, a softmax over split classes."""
    config = view.strategy.configs[name]
    return view.graph.operators[name].type == "Mean" or any(config.axes_of(factor) for factor in view.rules[name].inner)


def n_collectives(program: StepProgram, view: StrategyView, path_finder: PathFinder) -> int:
    """The paths that communicate: reshardings, and those inside of operators."""
    found = sum(task.stream != COMPUTING for task in program.tasks)
    for task in program.tasks:
        if task.work != COMPUTE:
            continue
        op = view.graph.operators[task.site.name]
        config, differentiated = view.strategy.configs[op.name], view.backward.positions(op)
        for inner in inner_reshardings(op, view.rules[op.name], config, differentiated):
            paths = path_finder.paths(inner)
            path = paths.backward if task.direction == BACKWARD else paths.forward
            found += path is not None and path.communicates
    return found


def check(model: zoo.Recorded, mesh: Mesh, backend: CommunicatingBackend, seed: int) -> str:
    """Trace a step; what it ran, as text."""
    view = random_strategy(model, mesh, seed, share_regathered=0.5, share_rematerialized=0.4)
    path_finder = random_router(seed)
    engine, feeds = engine_of(model, view, path_finder, backend), feeds_of(model.graph, model.batches[0])
    engine.run(training_fetch(model), feeds)
    events = traced_step(lambda: engine.run(training_fetch(model), feeds)).operators
    program, found = step_program(view, path_finder), ran(events, view)
    names = {way: {name for name, _ in kernels} for way, kernels in found.items()}
    for way in (FORWARD, REMATERIALIZED):
        wanted = expected(program, view, way)
        missing = {name for name in wanted if name not in names[way] and not is_written_out(name, view)}
        assert names[way] <= set(wanted) and not missing, (seed, way, names[way] - set(wanted), missing)
        own = {name: view.graph.operators[name].type for name in wanted}
        twice = {name: found[way][name, own[name]] for name in wanted if own[name] in GRADIENT_KERNELS}
        assert twice == {name: wanted[name] for name in twice}, (seed, way, twice)
    gradients = expected(program, view, BACKWARD)
    assert names[BACKWARD] <= set(gradients), (seed, names[BACKWARD] - set(gradients))
    for name, number in n_gradients(program, view).items():
        kinds = GRADIENT_KERNELS[view.graph.operators[name].type]
        got = sum(found[BACKWARD][name, kind] for kind in kinds)
        assert got == number, (seed, name, got, number)
    types = Counter(event.type for event in events)
    counts = {
        "collectives": (types["PyFunc"], n_collectives(program, view, path_finder)),
        "sums": (types["AddN"], sum(task.work == SUM for task in program.tasks)),
        "updates": (
            sum(n for kind, n in types.items() if kind.startswith("ResourceApply")),
            sum(task.work == UPDATE for task in program.tasks),
        ),
    }
    # What an operator is written out as may have sums of its own.
    has_sums_inside = any(is_written_out(name, view) for name in gradients)
    for what, (got, number) in counts.items():
        assert got == number or (what == "sums" and has_sums_inside and got > number), (seed, what, got, number)
    numbers = [f"{len(names[way])} {way}" for way in names] + [f"{got} {what}" for what, (got, _) in counts.items()]
    return ", ".join(numbers)


def check_in_stages(draw: Draw, processes: Processes) -> str:
    plan, model = Plan.from_json(processes.broadcast(plan_of(draw).to_json())), draw.model
    own: list[tuple[StepProgram, StrategyView]] = []

    def recorded(view: StrategyView, *given: Any, **options: Any) -> StepProgram:
        own.append((step_program(view, *given, **options), view))
        return own[-1][0]

    emission.step_program = recorded  # type: ignore[attr-defined]
    engine, feeds = stages_engine_of(draw, plan, processes), feeds_of(model.graph, model.batches[0])
    engine.run(training_fetch(model), feeds)
    events = traced_step(lambda: engine.run(training_fetch(model), feeds)).operators
    ((program, view),) = own
    found, types = ran(events, view), Counter(event.type for event in events)
    kinds = {op.name: op.type for op in view.graph.step_operators if op.type in GRADIENT_KERNELS}
    wanted = {way: expected(program, view, way) for way in (FORWARD, REMATERIALIZED)}
    for way, counts in {**wanted, BACKWARD: n_gradients(program, view)}.items():
        kernels = {name: GRADIENT_KERNELS[kind] if way == BACKWARD else (kind,) for name, kind in kinds.items()}
        got = {name: sum(found[way][name, kind] for kind in those) for name, those in kernels.items()}
        assert got == {name: counts[name] for name in kinds}, (str(draw), way, got, counts)
    ((number, state),) = engine.states.items()
    ends = {(each.tensor, FORWARD if each.target == number else BACKWARD) for each in engine.stages.crossings}
    received = [task for task in program.tasks if task.work == FEED and not task.reads and task.writes]
    messages = sum((task.writes[0].site.name, task.direction) in ends for task in received)
    messages += sum(task.work == SEND for task in program.tasks)
    sums = sum(task.work == SUM and len(task.reads) > 1 for task in program.tasks)
    wanted = n_collectives(program, view, state.path_finder), sums, sum(task.work == UPDATE for task in program.tasks)
    updates = sum(n for kind, n in types.items() if re.match("Resource(Sparse)?Apply", kind))
    # What an operator is written out as may have sums of its own.
    has_sums_inside = any(is_written_out(name, view) for name in expected(program, view, BACKWARD))
    ran_too = types["PyFunc"] - messages, min(types["AddN"], sums) if has_sums_inside else types["AddN"], updates
    assert ran_too == wanted, (str(draw), ran_too, wanted, messages)
    return f"{len(kinds)} kinds held, {messages} messages, {wanted[0]} collectives, {sums} sums, {updates} updates"


def main(first: int, last: int, *of_stages: int) -> None:
    processes = prepared_processes()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    mesh = Mesh.of(COMM.size)
    communicator = MpiCommunicator(COMM, mesh)
    communicator.prepare(device_partitions(mesh))
    backend = CommunicatingBackend(mesh, COMM.rank, communicator)
    models = [zoo.record(function, "sgd") for function in MODELS]
    for seed in range(first, last):
        told = check(models[seed % len(models)], mesh, backend, seed)
        for rank, line in enumerate(COMM.allgather(told)):
            if COMM.rank == 0:
                print(f"seed {seed}, rank {rank}: {line}", flush=True)
    for draw in (drawn(seed, COMM.size) for seed in of_stages):
        told = check_in_stages(draw, processes)
        for rank, line in enumerate(COMM.allgather(told)):
            if COMM.rank == 0:
                print(f"stages of draw {draw.seed}, rank {rank}: {line}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
