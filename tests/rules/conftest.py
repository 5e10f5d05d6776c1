"""The option for the complete run: ``pytest tests/rules --all-configs``."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-configs", action="store_true", help="hold every config of every rule on every mesh")
