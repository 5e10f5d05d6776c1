"""Run a Keras optimizer on the shards of one process's ranks.

A step goes through

1. gradients of the scaled loss; for parameters that every device updates in full, gradient and value are replicated;
2. sums over all shards (:mod:`.global_norms`), ahead of the update, of what clipping, loss scaling and LAMB need: the update
   may be inside of a condition, in which ranks could take different branches, so no collective is ever emitted in there. In
   a model in stages the global norm, and whether gradients are finite, is that of all of them, for which the update waits;
3. for each rank the ``apply`` of Keras itself, in which clipping and the check for finite gradients use the completed sums.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from ..common.errors import InputError, short
from ..common.source_lines import running_line
from ..lowering.operators import Values
from ..lowering.variables import StateEntry
from ..reschedule.layout import Layout
from ..sharding.local_shapes import shard_slices
from ..sharding.resharding import gather_resharding, split_resharding
from .copies import KerasBase, OnRank, ShardVariable, Slots, build_variables, fresh_copy, named_variables, settings_of
from .global_norms import Completing, LambOnShards, Sums, as_clipped
from .keras_optimizer import KerasOptimizer
from .running_optimizer import Emission, PendingUpdate, Shards
from .sparse import Gradient, row_gradients


class AdagradByRows(keras.optimizers.Adagrad):
    """Keras's Adagrad, which takes roots of the accumulator's rows at the rows of a gradient alone, and not everywhere."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a parameter and its accumulator by a gradient, as Keras does."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        accumulator = self._accumulators[self._get_variable_index(variable)]
        self.assign_add(accumulator, ops.square(gradient))
        scale = ops.sqrt(ops.add(tf.gather(accumulator.value, gradient.indices), self.epsilon))
        step = ops.divide(ops.multiply(rate, gradient.values), scale)
        self.assign_sub(variable, tf.IndexedSlices(step, gradient.indices, gradient.dense_shape))


