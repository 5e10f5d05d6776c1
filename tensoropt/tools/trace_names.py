"""What the names of a step's TensorFlow operators tell: of which operator of the model they are, and what for."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import NamedTuple

from ..ir.graph import SOURCES
from ..ir.views import ALIASES
from ..sharding.model import Model

FORWARD, BACKWARD, UPDATE, CALL, OTHER = "forward", "backward", "update", "call", "other"
_SLICE = re.compile(r"micro_batch_\d+/")
_GRADIENT = re.compile(r"gradients(?:_\d+)?/(?P<operator>.+?)_grad/")


class TracedName(NamedTuple):
    """``operator`` is the model's where the way is forward or backward, else TensorFlow's name.

    ``way``: also the update of a variable, the call of collectives, or what the model doesn't have, such as reshardings.
    """

    operator: str
    way: str

    @classmethod
    def of(cls, name: str, operators: Container[str]) -> TracedName:
        """Read the name of a TensorFlow operator, given those of the model's."""
        if "collective" in name.rpartition("/")[2]:
            return cls(name, CALL)
        gradient = _GRADIENT.match(name)
        operator = without_slice(gradient["operator"] if gradient else name)
        if operator in operators:
            return cls(operator, BACKWARD if gradient else FORWARD)
        return cls(name, UPDATE if "Apply" in name else OTHER)


def without_slice(name: str) -> str:
    """The name of an operator of one micro-batch as that of all."""
    match = _SLICE.match(name)
    return name[match.end() :] if match else name


def ran_as(model: Model, traced: Iterable[str]) -> dict[str, str]:
    """Operator name to the name under which TensorFlow ran it: its own, or that of an operator that takes its result."""
    groups: dict[str, str] = {}
    consumers: dict[str, str] = {}
    names = set(map(without_slice, traced))
    for op in model.graph.step_operators:
        for _, tensor in op.operands:
            consumers.setdefault(model.graph.producers[tensor.name].name, op.name)
    for op in reversed(model.graph.step_operators):
        ran_by_itself = op.name in names or op.type in ALIASES or op.type in SOURCES
        groups[op.name] = op.name if ran_by_itself else groups.get(consumers.get(op.name, ""), op.name)
    return groups
