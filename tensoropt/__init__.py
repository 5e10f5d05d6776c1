"""TensorOpt: automatic parallel training for TensorFlow.

The API mirrors TensorFlow by being TensorFlow: after :func:`init` every TensorFlow name (``tensoropt.matmul``,
``tensoropt.nn.conv2d``) records into a private graph, until :func:`build_execution_graph`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from .common.versions import check_python

if TYPE_CHECKING:
    from .plan.frontier import Frontier
    from .plan.frontier_file import SavedPoint
    from .plan.plan import Plan
    from .profiling.hardware import Hardware
    from .session.session import Session
    from .sharding.constraints import Force
    from .trainer.functions.function import CapturedFunction
    from .trainer.functions.step_function import StepFunction

__version__ = "0.2.0"

check_python()
from .common.process.tensorflow_import import import_tensorflow  # noqa: E402, since other Pythons fail at it
from .runtime.at_import import prepare_process  # noqa: E402
from .session.calls import build_execution_graph as build_execution_graph  # noqa: E402
from .session.calls import find_strategy as find_strategy  # noqa: E402
from .session.calls import local as local  # noqa: E402
from .session.calls import place as place  # noqa: E402
from .session.calls import run as run  # noqa: E402

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

    >>> import tensoropt
    >>> session = tensoropt.init(hardware="v100-1x2", seed=1)
    >>> session.hardware.name, session.processes.rank, tensoropt.current_session() is session
    ('v100-1x2', 0, True)

    Args:
        hardware: the hardware to plan for, instead of measuring it: an object, a cluster's name, or a file.
        seed: the seed of the recorded graph, as in ``tf.compat.v1.set_random_seed``; rank 0 draws it if None.
        batch_size: the leading extent of placeholders that leave it open, as ``[None, 784]`` does.

    Returns:
        The session. Its ``processes`` know this process's rank; its ``hardware`` describes the hardware that was found.

    Raises:
        InputError: the ranks are neither p devices of one machine nor M machines times D, or there is no such hardware.
    """
    import_tensorflow()
    from .session.session import start

    return start(hardware, seed, batch_size)


