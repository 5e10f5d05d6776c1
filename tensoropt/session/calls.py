"""The calls of a script that records a model: find a plan, build its graph, run it. They are :mod:`tensoropt`'s own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..plan.plan import Plan
    from ..plan.scaling_curve import Curve
    from ..profiling.hardware import Hardware
    from ..sharding.constraints import Force
    from .session import Session


def find_strategy(
    option: str = "mini_time",
    memory: int | str | None = None,
    parallelism: int | Sequence[int] | None = None,
    cluster: Hardware | str | None = None,
    force: Force | None = None,
    profile_budget: float | str | None = None,
    without: Collection[str] = (),
    micro_batches: int | None = None,
    verbose: int | str | bool = 1,
    stages: int | Sequence[int] | None = None,
    schedule: str | None = None,
    batch_per_device: int | Sequence[int] | None = None,
) -> Plan | Curve:
    """Search the recorded model's strategies by Frontier-Tracking.

    >>> import tensoropt
    >>> session = tensoropt.init(hardware="v100-1x2", seed=1)
    >>> x, w = tensoropt.placeholder("float32", [64, 32]), tensoropt.get_variable("w", [32, 8])
    >>> step = tensoropt.GradientDescentOptimizer(0.1).minimize(tensoropt.reduce_sum(tensoropt.matmul(x, w)))
    >>> plan = tensoropt.find_strategy(memory="1GB", force={"MatMul": {"m": 2}}, verbose=0)
    >>> plan.parallelism, plan.needed_bytes < 1e9, [str(op.config) for op in plan.operators if op.type == "MatMul"]
    (2, True, ['m:a'])
    >>> plan.frontier.fastest().time_us <= plan.frontier.at(memory="1GB").time_us <= plan.frontier.smallest().time_us
    True
    >>> curve = tensoropt.find_strategy("profiling", parallelism=[1, 2], verbose=0)
    >>> [(point.parallelism, point.fits) for point in curve.points]
    [(1, True), (2, True)]

    Args:
        option: ``mini_time``: least time within the memory limit; ``mini_parallelism``: fewest devices that fit;
            ``profiling``: least time for each parallelism, without running.
        memory: limit per device, in bytes or as ``'16GB'`` or ``'15GiB'``; by default the device's own memory over 1.1.
        parallelism: a number of devices, or a list of them for ``profiling`` and ``mini_parallelism``; by default the
            devices at hand. For ``profiling`` also machines x devices of each, such as ``'2x4'``.
        cluster: the hardware to plan for, instead of the hardware at hand: a name such as ``v100-2x8``, or a file; for
            ``profiling`` also several, separated by commas.
        force: degrees of operators' factors, such as ``{"MatMul_1": {"m": 2}}``, or the devices of a stage of their own,
            such as ``{"MatMul_1": {"devices": [0, 1]}}``, by the operator's name or type; a name counts before a type.
        profile_budget: how long to measure the operators that can change the answer, in seconds or as ``'60s'``; what was
            measured before is known. Then, where the plan and data parallelism are predicted to be near each other, both run
            interleaved steps (a baseline trial), and the faster one is taken. By default nothing is measured, and the times
            of operators are predicted.
        without: choices that the search must not make: ``"reuse"``, which drops resharded copies and reshards them again in
            the backward pass; ``"remat"``, which rematerializes operators there; ``"zero"``, which holds parameters split
            finer than their consumers use them; ``"accumulate"``, which takes a step's batch in several micro-batches;
            ``"stages"``, which cuts the model where ``stages`` leaves that open, that pays between machines, or nothing else
            fits.
        micro_batches: how many micro-batches a training step takes its batch in, one after the other, with the numbers of
            the full batch; by default 1, and 2, 4, ... where the memory limit asks for that, and with stages what is
            fastest of a few numbers.
        verbose: whether rank 0 writes to stderr what is being done, where that takes a while, and then the plan in three
            lines; 0 silences it until the end of the first step.
        stages: cut the model into so many stages, each on its own part of the devices, through which micro-batches pass one
            after the other. ``(1, 2, 4)`` has the search choose: plans with none, 2 and 4 stages are on one frontier,
            ``plan.frontier``. By default there are none, unless no plan without them fits the memory limit, or devices are
            on several machines and stages are predicted to save 15 % of a step. Where the hardware was measured they are
            then taken only with a ``profile_budget``, and if their steps are faster.
        schedule: the order of the stages' passes: ``"1f1b"``, ``"zero-bubble"``, ``"gpipe"``, or ``"interleaved"``, by which
            each part of the devices has several stages. By default the faster one of the first two. It is refused where
            there are no stages.
        batch_per_device: for ``profiling`` the samples per step and device, one or several, so that the batch grows with the
            devices; each batch must divide the recorded one. By default every point has the recorded batch.

    Returns:
        A :class:`~tensoropt.plan.plan.Plan`, or for ``profiling`` a :class:`~tensoropt.plan.scaling_curve.Curve`.

    Raises:
        InputError: a wrong argument, or nothing fits: the message says what would fit.
    """
    arguments = dict(locals())
    from ..tuning.asked_plan import PlanningOptions
    from .session import current_session

    return current_session().find_strategy(PlanningOptions(**arguments))


def build_execution_graph(
    engine: str = "tensorflow", plan: Plan | str | None = None, collectives: str | None = None
) -> Session:
    """Build this rank's graph for a plan and give the variables their initial values; eager mode is back afterwards.

    Args:
        engine: the engine that computes; ``tensorflow`` is the only one.
        plan: a plan, or the file of one.
        collectives: ``mpi`` (the default on CPUs); ``tensorflow``: TensorFlow's operators (the default on GPUs);
            ``horovod``: Horovod's; or ``emulated``: all ranks in this process. The environment variable
            ``TENSOROPT_COLLECTIVES`` sets it too, and must for ``tensorflow`` on CPUs.

    Returns:
        The session that ``init`` began. Its ``run`` is :func:`run`, which has an example.

    Raises:
        InputError: the plan is for another model or for more devices than there are.
    """
    from .session import current_session

    session = current_session()
    session.build(engine, plan, collectives)
    return session


def run(fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
    """Compute the fetches and return their values, as ``tf.compat.v1.Session.run`` does.

    Every rank must make the same calls.

    >>> import tensoropt
    >>> session = tensoropt.init(hardware="v100-1x2", seed=1)
    >>> x = tensoropt.placeholder("float32", [4, 8])
    >>> loss = tensoropt.reduce_sum(tensoropt.matmul(x, tensoropt.get_variable("w", [8, 2])) ** 2)
    >>> step = tensoropt.GradientDescentOptimizer(0.01).minimize(loss)
    >>> session = tensoropt.build_execution_graph(plan=tensoropt.find_strategy(verbose=0), collectives="emulated")
    >>> first, second = (tensoropt.run([loss, step], {x: [[1.0] * 8] * 4})[0] for _ in range(2))
    >>> bool(second < first)
    True
    >>> tensoropt.run(tensoropt.local(x), {x: tensoropt.local([[1.0] * 8] * 4)}).shape
    (4, 8)

    Args:
        fetches: tensors, operations, names, or nested structures of them. Every rank gets global values; a fetch that is
            wrapped in :func:`local` gives this rank's shard.
        feed_dict: full batches on every rank, or this rank's share wrapped in :func:`local`.

    Raises:
        InputError: nothing is built, a key, a shape or a type isn't the model's, or ranks feed different batches.
    """
    from .session import current_session

    return current_session().run(fetches, feed_dict)


def local(value: Any) -> Any:
    """Mark a fed array as this rank's share of the batch, or a fetch as this rank's shard; see :func:`run`.

    A shard is None on a rank whose stages don't compute the tensor. :func:`run` has an example.
    """
    from .feeds_and_fetches import Local

    return Local(value)


def place(devices: Sequence[int]) -> AbstractContextManager[None]:
    """Place the operators that are recorded inside of ``with tensoropt.place(devices=[0, 1]):`` on some of the devices.

    The model is then cut into stages, of which one has just these devices; ``force={"MatMul_1": {"devices": [0, 1]}}`` says
    the same of one operator, and counts before it.

    >>> import tensoropt
    >>> session = tensoropt.init(hardware="v100-1x2", seed=1)
    >>> x = tensoropt.placeholder("float32", [64, 32])
    >>> for number in range(2):
    ...     with tensoropt.place(devices=[number]):
    ...         x = tensoropt.matmul(x, tensoropt.get_variable(f"w{number}", [32, 32]))
    >>> step = tensoropt.GradientDescentOptimizer(0.1).minimize(tensoropt.reduce_sum(x))
    >>> [stage.devices for stage in tensoropt.find_strategy(verbose=0).stages]
    [(0,), (1,)]

    Args:
        devices: their numbers, which are consecutive. What comes first in the program is on the first devices.

    Raises:
        InputError: ``devices`` isn't a list of consecutive numbers, or nothing is being recorded.
    """
    from ..sharding.constraints import checked_devices
    from .session import current_session

    return current_session().recording_for("place").place(checked_devices(devices, "tensoropt.place"))
