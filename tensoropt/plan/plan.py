"""A plan: one chosen point of a frontier, which a file can hold and a later run executes without a search."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tabulate import tabulate

from ..common.errors import InputError, cut
from ..common.files import read_json, reading_value, write_json
from ..common.formats import PLAN
from ..common.memory_units import default_limit, memory_text
from ..ir.graph import Graph, Operator
from ..report.explanation import PlanFacts, explanation
from ..report.explanation_text import explanation_text
from ..report.notebook import bundle, plan_html
from ..report.page import report_name, write_report
from ..report.page_data import frontier_of_plan, report_data
from ..report.plan_rows import SOURCES, PlanRows, device_bytes_of, peak_of
from ..report.sentences import milliseconds
from ..report.too_large import too_large_text
from ..reschedule.cost_model import StepCosts
from ..reschedule.layout import Layout, Shape
from ..reschedule.mesh import mesh_of
from ..reschedule.path import Path, cheapest_path
from ..rules.registry import rule_in_micro_batches, rule_of
from ..rules.rule import Rule, interface_of, why_invalid, why_unsearched
from ..sharding.model import Model
from ..sharding.rematerializable import NEVER
from ..sharding.resharding import PathFinder
from ..sharding.strategy import Copy, Strategy
from .frontier import PlanFrontier
from .record import PlannedOperator, PlanRecord, planned_resharding

FORMAT, VERSION = PLAN
NAME_WIDTH, TYPE_WIDTH = 40, 24


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan(PlanRecord):
    """One strategy for a model on a mesh, with its costs.

    Attributes:
        frontier: the frontier that the plan was chosen from, with all its plans, in the process that searched or loaded it;
            not part of the plan's file.
        point: the number of the plan's point on it.
        hint: what may be faster and wasn't searched; not part of the plan's file.
    """

    frontier: PlanFrontier[Any] | None = field(default=None, repr=False)
    point: int | None = None
    hint: str = field(default="", repr=False)

    @property
    def strategy(self) -> Strategy:
        """The strategy that the plan records."""
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
        known: dict[tuple[Layout, Layout, Shape], Path] = {}
        for resharding in self.reshardings:
            for path in (resharding.forward, resharding.backward):
                if path is not None and resharding.reduction == "sum" and resharding.halo is None:
                    known[path.source, path.target, path.shape] = path

        def choose(source: Layout, target: Layout, shape: Shape, item_bytes: int, step_costs: StepCosts) -> Path:
            found = known.get((source, target, shape))
            return found if found is not None else cheapest_path(source, target, shape, item_bytes, step_costs)

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
                memory_text(op.memory_bytes) if op.memory_bytes else "",
                f"{op.time_us:,.1f}" if op.time_us else "",
                _counted(collectives.get(op.name, [])),
            ]
            for op in self.operators
            if op.type != "Const" or op.config.used_axes or op.memory_bytes or op.name in collectives
        ]
        names = {op.name for op in self.operators}
        rows += [
            [_shortened(name, NAME_WIDTH), "training step", "", "", "", "", _counted(found)]
            for name, found in collectives.items()
            if name not in names
        ]
        headers = ["operator", "type", "config", "result layout", "memory", "time (us)", "collectives"]
        alignment = ("left", "left", "left", "left", "right", "right", "left")
        return tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=alignment)

    def frontier_table(self) -> str:
        """Return the frontier that the plan was chosen from as a table, its point marked; equal on all ranks."""
        return self.frontier_text

    def explain(self) -> str:
        """Return tables of what time and memory are spent on, and of what the next smaller and next faster plan cost."""
        return explanation_text(self.explanation())

    def explanation(self) -> dict[str, Any]:
        """Return the numbers of :meth:`explain` as a JSON value."""
        rows = PlanRows(self.to_json())
        if self.frontier is None or self.point is None:
            return explanation(rows, PlanFacts())
        frontier, at = self.frontier.alone(self.point)
        smaller, faster = (
            {**asdict(frontier.points[i]), "peak_bytes": frontier.peak_bytes(i)} if 0 <= i < len(frontier) else None
            for i in (at - 1, at + 1)
        )
        return explanation(rows, PlanFacts(smaller, faster, True, self._peak_json(), self._fitting_the_device(rows)))

    def _peak_json(self) -> Mapping[str, Any] | None:
        """Return the instant of the peak, from the plan's file or its frontier; None if neither knows it."""
        if self.peak is not None or self.frontier is None or self.point is None:
            return self.peak
        frontier, at = self.frontier.alone(self.point)
        return frontier.peak_json(at)

    def too_large(self) -> str | None:
        """Return the sentence that the plan needs more memory than its device has, None if it doesn't."""
        rows = PlanRows(self.to_json())
        return too_large_text(rows, self._fitting_the_device(rows))

    def _fitting_the_device(self, rows: PlanRows) -> tuple[int, dict[str, Any]] | None:
        """Return the fastest point that fits the device, if the plan doesn't and its frontier is known."""
        if self.frontier is None or too_large_text(rows) is None:
            return None
        assert rows.device_bytes is not None
        frontier = self.frontier if self.point is None else self.frontier.alone(self.point)[0]
        point = frontier.fastest_within(default_limit(rows.device_bytes))
        if point is None:
            return None
        peak = frontier.peak(point)
        return point, {**asdict(frontier.points[point]), "peak_bytes": None if peak is None else peak.n_bytes}

    def report(self, file: str | os.PathLike[str]) -> None:
        """Write an HTML file on the plan and its frontier, which opens in a browser without a network; needs Plotly.

        Raises:
            InputError: the file can't be written, or Plotly isn't installed.
        """
        if self.frontier is None or self.point is None:
            name = report_name(file)
            write_report(report_data(frontier_of_plan(PlanRows(self.to_json())), name), file)
        else:
            frontier, point = self.frontier.alone(self.point)
            frontier.report(file, point)

    def explained(self) -> str:
        """Return the frontier's table, the tables of :meth:`explain`, and the plan's own table, as text."""
        return f"{self.frontier_table()}\n\n{self.explain()}\n\n{self.table()}"

    def brief(self) -> str:
        """Return three lines: what is split on how many devices, the predicted time per step, and the memory per device.

        A fourth one is what may be faster, if something is known.
        """
        n_operators = sum(1 for op in self.operators if op.type not in SOURCES)
        slices = f", {self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
        network = f", {milliseconds(self.network_time_us)} ms network" if self.parallelism > 1 else ""
        hidden = f" of which {milliseconds(self.overlap_time_us)} ms overlap" if self.overlap_time_us else ""
        n_bytes = self.peak_bytes or self.memory_bytes
        split = f"{self.n_split_operators} of {n_operators} operators split"
        if self.parallelism > 1 and not self.n_split_operators:
            split = f"none of {n_operators} operators split, as one device is predicted to be as fast"
        hint = f"\nnote: {self.hint}" if self.hint else ""
        return (
            f"plan: {self.parallelism} device{'s' * (self.parallelism != 1)}, {split}, "
            f"{self.n_collectives} collective{'s' * (self.n_collectives != 1)} per step{slices}\n"
            f"time: {milliseconds(self.time_us)} ms per step predicted, {milliseconds(self.compute_time_us)} ms compute"
            f"{network}{hidden}\n"
            f"memory: {memory_text(n_bytes)} per device at most{hint}"
        )

    def __repr__(self) -> str:
        return f"{self.summary()}\n{self.table()}"

    def _repr_html_(self) -> str:
        return plan_html(self.explanation())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return bundle(self)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value that the plan's file holds."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "option": self.option,
            "mesh": [{"name": level.name, "count": level.count} for level in self.mesh.levels],
            "model_digest": self.model_digest,
            **({"micro_batches": self.micro_batches} if self.micro_batches > 1 else {}),
            "memory_bytes": self.memory_bytes,
            "time_us": self.time_us,
            "compute_time_us": self.compute_time_us,
            "network_time_us": self.network_time_us,
            **({"overlap_time_us": self.overlap_time_us} if self.overlap_time_us else {}),
            **({} if self.peak_bytes is None else {"peak_bytes": self.peak_bytes}),
            **({} if self.peak is None else {"peak": dict(self.peak)}),
            "exact": self.exact,
            "assumed": dict(self.assumed),
            "frontier": self.frontier_text.splitlines(),
            "operators": [op.to_json() for op in self.operators],
            "reshardings": [resharding.to_json() for resharding in self.reshardings],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Plan:
        """Return a plan from its JSON value, the inverse of :meth:`to_json`.

        A damaged value raises whatever error it leads to; :meth:`load` turns that into an InputError.
        """
        return _plan_from_json(value)

    def check_for(self, model: Model) -> None:
        """Check that the plan fits a model, or a stage of one.

        Raises:
            InputError: it was made for another model, or has a config that its operator can't have; the message names the
                first fault.
        """
        graph, planned = model.graph, {op.name: op for op in self.operators}
        actual = {op.name: op for op in graph.operators.values() if op.updates is None}
        missing = [op for name, op in planned.items() if name not in actual or actual[name].type != op.type]
        added = [op for name, op in actual.items() if name not in planned]
        if missing:
            difference = f"the plan has {missing[0].type} '{missing[0].name}', the model has not"
        elif added:
            difference = f"the model has {added[0].where()}, the plan has not"
        elif self.model_digest != graph.digest:
            difference = other_batch(self.assumed, graph)
            difference = difference or "operators have the same names, but other shapes, attributes or hyperparameters"
        else:
            why_not = why_unsearched if self.n_split_operators else why_invalid
            # A config of a reshape names other dimensions where a micro-batch has one sample.
            per_micro_batch = model.in_micro_batches(self.micro_batches, self.parallelism).graph.operators
            for name, op in planned.items():
                rule = rule_in_micro_batches(actual[name], self.micro_batches, self.parallelism)
                _check_config(actual[name], op, why_not(rule, op.config), rule_of(per_micro_batch[name]))
            return
        raise InputError(f"the plan was made for another model: {cut(difference)}; find a strategy for this one")

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the plan to a file; an existing file stays intact until the new one is complete."""
        write_json(file, replace(self, peak=self._peak_json()).to_json(), "plan")

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> Plan:
        """Read a plan from a file.

        Raises:
            InputError: the file can't be read, is cut off or damaged, isn't a plan, or has another version.
        """
        value = read_json(file, "plan", FORMAT, VERSION)
        if "stages" in value:
            raise InputError(f"plan '{cut(file)}' has stages, and a plan without is expected; find one without stages=")
        with reading_value("plan", file):
            plan = cls.from_json(value)
            read_back = plan.to_json()
        for key, kept in read_back.items():
            if kept != value.get(key):
                raise InputError(f"plan '{file}' is damaged: '{key}' doesn't read back as it was written; save it again")
        return plan


def other_batch(assumed: Mapping[str, Any], graph: Graph) -> str:
    """Return in words that a plan was found for another batch than a model has; empty if it wasn't, or if none is known."""
    searched = assumed.get("batch")
    if not isinstance(searched, int) or graph.batch in (None, searched):
        return ""
    return f"it is for a batch of {searched}, the model has one of {graph.batch}"