def capture(function: Callable[..., Any], input_signature: Sequence[Any]) -> CapturedFunction:
    """Wrap a function that returns a loss from tensors and ``tf.Variable``s, so that :func:`parallelize` can train it.

    >>> import tensoropt, tensorflow as tf
    >>> w = tf.Variable(tf.zeros([8, 2]))
    >>> loss = tensoropt.capture(lambda x: tf.reduce_sum(x @ w) + 2.0, [tf.TensorSpec([4, 8])])
    >>> trainer = tensoropt.parallelize(loss, "sgd", cluster="v100-1x1", verbose=0)
    >>> trainer.step(tf.ones([4, 8]))
    2.0

    Args:
        function: a Python function, or a ``tf.function``.
        input_signature: a ``tf.TensorSpec`` for each argument, or a structure of such, with every extent known.

    Raises:
        InputError: ``function`` isn't a function, or the signature leaves an extent open.
    """
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
    stages: int | Sequence[int] | None = None,
    schedule: str | None = None,
) -> StepFunction:
    """Make the training step of a custom training loop ready to train on all ranks.

    >>> import keras, tensoropt, tensorflow as tf
    >>> model, optimizer = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
    >>> def step(x):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_mean(model(x) ** 2)
    ...     optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    ...     return loss
    >>> step = tensoropt.training_step(
    ...     step, model=model, optimizer=optimizer, batch_size=4, cluster="v100-1x1", verbose=0)
    >>> float(step(tf.ones([4, 8]))) > float(step(tf.ones([4, 8])))
    True

    Args:
        step: a function of a batch with ``tf.GradientTape`` and ``optimizer.apply`` in it, in any number and order.
        model: the Keras model that it trains, or a list of all that it uses.
        optimizer: the Keras optimizer that it applies, or a list of all.
        batch_size: samples per step, over all devices.
        data: the arguments of one call, which show their shapes; without, the first call does.
        option, memory, parallelism, cluster, force, plan, collectives, profile_budget, without, micro_batches, verbose,
        stages, schedule: as for :func:`parallelize`.

    Returns:
        A :class:`~tensoropt.trainer.functions.step_function.StepFunction`: call it with the full batch on every rank
        in place of ``step``. It has ``plan``, ``save``, ``load`` and ``export``.

    Raises:
        InputError: something can't be captured, nothing fits, or an argument is of another kind.
    """
    given = dict(locals())
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

    >>> import keras, numpy as np, tempfile, tensoropt
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    >>> trainer = tensoropt.parallelize(model, "sgd", "mse", batch_size=4, cluster="v100-1x1", verbose=0)
    >>> first, second = trainer.fit(np.ones((8, 8)), np.ones((8, 1)), epochs=2, verbose=0).history["loss"]
    >>> trainer.save(path := tempfile.mkdtemp() + "/ckpt")
    >>> trainer.load(path)
    >>> (third,) = trainer.fit(np.ones((8, 8)), np.ones((8, 1)), epochs=3, verbose=0).history["loss"]
    >>> third < second < first
    True

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
        A :class:`~tensoropt.trainer.trainer.Trainer`, which trains as a Keras model does, or for a captured function a
        :class:`~tensoropt.trainer.functions.function.FunctionTrainer`.

    Raises:
        InputError: something can't be captured, nothing fits, or an argument names something that doesn't exist.
    """
    given = dict(locals())
    import_tensorflow()
    from .trainer.parallelize import Training, TrainingOptions, parallelized, refuse_others

    refuse_others(given.pop("others"), parallelize)
    options, given = TrainingOptions.split(given)
    return parallelized(given.pop("model"), given.pop("batch_size"), options, Training(**given))


def auto(
    *,
    memory: int | str | None = None,
    cluster: Hardware | str | None = None,
    plan: Plan | str | None = None,
    collectives: str | None = None,
    profile_budget: float | str | None = None,
    without: Collection[str] = (),
    micro_batches: int | None = None,
    verbose: int | str | bool | None = None,
    stages: int | Sequence[int] | None = None,
    schedule: str | None = None,
) -> None:
    """Train the Keras models of the script that follows on all ranks, by ``model.fit`` as they stand.

    At the top of a script under ``mpirun`` it does what ``tensoropt run`` does for a script without it. The arguments are
    those of :func:`parallelize`, for each model that is trained. What is left out stays as an earlier call has set it.

    >>> import tensoropt
    >>> tensoropt.auto(cluster="v100-1x1", verbose=0)
    >>> import keras, numpy
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> history = model.fit(numpy.zeros((8, 4)), numpy.zeros(8), batch_size=4, verbose=0)
    >>> history.history["loss"]
    [0.0]

    Raises:
        InputError: Keras's backend isn't TensorFlow.
    """
    given = {name: value for name, value in locals().items() if value not in (None, ())}
    from .unchanged.start import start

    start(given)


def load_plan(file: str | os.PathLike[str]) -> Plan:
    """Load a plan that ``plan.save`` wrote, to use it without a search.

    >>> import keras, tempfile, tensoropt
    >>> folder, model = tempfile.mkdtemp(), keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    >>> plan = tensoropt.parallelize(model, "sgd", "mse", batch_size=4, cluster="v100-1x1", verbose=0).plan
    >>> plan.save(f"{folder}/plan.json")
    >>> tensoropt.load_plan(f"{folder}/plan.json").time_us == plan.time_us
    True
    >>> plan.frontier.save(f"{folder}/frontier.json")
    >>> tensoropt.load_frontier(f"{folder}/frontier.json").fastest().time_us <= plan.time_us
    True

    Raises:
        InputError: the file is missing, cut off, or not a plan.
    """
    from .plan.plan import Plan

    return Plan.load(file)


def load_frontier(file: str | os.PathLike[str]) -> Frontier[SavedPoint]:
    """Load a frontier that ``plan.frontier.save`` wrote, with every plan of it, without a search and without the model.

    :func:`load_plan` has an example.

    Raises:
        InputError: the file is missing, cut off, changed, or not a frontier.
    """
    from .plan.frontier import Frontier

    return Frontier.load(file)


def __getattr__(name: str) -> Any:
    """Return a name of TensorFlow's, or one of this package's own names that are loaded when first used."""
    if name.startswith("_"):
        raise AttributeError(f"module 'tensoropt' has no attribute {name!r}")
    if name == "zoo":
        return importlib.import_module(".zoo", __name__)
    import_tensorflow()
    if name in _OWN:
        return getattr(importlib.import_module(f".{_OWN[name]}", __name__), name)
    from .session.tf_names import forwarded

    return forwarded(name)
