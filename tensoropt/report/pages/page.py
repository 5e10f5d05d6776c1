"""Write a report as one HTML file that opens from disk without a network: its data, its script and the plotting library."""

from __future__ import annotations

import html
import importlib.resources
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...common.errors import InputError, TensorOptError
from ...common.files import check_writable, path_text, write_atomically
from ...common.process.progress import Display

DATA_ID, LIBRARY = "tensoropt-data", "plotly"
ASKED = "TENSOROPT_REPORT"
"""The environment variable with the file to write the report of a script's plan to."""
_PLACE = re.compile(b"<!-- ([a-z]+) -->")


def write_report(data: dict[str, Any], file: str | os.PathLike[str]) -> None:
    """Write the report of some data; an existing file stays intact until the new one is complete.

    Raises:
        InputError: the file can't be written, or the plotting library isn't installed.
    """
    text = page(data)
    write_atomically(file, lambda partial: partial.write_bytes(text), "report")


def write_asked_report(write: Callable[[str], None], display: Display) -> None:
    """Write the report of a script's plan to the file that ``tensoropt run --report OUT.html`` names; for rank 0 alone.

    A report that can't be written ends nothing: a line says why.
    """
    file = os.environ.get(ASKED)
    if not file:
        return
    try:
        with display.phase("report"):
            write(file)
    except TensorOptError as error:
        # Asked for by name, so told even where the display isn't shown.
        print(f"tensoropt: no report: {error}", file=sys.stderr, flush=True)


def report_name(file: str | os.PathLike[str]) -> str:
    """Return the name of a report's file, after checking that it can be written.

    Raises:
        InputError: it can't.
    """
    path = Path(path_text(file, "report"))
    check_writable(path, "report")
    return path.name


def page(data: dict[str, Any]) -> bytes:
    """Return the HTML of a report, in UTF-8: as text the library's few rare characters would make all of it twice as large.

    Raises:
        InputError: the plotting library isn't installed.
    """
    parts = {
        b"title": html.escape(f"{data['title']} - TensorOpt").encode(),
        b"style": _part("page.css"),
        b"library": library(),
        b"data": embedded(data),
        b"script": b"\n".join(_part(name) for name in ("amounts.js", "charts.js", "table.js", "stages.js", "page.js")),
    }
    pieces = _PLACE.split(_part("page.html"))
    return b"".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def embedded(data: dict[str, Any]) -> bytes:
    """Return data as JSON in which nothing ends a script element, whatever the names in it are."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").encode()


def _part(name: str) -> bytes:
    return importlib.resources.files(__package__).joinpath("assets").joinpath(name).read_bytes()


def library() -> bytes:
    """Return the source of the plotting library.

    Raises:
        InputError: it isn't installed.
    """
    try:
        script = importlib.resources.files(LIBRARY).joinpath("package_data").joinpath("plotly.min.js")
    except ModuleNotFoundError as error:
        raise InputError("a report needs Plotly; install it: pip install plotly") from error
    return script.read_bytes().replace(b"</script", b"<\\/script")
