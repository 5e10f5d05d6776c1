"""The context of a run: its ranks, the hardware for which plans are made, and a model that all ranks agree on."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from ..common.dump import dump
from ..common.errors import InputError, cut, short
from ..common.process.launched import launched_as
from ..common.process.progress import NOT_SHOWN, Display
from ..ir.graph import Graph
from ..ir.invariants import check_graph
from ..lowering.gradient_analysis import analyse
from ..plan.plan import Plan
from ..profiling.hardware import Hardware, resolve
from ..report.pages.page import write_asked_report
from ..rules.registry import rule_of
from ..sharding.model import Model
from .collectives.tensorflow_server import is_by_nccl, is_running
from .execute import MPI, TENSORFLOW, checked_collectives
from .failures.interruptions import STARTED_BY_RUN
from .measuring.local_hardware import hardware_here, prepared_processes, warning_of, with_memory_now
from .together import on_rank_0

logger = logging.getLogger("tensoropt")
NOTHING_PLACED: Mapping[str, tuple[int, ...]] = MappingProxyType({})
_measured: dict[tuple[int, str], Hardware] = {}  # in this process, by the number of ranks and their collectives


class Context:
    """The context of a run.

    Attributes:
        hardware: the hardware for which plans are made, measured or given; measured by all ranks together.
        seed: the seed of random numbers, the same on every rank; drawn by rank 0 if none was given.
        display: shows what this process is doing.
    """

    def __init__(
        self, hardware: Hardware | str | None, seed: int | None, display: Display = NOT_SHOWN, measures_now: bool = True
    ) -> None:
        self.display = display
        with display.phase("start of the ranks"):
            self.processes = prepared_processes()
        own_seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
        self.seed = self.processes.broadcast(own_seed)
        self._given = None if hardware is None else self._described(hardware)
        if hardware is None and self.processes.is_alone and launched_as() is None and not os.environ.get(STARTED_BY_RUN):
            _say_alone()
        if measures_now:
            _ = self.hardware

    @cached_property
    def hardware(self) -> Hardware:
        if self._given is not None:
            return self._given
        key = self.processes.size, checked_collectives(None)
        with self.display.phase("measurement of the devices"):
            if key in _measured:
                return with_memory_now(_measured[key], self.processes)
            _measured[key] = hardware_here(self.processes, key[1], self.display)
            return _measured[key]

    @property
    def n_devices(self) -> int:
        """The most devices that there are or that plans may be for, without a measurement."""
        return max(self.processes.size, 1 if self._given is None else self._given.n_devices)

    def _described(self, cluster: Hardware | str) -> Hardware:
        hardware = resolve_cluster(cluster)
        warning = "" if isinstance(cluster, Hardware) else warning_of(hardware, is_strict=False, is_run_here=True)
        if warning and self.processes.rank == 0:
            print(f"tensoropt: {warning}", file=sys.stderr, flush=True)
        return hardware

    def on_first_rank(self, compute: Callable[[], Any]) -> Any:
        """Compute on rank 0 and return the result, or raise the error, on all ranks.

        So there is one plan, even if the order of sets or clocks would make the ranks' own results differ.
        """
        return on_rank_0(self.processes, compute)

    def report(self, plan: Plan, display: Display) -> None:
        """Have rank 0 write the report of the plan that is run, if ``tensoropt run --report`` asks for one."""
        if self.processes.rank == 0:
            write_asked_report(plan.report, display)

    def check_same(self, digest: str, parts: Callable[[], Sequence[str]]) -> None:
        """Check that all ranks recorded the same model.

        Args:
            parts: returns the model as lines, of which the first that differ are named.

        Raises:
            InputError: the digests differ.
        """
        odd = self.processes.first_that_differs(digest)
        if odd is None:
            return
        models = self.processes.gather(list(parts()))
        raise InputError(f"ranks 0 and {odd} recorded different models{_difference(models[0], models[odd], odd)}")


_LOOK = (
    "the script must record the same on every rank: look for what depends on the rank, on a set's order, or on random "
    "numbers"
)
_NUMBERED = (
    "Keras numbers the layers that a process makes: make the same layers on every rank, in the same order, also those that "
    "one rank alone uses, or give the layers names"
)


def _difference(first_lines: Sequence[str], other_lines: Sequence[str], rank: int) -> str:
    """Return what differs first between the lines of rank 0's model and of another rank's, and what to do."""
    pairs = zip_longest(first_lines, other_lines, fillvalue="nothing more")
    line, other_line = next(((a, b) for a, b in pairs if a != b), ("", ""))
    if not line:  # numbers of an optimizer
        return f": their optimizers have other numbers; {_LOOK}"
    are_numbers = re.sub(r"_\d+\b", "", line) == re.sub(r"_\d+\b", "", other_line)
    return f": rank 0 has {cut(line)} where rank {rank} has {cut(other_line)}; {_NUMBERED if are_numbers else _LOOK}"


def resolve_cluster(cluster: Hardware | str) -> Hardware:
    """Return the hardware with a name or of a file; on ranks, their collectives are those that run on it.

    Raises:
        InputError: there is no such hardware, or its description is wrong.
    """
    if not isinstance(cluster, (Hardware, str, os.PathLike)):
        raise InputError(f"hardware is a name such as 'v100-2x8', a file, or a Hardware, got {short(cluster)}")
    hardware = cluster if isinstance(cluster, Hardware) else resolve(cluster)
    run_by = "nccl" if is_by_nccl() else TENSORFLOW if is_running() else MPI
    return hardware if launched_as() is None else replace(hardware, run_by=run_by)


@cache
def _say_alone() -> None:
    """Print, once per process, that it was started alone: a forgotten mpirun is easily missed."""
    Display().say("started alone, on one device; mpirun -n N python SCRIPT starts N")


def model_of(graph: Graph, context: Context, placed: Mapping[str, tuple[int, ...]] = NOTHING_PLACED) -> Model:
    """Return the model of a graph, ready for the search. Every rank must call it.

    Args:
        placed: the devices that operators are placed on, by name.

    Raises:
        InputError: the ranks recorded different models, or a training step has nothing to train.
    """
    if os.environ.get("TENSOROPT_CHECK") == "1":
        check_graph(graph)
    context.check_same(graph.agreement, lambda: [line.partition("  # ")[0] for line in str(graph).splitlines()])
    _report_replicated(graph, context)
    if context.processes.rank == 0:
        dump("model", graph)
    return Model(graph, analyse(graph), placed=placed)


def _report_replicated(graph: Graph, context: Context) -> None:
    """Report once which types of operators have no rule and run replicated on every device."""
    if context.processes.rank or context.n_devices == 1:
        return
    reported: set[str] = set()
    for op in graph.operators.values():
        reason = rule_of(op).without if op.updates is None else ""
        if reason and op.type not in reported:
            reported.add(op.type)
            logger.warning("%s runs whole on every device: %s", op.where(), reason)
