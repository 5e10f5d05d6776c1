"""One run from ``init`` to the last ``run``: what the public functions of :mod:`tensoropt` work on.

Rank 0 plans, the others get the plan; then every rank builds its own graph and runs it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path as FilePath
from typing import Any

import tensorflow as tf

from .backward import analyse
from .collectives.single import SingleCommunicator
from .curve import Curve
from .deliveries import PlainCosts
from .dump import dump
from .engine import Engine
from .errors import InputError, TensorOptError, short
from .fetching import plan_feeds, plan_fetches
from .first_values import FirstValues
from .forcing import Force
from .frontier import Model
from .importer import import_graph, initializer_names
from .ir import Graph, check
from .launch import usable_cores
from .lowering.backends import CommunicatingBackend, EmulatedBackend
from .lowering.deliver import Collective
from .memory_limit import default_limit, parse_memory
from .options import (
    OPTIONS,
    Request,
    assumptions,
    checked_force,
    mini_parallelism,
    mini_time,
    parallelisms,
    profiling,
)
from .plan import Plan
from .planning import check_deliveries
from .processes import current_processes, install_error_handling
from .profiling.hardware import Hardware, HardwareError, resolve
from .profiling.measure import Place, device_partitions, measure
from .recording import Recording
from .reschedule.layout import Axes, parse_axes
from .reschedule.mesh import Level, Mesh
from .rules.registry import rule_of
from .strategy import StrategyView

logger = logging.getLogger("tensoropt")
MEASUREMENT_BUDGET_S = 1.0


class Session:
    """Attributes:
    processes: the ranks of this run.
    hardware: what they run on, measured or given.
    plan: the one that is executed, after :meth:`build`.
    engine: runs it, after :meth:`build`.
    """

    def __init__(self, hardware: Hardware | str | None, seed: int | None) -> None:
        self.processes = current_processes()
        install_error_handling(self.processes)
        self._limit_threads()
        drawn = int.from_bytes(os.urandom(4), "little") if seed is None else seed
        self.seed = self.processes.broadcast(drawn)
        self.hardware = self._hardware(hardware)
        self.plan: Plan | None = None
        self.engine: Engine | None = None
        self._recording = Recording(self.seed)
        self._model: Model | None = None
        self._initializers: frozenset[str] = frozenset()

    # Set-up

    def _limit_threads(self) -> None:
        """Ranks of one machine share its cores; a number that the user has set stays."""
        if self.processes.local_size == 1 or "TF_NUM_INTRAOP_THREADS" in os.environ:
            return
        if tf.config.threading.get_intra_op_parallelism_threads() == 0:
            try:
                # A rank that is bound to its share of the cores sees only these.
                share = max(1, (os.cpu_count() or 1) // self.processes.local_size)
                tf.config.threading.set_intra_op_parallelism_threads(min(share, len(usable_cores())))
            except RuntimeError:
                logger.info("TensorFlow has started already; its threads stay as they are")

    def _hardware(self, given: Hardware | str | None) -> Hardware:
        if isinstance(given, Hardware):
            return given
        if given is not None:
            return resolve_cluster(given)
        processes = self.processes
        levels = (Level("machine", processes.machines), Level("device", processes.devices_per_machine))
        if processes.alone:
            _say_alone()
            return measure(levels, Place(), MEASUREMENT_BUDGET_S)
        from .collectives.mpi import MpiCommunicator

        mesh = Mesh(levels)
        communicator = MpiCommunicator(processes.comm, mesh, processes.begin_collective)
        communicator.prepare(device_partitions(mesh))
        place = Place(communicator, processes.rank, processes.local_size, processes.broadcast)
        measured = measure(levels, place, MEASUREMENT_BUDGET_S)
        communicator.free()
        return measured

    # Recording

    def recording_for(self, what: str) -> Recording:
        """The recording, for something that belongs before ``build_execution_graph``.

        Raises:
            InputError: the model has been built already.
        """
        if self.engine is not None:
            raise InputError(f"{what} comes before build_execution_graph; call tensoropt.init() to record another model")
        return self._recording

    def model(self) -> Model:
        """The recorded model, imported.

        Raises:
            InputError: nothing to train was recorded, something can't be, or ranks recorded different models.
        """
        recording = self._recording
        if self.engine is not None and self._model is not None:
            return self._model
        if not recording.steps:
            raise InputError(
                "no training step was recorded; call minimize(loss) of an optimizer, such as "
                "tensoropt.GradientDescentOptimizer(), before find_strategy"
            )
        graph = import_graph(recording.graph, recording.steps)
        if self._model is not None and self._model.graph.digest == graph.digest:
            return self._model
        if os.environ.get("TENSOROPT_CHECK") == "1":
            check(graph)
        digests = self.processes.gather(graph.digest)
        if len(set(digests)) > 1:
            other = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
            raise InputError(
                f"ranks 0 and {other} recorded different models; the script must record the same on every rank: look for "
                "what depends on the rank, on a set's order, or on random numbers"
            )
        self._initializers = initializer_names(recording.graph)
        self._report_replicated(graph)
        self._model = Model(graph, analyse(graph))
        if self.processes.rank == 0:
            dump("model", graph)
        return self._model

    def _report_replicated(self, graph: Graph) -> None:
        """Say once which types of operators have no rule and run whole on every device."""
        if self.processes.rank or max(self.processes.size, self.hardware.n_devices) == 1:
            return
        told: set[str] = set()
        for op in graph.operators.values():
            why = rule_of(op).without if op.updates is None else ""
            if why and op.type not in told:
                told.add(op.type)
                logger.warning("%s runs whole on every device: %s", op.where(), why)

    # Planning

    def find_strategy(
        self,
        option: str,
        memory: int | str | None,
        parallelism: int | Sequence[int] | None,
        cluster: Hardware | str | None,
        force: Force | None,
    ) -> Plan | Curve:
        """See :func:`tensoropt.find_strategy`."""
        if option not in OPTIONS:
            raise InputError(f"unknown option {short(option)}; expected one of {', '.join(map(repr, OPTIONS))}")
        model = self.model()
        hardware = self.hardware if cluster is None else resolve_cluster(cluster)
        limit = default_limit(hardware.device.memory_bytes) if memory is None else parse_memory(memory)
        request = Request(model, hardware, limit, checked_force(force), assumptions(hardware))
        result = self._on_first_rank(lambda: self._search(option, request, parallelism))
        assert isinstance(result, (Plan, Curve))
        return result

    def _search(self, option: str, request: Request, parallelism: int | Sequence[int] | None) -> Plan | Curve:
        available = request.hardware.parallelisms()
        counts = list(available) if parallelism is None else parallelisms(parallelism)
        if option == "profiling":
            return profiling(request, counts)
        if option == "mini_parallelism":
            plan = mini_parallelism(request, counts)
        elif parallelism is None:
            plan = mini_time(request, max(available))
        elif len(counts) == 1:
            plan = mini_time(request, counts[0])
        else:
            raise InputError(
                f"option 'mini_time' takes one parallelism, got {counts}; option 'profiling' compares several, and "
                "'mini_parallelism' takes the fewest devices that fit"
            )
        assert plan.frontier is not None
        dump("frontier", plan.frontier.table(plan.point), plan.frontier.summary())
        dump("plan", plan)
        return plan

    def _on_first_rank(self, compute: Any) -> Any:
        """Compute on rank 0 and give the result, or the error, to all: one plan, whatever sets and clocks do."""
        answer: Any = None
        mine: Any = None
        if self.processes.rank == 0:
            try:
                mine = compute()
                answer = mine.to_json() if isinstance(mine, Plan) else mine
            except TensorOptError as error:
                answer = error
        if self.processes.size == 1:
            if isinstance(answer, TensorOptError):
                raise answer
            return mine
        answer = self.processes.broadcast(answer)
        if isinstance(answer, TensorOptError):
            raise answer
        return mine if mine is not None else Plan.from_json(answer) if isinstance(answer, dict) else answer

    # Building

    def build(self, engine: str, plan: Plan | str | None, collectives: str | None) -> None:
        """See :func:`tensoropt.build_execution_graph`."""
        if self.engine is not None:
            raise InputError("the execution graph has been built already; call tensoropt.init() to record another model")
        recording = self._recording
        if engine != "tensorflow":
            raise InputError(f"unknown engine {engine!r}; expected 'tensorflow'")
        collectives = collectives or os.environ.get("TENSOROPT_COLLECTIVES", "mpi")
        if collectives not in ("mpi", "emulated"):
            raise InputError(f"unknown collectives {collectives!r}; expected 'mpi' or 'emulated'")
        if isinstance(plan, (str, os.PathLike)):
            plan = Plan.load(FilePath(plan))
        if not isinstance(plan, Plan):
            raise InputError(
                f"build_execution_graph takes plan=, the result of find_strategy or load_plan, got {short(plan)}"
            )
        model = self.model()
        plan.check_for(model.graph)
        self._check_ranks(plan, collectives)
        view = StrategyView(model.graph, plan.strategy, model.backward.gradients)
        check_deliveries(view, plan)
        if collectives == "emulated":
            backend: Any = EmulatedBackend(plan.mesh)
            prepare = _nothing_to_prepare
        else:
            backend, prepare = self._communicating(plan.mesh)
        recording.close()
        try:
            values = FirstValues(recording.graph)
            self.engine = Engine(view, plan.router(PlainCosts()), backend, values, _Agreement(self, prepare))
        except BaseException:
            recording.reopen()
            raise
        self.plan = plan

    def _check_ranks(self, plan: Plan, collectives: str) -> None:
        if collectives == "emulated" and self.processes.size > 1:
            raise InputError(
                f"collectives='emulated' runs all ranks in one process, but mpirun started {self.processes.size}; start it "
                "alone"
            )
        if collectives == "mpi" and plan.parallelism > self.processes.size:
            raise InputError(
                f"the plan is for {plan.parallelism} devices, but {self.processes.size} rank"
                f"{'s were' if self.processes.size > 1 else ' was'} started; start it with mpirun -n {plan.parallelism}, or "
                "find a plan for the ranks at hand"
            )

    def _communicating(self, mesh: Mesh) -> tuple[CommunicatingBackend, Any]:
        processes = self.processes
        if processes.alone:
            return CommunicatingBackend(mesh, 0, SingleCommunicator()), _nothing_to_prepare
        from .collectives.mpi import MpiCommunicator

        takes_part = processes.rank < mesh.n_devices
        part = processes.comm.Split(int(not takes_part), processes.rank)
        if not takes_part:
            print(
                f"rank {processes.rank} has nothing to do: the plan needs {mesh.n_devices} of {processes.size} devices; it "
                "waits for the others",
                file=sys.stderr,
                flush=True,
            )
            processes.wait_for_others()
            sys.exit(0)
        communicator = MpiCommunicator(part, mesh, processes.begin_collective)
        self._active = part
        return CommunicatingBackend(mesh, processes.rank, communicator), communicator.prepare

    # Running

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        """See :func:`tensoropt.run`."""
        if self.engine is None or self.plan is None or self._model is None:
            raise InputError("run comes after build_execution_graph(engine='tensorflow', plan=plan)")
        graph = self._model.graph
        recorded = self._recording.graph
        planned = plan_fetches(graph, recorded, fetches, self._initializers)
        n_ranks = self.plan.parallelism if isinstance(self.engine.backend, CommunicatingBackend) else 1
        feeds = plan_feeds(graph, recorded, feed_dict, self.processes.rank, n_ranks)
        if planned.initializes:
            self.engine.initial_value = FirstValues(recorded)
            self.engine.initialize()
        values = self.engine.run(planned.fetch, feeds)
        return planned.restore([ranks[0] for ranks in values])


    def statistics(self) -> dict[str, Any]:
        """What the built plan comes to, for a training log; every rank must call it.

        ``collectives_per_step`` counts those of the training step as it was last built with its fetches.
        """
        if self.engine is None or self.plan is None or self._model is None:
            raise InputError("statistics come after build_execution_graph")
        local = self.engine.local_parameter_bytes
        alone = isinstance(self.engine.backend, EmulatedBackend) or self.processes.alone
        return {
            "split_operators": self.plan.n_split_operators,
            "collectives_per_step": self.engine.collectives_per_step,
            "parameter_bytes": self._model.graph.parameter_bytes,
            "parameter_bytes_per_rank": local if alone else self._gather_active(local[0]),
        }

    def _gather_active(self, value: Any) -> list[Any]:
        self.processes.begin_collective()
        return list(self._active.allgather(value))


class _Agreement:
    """Compares what the ranks are about to run, and readies the groups that its collectives need."""

    def __init__(self, session: Session, prepare: Any) -> None:
        self._session, self._prepare = session, prepare
        self._prepared: set[Axes] = set()

    def __call__(self, digest: str, log: Sequence[Collective]) -> None:
        if self._session.processes.rank == 0:
            dump("collectives", *log)
        if self._prepare is _nothing_to_prepare:
            return
        self._session.processes.begin_collective()
        digests = self._session._active.allgather(digest)
        if len(set(digests)) > 1:
            other = next(rank for rank, one in enumerate(digests) if one != digests[0])
            raise InputError(
                f"ranks 0 and {other} built different graphs for this run; every rank must call tensoropt.run with the same "
                "fetches and feeds, in the same order"
            )
        wanted = {parse_axes(entry.axes) for entry in log} - self._prepared
        if wanted:
            self._prepare(sorted(wanted))
            self._prepared |= wanted


def _nothing_to_prepare(axes: Sequence[Axes]) -> None:
    """One process needs no groups."""


def resolve_cluster(cluster: Hardware | str) -> Hardware:
    """Hardware by name or file.

    Raises:
        InputError: there is no such, or its description is wrong.
    """
    if isinstance(cluster, Hardware):
        return cluster
    if not isinstance(cluster, (str, os.PathLike)):
        raise InputError(f"hardware is a name such as 'v100-2x8', a file, or a Hardware, got {short(cluster)}")
    try:
        return resolve(cluster)
    except HardwareError as error:
        raise InputError(str(error)) from error


_current: Session | None = None
_stand_in: Any = None


@contextmanager
def standing_in(recorder: Any) -> Iterator[None]:
    """Have something else than a session record, as if ``init`` had been called; its ``recording_for`` is asked."""
    global _stand_in
    _stand_in = recorder
    try:
        yield
    finally:
        _stand_in = None


@cache
def _say_alone() -> None:
    """Once a process: a forgotten mpirun is easily missed."""
    print("tensoropt: started alone, on one device; mpirun -n N python SCRIPT starts N", file=sys.stderr, flush=True)


def start(hardware: Hardware | str | None, seed: int | None) -> Session:
    """Begin a session; one that is still recording ends.

    Raises:
        InputError: TensorFlow isn't in eager mode, in which the built model runs, or a model is recorded without a session.
    """
    global _current
    if _stand_in is not None:
        raise InputError(
            "tensoropt.init() was called where a model is only recorded; the model function needs no init, and what is for "
            "the script's own run belongs under if __name__ == '__main__':"
        )
    if _current is not None:
        _current._recording.close()
    _current = None
    if not tf.executing_eagerly():
        raise InputError(
            "tensoropt.init() needs TensorFlow in eager mode, as it is by default; call it outside of "
            "tf.Graph().as_default() and tf.function, and without tf.compat.v1.disable_eager_execution() or "
            "disable_v2_behavior()"
        )
    _current = Session(hardware, seed)
    return _current


def current_session() -> Session:
    """The session that ``init`` began.

    Raises:
        InputError: there is none.
    """
    if _stand_in is not None:
        return _stand_in
    if _current is None:
        raise InputError("call tensoropt.init() first")
    return _current
