"""Sign the text of a file with a checksum of itself, and find out whether it was changed since.

The checksum is that of the text, not of the value in it: to write a value of 5 MB again with sorted keys takes ten times as
long as to add up its text.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from ..common.errors import InputError, cut, short
from ..common.files import reading_value

_KEY = '"checksum": "'


def signed(text: str) -> str:
    """Return the text of a JSON object with a checksum of all before it as its last field."""
    head = f"{text.rstrip().removesuffix('}').rstrip()},\n"
    return f'{head}{_KEY}{_sum(head.encode())}"\n}}\n'


def check_signed(kind: str, file: str | os.PathLike[str], data: bytes, value: dict[str, Any]) -> None:
    """Refuse a file whose text was changed since it was signed.

    Args:
        kind: that of the file, for the message.
        data: its bytes.
        value: its JSON value, which loses its checksum.

    Raises:
        InputError: it has no checksum, or was changed.
    """
    with reading_value(kind, file):
        stated = value.pop("checksum")
    head, _, tail = data.rpartition(_KEY.encode())
    actual = _sum(head)
    if stated != actual or "".join(tail.decode().split()) != f'{actual}"}}':
        raise InputError(
            f"{kind} '{cut(file)}' was changed since it was saved: its checksum is {short(stated)}, its contents' "
            f"is {actual!r}; save it again, after a search with force= for what should differ"
        )


def _sum(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]
