"""TensorOpt: automatic parallel training for TensorFlow.

The API mirrors TensorFlow by being TensorFlow: after :func:`init` every TensorFlow name (``tensoropt.matmul``,
``tensoropt.nn.conv2d``) records into a private graph, until :func:`build_execution_graph`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .common.versions import check_python

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from .plan.frontier_file import SavedFrontier
    from .plan.plan import Plan
    from .plan.scaling_curve import Curve
    from .profiling.hardware import Hardware
    from .session.session import Session
    from .sharding.constraints import Force
    from .trainer.functions.function import CapturedFunction
    from .trainer.functions.step_function import StepFunction

__version__ = "0.2.0"

check_python()
from .runtime.at_import import prepare_process  # noqa: E402, since other Pythons fail at it

prepare_process()

_OWN = {
    "GradientDescentOptimizer": "session.recording_optimizers",
    "MomentumOptimizer": "session.recording_optimizers",
    "AdamOptimizer": "session.recording_optimizers",
    "softmax_cross_entropy": "frontend.recording",
    "current_session": "session.session",
    "load_checkpoint": "runtime.checkpoint",
    "InputError": "common.errors",
    "Survive": "survive.callback",
    "TensorOptError": "common.errors",
}


def init(hardware: Hardware | str | None = None, seed: int | None = None, *, batch_size: int | None = None) -> Session:
    """Start a session: connect the ranks, measure the hardware, and begin to record.

    Args:
        hardware: the hardware to plan for, instead of measuring it: an object, a cluster's name, or a file.
        seed: the seed of the recorded graph, as in ``tf.compat.v1.set_random_seed``; rank 0 draws it if None.
        batch_size: the leading extent of placeholders that leave it open, as ``[None, 784]`` does.

    Returns:
        The session. Its ``processes`` know this process's rank; its ``hardware`` describes the hardware that was found.

    Raises:
        InputError: the ranks are neither p devices of one machine nor M machines times D, or there is no such hardware.
    """
    from .common.tensorflow_import import import_tensorflow

    import_tensorflow()
    from .session.session import start

    return start(hardware, seed, batch_size)


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
    given = dict(locals())
    from .session.session import current_session
    from .tuning.asked_plan import PlanningOptions

    return current_session().find_strategy(PlanningOptions(**given))


def capture(function: Callable[..., Any], input_signature: Sequence[Any]) -> CapturedFunction:
    """Wrap a function that returns a loss from tensors and ``tf.Variable``s, so that :func:`parallelize` can train it.

    Args:
        function: a Python function, or a ``tf.function``.
        input_signature: a ``tf.TensorSpec`` for each argument, or a structure of such, with every extent known.

    Raises:
        InputError: ``function`` isn't a function, or the signature leaves an extent open.
    """
    from .common.tensorflow_import import import_tensorflow

    import_tensorflow()
    from .trainer.functions.function import CapturedFunction

    return CapturedFunction.of(function, input_signature)


def training_step(
    step: Callable[..., Any],
    *,
    model: Any,
    optimizer: Any,
    batch_size: int,
    option: str = "mini_time",
    memory: int | str | None = None,
    parallelism: int | Sequence[int] | None = None,
    cluster: Hardware | str | None = None,
    force: Force | None = None,
    plan: Plan | str | None = None,
    collectives: str | None = None,
    data: Sequence[Any] | None = None,
    profile_budget: float | str | None = None,
    without: Collection[str] = (),
    micro_batches: int | None = None,
    verbose: int | str | bool = 1,
) -> StepFunction:
    """Make the training step of a custom training loop ready to train on all ranks.

    Args:
        step: a function of a batch with ``tf.GradientTape`` and ``optimizer.apply`` in it, in any number and order.
        model: the Keras model that it trains, or a list of all that it uses.
        optimizer: the Keras optimizer that it applies, or a list of all.
        batch_size: samples per step, over all devices.
        data: the arguments of one call, which show their shapes; without, the first call does.
        option, memory, parallelism, cluster, force, plan, collectives, profile_budget, without, micro_batches, verbose: as
            for :func:`parallelize`.

    Returns:
        A :class:`~tensoropt.trainer.functions.step_function.StepFunction`: call it with the full batch on every rank
        in place of ``step``. It has ``plan``, ``save``, ``load`` and ``export``.

    Raises:
        InputError: something can't be captured, nothing fits, or an argument is of another kind.
    """
    given = dict(locals())
    from .common.tensorflow_import import import_tensorflow

    import_tensorflow()
    from .trainer.parallelize import TrainingOptions, step_function

    options, given = TrainingOptions.split(given)
    return step_function(options=options, **given)


def parallelize(
    model: Any,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Any = None,
    batch_size: int | None = None,
    option: str = "mini_time",
    *,
    memory: int | str | None = None,
    parallelism: int | Sequence[int] | None = None,
    cluster: Hardware | str | None = None,
    force: Force | None = None,
    plan: Plan | str | None = None,
    collectives: str | None = None,
    loss_weights: Any = None,
    weighted_metrics: Any = None,
    labels: Any = None,
    sample_weight: bool = False,
    data: Any = None,
    profile_budget: float | str | None = None,
    without: Collection[str] = (),
    micro_batches: int | None = None,
    verbose: int | str | bool = 1,
    stages: int | Sequence[int] | None = None,
    schedule: str | None = None,
    **others: Any,
) -> Any:
    """Find a plan for a Keras model, or for a captured function, and make it ready to train on all ranks.

    ``optimizer``, ``loss``, ``metrics``, ``loss_weights`` and ``weighted_metrics`` are those of ``keras.Model.compile``; the
    model itself stays as it is. A model that is compiled already is taken as it is compiled if none of them is given, with
    its own ``train_step``, ``test_step``, ``compute_loss`` and the like.

    Args:
        model: a Keras model, or the result of :func:`capture`. If the model and the loss leave open what a batch is, the
            model is captured and planned for its first batch.
        batch_size: samples per step, over all devices.
        option: ``mini_time`` or ``mini_parallelism``; with ``memory``, ``parallelism``, ``cluster`` and ``force`` as for
            :func:`find_strategy`.
        plan: a plan to use instead of a search, or the file of one.
        collectives: as for :func:`build_execution_graph`.
        labels: ``tf.TensorSpec`` of the labels, to plan before the data where the loss doesn't tell.
        sample_weight: whether batches come with sample weights.
        data: a dataset of batches, or arrays ``(x, y)``, that shows what inputs, labels and weights are, in place of the
            model and the loss.
        profile_budget: as for :func:`find_strategy`.
        without, micro_batches, verbose, stages, schedule: as for :func:`find_strategy`.
        others: must be empty; an argument of ``keras.Model.compile`` that a plan can't follow is refused with a sentence.

    Returns:
        A :class:`~tensoropt.trainer.trainer.Trainer`, which trains as a Keras model does (``fit``, ``evaluate``,
        ``predict``, ``save``, ``load``, ``export_to``), or for a captured function a
        :class:`~tensoropt.trainer.functions.function.FunctionTrainer`.

    Raises:
        InputError: something can't be captured, nothing fits, or an argument names something that doesn't exist.
    """
    given = dict(locals())
    from .common.tensorflow_import import import_tensorflow

    import_tensorflow()
    from .trainer.parallelize import TrainingOptions, parallelized, refuse_others

    refuse_others(given.pop("others"), parallelize)
    options, given = TrainingOptions.split(given)
    return parallelized(options=options, **given)


def auto(
    *,
    memory: int | str | None = None,
    cluster: Hardware | str | None = None,
    plan: Plan | str | None = None,
    collectives: str | None = None,
    profile_budget: float | str | None = None,
    without: Collection[str] = (),
    micro_batches: int | None = None,
    verbose: int | str | bool = 1,
    stages: int | Sequence[int] | None = None,
    schedule: str | None = None,
) -> None:
    """Train the Keras models of the script that follows on all ranks, by ``model.fit`` as they stand.

    At the top of a script under ``mpirun`` it does what ``tensoropt run`` does for a script without it. The arguments are
    those of :func:`parallelize`, for each model that is trained.

    Raises:
        InputError: Keras's backend isn't TensorFlow.
    """
    given = dict(locals())
    from .unchanged.start import start

    start(given)


def load_plan(file: str | os.PathLike[str]) -> Plan:
    """Load a plan that ``plan.save`` wrote, to use it without a search.

    Raises:
        InputError: the file is missing, cut off, or not a plan.
    """
    from .plan.plan import Plan

    return Plan.load(file)


def load_frontier(file: str | os.PathLike[str]) -> SavedFrontier:
    """Load a frontier that ``plan.frontier.save`` wrote, with every plan of it, without a search and without the model.

    Raises:
        InputError: the file is missing, cut off, changed, or not a frontier.
    """
    from .plan.frontier_file import SavedFrontier

    return SavedFrontier.load(file)


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
        The session that ``init`` began. Its ``run`` is :func:`run`.

    Raises:
        InputError: the plan is for another model or for more devices than there are.
    """
    from .session.session import current_session

    session = current_session()
    session.build(engine, plan, collectives)
    return session


