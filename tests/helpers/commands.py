"""Commands as a user gives them, run in this process."""

from __future__ import annotations

import pytest

from tensoropt.tools.cli.main import main


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the one sentence that a command ends with."""
    capsys.readouterr()
    assert main(list(map(str, arguments))) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1, told
    return told[0].removeprefix("tensoropt: ")


def said(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """Return what a command prints that ends with a code; of one that ends with 2, which is wrong use, its sentence."""
    if code == 2:
        return refused(capsys, *arguments)
    capsys.readouterr()
    assert main(list(map(str, arguments))) == code
    return capsys.readouterr().out
