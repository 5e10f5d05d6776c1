"""Explain a plan with stages, from the JSON value of its file: what each stage has, waits for and spends."""

from __future__ import annotations

from typing import Any

from tabulate import tabulate

from ..common.memory_units import memory_text
from .explanation import FORMAT, VERSION, PlanFacts, explanation
from .explanation_text import parts_text
from .plan_rows import PlanRows


def staged_explanation(value: dict[str, Any]) -> dict[str, Any]:
    """Return the explanation of a plan with stages as a JSON value: that of each stage's plan, and what it has beside.

    ``idle_share`` is the share of the step in which a stage waits for others.
    """
    stages = [
        {
            **{key: stage[key] for key in ("devices", "in_flight", "memory_bytes", "idle_share", "last_operator")},
            "n_operators": len(stage["operators"]),
            "busy_us": stage["plan"]["time_us"],
            "explanation": explanation(PlanRows(stage["plan"]), PlanFacts()),
        }
        for stage in value["stages"]
    ]
    devices = "+".join(str(len(stage["devices"])) for stage in stages)
    return {
        "format": FORMAT,
        "version": VERSION,
        "summary": (
            f"{value['option']}: {len(stages)} stages on {devices} devices, {value['micro_batches']} micro-batches "
            f"by {value['schedule']}, {memory_text(value['memory_bytes'])} per device at most, "
            f"{value['time_us']:,.0f} us per step"
        ),
        **{key: value[key] for key in ("option", "micro_batches", "schedule", "memory_bytes", "time_us", "assumed")},
        "stages": stages,
    }


def staged_explanation_text(told: dict[str, Any]) -> str:
    """Return the tables of an explanation: the stages, and for each where its time and memory go."""
    parts = [told["summary"], stages_table(told["stages"])]
    for number, stage in enumerate(told["stages"]):
        parts.append(f"stage {number}\n\n{parts_text(stage['explanation'])}")
    return "\n\n".join(parts)


def stages_table(stages: list[dict[str, Any]]) -> str:
    """Return the stages of an explanation as a table of text."""
    rows = [
        [
            number,
            ", ".join(map(str, stage["devices"])),
            stage["n_operators"],
            stage["last_operator"] or "(the end)",
            stage["in_flight"],
            memory_text(stage["memory_bytes"]),
            f"{stage['busy_us']:,.0f}",
            f"{stage['idle_share']:.0%}",
        ]
        for number, stage in enumerate(stages)
    ]
    headers = ["stage", "devices", "operators", "ends with", "in flight", "memory", "time (us)", "idle"]
    text: str = tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
    return text
