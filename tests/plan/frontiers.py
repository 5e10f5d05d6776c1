"""Frontiers that are searched, saved and changed, for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path

from session.models import begin, network

import tensoropt
from tensoropt.common.files import signed


def two_layers():
    network()


def frontier_of(record, hardware: str = "v100-1x4", **options):
    begin(hardware)
    record()
    return tensoropt.find_strategy(**options).frontier


def changed(file: Path, change, checked: bool = True) -> Path:
    """Change the file's value; with a checksum that fits the change, so that the parts have to tell."""
    value = json.loads(file.read_text())
    change(value)
    if checked:
        del value["checksum"]
    file.write_text(signed(json.dumps(value)) if checked else json.dumps(value))
    return file
