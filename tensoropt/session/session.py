"""Record, plan, build and run one model: the public functions of :mod:`tensoropt` work on a session.

A session lasts from ``init`` to the last ``run``. Rank 0 plans, and the others get the plan; then every rank builds its own
graph and runs it.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from ..common.errors import InputError
from ..common.source_lines import is_users
from ..frontend.importer import import_graph
from ..frontend.initial_values import FirstValues
from ..frontend.recorded_graph import initializer_names
from ..frontend.recording import Recording, checked_batch_size
from ..lowering.gradient_analysis import analyse
from ..plan.plan import Plan
from ..plan.scaling_curve import Curve, configurations
from ..profiling.hardware import Hardware
from ..runtime.context import Context, model_of, resolve_cluster
from ..runtime.engine import Engine
from ..runtime.execute import checked_collectives, loaded_plan
from ..runtime.execution import Execution, execute
from ..runtime.failures.error_handling import explain_errors
from ..runtime.ranks import Processes, display_here
from ..runtime.same_data import SameData
from ..search.options import check_option, parallelisms, profiling
from ..search.request import Request
from ..sharding.micro_batches import with_batch
from ..sharding.model import Model
from ..tuning.asked_plan import PlanningOptions
from .feeds_and_fetches import FeedPlans, FetchPlans

_SAME_FEEDS = (
    "every rank feeds the same full batch: draw it alike on all ranks, as with one seed, or feed this rank's share of it as "
    "tensoropt.local(array)"
)


class Session:
    """One recorded model and, after :meth:`build`, its execution.

    Attributes:
        context: the ranks of this run and their hardware.
        execution: the plan that runs, after :meth:`build`.
    """

    _fetch_plans: FetchPlans
    _feed_plans: FeedPlans
    _same_feeds: SameData

    def __init__(self, hardware: Hardware | str | None, seed: int | None, batch_size: int | None) -> None:
        self._display = display_here()
        self._reported: Plan | None = None
        self.context = Context(hardware, seed, self._display)
        self.execution: Execution | None = None
        self._recording = Recording(self.context.seed, batch_size)
        self._model: Model | None = None

    @property
    def processes(self) -> Processes:
        """The ranks of this run, and which of them this process is."""
        return self.context.processes

    @property
    def hardware(self) -> Hardware:
        """The hardware that plans are for by default."""
        return self.context.hardware

    @property
    def plan(self) -> Plan | None:
        """The plan that is executed, after :meth:`build`."""
        return self.execution.plan if self.execution else None

    @property
    def engine(self) -> Engine | None:
        """The engine that runs the plan, after :meth:`build`."""
        return self.execution.engine if self.execution else None

    # Recording

    def recording_for(self, caller: str) -> Recording:
        """Return the recording, to a caller that must come before ``build_execution_graph``.

        Args:
            caller: its name, for the message.

        Raises:
            InputError: the model has been built already.
        """
        if self.execution is not None:
            raise InputError(f"{caller} comes before build_execution_graph; call tensoropt.init() to record another model")
        return self._recording

    def model(self) -> Model:
        """Return the recorded model, imported.

        Raises:
            InputError: no training step was recorded, something can't be recorded, or ranks recorded different models.
        """
        recording = self._recording
        if self.execution is not None and self._model is not None:
            return self._model
        steps, gradients = recording.updates()
        if not steps:
            raise InputError(
                "no training step was recorded; call minimize(loss) of an optimizer, such as "
                "tensoropt.GradientDescentOptimizer(), before find_strategy"
            )
        with self._display.phase("import of the model"):
            graph = import_graph(recording.graph, steps, gradients=gradients)
            if self._model is None or self._model.graph.agreement != graph.agreement:
                self._model = model_of(graph, self.context, recording.placed_in(graph.operators))
        return self._model

    # Planning

    def find_strategy(self, options: PlanningOptions) -> Plan | Curve:
        """Find a plan or a curve; see :func:`tensoropt.find_strategy`."""
        check_option(options.option)
        self._display = display_here(options.verbose)
        with self._display.phase("search for a plan"):
            if options.option == "profiling" and options.profile_budget is None:
                return self._curve(options)
            if options.batch_per_device is not None:
                raise InputError("batch_per_device is the batch of a curve; ask for option='profiling', or leave it out")
            hardware = self.hardware if options.cluster is None else resolve_cluster(options.cluster)
            result = options.find(
                self.model(),
                hardware,
                self.context,
                self._display,
                lambda: FirstValues(self._recording.graph),
                checked_collectives(None),
                measuring=self._recording.paused(),
            )
        self._display.say(result.brief())
        self.context.report(result, self._display)
        self._reported = result
        return result

    def _curve(self, options: PlanningOptions) -> Curve:
        cluster, parallelism = options.cluster, options.parallelism
        names = cluster.split(",") if isinstance(cluster, str) else [cluster]
        clusters = [self.hardware if name is None else resolve_cluster(name) for name in names]
        shapes = [parallelism] if isinstance(parallelism, (int, str)) else list(parallelism or ())
        if parallelism is not None and not any(isinstance(shape, str) for shape in shapes):
            parallelisms(parallelism)
        per_device = [None] if options.batch_per_device is None else parallelisms(options.batch_per_device)
        own = self.model()
        collectives = checked_collectives(None)

        def request(hardware: Hardware, batch: int | None) -> Request:
            graph = own.graph if batch in (None, own.graph.batch) else with_batch(own.graph, batch)
            model = own if graph is own.graph else Model(graph, analyse(graph), placed=own.placed)
            return options.request(model, hardware, collectives, self._display)

        pairs = configurations(clusters, None if parallelism is None else shapes)
        points = [(request(hardware, batch and batch * count), count) for batch in per_device for hardware, count in pairs]
        return self.context.on_first_rank(lambda: profiling(points))

    # Building

    def build(self, engine: str, plan: Plan | str | None, collectives: str | None) -> None:
        """Build this rank's graph; see :func:`tensoropt.build_execution_graph`."""
        if self.execution is not None:
            raise InputError("the execution graph has been built already; call tensoropt.init() to record another model")
        if engine != "tensorflow":
            raise InputError(f"unknown engine {engine!r}; expected 'tensorflow'")
        collectives = checked_collectives(collectives)
        plan = loaded_plan(plan)
        if plan is not self._reported:
            self.context.report(plan, self._display)
        model = self.model()
        recording = self._recording
        recording.close()
        try:
            values = FirstValues(recording.graph)
            self.execution = execute(plan, model, values, self.processes, collectives, self._display)
            n_ranks = 1 if self.execution.is_emulated else self.execution.plan.parallelism
            self._fetch_plans = FetchPlans(model.graph, recording.graph, initializer_names(recording.graph))
            self._feed_plans = FeedPlans(model.graph, recording.graph, self.processes.rank, n_ranks)
            self._same_feeds = SameData(self.execution.processes, "tensoropt.run", _SAME_FEEDS, n_first=0)
            explain_errors(_recorded_too_late)
        except BaseException:
            recording.reopen()
            raise

    # Running

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Run the built model; see :func:`tensoropt.run`."""
        if self.execution is None:
            raise InputError("run comes after build_execution_graph(engine='tensorflow', plan=plan)")
        engine = self.execution.engine
        fetch_plan, feeds = self._fetch_plans.of(fetches), self._feed_plans.of(feed_dict)
        whole = [(feed.tensor.name, value) for feed, value in feeds.items() if not feed.is_local]
        self._same_feeds.check(lambda: whole)
        if fetch_plan.initializes:
            engine.initialize(FirstValues(self._recording.graph))
        values = engine.run(fetch_plan.fetch, feeds)
        return fetch_plan.restore([ranks[0] if ranks else None for ranks in values])

    def statistics(self) -> dict[str, Any]:
        """Return figures of the built plan, for a training log; every rank must call it. Raise InputError before."""
        if self.execution is None or self._model is None:
            raise InputError("statistics come after build_execution_graph")
        return self.execution.statistics(self._model.graph.parameter_bytes)


def _recorded_too_late(error: BaseException) -> str | None:
    """Return the sentence for an error that TensorFlow raises when a recorded tensor is computed with after the build.

    Return None for other errors.
    """
    if not isinstance(error, TypeError) or _current is None or _current.execution is None:
        return None
    message = str(error)
    if "out of scope" not in message or hex(id(_current._recording.graph)) not in message:
        return None
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    where = f" ({os.path.basename(lines[-1].filename)}:{lines[-1].lineno})" if lines else ""
    return (
        f"a recorded tensor was computed with{where} after build_execution_graph; record all that is to be fetched before "
        "it, as double = loss * 2, and give run that, or compute with what run returns"
    )


_current: Session | None = None
_stand_in: Any = None


@contextmanager
def standing_in(recorder: Any) -> Iterator[None]:
    """Have another object than a session record, as if ``init`` had been called; its ``recording_for`` is asked."""
    global _stand_in
    _stand_in = recorder
    try:
        yield
    finally:
        _stand_in = None


def start(hardware: Hardware | str | None, seed: int | None, batch_size: int | None = None) -> Session:
    """Begin a session; a session that is still recording ends.

    Raises:
        InputError: the batch size isn't one, TensorFlow isn't in eager mode, in which the built model runs, or a model is
            recorded without a session.
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
    if batch_size is not None:
        checked_batch_size(batch_size)
    _current = Session(hardware, seed, batch_size)
    return _current


def current_session() -> Session:
    """Return the session that :func:`tensoropt.init`, which has an example, began; raise InputError if there is none."""
    if _stand_in is not None:
        return _stand_in
    if _current is None:
        raise InputError("call tensoropt.init() first")
    return _current
