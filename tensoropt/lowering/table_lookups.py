"""The results of lookups in tables that are updated by rows."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.graph import Operator
from .operators import Values


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """The result of one lookup, on the ranks of this process.

    Attributes:
        operator: the lookup.
        found: the local values of the rows that were found. The gradient is taken with respect to them.
        indices: the indices that were looked up, all of them on every rank.
    """

    operator: Operator
    found: Values
    indices: Values
