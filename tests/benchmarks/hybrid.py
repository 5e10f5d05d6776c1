"""VGG16 split by hand with mpi4py, by "one weird trick" (Krizhevsky, 2014).

Convolutions train on each rank's share of the batch, and their gradients are summed over the ranks. Each rank has its share
of the columns of the dense layers' weights, which are never communicated: the ranks exchange the results of the last
convolution and of the dense layers, and in the backward pass the gradients of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.runtime.measuring.synthetic_batch import synthetic_batch
from tensoropt.runtime.mpi_start import started_mpi
from tensoropt.runtime.ranks import Processes
from tensoropt.tools.recorded import Recorded

MPI = started_mpi()  # not by mpi4py, which would start it without what TensorOpt sets for messages
v1 = tf.compat.v1
BLOCKS = (2, 2, 3, 3, 3)
N_DENSE = 3


def hybrid_vgg16(
    recorded: Recorded, processes: Processes, n_pools: int, learning_rate: float, momentum: float
) -> Callable[[], float]:
    """Return a training step that returns the loss. The number of ranks must divide the batch and the dense layers' widths.

    Args:
        recorded: a VGG16 whose variables are, in order, weights and bias of each layer.
        n_pools: how many of the first blocks end in a pooling.
    """
    comm, first_value = processes.comm, recorded.first_values()
    (step,) = recorded.model.graph.train_steps.values()
    pairs = [step.variables[i : i + 2] for i in range(0, len(step.variables), 2)]
    convolutions, dense = pairs[:-N_DENSE], pairs[-N_DENSE:]
    batch = {tensor.name: value for tensor, value in synthetic_batch(recorded.model.graph).items()}
    images, labels = batch.values() if next(iter(batch.values())).ndim == 4 else reversed(batch.values())
    share = len(images) // processes.size
    rows = slice(processes.rank * share, (processes.rank + 1) * share)

    def columns(whole: np.ndarray) -> np.ndarray:
        width = whole.shape[-1] // processes.size
        return whole[..., processes.rank * width : (processes.rank + 1) * width]

    with tf.Graph().as_default():
        of_convolutions = [[v1.Variable(first_value(name)) for name in pair] for pair in convolutions]
        of_dense = [[v1.Variable(columns(first_value(name))) for name in pair] for pair in dense]
        fed = v1.placeholder(tf.float32, [share, *images.shape[1:]])
        x = _convolved(fed, of_convolutions, n_pools)
        x = _gathered(comm, tf.reshape(x, [share, -1]), 0, True)
        for number, (weights, bias) in enumerate(of_dense):
            x = tf.nn.bias_add(tf.matmul(x, weights), bias)
            is_last = number == N_DENSE - 1
            # Every rank computes the loss of all logits, so that it has their whole gradient.
            x = _gathered(comm, x if is_last else tf.nn.relu(x), 1, not is_last)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.constant(labels), logits=x))
        variables = [variable for pair in [*of_convolutions, *of_dense] for variable in pair]
        gradients = tf.gradients(loss, variables)
        turn = None
        for number in reversed(range(2 * len(of_convolutions))):
            with tf.control_dependencies([] if turn is None else [turn]):
                gradients[number] = turn = _summed(comm, gradients[number])
        optimizer = v1.train.MomentumOptimizer(learning_rate, momentum)
        train = optimizer.apply_gradients(zip(gradients, variables, strict=True))
        session = v1.Session(config=v1.ConfigProto(intra_op_parallelism_threads=1))
        session.run(v1.global_variables_initializer())
        run = session.make_callable([loss, train], feed_list=[fed])
    mine = images[rows]
    return lambda: float(run(mine)[0])


def _convolved(x: tf.Tensor, variables: Sequence[Sequence[tf.Variable]], n_pools: int) -> tf.Tensor:
    layers = iter(variables)
    for block, n_layers in enumerate(BLOCKS):
        for _ in range(n_layers):
            kernel, bias = next(layers)
            x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
        if block < n_pools:
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return x


def _called(function: Callable[..., np.ndarray], x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    result = tf.numpy_function(function, [x], x.dtype)
    result.set_shape(shape)
    return result


def _summed(comm: Any, x: tf.Tensor) -> tf.Tensor:
    def run(mine: np.ndarray) -> np.ndarray:
        total = np.empty_like(mine)
        comm.Allreduce(mine, total)
        return total

    return _called(run, x, x.shape)


def _gathered(comm: Any, x: tf.Tensor, dim: int, is_summed: bool) -> tf.Tensor:
    """Return all ranks' parts, joined along a dimension. Gradients are summed over the ranks, or are the same on all."""
    whole = [extent * (comm.size if i == dim else 1) for i, extent in enumerate(x.shape)]

    def gather(mine: np.ndarray) -> np.ndarray:
        parts = np.empty((comm.size, *mine.shape), mine.dtype)
        comm.Allgather(np.ascontiguousarray(mine), parts)
        return np.concatenate(list(parts), axis=dim)

    def scatter(gradient: np.ndarray) -> np.ndarray:
        parts = np.stack(np.split(gradient, comm.size, axis=dim))
        if not is_summed:
            return np.ascontiguousarray(parts[comm.rank])
        mine = np.empty(parts.shape[1:], parts.dtype)
        comm.Reduce_scatter_block(parts, mine, MPI.SUM)
        return mine

    @tf.custom_gradient
    def run(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _called(gather, x, whole), lambda gradient: _called(scatter, gradient, x.shape)

    return run(x)