def run(fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
    """Compute the fetches and return their values, as ``tf.compat.v1.Session.run`` does.

    Every rank must make the same calls.

    Args:
        fetches: tensors, operations, names, or nested structures of them. Every rank gets global values; a fetch that is
            wrapped in :func:`local` gives this rank's shard.
        feed_dict: full batches on every rank, or this rank's share wrapped in :func:`local`.
    """
    from .session.session import current_session

    return current_session().run(fetches, feed_dict)


def local(value: Any) -> Any:
    """Mark a fed array as this rank's share of the batch, or a fetch as this rank's shard."""
    from .session.feeds_and_fetches import Local

    return Local(value)


def place(devices: Sequence[int]) -> AbstractContextManager[None]:
    """Place the operators that are recorded inside of ``with tensoropt.place(devices=[0, 1]):`` on some of the devices.

    The model is then cut into stages, of which one has just these devices; ``force={"MatMul_1": {"devices": [0, 1]}}`` says
    the same of one operator, and counts before it.

    Args:
        devices: their numbers, which are consecutive. What comes first in the program is on the first devices.

    Raises:
        InputError: ``devices`` isn't a list of consecutive numbers, or nothing is being recorded.
    """
    from .search.stages.placement import checked_devices
    from .session.session import current_session

    return current_session().recording_for("place").place(checked_devices(devices, "tensoropt.place"))


def __getattr__(name: str) -> Any:
    """Return a name of TensorFlow's, or one of this package's own names that are loaded when first used."""
    from .common.tensorflow_import import import_tensorflow

    if name.startswith("_"):
        raise AttributeError(f"module 'tensoropt' has no attribute {name!r}")
    if name == "zoo":
        return importlib.import_module(".zoo", __name__)
    import_tensorflow()
    if name in _OWN:
        return getattr(importlib.import_module(f".{_OWN[name]}", __name__), name)
    from .session.tf_names import forwarded

    return forwarded(name)
