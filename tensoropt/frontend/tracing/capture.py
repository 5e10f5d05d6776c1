"""Capture a function of a model, with the variables that it uses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.eager.lift_to_graph import UnliftableError
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from ...common.errors import InputError, short
from ...common.source_lines import running_line
from ..attributes import LOADED_ATTRIBUTE
from ..writes import RecordingGraph
from .by_sample import BySample
from .effects import Effect
from .flatten import Flattener, handle_of
from .preprocessing import Preprocessing, find_preprocessing

Structure = Any


@dataclass(frozen=True)
class Program:
    """One captured function.

    Attributes:
        given: the placeholders of its arguments' leaves, in order.
        inputs: the tensors that are fed: those of its arguments, or what its preprocessing gives instead of them.
        results: the value that it returns, in its own structure, as tensors of the flat graph.
        writes: the operations that update variables, in program order.
        effects: what has an effect on the world, in program order.
        preprocessing: what it does with text and lookup tables; None if it does nothing with them.
    """

    given: tuple[tf.Tensor, ...]
    inputs: tuple[tf.Tensor, ...]
    results: Structure
    writes: tuple[tf.Operation, ...]
    effects: tuple[Effect, ...] = ()
    preprocessing: Preprocessing | None = None


@dataclass
class VariableNames:
    """Unique names of variables, the same in all captures that are given them.

    Attributes:
        named: returns names for variables, of which several may have the same.
    """

    named: Callable[[Sequence[tf.Variable]], Sequence[str]]
    _known: dict[int, tuple[tf.Variable, str]] = field(default_factory=dict)

    def __call__(self, variables: Sequence[tf.Variable]) -> list[str]:
        """Return the variables' names; those of variables that were asked for before are what they were."""
        new = [variable for variable in variables if id(handle_of(variable)) not in self._known]
        names = {name for _, name in self._known.values()}
        for variable, own in zip(new, self.named(new), strict=True):
            name = next(name for name in _numbered(own) if name not in names)
            names.add(name)
            self._known[id(handle_of(variable))] = variable, name
        return [self._known[id(handle_of(variable))][1] for variable in variables]

    @property
    def all(self) -> tuple[tuple[tf.Variable, str], ...]:
        """All variables that were asked for, with their names."""
        return tuple(self._known.values())

    def of(self, variable: tf.Variable) -> str | None:
        """Return the name of a variable; None if it was never asked for."""
        return self._known.get(id(handle_of(variable)), (None, None))[1]


def _numbered(name: str) -> Iterator[str]:
    return itertools.chain([name], (f"{name}_{count}" for count in itertools.count(1)))


@dataclass
class Capture:
    """A function that is captured into a flat graph.

    Attributes:
        names_of: returns names for variables, where their own names won't do.
        layer_of: returns the text by which messages name the layer of an operator, see :class:`Flattener`.
        by_sample: returns the scope of a layer that computes each sample by itself, see :class:`Flattener`.
        variables: the user's variables, by their names in the flat graph.
    """

    names_of: Callable[[Sequence[tf.Variable]], Sequence[str]] = lambda variables: list(map(own_name, variables))
    layer_of: Callable[[str], str | None] = lambda name: None
    by_sample: BySample = lambda name: None
    variables: dict[str, tf.Variable] = field(default_factory=dict)
    flattener: Flattener = field(init=False)

    def __post_init__(self) -> None:
        self.flattener = Flattener(RecordingGraph(), self.layer_of, by_sample=self.by_sample)

    @property
    def graph(self) -> tf.Graph:
        return self.flattener.graph

    def add(self, function: Callable[..., Any], signature: Sequence[Structure]) -> Program:
        """Capture the function.

        Args:
            signature: for each argument its ``tf.TensorSpec``, or a structure of such, with every extent known.

        Raises:
            InputError: the function holds something that can't be captured.
        """
        traced = concrete(function, signature)
        leaves = tf.nest.flatten(list(signature))
        variables = variables_used_by(traced)
        # Before the placeholders, which give way where names are the same.
        for variable, own in zip(variables, self.names_of(variables), strict=True):
            name = next(candidate for candidate in _numbered(own) if candidate not in self.variables)
            self.flattener.add_variable(variable, name)
            self.variables[name] = variable
        with self.graph.as_default():
            placeholders = tuple(
                tf.compat.v1.placeholder(spec.dtype, spec.shape, name=spec.name or f"input_{i}")
                for i, spec in enumerate(leaves)
            )
        outputs, writes, effects = self.flattener.flatten(traced.graph, placeholders)
        results = tf.nest.pack_sequence_as(traced.graph.structured_outputs, outputs, expand_composites=True)
        ends = [*tf.nest.flatten(results), *(tensor for effect in effects for tensor in effect.needs)]
        preprocessing = find_preprocessing(self.flattener, placeholders, ends, writes)
        inputs = placeholders if preprocessing is None else preprocessing.results
        for tensor in inputs:
            if tensor.shape.rank:  # a batch, of which every rank loads its share
                tensor.op._set_attr(LOADED_ATTRIBUTE, tf.compat.v1.AttrValue(b=True))
        return Program(placeholders, inputs, results, tuple(writes), tuple(effects), preprocessing)

    def name(self, variable: tf.Variable) -> str | None:
        """Return a variable's name in the flat graph; None if the function doesn't use it."""
        handle = self.flattener.handles.get(id(handle_of(variable)))
        return None if handle is None else handle.op.name


# Where there is a GPU, Keras makes one kernel of cuDNN of an LSTM or GRU, which nobody can split; without one, a loop, which
# is recorded as what it computes.
_RECURRENT = "keras.src.backend.tensorflow.rnn"  # a name that its package has for a function, too


def concrete(function: Callable[..., Any], signature: Sequence[Structure]) -> Any:
    """Trace a function for a signature of ``tf.TensorSpec``; raise InputError if it has others, or leaves an extent open."""
    for spec in tf.nest.flatten(list(signature)):
        if not isinstance(spec, tf.TensorSpec):
            raise InputError(f"input_signature takes a tf.TensorSpec for each argument, got {short(spec)}")
        if not spec.shape.is_fully_defined():
            raise InputError(
                f"input_signature has {spec}; expected every extent to be known, since a plan is made for one batch: write "
                "the batch size where the shape says None"
            )
    traceable = function if hasattr(function, "get_concrete_function") else tf.function(function)
    try:
        noted = mock.patch.object(BaseResourceVariable, "handle", property(_noted_handle))
        with noted, mock.patch.object(import_module(_RECURRENT), "_is_gpu_available", lambda: False):
            return traceable.get_concrete_function(*signature)
    except UnliftableError as error:
        raise InputError(
            f"variables that are made while a step is traced ({running_line()}) take their first values from what the "
            "step computes or from other variables; make them before it, as in __init__ of the model"
        ) from error


def _noted_handle(variable: tf.Variable) -> tf.Tensor:
    """Return a variable's handle, and note its use: TensorFlow doesn't where something only gathers from it."""
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, FuncGraph):
        graph._watched_variables.add(variable)
        graph = graph.outer_graph
    return variable._handle


def own_name(variable: tf.Variable) -> str:
    return str(variable.name.partition(":")[0])


def variables_used_by(traced: Any) -> list[tf.Variable]:
    """Return the variables that a trace uses, in the order of their handles among its captures."""
    by_handle = {id(handle_of(variable)): variable for variable in traced.graph.variables}
    return [by_handle[id(outer)] for outer, _ in traced.graph.captures if id(outer) in by_handle]
