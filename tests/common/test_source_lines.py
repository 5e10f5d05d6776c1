"""Tell lines of the user's code, which messages name, from those of Python and of the packages."""

from __future__ import annotations

import os
import sysconfig

import pytest

import tensoropt
from tensoropt.common.source_lines import is_users

TENSOROPT = os.path.dirname(tensoropt.__file__)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (__file__, True),
        ("train.py", True),
        ("<string>", True),
        (os.path.join(sysconfig.get_path("purelib"), "keras_hub", "layers.py"), True),
        (os.path.join(TENSOROPT, "zoo", "layers.py"), True),
        (os.path.join(TENSOROPT, "tools", "offline.py"), False),
        (os.path.join(sysconfig.get_path("purelib"), "keras", "layers.py"), False),
        (os.__file__, False),
        (os.path.join(sysconfig.get_path("scripts"), "tensoropt"), False),  # starts the command
        ("<frozen runpy>", False),  # starts python -m tensoropt
    ],
)
def test_lines_are_those_of_the_users_files(file: str, expected: bool) -> None:
    assert is_users(file) == expected
