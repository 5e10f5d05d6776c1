"""Make axes to draw in, and write what is drawn to a file; both need Matplotlib."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..common.errors import InputError
from ..common.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE_DPI = 150


def new_axes(to_show: bool) -> Axes:
    """Return the axes of a new figure: pyplot's, which ``show`` shows, or a figure that needn't be closed."""
    try:
        if to_show:
            from matplotlib import pyplot

            return pyplot.subplots()[1]
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("a plot needs Matplotlib; install it: pip install matplotlib") from error
    return Figure(layout="constrained").subplots()


def save_picture(axes: Axes, path: str | os.PathLike[str]) -> None:
    """Write a picture of the axes to a file."""
    try:
        write_atomically(path, lambda partial: axes.figure.canvas.print_figure(partial, dpi=PICTURE_DPI), "picture")
    except ValueError as error:
        raise InputError(f"picture '{os.fspath(path)}' can't be drawn: {error}") from error
