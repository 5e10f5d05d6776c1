"""Translate feeds and fetches to the imported graph: names, structures, shapes and types are as in TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..common.errors import InputError, short
from ..ir.graph import Graph, Tensor
from ..program.fetch import Fetch
from ..reschedule.layout import Shape, block_bounds
from ..runtime.step.functions import Feed

_LEAVES = (str, tf.Tensor, tf.Operation, tf.Variable)


@dataclass(frozen=True, eq=False)
class Local:
    """A value that is marked as this rank's own share: :func:`tensoropt.local`."""

    value: Any


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """A fetch, and how to give its results back in the structure that was asked for.

    Attributes:
        structure: the fetches as the user gave them.
        indices: for each leaf of the structure, the index of its tensor in the fetch, or None for an operation.
        initializes: whether a leaf asks for the variables' initial values.
        is_flat: whether the structure is a list or a tuple of its leaves, which then needn't be walked.
    """

    fetch: Fetch
    structure: Any
    indices: tuple[int | None, ...]
    initializes: bool
    is_flat: bool = False

    def restore(self, values: list[np.ndarray | None]) -> Any:
        leaves = [None if index is None else values[index] for index in self.indices]
        return type(self.structure)(leaves) if self.is_flat else tf.nest.pack_sequence_as(self.structure, leaves)


class FetchPlans:
    """The plans of a model's fetches: of those that a step is given again and again each is made once."""

    def __init__(self, graph: Graph, recorded: tf.Graph, initializers: frozenset[str]) -> None:
        self._of_model = graph, recorded, initializers
        # The leaves stay with their plan, so that no other object gets the identity of one.
        self._known: dict[tuple[Any, ...], tuple[tuple[Any, ...], FetchPlan]] = {}

    def of(self, fetches: Any) -> FetchPlan:
        """Return the plan of fetches; see :func:`plan_fetches`."""
        graph, recorded, initializers = self._of_model
        leaves = tuple(fetches) if type(fetches) in (list, tuple) else (fetches,)
        if not all(isinstance(leaf, _LEAVES) for leaf in leaves):
            return plan_fetches(graph, recorded, fetches, initializers)
        key = (type(fetches), *(leaf if isinstance(leaf, str) else id(leaf) for leaf in leaves))
        if key not in self._known:
            self._known[key] = leaves, plan_fetches(graph, recorded, fetches, initializers)
        return self._known[key][1]


def plan_fetches(graph: Graph, recorded: tf.Graph, fetches: Any, initializers: frozenset[str]) -> FetchPlan:
    """Translate fetches as ``tf.compat.v1.Session.run`` understands them; raise InputError if one isn't of the model."""
    tensors: dict[tuple[Tensor, bool], int] = {}
    steps: list[str] = []
    operators: list[str] = []
    indices: list[int | None] = []
    initializes = False
    structure = _without_variables(fetches)
    leaves = tf.nest.flatten(structure)
    for leaf in leaves:
        is_local = isinstance(leaf, Local)
        value = leaf.value if is_local else leaf
        name = recorded_name(value, recorded)
        tensor = graph.resolve(name) if name is not None else None
        if tensor is not None:
            indices.append(tensors.setdefault((tensor, is_local), len(tensors)))
            continue
        indices.append(None)
        if name in graph.train_steps:
            steps.append(str(name))
        elif name in graph.operators:
            operators.append(str(name))
        elif name in initializers:
            initializes = True
        else:
            operators += _group(value, name, recorded, graph, steps)
    ancestors = graph.ancestors([tensor for tensor, _ in tensors], operators)
    controls = {name for ancestor in ancestors for name in graph.operators[ancestor].controls}
    steps += [name for name in graph.train_steps if name in controls]
    fetch = Fetch(tuple(tensors), tuple(dict.fromkeys(steps)), tuple(dict.fromkeys(operators)))
    is_flat = type(structure) in (list, tuple) and list(map(id, structure)) == list(map(id, leaves))
    return FetchPlan(fetch, structure, tuple(indices), initializes, is_flat)


def recorded_name(value: Any, recorded: tf.Graph) -> str | None:
    """Return the name of a tensor, variable or operation of the recorded graph.

    A text is taken to be a name; for anything else the result is None.
    """
    if isinstance(value, str):
        return value
    try:
        return value.name if value.graph is recorded else None
    except (AttributeError, RuntimeError):  # not of any graph
        return None


def _without_variables(fetches: Any) -> Any:
    """Return fetches with tensors in place of variables: TensorFlow's nest would take some variables apart."""
    if isinstance(fetches, tf.Variable):
        return fetches.handle
    if isinstance(fetches, dict):
        return {key: _without_variables(value) for key, value in fetches.items()}
    if isinstance(fetches, tuple) and hasattr(fetches, "_fields"):
        return type(fetches)(*(_without_variables(value) for value in fetches))
    if isinstance(fetches, (list, tuple)):
        return type(fetches)(_without_variables(value) for value in fetches)
    if isinstance(fetches, Local):
        return Local(_without_variables(fetches.value))
    return fetches


