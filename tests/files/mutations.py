"""Seeded damage to files: bytes that flip, are cut off or added, and JSON whose values are of other types and sizes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

Place = tuple[Any, Any]
"""A container and a key of it."""

DEEP: Any = 0
for _ in range(80):
    DEEP = [DEEP]
# As text: Python writes no such numbers.
RAW = ("9" * 400, "-" + "9" * 400, "1e999", "[" * 100_000, "NaN", "-Infinity", "Infinity", '"\\ud800"')
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**62, 10**19, -(2**63), 0.5, -1.5, 1e300, 5e-324, "", "a", "x" * 100_000,
    "é\0\n", [], {}, [[]], ["a"], [1, 2], {"a": 1}, {"name": "a", "count": 2}, DEEP,
)  # fmt: skip


def damaged(data: bytes, draw: random.Random, is_json: bool) -> bytes:
    """One mutation of a file."""
    if is_json and draw.random() < 0.75:
        return _tree(data, draw)
    how = draw.randrange(5)
    if how == 0:
        return data[: draw.randrange(len(data) + 1)]
    if how == 1:
        start = draw.randrange(len(data))
        return data[:start] + data[start + draw.randrange(1, 40) :]
    if how == 2:
        place = draw.randrange(len(data) + 1)
        return data[:place] + draw.randbytes(draw.randrange(1, 20)) + data[place:]
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8])):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _tree(data: bytes, draw: random.Random) -> bytes:
    value = json.loads(data)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        places = list(_places(value))
        if not places:
            break
        # Every field as likely as any other, however often it occurs.
        name = draw.choice(sorted({_name(place) for place in places}))
        container, key = draw.choice([place for place in places if _name(place) == name])
        how = draw.randrange(6)
        if how == 0:
            del container[key]
        elif how == 1 and isinstance(container, dict):
            container[draw.choice(["", "z", key + "_", "x" * 1000])] = container.pop(key)
        elif how == 2:
            other, there = draw.choice(places)
            if there in other if isinstance(other, dict) else there < len(other):
                container[key] = copy.deepcopy(other[there])
        elif how == 3 and isinstance(container[key], (int, float)):
            container[key] = draw.choice([-container[key], container[key] * 2, container[key] + 1, str(container[key])])
        elif how == 4:
            marked = json.dumps("RAW" + str(draw.random()))
            container[key] = json.loads(marked)
            return json.dumps(value).replace(marked, draw.choice(RAW)).encode()
        else:
            container[key] = copy.deepcopy(draw.choice(VALUES))
    return json.dumps(value).encode()


def _name(place: Place) -> str:
    return str(place[1]) if isinstance(place[0], dict) else "[]"


def _places(value: Any) -> Iterator[Place]:
    waiting = [value]
    while waiting:
        container = waiting.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            yield container, key
            if isinstance(container[key], (dict, list)):
                waiting.append(container[key])
