"""Map the names of a step's TensorFlow operators to the model's operators and to the part of the step that they are in."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import NamedTuple

from ..ir.body import ALIASES
from ..ir.graph import SOURCES
from ..sharding.model import Model

FORWARD, BACKWARD, UPDATE, CALL, OTHER = "forward", "backward", "update", "call", "other"
_SLICE = re.compile(r"micro_batch_\d+/")
_GRADIENT = re.compile(r"gradients(?:_\d+)?/(?P<operator>.+?)_grad/")


class TracedName(NamedTuple):
    """The model's operator, and the part of the step, of a TensorFlow operator.

    ``operator`` is the name of the model's operator where ``way`` is FORWARD or BACKWARD, else TensorFlow's own. ``way`` is
    one of these two, UPDATE (of a variable), CALL (of collectives), or OTHER: what the model doesn't have, such as
    reshardings.
    """

    operator: str
    way: str

    @classmethod
    def of(cls, name: str, operators: Container[str]) -> TracedName:
        """Parse the name of a TensorFlow operator; ``operators`` holds the names of the model's operators."""
        if "collective" in name.rpartition("/")[2]:
            return cls(name, CALL)
        gradient = _GRADIENT.match(name)
        operator = without_micro_batch(gradient["operator"] if gradient else name)
        if operator in operators:
            return cls(operator, BACKWARD if gradient else FORWARD)
        return cls(name, UPDATE if "Apply" in name else OTHER)


def without_micro_batch(name: str) -> str:
    """Return an operator's name without the prefix of its micro-batch."""
    match = _SLICE.match(name)
    return name[match.end() :] if match else name


def ran_as(model: Model, traced: Iterable[str]) -> dict[str, str]:
    """Return the name under which TensorFlow ran each operator of the model, by the operator's name.

    It is the operator's own name or, where TensorFlow ran it as one with a consumer of its result, that consumer's.
    """
    groups: dict[str, str] = {}
    consumers: dict[str, str] = {}
    names = set(map(without_micro_batch, traced))
    for op in model.graph.step_operators:
        for _, tensor in op.operands:
            consumers.setdefault(model.graph.producers[tensor.name].name, op.name)
    for op in reversed(model.graph.step_operators):
        ran_by_itself = op.name in names or op.type in ALIASES or op.type in SOURCES
        groups[op.name] = op.name if ran_by_itself else groups.get(consumers.get(op.name, ""), op.name)
    return groups
