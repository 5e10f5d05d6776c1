"""A Keras optimizer on the pieces of one process's ranks.

A step goes through

1. gradients of the scaled loss; of parameters that are updated whole, gradient and value are brought to every rank;
2. sums over all pieces (:mod:`.global_norms`) of what clipping, loss scaling and LAMB will ask for, ahead of the update:
   that may stand inside of a condition, where ranks could go apart, so no collective is ever emitted in there;
3. per rank the ``apply`` of Keras itself, in which clipping and the check for finite gradients take the completed sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from ..common.errors import InputError, short
from ..lowering.operators import Values
from ..lowering.variables import StateEntry
from ..reschedule.layout import Layout
from ..sharding.local_shapes import piece_of
from ..sharding.update_resharding import piece_resharding, whole_resharding
from .copies import KerasBase, OnRank, OptimizerVariable, Piece, build, fresh_copy
from .global_norms import Completing
from .keras_optimizer import KerasOptimizer
from .lamb import LambOnPieces
from .runtime import Emission, Shards
from .sparse import Gradient, places_of, row_gradients
from .sums import Sums


class RunningKeras:
    """See the module; ``optimizer.parameters`` are those of ``shards``, in order."""

    def __init__(self, optimizer: KerasOptimizer, shards: Shards) -> None:
        self._optimizer, self._shards = optimizer, shards
        self._is_moved = tuple(
            is_whole and not layout.is_replicated
            for is_whole, layout in zip(optimizer.is_whole, shards.layouts, strict=True)
        )
        self._layouts = tuple(
            Layout.replicated(layout.mesh, len(layout.splits)) if is_moved else layout
            for is_moved, layout in zip(self._is_moved, shards.layouts, strict=True)
        )
        widest = tf.float64 if any(tensor.dtype == "float64" for tensor in shards.tensors) else tf.float32
        self._sums = Sums(self._layouts, shards.ranks, widest)
        self._completes = bool(optimizer.sum_lengths) and self._layouts[0].mesh.n_devices > 1
        self._on = [self._start(i) for i in range(len(shards.ranks))]

    def _start(self, i: int) -> OnRank:
        """A copy on the pieces of the i-th rank; where a parameter is updated whole, on a variable for all of it."""
        shards, updated = self._shards, []
        for n, parameter in enumerate(self._optimizer.parameters):
            tensor, variable = shards.tensors[n], shards.variables[n][i]
            if self._is_moved[n]:
                zeros, name = tf.zeros(tensor.shape, tensor.dtype), f"{shards.names[n]}/whole"
                variable = tf.Variable(zeros, trainable=False, name=name)
            shape = self._layouts[n].local_shape(tensor.shape, shards.ranks[i])
            updated.append(Piece(variable, shape, parameter))
        copy = self._copied(updated)
        return OnRank(copy[0], tuple(updated), copy[1])

    def _copied(self, updated: Sequence[Piece]) -> tuple[KerasBase, tuple[OptimizerVariable, ...]]:
        kinds = {keras.optimizers.Lamb: LambOnPieces} if self._completes else {}
        copy = fresh_copy(self._optimizer.source, kinds)
        return copy, build(copy, updated, self._optimizer.parameters)

    # State

    @property
    def learning_rate(self) -> Any:
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
        return int(tf.convert_to_tensor(self._on[0].copy.iterations).numpy())

    def state(self) -> tuple[StateEntry, ...]:
        shards, mesh = self._shards, self._layouts[0].mesh
        entries: dict[str, StateEntry] = {}
        for k, (variable, place) in enumerate((each.variable, each.parameter) for each in self._on[0].made):
            key = f"{shards.step}/{self._name(variable)}"
            key = f"{key}_{k}" if key in entries else key
            of, shape = None, tuple(variable.shape)
            layout = Layout.replicated(mesh, len(shape))
            if place is not None:
                of, shape, layout = shards.names[place], shards.tensors[place].shape, self._layouts[place]
            pieces = tuple(on.made[k].variable.value for on in self._on)
            entries[key] = StateEntry(key, shape, variable.dtype, layout, pieces, of, shards.step)
        return tuple(entries.values())

    def _name(self, variable: Any) -> str:
        """Without the optimizer's own name, and without names that Keras counts up with all that a program makes."""
        on = self._on[0]
        is_inner = on.inner is not on.copy and any(each is variable for each in on.inner.variables)
        _, _, name = variable.path.partition("/")
        held = (key for key, value in vars(on.inner).items() if value is variable)
        return ("inner/" if is_inner else "") + (name or next(held, variable.path).strip("_"))

    def reset(self) -> None:
        for on in self._on:
            for held, fresh in zip(on.made, self._copied(on.updated)[1], strict=True):
                held.variable.assign(fresh.variable)

    def finish(self) -> None:
        """Do what Keras's optimizer does when training ends: averages may take the parameters' place."""
        if not self._optimizer.inner.use_ema:
            return
        for i, on in enumerate(self._on):
            on.copy.finalize_variable_values(list(on.updated))
            for n, is_moved in enumerate(self._is_moved):
                if is_moved:
                    piece = piece_of(self._shards.layouts[n], self._shards.tensors[n].shape, self._shards.ranks[i])
                    self._shards.variables[n][i].assign(on.updated[n].value[piece])

    # A step

    def train(self, losses: Values, emission: Emission) -> None:
        scaled = [on.copy.scale_loss(loss) for on, loss in zip(self._on, losses, strict=True)]
        sources = places_of(emission)
        found = iter(emission.gradients(scaled, [values for each in sources for values in each]))
        self._read_whole(emission)
        moved = [self._gradients(n, [next(found) for _ in each], emission) for n, each in enumerate(sources)]
        by_rank = [[group[i] if group else None for group in moved] for i in range(len(self._on))]
        completing = Completing(self._optimizer, self._on, self._sums, emission)
        with completing.completed(by_rank) if self._completes else nullcontext():
            for on, gradients in zip(self._on, by_rank, strict=True):
                pairs = [(g, piece) for g, piece in zip(gradients, on.updated, strict=True) if g is not None]
                on.copy.apply(*map(list, zip(*pairs, strict=True)))
        self._write_pieces(emission)

    def _gradients(self, n: int, found: list[Values | None], emission: Emission) -> Sequence[Gradient] | None:
        """Per rank the gradient of a parameter: as it lies, whole, or as rows."""
        if emission.lookups[n]:
            on_updated = replace(self._shards, layouts=self._layouts)
            return row_gradients(emission.lookups[n], found, emission, on_updated, n)
        (gradients,) = found
        if gradients is not None and self._is_moved[n]:
            return emission.reshard(whole_resharding(self._shards.tensors[n], self._shards.layouts[n]), gradients)
        return gradients

    def _read_whole(self, emission: Emission) -> None:
        for n, values in enumerate(emission.reads):
            if self._is_moved[n]:
                resharding = whole_resharding(self._shards.tensors[n], self._shards.layouts[n])
                for on, whole in zip(self._on, emission.reshard(resharding, values), strict=True):
                    on.updated[n].value.assign(whole)

    def _write_pieces(self, emission: Emission) -> None:
        for n, variables in enumerate(self._shards.variables):
            if self._is_moved[n]:
                wholes = [on.updated[n].value.read_value() for on in self._on]
                resharding = piece_resharding(self._shards.tensors[n], self._shards.layouts[n])
                for variable, piece in zip(variables, emission.reshard(resharding, wholes), strict=True):
                    variable.assign(piece)
