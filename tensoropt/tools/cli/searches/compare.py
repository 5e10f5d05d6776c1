"""Run ``tensoropt compare``: a model's frontier next to the choices of other algorithms, as a table and as one picture.

As in ``tensoropt search``, no training step runs and nothing is measured.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ....common.memory_units import parse_memory
from ....common.process.tensorflow_import import import_tensorflow
from ....runtime.ranks import display_here
from ..answers import PRINTED, add_json_argument, answer, files_read
from .frontier_outputs import add_report_argument, check_outputs, write_frontier
from .search import add_model_arguments, budget_of, checked_measurement, hardware_of, positive_number

if TYPE_CHECKING:
    from ....plan.plan import Plan
    from ....search.frontiers.model_frontier import ModelFrontier
    from ....search.request import Request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tensoropt compare MODEL (--cluster NAME|FILE | --devices N) [OPTION ...]"
    add_model_arguments(parser)
    parser.add_argument("--parallelism", metavar="N", help="how many of the devices to use; default: all of them")
    add_json_argument(parser)
    parser.add_argument("--plot", type=Path, metavar="OUT.png", help="draw all points; needs Matplotlib")
    add_report_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt compare`` and return the exit code."""
    try:
        _compare(arguments)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("comparison interrupted") from error
    return 0


def _compare(arguments: argparse.Namespace) -> None:
    """Compare; everything that can be refused is refused before the search, which may be long."""
    hardware = hardware_of(arguments)
    possible = max(hardware.parallelisms())
    count = possible if arguments.parallelism is None else positive_number(arguments.parallelism, "--parallelism")
    hardware.mesh(count)  # refuses a number that isn't possible
    limit = None if arguments.memory is None else parse_memory(arguments.memory)
    budget = budget_of(arguments)
    is_printed = arguments.json == PRINTED
    file = None if is_printed or arguments.json is None else Path(arguments.json)
    outputs = {"--json": file, "--plot": arguments.plot, "--report": arguments.report}
    check_outputs(outputs, files_read(arguments))
    import_tensorflow()
    checked_measurement(hardware, arguments.strict)
    from ....search.candidates.plan_points import frontier_of_whole
    from ....search.compare import compare
    from ....search.frontiers.find_frontier import find_frontier
    from ....search.options import mini_time
    from ....search.problem.splittable import check_usable
    from ....search.request import Request
    from ...offline import record_named
    from .search_report import SearchSetup, introduction, write_picture

    display = display_here()
    with display.phase("recording of the model"):
        recorded = record_named(arguments.model, arguments.optimizer, arguments.batch)
    check_usable(recorded.model.graph, hardware, count)
    setup = SearchSetup(recorded, hardware, "compare", "ft-ldp")
    if not is_printed:
        print(introduction(setup), flush=True)
    model = recorded.model
    request = Request(model, hardware, limit, progress=display.update, space=arguments.space, budget=budget)
    stage_plans: dict[str, Plan | None] = {}
    if model.placed:
        with display.phase("search of the placement"):
            stage_plans["placed"] = mini_time(replace(request, limit_bytes=None, space=None, placed=model.placed), count)
    with display.phase("search"):
        model_frontier = find_frontier(request, count)
        if not model.placed:
            stage_plans["stages"] = _that_pays(request, count, model_frontier)
        result = compare(model_frontier, limit_bytes=limit, progress=display.update)
        result = replace(result, in_stages={name: plan for name, plan in stage_plans.items() if plan is not None})
        frontier = frontier_of_whole(result.frontier)
    lines = [f"\n{result.table()}\n\nfrontier  {frontier.summary()}", *(f"note      {note}" for note in result.notes())]
    if arguments.plot is not None:
        write_picture(result.plot, arguments.plot)
    write_frontier(arguments, frontier, None, display, result.baselines)
    lines += [f"wrote {path}" for path in (arguments.plot, arguments.report) if path is not None]
    answer(arguments, {**result.to_json(), "model": recorded.name, "optimizer": setup.optimizer}, "\n".join(lines))


def _that_pays(request: Request, count: int, frontier: ModelFrontier) -> Plan | None:
    """Return the plan in stages that a search takes unasked within the memory limit; None where it takes none."""
    from ....search.candidates.search_candidates import CandidateSearch

    fastest = frontier.fastest_within(request.limit_bytes)
    if fastest is None:
        return None
    staged_request = replace(request, may_take_stages=True, wants_frontier=False)
    search = CandidateSearch(staged_request, count, whole=[frontier], alone=(frontier, fastest))
    search.search_unasked()
    staged_frontier = search.frontier()
    return staged_frontier.at(request.limit_bytes) if staged_frontier is not None and staged_frontier.why_stages else None
