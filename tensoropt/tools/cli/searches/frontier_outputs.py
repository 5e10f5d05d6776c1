"""Arguments and output that ``search`` and ``compare`` share: a frontier's file, and its report."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ....common.errors import InputError, short
from ....common.files import check_writable
from ....common.process.progress import Display
from ....costs.objectives import MEMORY_TIME
from ....ft import ALGORITHMS
from ....search.algorithms import OTHERS
from ..answers import check_apart

if TYPE_CHECKING:
    from ....plan.frontier import Frontier
    from ....plan.plan import Plan
    from ....search.compare import Comparison
    from ....search.frontiers.model_frontier import ModelFrontier

OUTPUTS = MappingProxyType({"--plan": "plan", "--frontier": "frontier", "--json": "result", "--plot": "picture",
                            "--report": "report"})  # fmt: skip
SHOWN_BASELINES = ("data-parallel", "optcnn", "tofu", "mesh-tensorflow")


def add_report_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--report", type=Path, metavar="OUT.html", help="write a page on the frontier; needs Plotly")


def add_baselines(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names the baselines which a frontier's file and its report show."""
    parser.add_argument(
        "--baselines",
        metavar="NAME[,...]",
        help=f"what other algorithms --frontier and --report show, of {', '.join(OTHERS)}, or none; default: "
        f"{','.join(SHOWN_BASELINES)}",
    )


def baselines_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the names of the baselines to show; raise InputError if there is no such baseline."""
    if arguments.baselines is None:
        return SHOWN_BASELINES
    names = () if arguments.baselines == "none" else tuple(name.strip() for name in arguments.baselines.split(","))
    for name in names:
        if name not in OTHERS:
            raise InputError(f"--baselines takes names of {', '.join(OTHERS)}, or none; got {short(name)}")
    return names


def with_baselines(
    arguments: argparse.Namespace, plan: Plan, limit_bytes: int | None, display: Display
) -> tuple[Plan, Comparison | None]:
    """Return a plan whose frontier has what baselines found in place of points that they beat, and the comparison.

    The plan stays, and there is no comparison, where no frontier is written or it has other points than of peak and time.
    """
    from ....search.compare import beside_baselines

    frontier, names = plan.frontier, baselines_of(arguments)
    is_written = arguments.frontier is not None or arguments.report is not None
    assert frontier is not None, "a plan that was just found has its frontier"
    is_comparable = frontier.objectives == MEMORY_TIME and frontier.found.algorithm in ALGORITHMS  # of one search
    is_comparable = is_comparable and frontier.passes(0).micro_batches == 1
    if not (is_written and names and is_comparable) or frontier.is_interrupted:
        return plan, None
    with display.phase("search of baselines"):
        return beside_baselines(plan, names, limit_bytes, display.update)


def check_outputs(files: Mapping[str, Path | None], read: Sequence[str | Path]) -> None:
    """Check, before long work, that the result files can be written after it.

    Args:
        files: the result files by the arguments that name them.
        read: the files that the command reads.

    Raises:
        InputError: one can't be written, two are the same, one would replace a file that is read, Matplotlib can't draw
            the picture, or Plotly isn't installed.
    """
    outputs = {argument: file for argument, file in files.items() if file is not None}
    named: dict[Path, str] = {}
    for argument, file in outputs.items():
        check_writable(file, OUTPUTS[argument])
        check_apart(file, argument, *read)
        other = named.setdefault(file.resolve(), argument)
        if other != argument:
            raise InputError(f"{other} and {argument} name the same file; give each its own")
    if "--plot" in outputs:
        file = outputs["--plot"]
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
        except ImportError as error:
            raise InputError("--plot needs Matplotlib; install it: pip install matplotlib") from error
        kinds = FigureCanvasAgg.get_supported_filetypes()
        if file.suffix.lower().removeprefix(".") not in kinds:
            suffixes = ", ".join(sorted(kinds))
            raise InputError(f"picture '{file}' has a suffix that Matplotlib doesn't know; expected one of {suffixes}")
    if "--report" in outputs:
        from ....report.pages.page import library

        library()


def write_frontier(
    arguments: argparse.Namespace,
    frontier: Frontier,
    chosen: int | None,
    display: Display,
    baselines: Mapping[str, ModelFrontier] | None = None,
) -> None:
    """Write the frontier's file and its report, as far as they are asked for.

    Args:
        chosen: the number of the point that was chosen.
        baselines: those that were found already, by name.
    """
    file = getattr(arguments, "frontier", None)
    if file is None and arguments.report is None:
        return
    names = baselines_of(arguments) if baselines is None else tuple(baselines)
    with display.phase("writing of the frontier"):
        options = {"baselines": names, "progress": display.update, "known": baselines}
        saved = frontier.with_details(os.path.basename(arguments.model), chosen, **options)
        if file is not None:
            saved.save(file, display.update, chosen)
        if arguments.report is not None:
            saved.report(arguments.report, chosen)
