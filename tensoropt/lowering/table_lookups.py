"""What the lookups in a table found, where the table is updated by rows."""

from __future__ import annotations

from dataclasses import dataclass

from ..sharding.resharding import Resharding
from .operators import Values


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """What one lookup found, on the ranks of this process.

    Attributes:
        found: local values, of which the gradient is taken.
        indices: the rows, all of them on every rank.
        resharding: brings the gradient of ``found`` to every rank.
    """

    found: Values
    indices: Values
    resharding: Resharding
