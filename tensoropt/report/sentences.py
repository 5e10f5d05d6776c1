"""Say in sentences what a plan does, and what differs from data parallelism."""

from __future__ import annotations

from ..common.memory_units import memory_text
from .config_words import config_words
from .explanation import layer_costs
from .plan_rows import SOURCES, PlanRows, Row

MOST_DIFFERENCES = 8


def time_text(time_us: float) -> str:
    """Return a time as a short text, such as ``1.25 ms``."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(time_us) >= size:
            return f"{time_us / size:.4g} {unit}"
    return f"{time_us:.4g} us"


def plan_sentences(plan: PlanRows, view: Row) -> list[str]:
    """Return sentences on the layer that takes the most time, and on the instant of the peak."""
    costliest = layer_costs(plan)[0]
    total = plan.value["time_us"]
    takes = costliest["time_us"] + costliest["network_time_us"]
    share = f", {takes / total:.0%} of the step" if total else ""
    said = [
        f"Layer {costliest['name']} takes the most time: {time_text(takes)}{share} "
        f"({time_text(costliest['time_us'])} compute, {time_text(costliest['network_time_us'])} collectives)."
    ]
    memory = view["memory"]
    if memory["instructions"]:
        largest = next(iter(memory["peak_by_tensor"].items()), None)
        what = f" while it makes {memory['peak_runs']}" if memory["peak_runs"] else ""
        holds = f"; the largest tensor then is {largest[0]} with {memory_text(largest[1])}" if largest else ""
        said.append(
            f"The peak of {memory_text(memory['peak_bytes'])} is at instruction {memory['peak_instruction'] + 1} of "
            f"{memory['instructions']}{what}{holds}."
        )
    return said


def differing_sentences(plan: PlanRows, data_parallel: PlanRows) -> list[str]:
    """Return sentences on what a plan costs beside data parallelism, and on the configs that differ, the commonest first."""
    mine, other = plan.value, data_parallel.value
    said = [
        f"Data parallelism would take {time_text(other['time_us'])} per step ({_beside(other['time_us'], mine['time_us'])} "
        f"this plan) and {memory_text(other['memory_bytes'])} per device as the frontier counts it "
        f"({_beside(other['memory_bytes'], mine['memory_bytes'])} this plan)."
    ]
    theirs = {op["name"]: op for op in data_parallel.operators}
    counts: dict[tuple[str, str, str], tuple[int, float]] = {}
    for op in plan.operators:
        before = theirs.get(op["name"])
        if before is None or before["config"] == op["config"]:
            continue
        was, now = (config_words(op["type"], each["config"], each["results"]) for each in (before, op))
        count, time_us = counts.get((op["type"], was, now), (0, 0.0))
        counts[op["type"], was, now] = count + 1, time_us + op["time_us"] + op["memory_bytes"] / 1e9
    differing = sorted(counts.items(), key=lambda row: -row[1][1])
    for (kind, was, now), (count, _) in differing[:MOST_DIFFERENCES]:
        what = "variable" if kind == "Variable" else kind
        said.append(f"{count} {what}{'s' * (count != 1)}: {now}, where data parallelism has {was}.")
    rest = sum(count for _, (count, _) in differing[MOST_DIFFERENCES:])
    if rest:
        said.append(f"{rest} other operators differ too.")
    if not differing:
        said.append("No operator's config differs from data parallelism.")
    remade = sum(1 for op in plan.operators if op.get("is_rematerialized", False) and op["type"] not in SOURCES)
    regathered = sum(1 for row in plan.reshardings if row.get("is_regathered", False))
    if remade or regathered:
        said.append(f"It computes {remade} operators again in the backward pass, and gathers {regathered} copies again.")
    return said


def _beside(other: float, mine: float) -> str:
    if not mine:
        return "beside"
    ratio = other / mine
    return f"{ratio:.2f} times" if ratio >= 1 else f"{ratio:.0%} of"
