"""The errors that a user sees: one sentence that says what, got, expected and what to do, and an exit code.

The exit codes are those of the command line: 1 for a failure while running, 2 for wrong use or input.
"""

from __future__ import annotations

import re

MOST_CHARACTERS = 120
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


class TensorOptError(Exception):
    """A failure while running; ``str(error)`` is the complete sentence for the user."""

    exit_code = 1
    # Where the error passes through a Keras layer, this keeps Keras from adding the layer's arguments to the sentence.
    _keras_call_info_injected = True


class InputError(TensorOptError):
    """Wrong use or wrong input: running again without a change fails again."""

    exit_code = 2


class OrderError(ValueError):
    """An order of passes that can't run: the message draws it, and stays in lines wherever it is quoted."""


class OutOfMemoryError(TensorOptError):
    """A failure to get the memory that a plan needs."""


def short(value: object) -> str:
    """Return a value's ``repr`` on one line, cut where it is long: users pass whole arrays by mistake."""
    text = " ".join(repr(value).split())
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 4]} ..."


def cut(text: object, most: int = 2 * MOST_CHARACTERS) -> str:
    """Return a text on one line, cut where it is long: a message may quote all that a damaged file holds."""
    if isinstance(text, OrderError):
        return str(text)
    line = " ".join(_COLOUR.sub("", str(text)).split())
    return line if len(line) <= most else f"{line[: most - 4]} ..."


def describe(
    what: str, *, got: object = None, expected: object = None, where: str | None = None, advice: str | None = None
) -> str:
    """Return one message, its parts in a fixed order: ``what: got X, expected Y, at WHERE. ADVICE.``

    >>> describe("the loss must be a scalar", got="shape (32,)", advice="take its mean with tensoropt.reduce_mean")
    'the loss must be a scalar: got shape (32,). Take its mean with tensoropt.reduce_mean.'
    """
    details = []
    if got is not None:
        details.append(f"got {got}")
    if expected is not None:
        details.append(f"expected {expected}")
    if where is not None:
        details.append(f"at {where}")
    sentence = what + (": " + ", ".join(details) if details else "") + "."
    if advice:
        sentence += " " + advice[0].upper() + advice[1:].rstrip(".") + "."
    return sentence
