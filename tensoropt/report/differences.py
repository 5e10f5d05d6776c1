"""Compare two plans, layer by layer, or frontiers, of which a plan may be one, at each amount of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..common.memory_units import memory_text
from ..common.words import counted
from .explanation import OF_A_STAGE, layer_costs
from .frontier_rows import FrontierRows
from .plan_rows import PlanRows, Row
from .sentences import config_words
from .tables import signed, stages_table, table

FORMAT, VERSION = "tensoropt/diff", 2
MOST_ROWS = 20
_COSTS = ("sum_bytes", "peak_bytes", "time_us", "compute_time_us", "network_time_us")
_COUNTS = ("stages", "micro_batches")


def differences(before: FrontierRows, after: FrontierRows) -> dict[str, Any]:
    """Return what differs between two plans, or between frontiers, as a JSON value."""
    facts: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    if before.only_plan is not None and after.only_plan is not None:
        return {**facts, "kind": "plan", **_of_plans(before.only_plan, after.only_plan)}
    return {**facts, "kind": "frontier", **_of_frontiers(before, after)}


def _of_plans(before: PlanRows, after: PlanRows) -> dict[str, Any]:
    a, b = ({op["name"]: op for op in plan.operators} for plan in (before, after))
    changed = [
        {
            "name": name,
            "type": b[name]["type"],
            "layer": after.layers[name],
            "before": _operator(a[name]),
            "after": _operator(b[name]),
        }
        for name in b
        if name in a and _decided(a[name]) != _decided(b[name])
    ]
    return {
        "is_same_model": before.value["model_digest"] == after.value["model_digest"],
        "mesh": [str(before.mesh), str(after.mesh)],
        "schedule": [dict(plan.value["schedule"]) for plan in (before, after)],
        "stages": [[{key: stage.value[key] for key in OF_A_STAGE} for stage in plan.stages] for plan in (before, after)],
        "totals": {
            **{key: [plan.value[key] for plan in (before, after)] for key in _COSTS},
            "stages": [len(plan.stages) for plan in (before, after)],
            "micro_batches": [plan.micro_batches for plan in (before, after)],
            "collectives_per_step": [plan.n_collectives for plan in (before, after)],
        },
        "only_before": [name for name in a if name not in b],
        "only_after": [name for name in b if name not in a],
        "layers": _layers(before, after, [row["layer"] for row in changed]),
        "operators": changed,
    }


def _decided(op: Row) -> tuple[str, bool]:
    return op["config"], bool(op.get("is_rematerialized", False))


def _operator(op: Row) -> dict[str, Any]:
    return {
        "config": op["config"],
        "words": config_words(op["type"], op["config"], tuple(op["results"])),
        "is_rematerialized": bool(op.get("is_rematerialized", False)),
        "sum_bytes": op["sum_bytes"],
        "time_us": op["time_us"],
    }


def _layers(before: PlanRows, after: PlanRows, changed: Iterable[str]) -> list[dict[str, Any]]:
    """Return the layers whose operators or costs differ, the largest change of time first."""
    a, b = ({row["name"]: row for row in layer_costs(*plan.stages)} for plan in (before, after))
    counts = Counter(changed)
    empty = {"time_us": 0.0, "network_time_us": 0.0, "sum_bytes": 0}
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys([*b, *a]):
        old, new = a.get(name, empty), b.get(name, empty)
        costs = {key: [old[key], new[key]] for key in empty}
        if counts[name] or any(pair[0] != pair[1] for pair in costs.values()):
            rows.append({"name": name, "changed_operators": counts[name], **costs})
    return sorted(rows, key=lambda row: -abs(sum(row[key][1] - row[key][0] for key in ("time_us", "network_time_us"))))


def _of_frontiers(before: FrontierRows, after: FrontierRows) -> dict[str, Any]:
    limits = {frontier.needed_bytes(point) for frontier in (before, after) for point in _told(frontier)}
    rows = []
    for limit in sorted(limits):
        points = [frontier.fastest_within(limit) for frontier in (before, after)]
        times = [
            None if i is None else frontier.points[i]["time_us"] for i, frontier in zip(points, (before, after), strict=True)
        ]
        rows.append({"memory_limit_bytes": limit, "points": points, "time_us": times})
    return {
        "is_same_model": before.value["model_digest"] == after.value["model_digest"],
        "hardware": [before.value["hardware"], after.value["hardware"]],
        "summaries": [before.value["summary"], after.value["summary"]],
        "limits": rows,
    }


def _told(frontier: FrontierRows) -> set[int]:
    """Return the points at whose memory frontiers are compared: the least, the turning point, the fastest, some between."""
    ordered = sorted(frontier.comparable, key=frontier.needed_bytes)
    ends = {ordered[i * (len(ordered) - 1) // 4] for i in range(5)}
    return {*ends, frontier.turning_point, frontier.comparable[0]}


def differences_text(facts: dict[str, Any]) -> str:
    parts = [] if facts["is_same_model"] else ["the two are for different models; operators are compared by their names"]
    return "\n\n".join([*parts, *(_plans_text if facts["kind"] == "plan" else _frontiers_text)(facts)])


def _totals_text(facts: dict[str, Any]) -> str:
    totals, names = facts["totals"], {"sum_bytes": "paper's sum", "peak_bytes": "memory per device"}
    pairs = {key: pair for key, pair in totals.items() if key not in _COUNTS or set(pair) != {1}}
    rows = [[names.get(key, key.removesuffix("_us").replace("_", " ")), *_pair(key, pair)] for key, pair in pairs.items()]
    return table(rows, ("per device and step", "before", "after", "change"))


def _plans_text(facts: dict[str, Any]) -> list[str]:
    stages = stages_table(dict(zip(("before", "after"), facts["stages"], strict=True)))
    schedule = " > ".join(dict.fromkeys(side["name"] for side in facts["schedule"]))
    parts = [_totals_text(facts), *([f"{stages}\nby {schedule}"] if stages else [])]
    if facts["mesh"][0] != facts["mesh"][1]:
        parts.append(f"the mesh was {facts['mesh'][0]} and is {facts['mesh'][1]}")
    for key, where in (("only_before", "before"), ("only_after", "after")):
        if facts[key]:
            names = ", ".join(facts[key][:5])
            more = f" and {len(facts[key]) - 5} others" if len(facts[key]) > 5 else ""
            subject = f"{counted(len(facts[key]), 'operator')} {'is' if len(facts[key]) == 1 else 'are'} there"
            parts.append(f"{subject} only {where}: {names}{more}")
    if not facts["operators"] and not facts["layers"]:
        return [*parts, "no operator's config differs"]
    rows = [
        [
            row["name"],
            row["changed_operators"],
            *(f"{row[key][0]:,.1f} > {row[key][1]:,.1f}" for key in ("time_us", "network_time_us")),
            " > ".join(map(memory_text, row["sum_bytes"])),
        ]
        for row in facts["layers"][:MOST_ROWS]
    ]
    headers = ("layer", "configs changed", "compute us", "network us", "of the paper's sum")
    parts.append(table(rows, headers) + _left_out(facts["layers"], "layers"))
    rows = [[row["name"], row["type"], _said(row["before"]), _said(row["after"])] for row in facts["operators"][:MOST_ROWS]]
    return [*parts, table(rows, ("operator", "type", "before", "after"), 4) + _left_out(facts["operators"], "operators")]


def _said(op: Row) -> str:
    return op["words"] + (", computed again" if op["is_rematerialized"] else "")


def _left_out(rows: Sequence[Any], noun: str) -> str:
    return f"\n{MOST_ROWS} of {len(rows)} {noun}; --json has all" if len(rows) > MOST_ROWS else ""


def _pair(key: str, pair: Sequence[float | None]) -> list[str]:
    def text(amount: float | None) -> str:
        if amount is None:
            return "not known"
        if key.endswith("_bytes"):
            return memory_text(int(amount))
        return f"{amount:,.1f} us" if key.endswith("_us") else str(amount)

    old, new = pair
    change = new / old - 1 if old and new is not None else None
    return [text(old), text(new), signed(change)]


def _frontiers_text(facts: dict[str, Any]) -> list[str]:
    named = zip(("before: ", "after:  "), facts["hardware"], facts["summaries"], strict=True)
    lines = [f"{label}{hardware}, {summary}" for label, hardware, summary in named]
    rows = []
    for row in facts["limits"]:
        old, new = row["time_us"]
        times = ["does not fit" if time is None else f"{time:,.1f}" for time in (old, new)]
        change = new / old - 1 if old and new is not None else None
        rows.append([memory_text(row["memory_limit_bytes"]), *times, signed(change)])
    return ["\n".join(lines), table(rows, ("within memory", "before (us)", "after (us)", "change"))]
