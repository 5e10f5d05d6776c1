"""Pickle values by what they are made of, without what they keep of it for later."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class ByArguments:
    """A dataclass that another process makes from its arguments: what it keeps may be known by identities here."""

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        of_arguments = (each.name for each in fields(self) if each.init and not each.name.startswith("_"))  # type: ignore[arg-type]
        return type(self), tuple(getattr(self, name) for name in of_arguments)
