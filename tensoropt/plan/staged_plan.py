"""A plan in stages: a plan for each stage's devices, and the order in which micro-batches pass through them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from tabulate import tabulate

from ..common.errors import InputError, cut
from ..common.files import read_json, reading_value, write_json
from ..common.memory_units import memory_text
from ..ir.graph import Graph
from ..program.interleaved import INTERLEAVED, Interleaving, interleaving_of, most_in_flight
from ..program.passes import Orders, merged
from ..program.schedule import SCHEDULES, pass_orders
from ..report.notebook import bundle, stages_html
from ..report.page import report_name, write_report
from ..report.sentences import milliseconds
from ..report.stage_rows import StageRows, passes_text, stages_explanation, stages_line, stages_text
from ..report.staged_page_data import stages_report
from ..report.timelines import checked_timeline
from ..sharding.model import Model
from ..sharding.stages import Stages
from .details import details_of_plan
from .frontier import PlanFrontier
from .plan import FORMAT, VERSION, Plan, other_batch


@dataclass(frozen=True, eq=False)
class PlannedStage:
    """One stage of a plan.

    Attributes:
        devices: the numbers of its devices.
        last_operator: the operator that it ends with, in program order; empty for the last stage.
        in_flight: how many micro-batches have run their forward pass and not their backward pass at most.
        deferred: how many have run that and not the pass of their parameters at most, see :mod:`..program.schedule`.
        plan: the plan of its part of the model, in micro-batches, on its devices.
        memory_bytes: the memory per device, with what all micro-batches in flight or deferred save, and with what other
            stages on its devices hold.
        idle_share: the share of the step in which its devices wait for others.
    """

    devices: tuple[int, ...]
    last_operator: str
    in_flight: int
    deferred: int
    plan: Plan
    memory_bytes: int
    idle_share: float

    def to_json(self) -> dict[str, Any]:
        return {
            "devices": list(self.devices),
            "last_operator": self.last_operator,
            "operators": [op.name for op in self.plan.operators],
            "in_flight": self.in_flight,
            **({"deferred": self.deferred} if self.deferred else {}),
            "memory_bytes": self.memory_bytes,
            "idle_share": self.idle_share,
            "plan": self.plan.to_json(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PlannedStage:
        devices = tuple(int(device) for device in value["devices"])
        plan = Plan.from_json(value["plan"])
        if len(devices) != plan.parallelism:
            raise ValueError(f"a stage on {len(devices)} devices has a plan for {plan.parallelism}")
        return cls(
            devices,
            str(value["last_operator"]),
            int(value["in_flight"]),
            int(value.get("deferred", 0)),
            plan,
            int(value["memory_bytes"]),
            float(value["idle_share"]),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class StagedPlan:
    """A strategy in stages, with its costs.

    Attributes:
        stages: the stages, in the order in which data passes them.
        schedule: the name of the order of their passes, see :mod:`..program.schedule`.
        micro_batches: the number of micro-batches in which a training step processes its batch.
        interleaving: how stages share submeshes; None where each has one of its own.
        time_us: the time of a training step: that of the schedule, with each stage's time for a micro-batch.
        model_digest: the digest of the model that the plan is for.
        timeline: when each stage is predicted to do what, as a JSON value; see :mod:`.stage_timeline`.
        assumed: the hardware, the provenance of costs, the TensorFlow version.
        why_stages: why there are stages where none were asked for; empty where they were.
        frontier: the frontier that the plan was chosen from, in the process that searched it; None where it was loaded.
        point: the number of the plan's point on it.
        frontier_text: that frontier as a table, its point marked; part of the plan's file.
    """

    stages: tuple[PlannedStage, ...]
    schedule: str
    micro_batches: int
    time_us: float
    model_digest: str
    timeline: dict[str, Any]
    option: str = "mini_time"
    assumed: dict[str, Any] = field(default_factory=dict)
    why_stages: str = ""
    interleaving: Interleaving | None = None
    frontier: PlanFrontier[Any] | None = field(default=None, repr=False)
    point: int | None = None
    frontier_text: str = field(default="", repr=False)

    @property
    def parallelism(self) -> int:
        return sum(map(len, self.submeshes))

    @property
    def submeshes(self) -> tuple[tuple[int, ...], ...]:
        """The devices of the stages; those that several share once."""
        return tuple(dict.fromkeys(stage.devices for stage in self.stages))

    @property
    def memory_bytes(self) -> int:
        """The memory of the device that needs the most."""
        return max(stage.memory_bytes for stage in self.stages)

    @property
    def peak_bytes(self) -> int:
        return self.memory_bytes

    @property
    def n_split_operators(self) -> int:
        """The number of operators that use some mesh axis of their stage."""
        return sum(stage.plan.n_split_operators for stage in self.stages)

    @property
    def orders(self) -> Orders:
        """The order of the passes of each stage, or of each submesh where stages are interleaved."""
        in_flight, deferred = ([getattr(stage, name) for stage in self.stages] for name in ("in_flight", "deferred"))
        return pass_orders(self.schedule, self.micro_batches, in_flight, deferred, self.interleaving)

    def cut(self, model: Model) -> Stages:
        """Return a model cut into the plan's stages.

        Raises:
            InputError: the plan was made for another model.
        """
        self.check_for(model.graph)
        stages = Stages(model, tuple(stage.last_operator for stage in self.stages[:-1]))
        for stage, part in zip(self.stages, stages.models, strict=True):
            stage.plan.check_for(part)
        return stages

    def check_for(self, graph: Graph) -> None:
        """Check that the plan is for a model.

        Raises:
            InputError: it was made for another one.
        """
        if self.model_digest != graph.digest:
            difference = other_batch(self.assumed, graph)
            of = f"another model: {difference}" if difference else "another model"
            raise InputError(f"the plan with stages was made for {of}; find a strategy for this one")

    def summary(self) -> str:
        """Return one line on what was chosen and what it costs."""
        passes = passes_text(self.micro_batches, self.schedule)
        return stages_line(
            self.option,
            len(self.stages),
            self.parallelism,
            passes,
            self.memory_bytes,
            self.time_us,
            self.why_stages,
        )

    def frontier_table(self) -> str:
        """Return the frontier that the plan was chosen from as a table, its point marked; equal on all ranks."""
        return self.frontier_text

    def brief(self) -> str:
        """Return three lines: the stages and their devices, the predicted time per step, and the memory per device."""
        devices = "+".join(str(len(submesh)) for submesh in self.submeshes)
        idle = max(stage.idle_share for stage in self.stages)
        return (
            f"plan: {len(self.stages)} stages on {devices} devices, {passes_text(self.micro_batches, self.schedule)}, "
            f"{self.n_split_operators} operators split\n"
            f"time: {milliseconds(self.time_us)} ms per step predicted, "
            f"of which a stage waits for others {idle:.0%} at most\n"
            f"memory: {memory_text(self.memory_bytes)} per device at most{'; ' * bool(self.why_stages)}{self.why_stages}"
        )

    def explained(self) -> str:
        """Return the table of the frontier, where the plan comes with it, and those of the stages, as text."""
        tables = [self.frontier_text] * bool(self.frontier_text)
        return "\n\n".join([*tables, self.explain(), repr(self)])

    def explain(self) -> str:
        """Return tables of the stages, and of what the time and memory of each are spent on."""
        return stages_text(self.explanation())

    def explanation(self) -> dict[str, Any]:
        """Return the numbers of :meth:`explain` as a JSON value."""
        return stages_explanation(StageRows(self.to_json()))

    def report(self, file: str | os.PathLike[str]) -> None:
        """Write an HTML file on the step of all stages, and on the plan of each, which opens in a browser without a network;
        needs Plotly.

        Raises:
            InputError: the file can't be written, or Plotly isn't installed.
        """
        name = report_name(file)
        details = [details_of_plan(stage.plan) for stage in self.stages]
        write_report(stages_report(StageRows(self.to_json()), name, details), file)

    def table(self) -> str:
        """Return a table of the stages as text."""
        rows = [
            [
                number,
                ", ".join(map(str, stage.devices)),
                len(stage.plan.operators),
                stage.last_operator or "(the end)",
                stage.in_flight,
                stage.deferred,
                memory_text(stage.memory_bytes),
                f"{stage.plan.time_us:,.0f}",
                f"{stage.idle_share:.0%}",
            ]
            for number, stage in enumerate(self.stages)
        ]
        headers = ["stage", "devices", "operators", "ends with", "in flight", "deferred", "memory", "time (us)", "idle"]
        text: str = tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
        return f"{text}\n{self.why_stages}" if self.why_stages else text

    def __repr__(self) -> str:
        tables = [f"stage {number}\n{stage.plan.table()}" for number, stage in enumerate(self.stages)]
        return "\n\n".join([self.brief(), self.table(), *tables])

    def _repr_html_(self) -> str:
        return stages_html(self.explanation())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return bundle(self)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value that the plan's file holds."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "option": self.option,
            "model_digest": self.model_digest,
            "micro_batches": self.micro_batches,
            "schedule": self.schedule,
            **({"interleaved": self.interleaving.to_json()} if self.interleaving is not None else {}),
            "time_us": self.time_us,
            "memory_bytes": self.memory_bytes,
            "assumed": dict(self.assumed),
            **({"frontier": self.frontier_text.splitlines()} if self.frontier_text else {}),
            **({"why_stages": self.why_stages} if self.why_stages else {}),
            "timeline": self.timeline,
            "stages": [stage.to_json() for stage in self.stages],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StagedPlan:
        """Return a plan from its JSON value, the inverse of :meth:`to_json`."""
        plan = cls(
            stages=tuple(map(PlannedStage.from_json, value["stages"])),
            schedule=str(value["schedule"]),
            micro_batches=int(value["micro_batches"]),
            time_us=float(value["time_us"]),
            model_digest=str(value["model_digest"]),
            timeline=checked_timeline(value["timeline"]),
            option=str(value["option"]),
            assumed=dict(value["assumed"]),
            frontier_text="\n".join(map(str, value.get("frontier", ()))),
            why_stages=str(value.get("why_stages", "")),
            interleaving=interleaving_of(value.get("interleaved"), len(value["stages"])),
        )
        if plan.schedule not in SCHEDULES or (plan.schedule == INTERLEAVED) != (plan.interleaving is not None):
            raise ValueError(f"there is no schedule {plan.schedule!r}, or not all of it is given")
        n_submeshes = len(plan.stages) if plan.interleaving is None else plan.interleaving.n_submeshes
        devices = [device for stage in plan.stages[:n_submeshes] for device in stage.devices]
        in_turn = all(stage.devices == plan.stages[i % n_submeshes].devices for i, stage in enumerate(plan.stages))
        are_alike = all(stage.plan.micro_batches == plan.micro_batches for stage in plan.stages)
        if not devices or devices != list(range(len(devices))) or not in_turn or not are_alike:
            raise ValueError("its stages don't fit together")
        merged(plan.orders)
        held = [(stage.in_flight, stage.deferred) for stage in plan.stages]
        if plan.interleaving and held != [(count, 0) for count in most_in_flight(len(held), plan.orders)]:
            raise ValueError("its stages don't have as many micro-batches in flight as it says")
        return plan

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the plan to a file; an existing file stays intact until the new one is complete."""
        write_json(file, self.to_json(), "plan")


def load_any(file: str | os.PathLike[str]) -> Plan | StagedPlan:
    """Read a plan, with stages or without, from a file.

    Raises:
        InputError: the file can't be read, is cut off or damaged, isn't a plan, or has another version.
    """
    value = read_json(file, "plan", FORMAT, VERSION)
    if "stages" not in value:
        return Plan.load(file)
    with reading_value("plan", file):
        plan = StagedPlan.from_json(value)
    if plan.to_json() != value:
        raise InputError(f"plan '{cut(file)}' is damaged: it doesn't read back as it was written; save it again")
    return plan
