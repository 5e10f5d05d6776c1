"""Explain a plan with stages: the stages, and what each one's time and memory are spent on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tabulate import tabulate

from ..common.errors import InputError, cut, short
from ..common.memory_units import memory_text
from .explanation import FORMAT, VERSION, PlanFacts, explanation
from .explanation_text import explanation_text
from .plan_rows import PlanRows, Row


@dataclass(frozen=True, eq=False)
class StageRows:
    """The JSON value of a plan with stages; a damaged one raises whatever error it leads to."""

    value: Row

    @cached_property
    def plans(self) -> Sequence[PlanRows]:
        """The plan of each stage's part of the model."""
        return [PlanRows(stage["plan"]) for stage in self.value["stages"]]

    def number_of(self, text: str | None, file: str) -> int:
        """Return the number from 0 of a stage that is named from 1.

        Args:
            text: the number as text; None if none is given.
            file: the plan's name, for the message.

        Raises:
            InputError: none is given, or there is no such stage.
        """
        count = len(self.plans)
        if text is None or not text.isdecimal() or not 1 <= int(text) <= count:
            got = "none" if text is None else short(text)
            raise InputError(
                f"plan '{cut(file)}' has {count} stages, and a page shows one: --stage takes its number from 1 to {count}, "
                f"got {got}; tensoropt explain tells of all"
            )
        return int(text) - 1


def stages_explanation(rows: StageRows) -> dict[str, Any]:
    """Return the explanation of a plan with stages as a JSON value: its costs, and the explanation of each stage."""
    value, told = rows.value, ("devices", "last_operator", "in_flight", "memory_bytes", "idle_share")
    return {
        "format": FORMAT,
        "version": VERSION,
        "option": value["option"],
        "devices": sum(len(stage["devices"]) for stage in value["stages"]),
        "schedule": value["schedule"],
        "micro_batches": value["micro_batches"],
        "memory_bytes": value["memory_bytes"],
        "time_us": value["time_us"],
        "stages": [
            {**{key: stage[key] for key in told}, "explanation": explanation(plan, PlanFacts())}
            for stage, plan in zip(value["stages"], rows.plans, strict=True)
        ],
        "assumed": dict(value["assumed"]),
    }


def stages_text(told: dict[str, Any]) -> str:
    """Return the explanation of a plan with stages as tables: its stages, then those of each stage."""
    stages = told["stages"]
    table = [
        [
            number + 1,
            ", ".join(map(str, stage["devices"])),
            stage["last_operator"] or "(the end)",
            stage["in_flight"],
            memory_text(stage["memory_bytes"]),
            f"{stage['explanation']['time_us']:,.1f}",
            f"{stage['idle_share']:.0%}",
        ]
        for number, stage in enumerate(stages)
    ]
    headers = ("stage", "devices", "ends with", "in flight", "memory", "time (us)", "idle")
    parts = [
        f"{told['option']}: {len(stages)} stages on {told['devices']} devices, {told['micro_batches']} micro-batches by "
        f"{told['schedule']}, {memory_text(told['memory_bytes'])} per device at most, {told['time_us']:,.0f} us per step",
        tabulate(table, headers, disable_numparse=True),
    ]
    for number, stage in enumerate(stages):
        parts.append(f"stage {number + 1} of {len(stages)}, alone\n{explanation_text(stage['explanation'])}")
    return "\n\n".join(parts)
