"""A plan: one chosen point of a frontier, which a file can hold and a later run executes without a search.

It is a list of stages, usually one, and the order of their passes, which follows from a schedule.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..common.errors import InputError, cut
from ..common.files import PLAN, read_json, reading_value, write_json
from ..common.memory_units import default_limit, memory_text
from ..common.words import counted
from ..program.orders.interleaved import Interleaving
from ..program.orders.passes import Orders
from ..program.orders.schedule import PLAIN, StepOrder
from ..report.explanation import explanation
from ..report.explanation_text import explanation_text
from ..report.frontier_rows import COSTS
from ..report.pages.notebook import plan_html
from ..report.pages.page import report_name, write_report
from ..report.pages.plan_page import plan_report
from ..report.plan_rows import SOURCES, AllStages, PlanRows, checked_timeline, passes_text
from ..report.sentences import milliseconds
from ..report.tables import by_stage, stages_table
from ..reschedule.mesh import Mesh, mesh_of
from ..sharding.model import Model
from ..sharding.stages import Stages
from .record import PlannedOperator, PlannedResharding
from .stage_plan import StagePlan, levels_json, other_batch

FORMAT, VERSION = PLAN


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan(AllStages):
    """A strategy for a model on a mesh, in one stage or several, with its costs; see :func:`tensoropt.load_plan`.

    Attributes:
        stages: the stages, in the order in which data passes them; one where the model isn't cut.
        mesh: the mesh of all devices.
        time_us: the time of a training step.
        model_digest: the digest of the model that the plan is for.
        exact: whether the point is on the exact frontier.
        option: the option that chose the plan.
        schedule: the name of the order of passes, see :mod:`..program.orders.schedule`.
        micro_batches: the number of micro-batches in which a training step processes its batch.
        interleaving: how stages share submeshes; None where each has one of its own.
        timeline: when each stage is predicted to do what (:func:`..search.stages.points.stage_timeline`); None of one stage.
        assumed: the hardware, the provenance of costs, the TensorFlow version.
        frontier_text: the frontier that a plan of a file was chosen from, as a table; see :meth:`frontier_table`.
        why_stages: why there are stages where none were asked for; empty where they were.
        frontier: the ``Frontier`` that the plan was chosen from, with all its plans, in the process that searched or
            loaded it, else None; not part of the plan's file.
        point: the number of the plan's point on it.
        hint: what may be faster and wasn't searched; not part of the plan's file.
    """

    stages: tuple[StagePlan, ...]
    mesh: Mesh
    time_us: float
    model_digest: str
    exact: bool
    option: str
    schedule: str = PLAIN
    micro_batches: int = 1
    interleaving: Interleaving | None = None
    timeline: dict[str, Any] | None = None
    assumed: Mapping[str, Any] = field(default_factory=dict)
    frontier_text: str = field(default="", repr=False)
    why_stages: str = ""
    frontier: Any = field(default=None, repr=False)
    point: int | None = None
    hint: str = field(default="", repr=False)

    @property
    def parallelism(self) -> int:
        """The number of devices."""
        return self.mesh.n_devices

    @property
    def submeshes(self) -> tuple[tuple[int, ...], ...]:
        """The devices of the stages; those that several share once."""
        return tuple(dict.fromkeys(stage.devices for stage in self.stages))

    @property
    def operators(self) -> tuple[PlannedOperator, ...]:
        """The operators of all stages, but those that only stages have."""
        return tuple(op for stage in self.stages for op in stage.operators if not op.is_stand_in)

    @property
    def reshardings(self) -> tuple[PlannedResharding, ...]:
        """The reshardings of all stages."""
        return tuple(resharding for stage in self.stages for resharding in stage.reshardings)

    @property
    def sum_bytes(self) -> int:
        """The memory of Equation (1) of the device that has the most."""
        return int(self._most("sum_bytes"))

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that is alive at once on a device; None if it isn't known."""
        peaks = [stage.peak_bytes for stage in self.stages if stage.peak_bytes is not None]
        return max(peaks) if len(peaks) == len(self.stages) else None

    @property
    def needed_bytes(self) -> int:
        """The bytes that a device needs, to which limits apply: the peak, or the sum where no peak is known."""
        return self.sum_bytes if self.peak_bytes is None else self.peak_bytes

    @property
    def compute_time_us(self) -> float:
        """The compute in a step, of the devices that compute longest."""
        return self._most("compute_time_us")

    @property
    def network_time_us(self) -> float:
        """The network time inside of stages, overlapped or not, of the devices of which it is longest."""
        return self._most("network_time_us")

    @property
    def overlap_time_us(self) -> float:
        """The overlap, in which network and compute run at the same time, of the devices of which it is longest."""
        return self._most("overlap_time_us")

    @property
    def splits_nothing(self) -> bool:
        """Return whether each device computes the same, on its own."""
        return len(self.stages[0].devices) == self.mesh.n_devices and not (self.n_split_operators or self.n_collectives)

    @property
    def orders(self) -> Orders:
        """The order of the passes of each stage, or of each submesh where stages are interleaved."""
        in_flight, deferred = (tuple(getattr(stage, name) for stage in self.stages) for name in ("in_flight", "deferred"))
        return StepOrder(self.schedule, self.micro_batches, in_flight, deferred, self.interleaving).orders

    def _most(self, name: str) -> float:
        """Return the largest amount of a submesh: the sum over its stages."""
        amounts = dict.fromkeys(self.submeshes, 0.0)
        for stage in self.stages:
            amounts[stage.devices] += getattr(stage, name)
        return max(amounts.values())

    def cut(self, model: Model) -> Stages:
        """Return a model cut into the plan's stages.

        Raises:
            InputError: the plan was made for another model.
        """
        self.check_for(model)
        stages = Stages(model, tuple(stage.last_operator for stage in self.stages[:-1]))
        if any(stage.model_digest != part.graph.digest for stage, part in zip(self.stages, stages.models, strict=True)):
            raise InputError("the plan's stages were made for another model; find a strategy for this one")
        return stages

    def check_for(self, model: Model) -> None:
        """Check that the plan fits a model.

        Raises:
            InputError: it was made for another model, or has a config that its operator can't have; the message names the
                first fault.
        """
        graph, rows = model.graph, {op.name: op for op in self.operators}
        operators = {op.name: op for op in graph.operators.values() if op.updates is None}
        missing = [op for name, op in rows.items() if name not in operators or operators[name].type != op.type]
        added = [op for name, op in operators.items() if name not in rows]
        difference = ""
        if missing:
            difference = f"the plan has {missing[0].type} '{missing[0].name}', the model has not"
        elif added:
            difference = f"the model has {added[0].where()}, the plan has not"
        elif self.model_digest != graph.digest:
            difference = other_batch(self.assumed, graph)
            difference = difference or "operators have the same names, but other shapes, attributes or hyperparameters"
        if difference:
            raise InputError(f"the plan was made for another model: {cut(difference)}; find a strategy for this one")
        for stage in self.stages:
            stage.check_configs(model, self.micro_batches)

    def table(self) -> str:
        """Return tables of text with one row per operator, after one of the stages where there are several."""
        return "\n\n".join(by_stage(self.stages_table(), [stage.table() for stage in self.stages]))

    def stages_table(self) -> str:
        """Return a table of the stages as text; nothing of a stage alone."""
        return "\n".join(filter(None, [stages_table({"": self.to_json()["stages"]}), self.why_stages]))

    def frontier_table(self) -> str:
        """Return the frontier that the plan was chosen from as a table, its point marked; equal on all ranks."""
        return self.frontier_text if self.frontier is None else str(self.frontier.table(self.point))

    def explain(self) -> str:
        """Return tables of what time and memory are spent on, and of what the next smaller and next faster plan cost."""
        return explanation_text(self.explanation())

    def explanation(self) -> dict[str, Any]:
        """Return the numbers of :meth:`explain` as a JSON value."""
        rows = PlanRows(self._with_peak().to_json())
        if self.frontier is None or self.point is None:
            return explanation(rows)
        frontier = self.frontier
        previous, following = (frontier.row(i) if 0 <= i < len(frontier) else None for i in (self.point - 1, self.point + 1))
        return explanation(rows, (previous, following), self._fitting_the_device(rows))

    def _with_peak(self) -> Plan:
        """Return the plan with the instant of each stage's peak, as far as its file or its frontier knows it."""
        if self.stages[0].peak is not None or self.frontier is None or self.point is None:
            return self
        peak = self.frontier.peak_json(self.point)
        return self if peak is None else replace(self, stages=(replace(self.stages[0], peak=peak),))

    def too_large(self) -> str | None:
        """Return the sentence that the plan needs more memory than its device has, None if it doesn't."""
        rows = PlanRows(self.to_json())
        return rows.too_large(self._fitting_the_device(rows))

    def _fitting_the_device(self, rows: PlanRows) -> tuple[int, Mapping[str, Any]] | None:
        """Return the fastest point that fits the device, if the plan doesn't and its frontier is known."""
        if self.frontier is None or rows.too_large() is None:
            return None
        assert rows.device_bytes is not None
        point = self.frontier.fastest_within(default_limit(rows.device_bytes))
        return None if point is None else (point, self.frontier.row(point))

    def report(self, file: str | os.PathLike[str]) -> None:
        """Write an HTML file on the plan and its frontier, which opens in a browser without a network; needs Plotly.

        Raises:
            InputError: the file can't be written, or Plotly isn't installed.
        """
        if self.frontier is not None and self.point is not None:
            self.frontier.report(file, self.point)
            return
        name = report_name(file)
        write_report(plan_report(PlanRows(self.to_json()), name), file)

    def explained(self) -> str:
        """Return the frontier's table, the tables of :meth:`explain`, and the plan's own table, as text."""
        return "\n\n".join(filter(None, [self.frontier_table(), self.explain(), self.table()]))

    def brief(self) -> str:
        """Return three lines: what is split on how many devices, the predicted time per step, and the memory per device.

        A fourth one is what may be faster, if something is known.
        """
        n_operators = sum(1 for op in self.operators if op.type not in SOURCES)
        network = f", {milliseconds(self.network_time_us)} ms network" if self.parallelism > 1 else ""
        overlap = f" of which {milliseconds(self.overlap_time_us)} ms overlap" if self.overlap_time_us else ""
        waits = max(stage.idle_share for stage in self.stages)
        overlap += f", a stage waits for others {waits:.0%} of the step at most" if waits else ""
        split = f"{self.n_split_operators} of {n_operators} operators split"
        if self.parallelism > 1 and not self.n_split_operators and not waits:
            split = f"none of {n_operators} operators split, as one device is predicted to be as fast"
        devices = f"{'+'.join(str(len(submesh)) for submesh in self.submeshes)} device{'s' * (self.parallelism > 1)}"
        subject, passes = passes_text(len(self.stages), devices, self.micro_batches, self.schedule)
        slices = f", {passes}" if passes else ""
        reason = f"; {self.why_stages}" if self.why_stages else ""
        hint = f"\nnote: {self.hint}" if self.hint else ""
        return (
            f"plan: {subject}, {split}, {counted(self.n_collectives, 'collective')} per step{slices}\n"
            f"time: {milliseconds(self.time_us)} ms per step predicted, {milliseconds(self.compute_time_us)} ms compute"
            f"{network}{overlap}\n"
            f"memory: {memory_text(self.needed_bytes)} per device at most{reason}{hint}"
        )

    def summary(self) -> str:
        """Return one line on what was chosen and what it costs."""
        return PlanRows(self.to_json()).summary

    def __repr__(self) -> str:
        return f"{self.summary()}\n{self.table()}"

    def _repr_html_(self) -> str:
        return plan_html(self.explanation())

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value that the plan's file holds."""
        interleaved = {} if self.interleaving is None else self.interleaving.to_json()
        return {
            "format": FORMAT,
            "version": VERSION,
            "option": self.option,
            "mesh": levels_json(self.mesh),
            "model_digest": self.model_digest,
            "schedule": {"name": self.schedule, "micro_batches": self.micro_batches, **interleaved},
            **{key: getattr(self, key) for key in COSTS},
            "exact": self.exact,
            "assumed": dict(self.assumed),
            "frontier": self.frontier_table().splitlines(),
            **({"why_stages": self.why_stages} if self.why_stages else {}),
            **({} if self.timeline is None else {"timeline": self.timeline}),
            "stages": [stage.to_json() for stage in self.stages],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """Return a plan from its JSON value, the inverse of :meth:`to_json`.

        A damaged value raises whatever error it leads to; :meth:`load` turns that into an InputError.
        """
        order = PlanRows(value).checked_order()
        return cls(
            stages=tuple(map(StagePlan.from_json, value["stages"])),
            mesh=mesh_of(value["mesh"]),
            time_us=float(value["time_us"]),
            model_digest=str(value["model_digest"]),
            exact=bool(value["exact"]),
            option=str(value["option"]),
            schedule=order.schedule,
            micro_batches=order.n_micro_batches,
            interleaving=order.interleaving,
            timeline=checked_timeline(value["timeline"]) if "timeline" in value else None,
            assumed=dict(value["assumed"]),
            frontier_text="\n".join(map(str, value["frontier"])),
            why_stages=str(value.get("why_stages", "")),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process makes it of what its file has, without its frontier."""
        return Plan.from_json, (self.to_json(),)

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the plan to a file; an existing file stays intact until the new one is complete."""
        write_json(file, self._with_peak().to_json(), "plan")

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> Plan:
        """Read a plan from a file.

        Raises:
            InputError: the file can't be read, is cut off or damaged, isn't a plan, or has another version.
        """
        value = read_json(file, "plan", FORMAT, VERSION)
        with reading_value("plan", file):
            plan = cls.from_json(value)
            read_back = plan.to_json()
        for key, entry in read_back.items():
            if entry != value.get(key):
                raise InputError(f"plan '{cut(file)}' is damaged: '{key}' doesn't read back as written; save it again")
        return plan