def _group(fetch: Any, name: str | None, recorded: tf.Graph, graph: Graph, steps: list[str]) -> list[str]:
    """Return the operators behind an operation that only groups others (``tf.group``).

    Training steps among them are added to ``steps`` instead.
    """
    try:
        element = recorded.as_graph_element(name) if name is not None else None
    except (KeyError, ValueError):
        element = None
    if element is None:
        raise InputError(
            f"fetch {short(fetch)} isn't part of the recorded model; fetch a tensor or operation that was recorded between "
            "tensoropt.init() and tensoropt.find_strategy()"
        )
    if not isinstance(element, tf.Operation) or element.type != "NoOp":
        raise InputError(
            f"fetch {short(fetch)} isn't computed when the model runs: it was folded with the shapes and constants that it "
            "depends on, or only initialises variables; fetch what is made of variables or of what is fed"
        )
    names: list[str] = []
    for control in element.control_inputs:
        if control.name in graph.train_steps:
            steps.append(control.name)
        elif control.name in graph.operators:
            names.append(control.name)
        elif control.type == "NoOp":
            names += _group(control, control.name, recorded, graph, steps)
    return names


class FeedPlans:
    """The tensors of a model that are fed: of keys that a step is given again and again each is looked up once."""

    def __init__(self, graph: Graph, recorded: tf.Graph, rank: int, n_ranks: int) -> None:
        self._graph, self._recorded, self._rank, self._n_ranks = graph, recorded, rank, n_ranks
        # The keys stay with what they mean, so that no other object gets the identity of one.
        self._known: dict[tuple[Any, bool], tuple[Any, Feed, Shape, np.dtype[Any]]] = {}

    def of(self, feed_dict: Mapping[Any, Any] | None) -> dict[Feed, np.ndarray]:
        """Check the fed values, and convert each to the type and shape of its tensor.

        Raises:
            InputError: a key isn't part of the recorded model, or a value has the wrong shape or type.
        """
        feeds: dict[Feed, np.ndarray] = {}
        if feed_dict is not None and not isinstance(feed_dict, Mapping):
            raise InputError(f"feed_dict takes a dictionary from placeholders to arrays, got {short(feed_dict)}")
        for key, value in (feed_dict or {}).items():
            is_marked = isinstance(value, Local)
            array, is_local = (value.value, self._n_ranks > 1) if is_marked else (value, False)
            identity = key if isinstance(key, str) else id(key), is_local
            if identity not in self._known:
                self._known[identity] = key, *self._fed(key, is_local)
            _, feed, expected, dtype = self._known[identity]
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != expected:
                array = _checked(feed.tensor, array, expected, is_local, self._graph)
            feeds[feed] = array
        return feeds

    def _fed(self, key: Any, is_local: bool) -> tuple[Feed, Shape, np.dtype[Any]]:
        """Return what a key feeds, with the shape and the type that its value must have."""
        name = recorded_name(key, self._recorded)
        tensor = self._graph.resolve(name) if name is not None else None
        if tensor is None:
            hint = f", as '{name}:0' is" if name is not None and self._graph.resolve(f"{name}:0") else ""
            raise InputError(
                f"feed_dict names {short(key)}, which isn't a tensor of the recorded model; name a placeholder or another "
                f"tensor of it{hint}"
            )
        expected = local_share(tensor, self._rank, self._n_ranks) if is_local else tensor.shape
        return Feed(tensor, is_local), expected, np.dtype(tf.as_dtype(tensor.dtype).as_numpy_dtype)


def local_share(tensor: Tensor, rank: int, n_ranks: int) -> Shape:
    """Return the shape of a rank's share of the batch; raise InputError if there are fewer samples than ranks."""
    if not tensor.shape or tensor.shape[0] < n_ranks:
        raise InputError(
            f"tensoropt.local gives {tensor.name} of shape {list(tensor.shape)} in {n_ranks} shares; expected at least one "
            "sample for each rank: feed the whole array instead"
        )
    start, end = block_bounds(tensor.shape[0], n_ranks, rank)
    return (end - start, *tensor.shape[1:])


def _checked(tensor: Tensor, source: Any, expected: Shape, is_local: bool, graph: Graph) -> np.ndarray:
    where = graph.producers[tensor.name].source
    dtype = tf.as_dtype(tensor.dtype).as_numpy_dtype
    try:
        value = np.asarray(source)
    except (ValueError, NotImplementedError) as error:
        raise InputError(f"the value fed for {tensor.name} ({where}) is not an array: {short(source)}") from error
    if value.dtype != dtype:
        is_python = not isinstance(source, (np.ndarray, np.generic))
        if not np.can_cast(value.dtype, dtype, "same_kind") and not (is_python and value.dtype.kind in "biu"):
            raise InputError(
                f"the value fed for {tensor.name} ({where}) has type {value.dtype}, expected {tensor.dtype}; convert it"
            )
        value = value.astype(dtype)
    if value.shape != expected:
        meaning = "this rank's share of the batch" if is_local else "the full batch, on every rank"
        raise InputError(
            f"the value fed for {tensor.name} ({where}) has shape {list(value.shape)}, expected {list(expected)}: {meaning}"
        )
    return value
