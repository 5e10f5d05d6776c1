"""Running a model by a strategy: local variables, feeding, fetching, training steps.

For each set of fetches and feeds the engine builds one TensorFlow function with just what these need, once; every rank
builds the same functions in the same order. Variables are read when a function starts and updated when it ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from .deliveries import Delivery, Router, delivery_of
from .errors import InputError
from .ir import PLACEHOLDER, Graph, Operator, Tensor, TrainStep
from .lowering.deliver import Backend, Collective, Deliverer
from .lowering.local import piece_of, uniform_shape
from .lowering.model import LocalModel
from .lowering.operators import Values
from .lowering.order import LAG, put_in_order
from .optimizers.protocol import Emission, RunningOptimizer, Shards
from .optimizers.rows import Lookup, row_deliveries
from .reschedule.layout import Layout
from .rules.rule import Demand
from .state import StateEntry, local_variables
from .strategy import StrategyView

UPDATE_OPERATORS = {
    "AssignVariableOp": "assign",
    "AssignAddVariableOp": "assign_add",
    "AssignSubVariableOp": "assign_sub",
}


@dataclass(frozen=True, slots=True)
class Fetch:
    """What one function computes: tensors (each whole, or this rank's piece), training steps, other operators."""

    tensors: tuple[tuple[Tensor, bool], ...] = ()
    train_steps: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Feed:
    """A tensor that is given; ``is_local`` where each rank has only its share of the batch."""

    tensor: Tensor
    is_local: bool


@dataclass(frozen=True, slots=True)
class BuiltFunction:
    """Attributes:
    layouts: per feed, where its pieces are.
    """

    call: Callable[..., Any]
    log: tuple[Collective, ...]
    layouts: tuple[Layout, ...]


@dataclass
class Engine:
    """Attributes:
    view: the strategy on its graph.
    router: finds the path of each delivery.
    backend: carries out the paths.
    initial_value: the whole first value of a variable, by its operator's name.
    agree: called with a digest of each function and its log of collectives, before its first run; raises where ranks
        differ, and readies the collectives.
    first: another engine, on whose variables and optimizers this one works where it has the same.
    in_order, lag: whether the backward pass has an order, and how far updates may be behind; see :mod:`.lowering.order`.
    """

    view: StrategyView
    router: Router
    backend: Backend
    initial_value: Callable[[str], np.ndarray]
    agree: Callable[[str, Sequence[Collective]], None] = lambda digest, log: None
    first: Engine | None = None
    in_order: bool = False
    lag: float = LAG
    variables: dict[str, list[tf.Variable]] = field(default_factory=dict)
    optimizers: dict[str, RunningOptimizer] = field(default_factory=dict)
    _functions: dict[tuple[Fetch, tuple[Feed, ...]], BuiltFunction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _add_in_one_order()
        if self.first is not None:
            self.variables.update(self.first.variables)
            self.optimizers.update(self.first.optimizers)
        for op in self.graph.variables:
            if op.name not in self.variables:
                self.variables[op.name] = self._first_variables(op)
        for step in self.graph.train_steps.values():
            if step.name not in self.optimizers:
                self.optimizers[step.name] = step.optimizer.start(self._shards(step))

    @property
    def graph(self) -> Graph:
        return self.view.graph

    def _shards(self, step: TrainStep) -> Shards:
        tensors = tuple(self.graph.operators[name].result for name in step.variables)
        layouts = tuple(self.view.layout(tensor) for tensor in tensors)
        pieces = tuple(tuple(self.variables[name]) for name in step.variables)
        return Shards(step.name, step.variables, tensors, layouts, tuple(self.backend.ranks), pieces)

    def _first_variables(self, op: Operator) -> list[tf.Variable]:
        whole = self.initial_value(op.name)
        return local_variables(whole, op.result, self.view.layout(op.result), self.backend.ranks, op.name)

    def initialize(self) -> None:
        """Give all variables their first values again, and the optimizers theirs."""
        for op in self.graph.variables:
            for variable, value in zip(self.variables[op.name], self._first_variables(op), strict=True):
                variable.assign(value)
        for optimizer in self.optimizers.values():
            optimizer.reset()

    def state(self) -> tuple[StateEntry, ...]:
        """All variables in a fixed order: the model's, then those of each training step's optimizer."""
        entries = [
            StateEntry(
                op.name, op.result.shape, op.result.dtype, self.view.layout(op.result), tuple(self.variables[op.name])
            )
            for op in self.graph.variables
        ]
        return tuple(entries + [entry for optimizer in self.optimizers.values() for entry in optimizer.state()])

    @property
    def local_parameter_bytes(self) -> list[int]:
        """Per rank that is built here, the bytes of the pieces of trained variables that it holds."""
        totals = [0] * len(self.backend.ranks)
        for op in self.graph.variables:
            if op.is_trainable:
                for i, rank in enumerate(self.backend.ranks):
                    local = self.view.layout(op.result).local_shape(op.result.shape, rank)
                    totals[i] += int(np.prod(local)) * op.result.item_bytes
        return totals

    @property
    def collectives_per_step(self) -> int:
        """The collectives of the function with a training step that was built last; 0 before there is one."""
        logs = [built.log for (fetch, _), built in self._functions.items() if fetch.train_steps]
        return len(logs[-1]) if logs else 0

    def run(self, fetch: Fetch, feeds: Mapping[Feed, np.ndarray | tf.Tensor]) -> list[list[np.ndarray]]:
        """Run once; per fetched tensor its value on each rank that is built here.

        What is fed whole, as an array, is cut; a tensor that needs no cut is taken as it is, without a copy.
        """
        built = self.function(fetch, tuple(feeds))
        arguments = []
        for (feed, value), layout in zip(feeds.items(), built.layouts, strict=True):
            for rank in self.backend.ranks:
                if isinstance(value, tf.Tensor) and (feed.is_local or layout.is_replicated):
                    arguments.append(value)
                    continue
                piece = value if feed.is_local else _cut(np.asarray(value), layout, feed.tensor.shape, rank)
                arguments.append(tf.constant(np.ascontiguousarray(piece).reshape(piece.shape)))
        with self.backend.watched(built.log):
            flat = [value.numpy() for value in built.call(*arguments)]
        n_ranks = len(self.backend.ranks)
        return [flat[i : i + n_ranks] for i in range(0, n_ranks * len(fetch.tensors), n_ranks)]

    def _fed_layout(self, feed: Feed) -> Layout:
        """Where the fed pieces are: as the tensor's producer leaves them, or the batch over all ranks in order."""
        if not feed.is_local:
            return self.view.layout(feed.tensor)
        mesh = self.view.strategy.mesh
        rank = len(feed.tensor.shape)
        return Layout(mesh, (mesh.axes, *((),) * (rank - 1)))

    def function(self, fetch: Fetch, feeds: tuple[Feed, ...]) -> BuiltFunction:
        """The function for these fetches and feeds, built where it is new.

        Raises:
            InputError: a placeholder that is needed isn't fed.
        """
        key = (fetch, feeds)
        if key not in self._functions:
            self._functions[key] = self._build(fetch, feeds)
        return self._functions[key]

    def _build(self, fetch: Fetch, feeds: tuple[Feed, ...]) -> BuiltFunction:
        needed = self._needed(fetch, {feed.tensor.name for feed in feeds})
        # In program order, so that all ranks name the same one.
        for op in self.graph.operators.values():
            if op.name in needed and op.type == PLACEHOLDER:
                raise InputError(f"placeholder '{op.name}' ({op.source}) isn't fed, but {_names(fetch)} needs it; feed it")
        deliverer = Deliverer(self.backend)
        n_ranks = len(self.backend.ranks)

        def body(*arguments: tf.Tensor) -> list[tf.Tensor]:
            groups = [list(arguments[i : i + n_ranks]) for i in range(0, len(arguments), n_ranks)]
            with deliverer.building():
                return self._emit(fetch, dict(zip(feeds, groups, strict=True)), needed, deliverer)

        signature = [
            tf.TensorSpec(uniform_shape(self._fed_layout(feed), feed.tensor.shape), feed.tensor.dtype)
            for feed in feeds
            for _ in range(n_ranks)
        ]
        function = tf.function(body, input_signature=signature, autograph=False).get_concrete_function()
        self.agree(structure_digest(function.graph, deliverer.log), deliverer.log)
        return BuiltFunction(function, tuple(deliverer.log), tuple(map(self._fed_layout, feeds)))

    def _emit(
        self, fetch: Fetch, fed: Mapping[Feed, Values], needed: set[str], deliverer: Deliverer
    ) -> list[tf.Tensor]:
        sources = {op.result.name: [v.value() for v in self.variables[op.name]] for op in self.graph.variables
                   if op.name in needed}
        for feed, values in fed.items():
            sources[feed.tensor.name] = values
            if feed.is_local:
                demand = Demand(self.view.layout(feed.tensor), None)
                delivery = delivery_of(feed.tensor, self._fed_layout(feed), demand)
                route = self.router.route(delivery)
                sources[feed.tensor.name] = deliverer.deliver(delivery, route, values, feed.tensor.name)
        model = LocalModel(
            self.view, self.router, deliverer, sources, self._update, training=bool(fetch.train_steps)
        )
        model.emit(needed)
        # Losses first: a fetched loss is then there already.
        losses = {
            name: model.replicated(self.graph.train_steps[name].loss, name, with_gradient=True)
            for name in fetch.train_steps
        }
        results = [
            model.without_sums(tensor, "fetch") if is_local else model.replicated(tensor, "fetch")
            for tensor, is_local in fetch.tensors
        ]
        graph = tf.compat.v1.get_default_graph()
        n_forward = len(graph.get_operations())
        for name in fetch.train_steps:
            self._train(self.graph.train_steps[name], losses[name], model)
        local_losses = [value for name in fetch.train_steps for value in model.value(self.graph.train_steps[name].loss)]
        operators = model.read_again(graph.get_operations(), n_forward, local_losses)
        if self.in_order:
            put_in_order(operators, n_forward, self.lag)
        return [tf.identity(value) for values in results for value in values]

    def _update(self, op: Operator, operands: list[Values]) -> list[Values]:
        assert op.updates is not None
        variables = self.variables[op.updates]
        if op.type in UPDATE_OPERATORS:
            for variable, value in zip(variables, operands[0], strict=True):
                getattr(variable, UPDATE_OPERATORS[op.type])(value)
            return []
        return [[variable.value() for variable in variables]]

    def _train(self, step: TrainStep, losses: Values, model: LocalModel) -> None:
        reads = [model.value(self.graph.operators[name].result) for name in step.variables]

        def deliver(delivery: Delivery, values: Values) -> Values:
            return model.deliverer.deliver(delivery, self.router.route(delivery), values, step.name, is_trailing=True)

        def looked_up(name: str) -> Lookup:
            op, config = self.graph.operators[name], self.view.strategy.configs[name]
            of_indices, of_gradient = row_deliveries(op, self.view.rules[name], config)
            found, indices = model.looked_up(name)
            return Lookup(found, deliver(of_indices, indices), of_gradient)

        lookups = [[looked_up(lookup) for lookup in self.graph.lookups.get(name, ())] for name in step.variables]
        emission = Emission(reads, lookups, deliver, lambda tensor: model.replicated(tensor, step.name))
        self.optimizers[step.name].train(losses, emission)
        if step.step_counter is not None:
            for variable in self.variables[step.step_counter]:
                variable.assign_add(tf.ones([], variable.dtype))

    def _needed(self, fetch: Fetch, given: set[str]) -> set[str]:
        """The operators that a function runs: all that its targets need and that isn't given."""
        tensors = [tensor for tensor, _ in fetch.tensors]
        operators = list(fetch.operators)
        for name in fetch.train_steps:
            step = self.graph.train_steps[name]
            tensors += [step.loss, *step.optimizer.tensors]
            operators += [*step.variables, *step.controls]
        return self.graph.ancestors(tensors, operators, given)


def _cut(value: np.ndarray, layout: Layout, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """A rank's piece of a whole value; where the layout holds a sum, all of it is at coordinate 0."""
    piece = value[piece_of(layout, shape, rank)]
    if layout.partial and layout.mesh.index_along(layout.partial, rank):
        return np.zeros_like(piece)
    return piece


def _numpy_dtype(tensor: Tensor) -> Any:
    return tf.as_dtype(tensor.dtype).as_numpy_dtype


def _names(fetch: Fetch) -> str:
    return ", ".join([*(tensor.name for tensor, _ in fetch.tensors), *fetch.train_steps, *fetch.operators])


def _add_in_one_order() -> None:
    """Keep TensorFlow from merging additions: AddN starts with whatever operand's memory is free first.

    Replicas that are computed on each rank would differ by a last bit from run to run, and drift apart.
    """
    if tf.config.optimizer.get_experimental_options().get("arithmetic_optimization", True):
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})


def structure_digest(graph: Any, log: Sequence[Collective]) -> str:
    """Equal for graphs of equal structure; values of constants, and sizes, may differ between ranks."""
    text = hashlib.sha256()
    for node in graph.as_graph_def().node:
        text.update(f"{node.op} {node.name} {list(node.input)}\n".encode())
    for entry in log:
        text.update(f"{entry}\n".encode())
    return text.hexdigest()