def _check_config(op: Operator, planned: PlannedOperator, why: str, rule: Rule) -> None:
    """Check that the operator can have its planned config, and that the planned results follow from it.

    A plan's file may have been changed by hand.

    Args:
        why: the reason why it can't; empty if it can.
        rule: of the operator in a micro-batch.

    Raises:
        InputError: it can't, or they don't.
    """
    if why:
        raise InputError(
            f"the plan gives {op.where()} the config '{planned.config}', which can't be had: {why}; find the strategy "
            "again, with force= for what should differ"
        )
    if planned.is_rematerialized and op.type in NEVER:
        raise InputError(
            f"the plan computes {op.where()} again in the backward pass, which an operator of this type never is; it was "
            "changed: find the strategy again"
        )
    expected = interface_of(rule, planned.config).results
    if expected != planned.results:
        got, led_to = (" ".join(map(str, layouts)) for layouts in (planned.results, expected))
        raise InputError(
            f"the plan gives {op.where()} the config '{planned.config}' and the result {got}, but the config leads to "
            f"{led_to}; it was changed: find the strategy again"
        )


def _shortened(name: str, width: int) -> str:
    """Return a name in at most ``width`` characters; a longer one loses its middle, since both its ends are telling."""
    if len(name) <= width:
        return name
    kept = width - 2
    return f"{name[: kept // 2]}..{name[len(name) - (kept - kept // 2) :]}"


