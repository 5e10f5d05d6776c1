"""Check the values of a hardware description; an error names the field, the value and the expected values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ...common.errors import InputError, short

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Dataclass = TypeVar("_Dataclass", bound="DataclassInstance")


class HardwareError(InputError, ValueError):
    """A hardware description, or a request to it, that is impossible."""


def fail(field: str, value: object, expected: str) -> HardwareError:
    """Return the error for a field that has another value than expected."""
    return HardwareError(f"{field}: got {short(value)}, expected {expected}")


def number(value: object, field: str, expected: str, least: float | None = None) -> float:
    """Return a finite number above zero, or at least ``least`` where that is given."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise fail(field, value, expected)
    if value < least if least is not None else value <= 0:
        raise fail(field, value, expected)
    return float(value)


def positive_integer(value: object, field: str, expected: str, most: float = math.inf) -> int:
    """Return a whole number from 1 to ``most``; a float such as 16e9 is one too."""
    number(value, field, expected)
    assert isinstance(value, int | float)
    if value != int(value) or value > most:
        raise fail(field, value, expected)
    return int(value)


def set_numbers(instance: object, prefix: str, expected: Mapping[str, tuple[str, float | None]]) -> None:
    """Make attributes of a frozen dataclass floats; each has what is expected of it, and the least number."""
    for name, (expectation, least) in expected.items():
        object.__setattr__(instance, name, number(getattr(instance, name), f"{prefix}{name}", expectation, least))


def text(value: object, field: str, expected: str = "a text that is not empty") -> str:
    if not isinstance(value, str) or not value.strip():
        raise fail(field, value, expected)
    return value


def mapping(value: object, field: str, expected: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise fail(field, value, expected)
    return value


def sequence(value: object, field: str, expected: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise fail(field, value, expected)
    return tuple(value)


def fields(value: object, path: str, required: Collection[str], optional: Collection[str] = ()) -> Mapping[str, Any]:
    """Return a JSON object that has all required fields, and none that is neither required nor optional."""
    names = [*required, *optional]
    values = mapping(value, path or "the file", f"an object with the fields {', '.join(names)}")
    prefix = f"{path}." if path else ""
    for name in required:
        if name not in values:
            raise HardwareError(f"{prefix}{name}: missing; expected the fields {', '.join(required)}")
    for name in values:
        if name not in names:
            raise HardwareError(f"{prefix}{name}: unknown field; known are {', '.join(names)}")
    return values


def dataclass_of(kind: type[_Dataclass], value: object, path: str) -> _Dataclass:
    """Return the dataclass that a JSON object of its fields describes; fields with a default may be missing."""
    names = {f.name: f.default is dataclasses.MISSING for f in dataclasses.fields(kind)}
    optional = [name for name, is_required in names.items() if not is_required]
    return kind(**fields(value, path, [name for name in names if name not in optional], optional))