class RunningKeras:
    """A Keras optimizer on the ranks of this process; ``optimizer.parameters`` are those of ``shards``, in order."""

    def __init__(self, optimizer: KerasOptimizer, shards: Shards) -> None:
        self._optimizer, self._shards = optimizer, shards
        self._is_moved = tuple(
            is_global and not layout.is_replicated
            for is_global, layout in zip(optimizer.is_global, shards.layouts, strict=True)
        )
        self._layouts = tuple(
            Layout.replicated(layout.mesh, len(layout.splits)) if is_moved else layout
            for is_moved, layout in zip(self._is_moved, shards.layouts, strict=True)
        )
        widest = tf.float64 if any(tensor.dtype == "float64" for tensor in shards.tensors) else tf.float32
        self._sums = Sums(self._layouts, shards.ranks, widest)
        self._is_alone = self._layouts[0].mesh.n_devices == 1 and not optimizer.is_part
        self._on = [self._start(i) for i in range(len(shards.ranks))]
        self._names = tuple(named_variables(self._on[0].copy))
        self._without_data: list[Callable[[], Any] | None] | None = None
        self._kept, self._seen, self._settings = optimizer.kept, self._attributes(), self._current_settings()

    @property
    def _completes(self) -> bool:
        """Say whether the update needs sums over all shards."""
        return bool(self._optimizer.sum_lengths) and not self._is_alone

    def _start(self, i: int) -> OnRank:
        """Return the i-th rank's copy, built on its shards.

        For a parameter that every device updates in full, the copy is built on a variable for all of it.
        """
        shards, variables = self._shards, []
        for n, parameter in enumerate(self._optimizer.parameters):
            tensor, variable = shards.tensors[n], shards.variables[n][i]
            if self._is_moved[n]:
                zeros, name = tf.zeros(tensor.shape, tensor.dtype), f"{shards.names[n]}/whole"
                variable = tf.Variable(zeros, trainable=False, name=name)
            shape = self._layouts[n].local_shape(tensor.shape, shards.ranks[i])
            variables.append(ShardVariable(variable, shape, parameter))
        copy, slots = self._copied(variables)
        return OnRank(copy, tuple(variables), slots)

    def _copied(self, variables: Sequence[ShardVariable]) -> tuple[KerasBase, Slots]:
        """Return a fresh copy of the optimizer, built on these variables, and the variables that it made."""
        kinds = {keras.optimizers.Lamb: LambOnShards} if self._completes else {}
        copy = fresh_copy(self._optimizer.source, {**kinds, keras.optimizers.Adagrad: AdagradByRows})
        return copy, build_variables(copy, variables, self._optimizer.parameters)

    # State

    @property
    def learning_rate(self) -> Any:
        """Return the learning rate as it is now; assigning a number sets it on all ranks of this process."""
        return self._on[0].copy.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if callable(value) or not isinstance(self._on[0].inner._learning_rate, keras.Variable):
            raise InputError(
                f"the learning rate of step '{self._shards.step}' can't be set to {short(value)}: schedules are part of "
                "its graph; to set numbers give the optimizer a number, and to follow a schedule give it that from the start"
            )
        for on in self._on:
            on.copy.learning_rate = value

    @property
    def iterations(self) -> int:
        """Return how many updates have been made."""
        return int(tf.convert_to_tensor(self._on[0].copy.iterations).numpy())

    def _attributes(self) -> list[Any]:
        optimizer = self._optimizer
        return [*vars(optimizer.inner).values(), *(vars(optimizer.source).values() if optimizer.scales_dynamically else ())]

    def _current_settings(self) -> dict[str, Any]:
        return {**settings_of(self._optimizer.source), **settings_of(self._optimizer.inner)}

    def new_settings(self) -> dict[str, Any]:
        """Return the attributes that were set on the user's optimizer since they were last taken over."""
        attributes = self._attributes()
        if len(attributes) == len(self._seen) and all(map(operator.is_, attributes, self._seen)):
            return {}
        self._seen = attributes
        return {k: v for k, v in self._current_settings().items() if k not in self._settings or self._settings[k] != v}

    def take_over(self, settings: Mapping[str, Any]) -> None:
        """Compute by other attributes of the optimizer from the next step that is built.

        Raises:
            InputError: the optimizer would keep other variables, or needs other layouts.
        """
        for optimizer, copies in (
            (self._optimizer.source, [on_rank.copy for on_rank in self._on]),
            (self._optimizer.inner, [on_rank.inner for on_rank in self._on]),
        ):
            for name in settings.keys() & {*vars(optimizer), "learning_rate"}:
                for instance in (optimizer, *copies):
                    if name != "learning_rate" or instance._learning_rate is not settings[name]:
                        setattr(instance, name, settings[name])
        changed = replace(self._optimizer)
        if changed.kept != self._kept:
            raise InputError(
                f"{', '.join(settings)} of optimizer {type(changed.inner).__name__} was set after a plan was made "
                f"({running_line()}), by which it would keep other variables; give it from the start, or parallelize again"
            )
        self._without_data = None
        self._optimizer, self._settings, self._seen = changed, self._current_settings(), self._attributes()

    def state(self) -> tuple[StateEntry, ...]:
        """Return the optimizer's variables, in a fixed order."""
        shards, mesh = self._shards, self._layouts[0].mesh
        entries = []
        for k, (name, (variable, index)) in enumerate(zip(self._names, self._on[0].slots, strict=True)):
            parameter, shape = None, tuple(variable.shape)
            layout = Layout.replicated(mesh, len(shape))
            if index is not None:
                parameter, shape, layout = shards.names[index], shards.tensors[index].shape, self._layouts[index]
            key = f"{shards.step}/{name}"
            per_rank = tuple(on_rank.slots[k][0].value for on_rank in self._on)
            entries.append(StateEntry(key, shape, variable.dtype, layout, per_rank, shards.ranks, parameter, shards.step))
        return tuple(entries)

    @property
    def named(self) -> dict[str, tf.Variable]:
        """The optimizer's variables on the first rank of this process, by :func:`named_variables`."""
        return {name: variable.value for name, (variable, _) in zip(self._names, self._on[0].slots, strict=True)}

    @property
    def averages(self) -> tuple[tuple[str, str], ...]:
        """The keys of each parameter and of its moving average; empty if the optimizer keeps none (``use_ema``)."""
        inner = self._on[0].inner
        ids = {id(variable) for variable in inner._model_variables_moving_average} if inner.use_ema else set()
        entries = zip(self._on[0].slots, self.state(), strict=True)
        return tuple((entry.parameter or "", entry.key) for (variable, _), entry in entries if id(variable) in ids)

    @property
    def is_always_applied(self) -> bool:
        """Return whether every step applies the optimizer, with no condition on the gradients."""
        return self._optimizer.condition is None

    def update_without_data(self, value: Callable[[str], np.ndarray]) -> None:
        """Do what an update does without gradients, such as weight decay.

        Args:
            value: returns a parameter's global value by its name.
        """
        for n, is_moved in enumerate(self._is_moved):
            for on_rank in self._on if is_moved else ():
                on_rank.shards[n].value.assign(value(self._shards.names[n]))
        if self._without_data is None:
            self._without_data = [self._traced_without_data(on_rank) for on_rank in self._on]
        for update in filter(None, self._without_data):
            update()
        self._write_whole()

    def _traced_without_data(self, on_rank: OnRank) -> Callable[[], Any] | None:
        gradients = [tf.TensorSpec(shard.value.shape, shard.dtype) for shard in on_rank.shards]
        return without_data(lambda *values: on_rank.copy.apply(list(values), list(on_rank.shards)), gradients)

    def reset(self) -> None:
        """Give the optimizer's variables their first values again, for the parameters as they are now."""
        for on_rank in self._on:
            for (variable, _), (fresh, _) in zip(on_rank.slots, self._copied(on_rank.shards)[1], strict=True):
                variable.assign(fresh)

    def finish(self) -> None:
        """Do what Keras's optimizer does when training ends: its averages may replace the parameters."""
        if not self._optimizer.inner.use_ema:
            return
        for on_rank in self._on:
            on_rank.copy.finalize_variable_values(list(on_rank.shards))
        self._write_whole()

    def _write_whole(self) -> None:
        """Write the parameters that every device updates in full to their shards."""
        for i, on_rank in enumerate(self._on):
            for n, is_moved in enumerate(self._is_moved):
                if is_moved:
                    shard = shard_slices(self._shards.layouts[n], self._shards.tensors[n].shape, self._shards.ranks[i])
                    self._shards.variables[n][i].assign(on_rank.shards[n].value[shard])

    # A step

    def scaled(self, losses: Values) -> Values:
        return [on_rank.copy.scale_loss(loss) for on_rank, loss in zip(self._on, losses, strict=True)]

    def train(self, emission: Emission) -> PendingUpdate:
        """Emit the sums over gradients that the update needs; return the update."""
        self._read_global(emission)
        groups = [self._gradients(n, emission) for n in range(len(emission.gradients))]
        by_rank = [[group[i] if group else None for group in groups] for i in range(len(self._on))]
        if not self._completes:
            return PendingUpdate(None, lambda sums: self._apply(by_rank, nullcontext(), emission))
        clipped = [as_clipped(on_rank, gradients) for on_rank, gradients in zip(self._on, by_rank, strict=True)]
        completing = Completing(self._optimizer, self._on, self._sums, emission, by_rank, clipped)
        totals = completing.totals()
        n_own = self._optimizer.sum_lengths[0] - self._optimizer.n_over_stages if totals is not None else 0

        def apply(over_stages: Values | None) -> None:
            """Emit the update by the sums over this stage's parameters, and by those over the parameters of all stages."""
            sums = totals
            if totals is not None and over_stages is not None:
                pairs = zip(totals, over_stages, strict=True)
                sums = [tf.concat([of_stage[:n_own], of_all], 0) for of_stage, of_all in pairs]
            self._apply(by_rank, completing.completed(sums), emission)

        if totals is None or not self._optimizer.n_over_stages:
            return PendingUpdate(None, apply)
        return PendingUpdate([vector[n_own:] for vector in totals], apply)

    def _apply(
        self, by_rank: Sequence[Sequence[Gradient | None]], context: AbstractContextManager[None], emission: Emission
    ) -> None:
        """Emit Keras's update on each rank, in a context in which it knows the sums over all shards."""
        with context:
            for on_rank, gradients in zip(self._on, by_rank, strict=True):
                pairs = [(g, shard) for g, shard in zip(gradients, on_rank.shards, strict=True) if g is not None]
                on_rank.copy.apply(*map(list, zip(*pairs, strict=True)))
        self._write_shards(emission)

    def _gradients(self, n: int, emission: Emission) -> Sequence[Gradient] | None:
        """Return a parameter's gradient for each rank: in shards, replicated, or as rows; None if it has none."""
        if emission.indices[n]:
            return row_gradients(emission, replace(self._shards, layouts=self._layouts), n)
        (gradients,) = emission.gradients[n]
        if gradients is not None and self._is_moved[n]:
            return emission.reshard(gather_resharding(self._shards.tensors[n], self._shards.layouts[n]), gradients)
        return gradients

    def _read_global(self, emission: Emission) -> None:
        """Replicate the parameters that every device updates in full, into the variables that the copies update."""
        for n, is_moved in enumerate(self._is_moved):
            if is_moved:
                resharding = gather_resharding(self._shards.tensors[n], self._shards.layouts[n])
                for on_rank, global_value in zip(self._on, emission.reshard(resharding, emission.read(n)), strict=True):
                    on_rank.shards[n].value.assign(global_value)

    def _write_shards(self, emission: Emission) -> None:
        """Write the values that every device updated in full back to the parameters, as shards."""
        for n, variables in enumerate(self._shards.variables):
            if self._is_moved[n]:
                global_values = [on_rank.shards[n].value.read_value() for on_rank in self._on]
                resharding = split_resharding(self._shards.tensors[n], self._shards.layouts[n])
                for variable, shard in zip(variables, emission.reshard(resharding, global_values), strict=True):
                    variable.assign(shard)


