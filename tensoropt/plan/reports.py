"""Write the report of a plan or a frontier that was found or loaded in this process.

``tensoropt run --report OUT.html`` has the script's rank 0 write the report of the plan that it runs: it names the file in
the environment variable :data:`ASKED`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..common.errors import InputError, TensorOptError
from ..common.files import check_writable, path_text
from ..common.progress import Display
from ..report.data import frontier_of_plan, report_data
from ..report.frontier_rows import FrontierRows
from ..report.page import ASKED, write_report
from ..report.rows import PlanRows
from .compress import compressed
from .details import details_of
from .find_frontier import ModelFrontier
from .frontier_file import SavedFrontier, to_json
from .plan import Plan
from .staged_plan import StagedPlan

File = str | os.PathLike[str]


def write_plan_report(plan: Plan, file: File) -> None:
    """Write the report of a plan, with its whole frontier if that is at hand.

    Raises:
        InputError: the file can't be written, or Plotly isn't installed.
    """
    name = _checked(file)
    if plan.frontier is None or plan.point is None:
        write_report(report_data(frontier_of_plan(PlanRows(plan.to_json())), name), file)
    else:
        write_report(report_data(rows_of(plan.frontier, plan.point), name, plan.point), file)


def write_asked_report(plan: Plan | StagedPlan, display: Display) -> None:
    """Write the report of the plan that this script runs, if ``tensoropt run --report`` asks for one; for rank 0 alone.

    A report that can't be written ends nothing: a line says why.
    """
    file = os.environ.get(ASKED)
    if not file:
        return
    try:
        if isinstance(plan, StagedPlan):
            raise InputError("a report doesn't show plans with stages yet; print(plan) does")
        with display.phase("report"):
            write_plan_report(plan, file)
    except TensorOptError as error:
        display.say(f"no report: {error}")


def write_frontier_report(frontier: Any, file: File, chosen: int | None = None, model: str = "") -> None:
    """Write the report of a frontier.

    Args:
        chosen: the number of the point that is shown first.
        model: the model's name.

    Raises:
        InputError: the file can't be written, or Plotly isn't installed.
    """
    name = _checked(file)
    write_report(report_data(rows_of(frontier, chosen, model), name, chosen), file)


def _checked(file: File) -> str:
    """Return the name of a report's file, after checking that it can be written."""
    path = Path(path_text(file, "report"))
    check_writable(path, "report")
    return path.name


def rows_of(frontier: Any, chosen: int | None = None, model: str = "") -> FrontierRows:
    """Return a frontier as rows; the steps and baselines of one that was just found are computed."""
    if isinstance(frontier, ModelFrontier):
        frontier = compressed(frontier, details=details_of(frontier, model, chosen))
    assert isinstance(frontier, SavedFrontier)
    # As the file has it: tuples are lists, and keys are text.
    return FrontierRows(json.loads(json.dumps(to_json(frontier))))
