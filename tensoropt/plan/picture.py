"""Make axes to draw in, draw a frontier's points, and write what is drawn to a file; all need Matplotlib."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..common.errors import InputError
from ..common.files import write_atomically
from ..costs.objectives import MEMORY_TIME, Objectives, StrategyCosts

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

PICTURE_DPI = 150


def new_axes(is_shown: bool) -> Axes:
    """Return the axes of a new figure: pyplot's, which ``show`` shows, or a figure that needn't be closed."""
    try:
        if is_shown:
            from matplotlib import pyplot

            return pyplot.subplots()[1]
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("a plot needs Matplotlib; install it: pip install matplotlib") from error
    return Figure(layout="constrained").subplots()


def draw_points(
    axes: Axes, costs: StrategyCosts, peaks: np.ndarray | None, objectives: Objectives, marks: Mapping[str, int], title: str
) -> None:
    """Draw the second objective of points against the first; see :meth:`.frontier.Frontier.plot`.

    Args:
        peaks: the peaks in bytes, int64[P], instead of the memory of ``costs``; None where points aren't in order by them.
        marks: the number of the turning point, and of another point to mark, by what they are.
    """
    memory = costs.mem_bytes if peaks is None else peaks
    columns = {
        "memory": ("memory per device (MB)" if peaks is None else "peak memory per device (MB)", memory / 1e6),
        "time": ("time per step (ms)", costs.time_ns / 1e6),
        "network": ("network time per step (ms)", costs.network_ns / 1e6),
    }
    (x_label, x), (y_label, y) = (columns[name] for name in objectives)
    (line,) = axes.plot(x, y, drawstyle="steps-post", label=y_label.removesuffix(" (ms)"))
    axes.plot(x, y, ".", color=line.get_color())
    if objectives == MEMORY_TIME:
        axes.plot(x, costs.compute_ns / 1e6, ":", color="tab:green", label="compute")
        axes.plot(x, costs.network_ns / 1e6, ":", color="tab:red", label="network")
    for (label, number), marker in zip(marks.items(), "o*", strict=False):
        axes.plot(x[number], y[number], marker, color="black", fillstyle="none" if marker == "o" else "full", label=label)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.legend()


def save_picture(axes: Axes, path: str | os.PathLike[str]) -> None:
    try:
        write_atomically(path, lambda partial: axes.figure.canvas.print_figure(partial, dpi=PICTURE_DPI), "picture")
    except ValueError as error:
        raise InputError(f"picture '{os.fspath(path)}' can't be drawn: {error}") from error