def _counted(names: list[str]) -> str:
    """Return names as text, equal ones once with their count."""
    counts = {name: names.count(name) for name in names}
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())


def _plan_from_json(value: dict[str, Any]) -> Plan:
    """Return a plan from its JSON value; see :meth:`Plan.from_json`."""
    device_bytes_of(value["assumed"])
    mesh = mesh_of(value["mesh"])
    operators = tuple(PlannedOperator.from_json(mesh, op) for op in value["operators"])
    reshardings = tuple(planned_resharding(mesh, each) for each in value["reshardings"])
    micro_batches = int(value.get("micro_batches", 1))
    wrong = [each.n_runs for each in reshardings if each.n_runs not in (1, micro_batches)]
    if wrong:
        raise ValueError(f"a resharding is made {wrong[0]} times in a step of {micro_batches} micro-batches")
    return Plan(
        mesh=mesh,
        operators=operators,
        reshardings=reshardings,
        memory_bytes=int(value["memory_bytes"]),
        time_us=float(value["time_us"]),
        compute_time_us=float(value["compute_time_us"]),
        model_digest=str(value["model_digest"]),
        exact=bool(value["exact"]),
        option=str(value["option"]),
        assumed=dict(value["assumed"]),
        frontier_text="\n".join(value["frontier"]),
        overlap_time_us=float(value.get("overlap_time_us", 0.0)),
        peak_bytes=None if value.get("peak_bytes") is None else int(value["peak_bytes"]),
        micro_batches=micro_batches,
        peak=peak_of(value),
    )
