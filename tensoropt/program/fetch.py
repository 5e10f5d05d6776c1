"""Describe what a function runs and returns."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from ..ir.graph import GRADIENT, Gradients, Graph, Tensor
from ..ir.micro_batching import MicroBatch
from ..sharding.micro_batches import SUM
from ..sharding.strategy import StrategyView


@dataclass(frozen=True, slots=True)
class Fetch:
    """The results of one function: tensors, training steps and other operators.

    Attributes:
        tensors: pairs of a tensor and whether this rank's shard of it is fetched (True) or its global value (False).
        operators: the names of other operators to run.
    """

    tensors: tuple[tuple[Tensor, bool], ...] = ()
    train_steps: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


def all_of(graph: Graph) -> Fetch:
    """Return the fetch of all training steps, or of the whole graph if it has none."""
    return Fetch(train_steps=tuple(graph.train_steps), operators=() if graph.train_steps else tuple(graph.operators))


def operators_of(graph: Graph, fetch: Fetch, given: Container[str] = ()) -> set[str]:
    """Return the names of the operators that a function runs: all that its targets need and that aren't given."""
    names = graph.ancestors([tensor for tensor, _ in fetch.tensors], fetch.operators, given)
    for name in fetch.train_steps:
        names |= graph.operators_of(graph.train_steps[name], given)
    return names


def backward_passes_of(graph: Graph, fetch: Fetch, names: set[str]) -> list[Gradients]:
    """Return the backward passes that a function runs, of which ``names`` are the operators."""
    needed = {op.attrs["of"] for op in graph.operators.values() if op.type == GRADIENT and op.name in names}
    return [each for each in graph.backward_passes if each.name in fetch.train_steps or each.name in needed]


def trained_tensors(graph: Graph, gradients: Gradients) -> set[str]:
    """Return the names of the variables' tensors with respect to which gradients are taken."""
    return {graph.operators[name].result.name for name in gradients.variables if name not in graph.lookups}


def trained_rows(graph: Graph, gradients: Gradients) -> set[str]:
    """Return the names of what lookups find in variables that gradients are taken of and that are updated by rows."""
    lookups = [name for variable in gradients.variables for name in graph.lookups.get(variable, ())]
    return {graph.operators[name].result.name for name in lookups}


def lies_as_it_would(view: StrategyView, tensor: Tensor, micro_batch: MicroBatch) -> bool:
    """Return whether a rank's shards of all micro-batches, joined, are its shard of the tensor of the whole batch."""
    dimension = micro_batch.micro_batching.forms[tensor.name]
    if dimension == SUM:
        return True
    split = view.layout(tensor).splits[dimension]
    return view.strategy.mesh.size_of(split) == micro_batch.n_shares and split == tuple(sorted(split))