_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"})


def without_data(step: Callable[..., Any], data: Sequence[Any]) -> Callable[[], Any] | None:
    """Return a function that does what a step does without its data; None if that is nothing.

    Keras runs it once more at the end of data of unknown size: it finds that such data has ended where a step asks for a
    batch. By then TensorFlow has run all of the step that needs none: the optimizer's count of updates, weight decay, the
    states of random generators.

    Args:
        data: for each argument of the step a structure of specs, with None for the number of samples.
    """
    function = tf.function(step, autograph=False).get_concrete_function(*data)
    graph, captured = function.graph, {inner.op.name: outer for outer, inner in function.graph.captures}
    dependents: set[str] = set()
    writes = []
    for op in graph.get_operations():  # in an order in which they may run
        before = (*(tensor.op for tensor in op.inputs), *op.control_inputs)
        is_data = op.type == "Placeholder" and op.name not in captured
        if is_data or any(operand.name in dependents for operand in before):
            dependents.add(op.name)
        elif op.type not in (*_READS, "Placeholder") and any(tensor.dtype == tf.resource for tensor in op.inputs):
            writes.append(op.name)
    if not writes:
        return None
    subgraph = tf.compat.v1.graph_util.extract_sub_graph(graph.as_graph_def(), writes)

    def again() -> None:
        names = [node.name for node in subgraph.node if node.name in captured]
        inputs = {name: tf.compat.v1.get_default_graph().capture(captured[name]) for name in names}
        tf.graph_util.import_graph_def(subgraph, input_map=inputs, name="")

    return tf.function(again, autograph=False).get_concrete_function()
