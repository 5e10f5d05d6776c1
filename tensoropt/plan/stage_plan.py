"""A stage of a plan: its devices, and the strategy of its part of the model there; a model that isn't cut is one stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tabulate import tabulate

from ..common.errors import InputError
from ..common.memory_units import memory_text
from ..ir.graph import Graph, Operator
from ..report.frontier_rows import COSTS
from ..report.plan_rows import SOURCES, peak_of
from ..reschedule.layout import Layout, Shape
from ..reschedule.mesh import Mesh, mesh_of
from ..reschedule.path import Path, StepCosts, cheapest_path
from ..rules.registry import rule_in_micro_batches, rule_of
from ..rules.rule import Rule, interface_of, why_invalid, why_unsearched
from ..sharding.model import Model
from ..sharding.resharding import PathFinder
from ..sharding.strategy import NEVER, Copy, Strategy
from .record import PlannedOperator, PlannedResharding, planned_resharding

NAME_WIDTH, TYPE_WIDTH = 40, 24


@dataclass(frozen=True, eq=False, kw_only=True)
class StagePlan:
    """One stage of a plan, with its costs.

    Attributes:
        mesh: the mesh of its devices.
        devices: their numbers, by rank.
        operators: config and costs of every operator.
        reshardings: every resharding whose paths aren't empty. Those inside an operator name the operator as tensor.
        sum_bytes: the memory per device of Equation (1), by the cost model.
        peak_bytes: the most memory that is alive at once on one of its devices, with what all micro-batches in flight or
            deferred save and other stages on these devices hold; see :mod:`..program.memory.peak`. None if it isn't known.
        time_us, compute_time_us: the time of all its passes in a training step, and the compute in it; the rest is network
            time that doesn't overlap with compute.
        model_digest: the digest of its part of the model.
        overlap_time_us: the overlap, in which network and compute run at the same time.
        last_operator: the operator that it ends with, in program order; empty for the last stage.
        in_flight: how many micro-batches have run their forward pass and not their backward pass at most.
        deferred: how many have run that and not the pass of their parameters at most, see :mod:`..program.orders.schedule`.
        idle_share: the share of the step in which its devices wait for others.
        peak: the instant of the peak as a file has it, see ``Peak.to_json``; None if it isn't known.
        frontier: the ``ModelFrontier`` that was searched for it, in the process that did so, else None; not part of a file.
        point: the number of its point on that.
    """

    mesh: Mesh
    devices: tuple[int, ...]
    operators: tuple[PlannedOperator, ...]
    reshardings: tuple[PlannedResharding, ...]
    sum_bytes: int
    time_us: float
    compute_time_us: float
    model_digest: str
    peak_bytes: int | None = None
    overlap_time_us: float = 0.0
    last_operator: str = ""
    in_flight: int = 1
    deferred: int = 0
    idle_share: float = 0.0
    peak: Mapping[str, Any] | None = field(default=None, repr=False)
    frontier: Any = field(default=None, repr=False)
    point: int | None = None

    @property
    def network_time_us(self) -> float:
        """The network time of a step, whether it overlaps with compute or not."""
        return self.time_us + self.overlap_time_us - self.compute_time_us

    @property
    def n_split_operators(self) -> int:
        """The number of operators that use some mesh axis; variables, placeholders and constants don't count."""
        computing = (op for op in self.operators if op.type not in SOURCES and not op.is_stand_in)
        return sum(1 for op in computing if op.config.used_axes)

    @property
    def n_collectives(self) -> int:
        return sum(resharding.n_collectives for resharding in self.reshardings)

    @property
    def strategy(self) -> Strategy:
        shared = {d.tensor: d.sharding for d in self.reshardings if d.is_shared}
        rematerialized = frozenset(op.name for op in self.operators if op.is_rematerialized)
        regathered = set()
        for d in (d for d in self.reshardings if d.is_regathered):
            if not d.is_regathered_with_source:
                regathered.add(Copy(d.tensor, None if d.is_shared else d.consumers[0]))
            elif d.tensor.rpartition(":")[0] not in rematerialized:  # else it follows from the rematerialized operator
                regathered.add(Copy(d.tensor))
        configs = {op.name: op.config for op in self.operators}
        return Strategy(self.mesh, configs, shared, frozenset(regathered), rematerialized)

    def path_finder(self, costs: StepCosts) -> PathFinder:
        """Return a path finder that uses the plan's own paths; it finds paths that the plan lacks by ``costs``."""
        paths: dict[tuple[Layout, Layout, Shape], Path] = {}
        for resharding in self.reshardings:
            for path in (resharding.forward, resharding.backward):
                if path is not None and resharding.reduction == "sum" and resharding.halo is None:
                    paths[path.source, path.target, path.shape] = path

        def choose(source: Layout, target: Layout, shape: Shape, item_bytes: int, step_costs: StepCosts) -> Path:
            plan_path = paths.get((source, target, shape))
            return plan_path if plan_path is not None else cheapest_path(source, target, shape, item_bytes, step_costs)

        return PathFinder(costs, choose)

    def table(self) -> str:
        """Return a table of text with one row per operator.

        A row has config, result layouts, memory, time, and the collectives of the reshardings to the operator. Constants
        that are replicated on every device and cost nothing are left out.
        """
        collectives: dict[str, list[str]] = {}
        for resharding in self.reshardings:
            for path in resharding.paths:
                for step in path.steps:
                    if step.communicates:
                        collectives.setdefault(resharding.consumers[0], []).append(str(step))
        rows = [
            [
                _shortened(op.name, NAME_WIDTH),
                _shortened(op.type, TYPE_WIDTH),
                str(op.config),
                " ".join(map(str, op.results)),
                memory_text(op.sum_bytes) if op.sum_bytes else "",
                f"{op.time_us:,.1f}" if op.time_us else "",
                _counted(collectives.get(op.name, [])),
            ]
            for op in self.operators
            if op.type != "Const" or op.config.used_axes or op.sum_bytes or op.name in collectives
        ]
        names = {op.name for op in self.operators}
        rows += [
            [_shortened(name, NAME_WIDTH), "training step", "", "", "", "", _counted(steps)]
            for name, steps in collectives.items()
            if name not in names
        ]
        headers = ["operator", "type", "config", "result layout", "memory", "time (us)", "collectives"]
        alignment = ("left", "left", "left", "left", "right", "right", "left")
        return tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=alignment)

    def to_json(self) -> dict[str, Any]:
        return {
            "devices": list(self.devices),
            "last_operator": self.last_operator,
            "in_flight": self.in_flight,
            "deferred": self.deferred,
            "idle_share": self.idle_share,
            "mesh": levels_json(self.mesh),
            "model_digest": self.model_digest,
            **{key: getattr(self, key) for key in COSTS},
            **({} if self.peak is None else {"peak": dict(self.peak)}),
            "operators": [op.to_json() for op in self.operators],
            "reshardings": [resharding.to_json() for resharding in self.reshardings],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StagePlan:
        """Return a stage from its JSON value, the inverse of :meth:`to_json`; a damaged one raises what it leads to."""
        mesh = mesh_of(value["mesh"])
        return cls(
            mesh=mesh,
            devices=tuple(map(int, value["devices"])),
            operators=tuple(PlannedOperator.from_json(mesh, op) for op in value["operators"]),
            reshardings=tuple(planned_resharding(mesh, entry) for entry in value["reshardings"]),
            sum_bytes=int(value["sum_bytes"]),
            peak_bytes=None if value["peak_bytes"] is None else int(value["peak_bytes"]),
            time_us=float(value["time_us"]),
            compute_time_us=float(value["compute_time_us"]),
            overlap_time_us=float(value["overlap_time_us"]),
            model_digest=str(value["model_digest"]),
            last_operator=str(value["last_operator"]),
            in_flight=int(value["in_flight"]),
            deferred=int(value["deferred"]),
            idle_share=float(value["idle_share"]),
            peak=peak_of(value),
        )

    def check_configs(self, model: Model, micro_batches: int) -> None:
        """Check that the operators of a model can have the configs that its stage gives them.

        Raises:
            InputError: one can't; the message names the first.
        """
        why_not = why_unsearched if self.n_split_operators else why_invalid
        # A config of a reshape names other dimensions where a micro-batch has one sample.
        per_micro_batch = model.in_micro_batches(micro_batches, self.mesh.n_devices).graph.operators
        for row in (op for op in self.operators if not op.is_stand_in):
            op = model.graph.operators[row.name]
            rule = rule_in_micro_batches(op, micro_batches, self.mesh.n_devices)
            _check_config(op, row, why_not(rule, row.config), rule_of(per_micro_batch[row.name]))


def _check_config(op: Operator, row: PlannedOperator, reason: str, rule: Rule) -> None:
    """Check that the operator can have its planned config, and that the planned results follow from it.

    A plan's file may have been changed by hand.
    """
    if reason:
        raise InputError(
            f"the plan gives {op.where()} the config '{row.config}', which can't be had: {reason}; find the strategy "
            "again, with force= for what should differ"
        )
    if row.is_rematerialized and op.type in NEVER:
        raise InputError(
            f"the plan computes {op.where()} again in the backward pass, which an operator of this type never is; it was "
            "changed: find the strategy again"
        )
    expected = interface_of(rule, row.config).results
    if expected != row.results:
        actual, led_to = (" ".join(map(str, layouts)) for layouts in (row.results, expected))
        raise InputError(
            f"the plan gives {op.where()} the config '{row.config}' and the result {actual}, but the config leads to "
            f"{led_to}; it was changed: find the strategy again"
        )


def other_batch(assumed: Mapping[str, Any], graph: Graph) -> str:
    """Return in words that a plan was found for another batch than a model has; empty if it wasn't, or if none is known."""
    batch = assumed.get("batch")
    if not isinstance(batch, int) or graph.batch in (None, batch):
        return ""
    return f"it is for a batch of {batch}, the model has one of {graph.batch}"


def levels_json(mesh: Mesh) -> list[dict[str, Any]]:
    return [{"name": level.name, "count": level.count} for level in mesh.levels]


def _shortened(name: str, width: int) -> str:
    """Return a name in at most ``width`` characters; a longer one loses its middle, since both its ends are telling."""
    if len(name) <= width:
        return name
    length = width - 2
    return f"{name[: length // 2]}..{name[len(name) - (length - length // 2) :]}"


def _counted(names: list[str]) -> str:
    """Return names as text, equal ones once with their count."""
    counts = {name: names.count(name) for name in names}
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())
