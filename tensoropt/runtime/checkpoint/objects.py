"""Describe the user's objects in a checkpoint, as ``tf.train.Checkpoint`` needs them to restore it.

Then ``tf.train.Checkpoint(model=model, optimizer=optimizer)`` restores the checkpoint. TensorFlow finds a variable by its
path of attributes from the root. The paths are in the graph of objects, an entry that every checkpoint has. In it each
variable names the entry with its value. The graph that is written here is that of the user's objects, and it names
TensorOpt's entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from ...common.reach import reached
from .variable import VALUE, entry_of

ENTRY = "_CHECKPOINTABLE_OBJECT_GRAPH"
COUNTER = "save_counter"


@dataclass(frozen=True, slots=True, eq=False)
class Objects:
    """The user's objects, with the names of their variables in a checkpoint.

    Attributes:
        roots: the arguments that ``tf.train.Checkpoint`` would get: ``{"model": model, "optimizer": optimizer}``.
        names: pairs of a variable of the roots (Keras's or TensorFlow's) and its name there (:func:`entry_name`).
    """

    roots: Mapping[str, Any]
    names: Sequence[tuple[Any, str]]

    @property
    def name_by_id(self) -> dict[int, str]:
        """The names by the ``id`` of a variable, and of the TensorFlow variable in a Keras variable."""
        names = {}
        for variable, name in self.names:
            names[id(variable)] = names[id(_inner(variable))] = name
        return names

    def order(self) -> dict[str, tuple[str | None, ...]]:
        """Return the names of each root's variables in its own order; None for a variable that isn't in the checkpoint."""
        names = self.name_by_id
        return {
            root: tuple(names.get(id(variable)) for variable in value.variables)
            for root, value in self.roots.items()
            if hasattr(value, "variables")
        }


def _inner(variable: Any) -> Any:
    return variable if isinstance(variable, tf.Variable) else variable._value


def object_graph(objects: Objects | None) -> bytes:
    """Return the serialized graph of objects, with the entries of their variables and of the save counter.

    TensorFlow's own save counter is among them: ``assert_consumed`` asks for it, and ``tf.train.CheckpointManager``
    continues from its value.
    """
    root = tf.train.Checkpoint(**(objects.roots if objects is not None else {}))
    name_of_id = {id(root.save_counter): COUNTER, **(objects.name_by_id if objects is not None else {})}
    view = tf.train.TrackableView(root)
    nodes = view.descendants()
    number = {id(node): i for i, node in enumerate(nodes)}
    graph = TrackableObjectGraph()
    for node in nodes:
        entry = graph.nodes.add()
        for name, child in view.children(node).items():
            entry.children.add(node_id=number[id(child)], local_name=name)
        if id(node) in name_of_id:
            name = name_of_id[id(node)]
            entry.attributes.add(name=VALUE, full_name=name, checkpoint_key=entry_of(name))
    _mark_holders(graph)
    return bytes(graph.SerializeToString())


def _mark_holders(graph: TrackableObjectGraph) -> None:
    """Mark the objects from which a saved variable can be reached. TensorFlow complains only of these if one is missing."""
    parents: dict[int, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for child in node.children:
            parents.setdefault(child.node_id, []).append(i)
    savers = (i for i, node in enumerate(graph.nodes) if node.attributes)
    holders = reached(savers, lambda i: parents.get(i, ()))
    for i, node in enumerate(graph.nodes):
        node.has_checkpoint_values.value = i in holders
