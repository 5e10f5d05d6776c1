"""Explain a plan with stages: the stages, and what each one's time and memory are spent on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tabulate import tabulate

from ..common.memory_units import memory_text
from .explanation import FORMAT, VERSION, PlanFacts, explanation
from .explanation_text import explanation_text
from .plan_rows import PlanRows, Row

OF_A_STAGE = ("devices", "last_operator", "in_flight", "memory_bytes", "idle_share")
"""The keys of a stage in a plan's file, but for that of the stage's own plan."""


@dataclass(frozen=True, eq=False)
class StageRows:
    """The JSON value of a plan with stages; a damaged one raises whatever error it leads to."""

    value: Row

    @cached_property
    def plans(self) -> Sequence[PlanRows]:
        """The plan of each stage's part of the model."""
        return [PlanRows(stage["plan"]) for stage in self.value["stages"]]

    @property
    def devices(self) -> int:
        """The number of devices of all stages."""
        return len({device for stage in self.value["stages"] for device in stage["devices"]})

    @property
    def interleaved(self) -> Row:
        """The plan's key of how stages share devices, where they do."""
        return {key: each for key, each in self.value.items() if key == "interleaved"}

    def summary(self) -> str:
        """Return one line on what was chosen and what it costs."""
        value = self.value
        return stages_line(
            value["option"],
            len(self.plans),
            self.devices,
            passes_text(value["micro_batches"], value["schedule"]),
            value["memory_bytes"],
            value["time_us"],
            value.get("why_stages", ""),
        )


def stages_line(
    option: str, n_stages: int, n_devices: int, passes: str, n_bytes: int, time_us: float, why_stages: str = ""
) -> str:
    """Return one line on a plan with stages: what was chosen, what it costs, and why it has stages nobody asked for."""
    return (
        f"{option}: {n_stages} stages on {n_devices} devices, {passes}, {memory_text(n_bytes)} per device at most, "
        f"{time_us:,.0f} us per step{'; ' * bool(why_stages)}{why_stages}"
    )


def passes_text(n_micro_batches: int, schedule: str) -> str:
    """Return in words in how many passes stages take a batch."""
    return "the batch at once" if n_micro_batches == 1 else f"{n_micro_batches} micro-batches by {schedule}"


def stages_explanation(rows: StageRows) -> dict[str, Any]:
    """Return the explanation of a plan with stages as a JSON value: its costs, and the explanation of each stage."""
    value = rows.value
    return {
        "format": FORMAT,
        "version": VERSION,
        "summary": rows.summary(),
        "option": value["option"],
        "devices": rows.devices,
        "schedule": value["schedule"],
        "micro_batches": value["micro_batches"],
        **rows.interleaved,
        "memory_bytes": value["memory_bytes"],
        "time_us": value["time_us"],
        "stages": [
            {
                **{key: stage[key] for key in OF_A_STAGE},
                "deferred": stage.get("deferred", 0),
                "explanation": explanation(plan, PlanFacts()),
            }
            for stage, plan in zip(value["stages"], rows.plans, strict=True)
        ],
        "assumed": dict(value["assumed"]),
    }


def stages_text(told: dict[str, Any]) -> str:
    """Return the explanation of a plan with stages as tables: its stages, then those of each stage."""
    stages = told["stages"]
    table = [
        [
            number,
            ", ".join(map(str, stage["devices"])),
            stage["last_operator"] or "(the end)",
            stage["in_flight"],
            stage["deferred"],
            memory_text(stage["memory_bytes"]),
            f"{stage['explanation']['time_us']:,.1f}",
            f"{stage['idle_share']:.0%}",
        ]
        for number, stage in enumerate(stages)
    ]
    headers = ("stage", "devices", "ends with", "in flight", "deferred", "memory", "time (us)", "idle")
    parts = [told["summary"], tabulate(table, headers, disable_numparse=True)]
    for number, stage in enumerate(stages):
        parts.append(f"stage {number}, alone\n{explanation_text(stage['explanation'])}")
    return "\n\n".join(parts)
