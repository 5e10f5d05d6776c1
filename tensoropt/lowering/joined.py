"""Join what all micro-batches have of a tensor, or of its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import tensorflow as tf

from ..ir.micro_batching import MicroBatch
from ..program.tasks import GLOBAL, LOCAL, Task
from ..sharding.micro_batches import SUM
from ..sharding.strategy import StrategyView
from .localise import local_block
from .operators import Values


def joined(
    task: Task, parts: Sequence[Values], micro_batches: Sequence[MicroBatch], view: StrategyView, ranks: Sequence[int]
) -> Values:
    """Emit a tensor or a gradient of the whole batch, on every rank or its shards, from its parts in all micro-batches."""
    micro_batching = micro_batches[0].micro_batching
    dimension, tensor = micro_batching.forms[task.site.name], micro_batching.full_batch.tensors[task.site.name]
    if dimension == SUM:
        return [reduce(tf.add, rank_parts) for rank_parts in zip(*parts, strict=True)]
    tensors = [tf.concat(rank_parts, dimension) for rank_parts in zip(*parts, strict=True)]
    if task.reads[0].site.kind == LOCAL:  # a rank's parts make up its shard
        return tensors
    order = np.argsort(np.concatenate([micro_batch.indices(tensor.shape[dimension]) for micro_batch in micro_batches]))
    if (order != np.arange(len(order))).any():
        tensors = [tf.gather(value, order, axis=dimension) for value in tensors]
    if task.site.kind == GLOBAL:
        return tensors
    layout = view.layout(view.graph.tensors[task.site.name]).with_partial(())
    return [local_block(value, layout, tensor.shape, rank) for rank, value in zip(ranks, tensors, strict=True)]
