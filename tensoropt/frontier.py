"""The frontier of a recorded model on some hardware: the search over its Problem, and what its points mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from tabulate import tabulate

from .backward import Backward
from .costing import DeliveryCosting, OperatorCosting
from .errors import InputError
from .forcing import Force
from .ft import Frontier, InfeasibleError, search
from .ir import Graph
from .memory_limit import memory_text
from .problem import ProblemBuilder
from .profiling.costs import CollectiveCosts, OperatorCosts
from .profiling.hardware import Hardware
from .reschedule.mesh import Mesh
from .space import space_for
from .strategy_problem import StrategyProblem

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_ROWS = 16
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Model:
    """A graph and what its backward pass does."""

    graph: Graph
    backward: Backward


@dataclass(frozen=True)
class ModelFrontier:
    """All Pareto-minimal points of a model at one parallelism.

    Attributes:
        seconds_by_stage: ``costs`` and ``search``; where a plan was chosen also ``unroll``, from the point to the plan.
    """

    model: Model
    hardware: Hardware
    built: StrategyProblem
    costing: OperatorCosting
    found: Frontier
    seconds_by_stage: Mapping[str, float] = field(default_factory=dict)

    @property
    def mesh(self) -> Mesh:
        return self.built.mesh

    def compute_time_ns(self, point: int) -> int:
        """The part of a point's time that is compute; the rest is network."""
        return int(self.built.compute_ns(self.found.strategies[point]))

    def compute_times_ns(self) -> np.ndarray:
        """The same for all points: int64[P]."""
        return self.built.compute_ns(self.found.strategies)

    def table(self, chosen: int | None = None) -> str:
        """The points as text, numbered, a chosen one marked; a long frontier is thinned, ends and turning point stay."""
        found, turning = self.found, self.found.turning_point()
        rows = []
        shown = _thinned(len(found), {turning, *({chosen} if chosen is not None else ())})
        for point in shown:
            time_us, compute_us = found.time_ns[point] / 1e3, self.compute_time_ns(point) / 1e3
            marks = [text for at, text in ((turning, "turning point"), (chosen, "chosen")) if at == point]
            memory = memory_text(int(found.mem_bytes[point]))
            times = [f"{value:,.1f}" for value in (time_us, compute_us, time_us - compute_us)]
            rows.append([str(point + 1), memory, *times, ", ".join(marks)])
        headers = ["point", "memory per device", "time (us)", "compute (us)", "network (us)", ""]
        text: str = tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=("right",) * 5 + ("left",))
        return text if len(shown) == len(found) else f"{text}\n{len(shown)} of {len(found)} points"

    def plot(self, axes: Axes | None = None, chosen: int | None = None) -> Axes:
        """Draw time against memory, with compute and network time dotted as in the paper's Figure 6; needs Matplotlib."""
        import matplotlib.pyplot as plt

        if axes is None:
            _, axes = plt.subplots()
        memory_mb = self.found.mem_bytes / 1e6
        time_ms = self.found.time_ns / 1e6
        compute_ms = self.compute_times_ns() / 1e6
        (line,) = axes.plot(memory_mb, time_ms, drawstyle="steps-post", label="time per step")
        axes.plot(memory_mb, time_ms, ".", color=line.get_color())
        axes.plot(memory_mb, compute_ms, ":", color="tab:green", label="compute")
        axes.plot(memory_mb, time_ms - compute_ms, ":", color="tab:red", label="network")
        turning = self.found.turning_point()
        axes.plot(memory_mb[turning], time_ms[turning], "o", color="black", fillstyle="none", label="turning point")
        if chosen is not None:
            axes.plot(memory_mb[chosen], time_ms[chosen], "*", color="black", label="chosen")
        axes.set_xlabel("memory per device (MB)")
        axes.set_ylabel("time (ms)")
        axes.set_ylim(bottom=0)
        axes.set_title(f"{self.mesh.n_devices} devices of {self.hardware.name}")
        axes.legend()
        return axes

    def summary(self) -> str:
        """One line: how large the search was and how it went."""
        problem, found = self.built.problem, self.found
        kinds = ", ".join(f"{count} {kind}" for kind, count in found.eliminations.items() if count)
        return (
            f"{len(found)} points on {self.mesh.n_devices} devices {self.mesh}: {self.built.n_operators} operators in "
            f"{len(self.built.nodes)} nodes, {self.built.n_configs} configs, {len(problem.edges)} edges; "
            f"eliminations: {kinds or 'none'}; {found.certificate}; space {self.built.space}; "
            f"{sum(self.seconds_by_stage.values()):.2f} s"
        )


def _thinned(n_points: int, always: set[int]) -> list[int]:
    if n_points <= 2 * MAX_ROWS:
        return list(range(n_points))
    spread = {round(i * (n_points - 1) / (MAX_ROWS - 1)) for i in range(MAX_ROWS)}
    return sorted(spread | always)


def find_frontier(
    model: Model,
    hardware: Hardware,
    parallelism: int,
    force: Force | None = None,
    algorithm: str = "ft-ldp",
    progress: Progress | None = None,
    space: str | None = None,
) -> ModelFrontier:
    """Search the strategies at one parallelism.

    Args:
        algorithm: one of ``ft.ALGORITHMS``.
        space: one of ``space.SPACES``; None to go by the size of the full one.
        progress: called with (stage, done, total) now and then; the stages are ``costs`` and ``search``.

    Raises:
        InputError: the hardware doesn't have this parallelism, ``force`` can't be had, or the algorithm can't be used.
    """
    started = time.perf_counter()
    try:
        mesh = hardware.mesh(parallelism)
    except ValueError as error:
        raise InputError(str(error)) from error
    deliveries = DeliveryCosting(mesh, CollectiveCosts(hardware, mesh))
    costing = OperatorCosting(model.graph, model.backward, OperatorCosts(hardware), deliveries)
    of_costs, of_search = (partial(progress, stage) for stage in ("costs", "search")) if progress else (None, None)
    space = space or space_for(model.graph, mesh)
    built = ProblemBuilder(model.graph, model.backward, costing, mesh, space, force or {}, of_costs).build()
    costed = time.perf_counter()
    try:
        found = search(built.problem, algorithm, of_search)
    except ValueError as error:
        if algorithm != "exhaustive" or isinstance(error, InfeasibleError):
            raise
        raise InputError(str(error)) from error
    stages = {"costs": costed - started, "search": time.perf_counter() - costed}
    return ModelFrontier(model, hardware, built, costing, found, stages)
