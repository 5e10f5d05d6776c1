"""Write the report that ``tensoropt run --report OUT.html`` asks for.

It has the script's rank 0 write the report of the plan that the script runs: the variable :data:`ASKED` of the environment
names the file.
"""

from __future__ import annotations

import os
import sys

from ..common.errors import TensorOptError
from ..common.progress import Display
from ..report.page import ASKED
from .plan import Plan


def write_asked_report(plan: Plan, display: Display) -> None:
    """Write the report of the plan that this script runs, if ``tensoropt run --report`` asks for one; for rank 0 alone.

    A report that can't be written ends nothing: a line says why.
    """
    file = os.environ.get(ASKED)
    if not file:
        return
    try:
        with display.phase("report"):
            plan.report(file)
    except TensorOptError as error:
        # Asked for by name, so told even where the display isn't shown.
        print(f"tensoropt: no report: {error}", file=sys.stderr, flush=True)
