"""Explain a plan: what its time and memory are spent on, and what the neighbouring plans cost.

:func:`explanation` gives the numbers as a JSON value, from the rows of a plan. ``plan.explain()``, the command line and the
report all show these and no others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from .plan_rows import PlanRows, Row, StageRows, Way, checked_timeline

FORMAT, VERSION = "tensoropt/explanation", 5
NETWORK, COPIES = "collectives", "saved copies of reshardings"
TAKEN = "results saved for their consumers, or rematerialized"
ACCUMULATED = "gradients accumulated beside those of parameters"
OVERLAPPED = "compute and collectives at the same time"
UPDATES, PARAMETERS = "Variable (updates)", "parameters, gradients and slots"
INTERLEAVED = "interleaved_steps"
"""The key of a plan's ``assumed`` for a baseline trial: times of interleaved steps by the plan and by data parallelism."""
DATA_PARALLELISM, WITHOUT_STAGES = "data parallelism", "the plan without stages"
BASELINE_US = {DATA_PARALLELISM: "data_parallel_us", WITHOUT_STAGES: "without_stages_us"}
"""The names of baselines of which interleaved steps were timed, and where their time stands."""
COMPUTE, COLLECTIVES, OVERLAP = "compute", "collectives", "overlap"
BESIDE, MESSAGES, WAITS = "other stages", "messages", "waits"
_VARIABLE = "Variable"
TIMES = ("time_us", "compute_time_us", "network_time_us", "overlap_time_us")
OF_A_STAGE = ("devices", "last_operator", "in_flight", "deferred", "idle_share", "sum_bytes", "peak_bytes", "time_us")
"""The keys of a stage in a plan's file that are told as they are."""
_Key = TypeVar("_Key")
Neighbours = tuple["Row | None", "Row | None"]
"""The costs of the next smaller and of the next faster point of a plan's frontier; None where there is none."""


def explanation(
    plan: PlanRows, neighbours: Neighbours | None = None, fitting: tuple[int, Row] | None = None
) -> dict[str, Any]:
    """Return the explanation of a plan as a JSON value; rows are in descending order of what they cost.

    Args:
        neighbours: those of its frontier, if there is one.
        fitting: the number and the costs of the fastest point that fits the device; None if none is known.
    """
    value = plan.value
    smaller_faster = tuple(zip(("smaller", "faster"), neighbours or (None, None), strict=True))
    peaks = [plan.peak_bytes, *(row.get("peak_bytes") for _, row in smaller_faster if row is not None)]
    memory = "peak_bytes" if all(peaks) else "sum_bytes"
    compared = {side: None if row is None else compared_costs(plan, row, memory) for side, row in smaller_faster}
    return {
        "format": FORMAT,
        "version": VERSION,
        "summary": plan.summary,
        "option": value["option"],
        "devices": plan.mesh.n_devices,
        "mesh": str(plan.mesh),
        "schedule": dict(value["schedule"]),
        "sum_bytes": value["sum_bytes"],
        "peak_bytes": plan.peak_bytes,
        "device_memory_bytes": plan.device_bytes,
        "too_large": plan.too_large(fitting),
        **{key: value[key] for key in TIMES},
        "split_operators": plan.n_split_operators,
        "collectives_per_step": plan.n_collectives,
        "stages": [_of_stage(plan, number) for number in range(len(plan.stages))],
        "has_frontier": neighbours is not None,
        **compared,
        "frontier": list(value["frontier"]),
        "assumed": dict(value["assumed"]),
    }


def _of_stage(plan: PlanRows, number: int) -> dict[str, Any]:
    """Return what the time and the memory of a stage are spent on."""
    stage = plan.stages[number]
    peak, instant, rest = stage.peak, None, step_parts(plan, number)
    unknown = {"others": stage.value["peak_bytes"] or 0} if rest else {}
    if peak is not None and peak["instructions"]:
        instant = {"instruction": peak["peak_instruction"], "instructions": peak["instructions"], "makes": peak["peak_runs"]}
    return {
        **{key: stage.value[key] for key in (*OF_A_STAGE, *TIMES[1:])},
        "mesh": str(stage.mesh),
        "time": [*time_parts(stage), *rest],
        "memory": memory_parts(stage),
        "peak": _by_bytes(unknown if peak is None else peak["peak_by_use"]),
        "peak_instant": instant,
        "peak_tensors": [] if peak is None else _by_bytes(peak["peak_by_tensor"]),
        "layers": layer_costs(stage),
        "reshardings": reshardings(stage),
        "rematerialized": rematerialized(stage),
        "regathered": regathered(stage),
    }


def compared_costs(plan: PlanRows, point: Row, memory: str) -> dict[str, Any]:
    """Return the costs of another plan, and by what part of this plan's they differ.

    Args:
        memory: the key of the memory that is compared: peaks where all that are shown are known.
    """
    own, other, time_us = plan.value[memory], point[memory], plan.time_us
    return {
        "sum_bytes": point["sum_bytes"],
        "peak_bytes": point.get("peak_bytes"),
        "time_us": point["time_us"],
        "memory_change": other / own - 1 if own else None,
        "time_change": point["time_us"] / time_us - 1 if time_us else None,
    }


def time_parts(stage: StageRows) -> list[dict[str, Any]]:
    """Return the time by operator type and by kinds of collectives; the times add up to the stage's.

    What collectives hide behind compute is a part with a negative time.
    """
    times_us: defaultdict[tuple[str, str], float] = defaultdict(float)
    for op in stage.operators:
        times_us[COMPUTE, UPDATES if op["type"] == _VARIABLE else op["type"]] += op["time_us"]
    for row in stage.reshardings:
        times_us[COLLECTIVES, ways_text(stage, row)] += row["time_us"]
    rows = [{"part": part, "name": name, "time_us": us} for (part, name), us in _descending(times_us)]
    overlap_us = float(stage.value.get("overlap_time_us", 0.0))
    return [*rows, {"part": OVERLAP, "name": OVERLAPPED, "time_us": -overlap_us}] if overlap_us else rows


def step_parts(plan: PlanRows, number: int) -> list[dict[str, Any]]:
    """Return what a stage's devices do in a step beside its :func:`time_parts`; together they add up to the step's time.

    Messages that passes hide have no part.
    """
    if "timeline" not in plan.value:
        return []
    own, same = plan.stages[number].value, "on the same devices"
    parts = [
        (BESIDE, f"stage {i} {same}", float(stage.value["time_us"]))
        for i, stage in enumerate(plan.stages)
        if i != number and stage.value["devices"] == own["devices"]
    ]
    timeline, idle_us = checked_timeline(plan.value["timeline"]), own["idle_share"] * plan.time_us
    sending_us = plan.time_us - idle_us - own["time_us"] - sum(time_us for *_, time_us in parts)
    way_us = _awaited_ns(timeline, timeline["devices"].index(own["devices"])) / 1e3
    parts.append((MESSAGES, "messages between stages, sent and awaited", max(0.0, sending_us) + min(way_us, idle_us)))
    waits_us = max(0.0, plan.time_us - own["time_us"] - sum(time_us for *_, time_us in parts))
    parts.append((WAITS, "waits for other stages", waits_us))
    return [{"part": part, "name": name, "time_us": time_us} for part, name, time_us in parts]


def _awaited_ns(timeline: Row, device: int) -> int:
    """Return how long messages to some devices are on their way while these compute nothing."""
    spans: tuple[list[tuple[int, int]], ...] = [], []
    begin = 0
    for text in filter(None, timeline["tasks"].split(";")):
        of, lane, after, took, _, kind = map(int, text.split(","))
        begin += after
        target = (of + (1 if timeline["kinds"][kind] == "sent_on" else -1)) % len(timeline["devices"])
        if device == (target if lane else of):
            spans[lane].append((begin, begin + took))
    return _covered(spans[0] + spans[1]) - _covered(spans[0])


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    total = last = 0
    for begin, end in sorted(spans):
        total, last = total + max(0, end - max(begin, last)), max(end, last)
    return total


def ways_text(stage: StageRows, row: Row) -> str:
    """Return the kinds of a resharding's collectives as text, those of the way back after ``back``."""
    forward, backward = _kinds(stage.forward(row)), _kinds(stage.backward(row))
    words = [forward] if forward else []
    words += [f"back {backward}"] if backward else []
    return ", ".join(words) or "local copies"


def _kinds(ways: Iterable[Way]) -> str:
    return " and ".join(dict.fromkeys(way.kind.replace("_", "-") for way in ways))


def memory_parts(stage: StageRows) -> list[dict[str, Any]]:
    """Return the memory per device by use; the bytes add up to the stage's."""
    amounts: defaultdict[str, float] = defaultdict(int)
    for op in stage.operators:
        is_state = op["type"] == _VARIABLE
        amounts[PARAMETERS if is_state else f"saved for the backward pass of {op['type']}"] += op["sum_bytes"]
    amounts[ACCUMULATED] = sum(row.get("accumulator_bytes", 0) for row in stage.reshardings)
    amounts[COPIES] = sum(row.get("copy_bytes", 0) for row in stage.reshardings if not row.get("is_regathered", False))
    amounts[TAKEN] = stage.value["sum_bytes"] - sum(amounts.values())
    return _by_bytes(amounts)


def reshardings(stage: StageRows) -> list[dict[str, Any]]:
    """Return the time of each resharding that communicates."""
    rows: dict[str, dict[str, Any]] = {}
    stand_ins = {op["name"]: op["type"] for op in stage.operators if op.get("is_stand_in", False)}
    for row in stage.reshardings:
        kinds = list(dict.fromkeys(way.kind for way in stage.executed(row)))
        if kinds:
            tensor = stand_ins.get(row["tensor"].rpartition(":")[0], row["tensor"])
            consumer = stand_ins.get(row["consumers"][0], row["consumers"][0])
            name = f"{tensor} to {consumer}: {', '.join(kinds)}"
            entry = rows.setdefault(name, {
                "name": name, "tensor": tensor, "consumer": consumer, "layer": stage.layer_of(row),
                "collectives": kinds, "time_us": 0.0,
            })  # fmt: skip
            entry["time_us"] += row["time_us"]
    return sorted(rows.values(), key=lambda entry: -entry["time_us"])


def layer_costs(*stages: StageRows) -> list[dict[str, Any]]:
    """Return the compute time, network time and memory of each layer, of all stages together."""
    keys = ("operators", "time_us", "network_time_us", "sum_bytes")
    rows: list[tuple[str, Sequence[float]]] = []
    for stage in stages:
        rows += ((stage.layers[op["name"]], (1, op["time_us"], 0.0, op["sum_bytes"])) for op in stage.operators)
        for row in stage.reshardings:
            copied = 0 if row.get("is_regathered", False) else row.get("copy_bytes", 0)
            rows.append((stage.layer_of(row), (0, 0.0, row["time_us"], row.get("accumulator_bytes", 0) + copied)))
    return sorted(_summed(keys, rows), key=lambda totals: -(totals["time_us"] + totals["network_time_us"]))


def rematerialized(stage: StageRows) -> list[dict[str, Any]]:
    """Return by type what the operators that the backward pass computes again free and take."""
    ops = [op for op in stage.operators if op.get("is_rematerialized", False)]
    ops.sort(key=lambda op: (-op["freed_bytes"], -op["rematerialization_us"]))
    rows = ((op["type"], (1, op["freed_bytes"], op["rematerialization_us"])) for op in ops)
    return _summed(("operators", "freed_bytes", "time_us"), rows)


def _summed(keys: Sequence[str], rows: Iterable[tuple[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """Return sums of amounts by name, in the order in which the names first come."""
    totals: dict[str, Sequence[float]] = {}
    for name, amounts in rows:
        total = totals.get(name)
        totals[name] = amounts if total is None else [a + b for a, b in zip(total, amounts, strict=True)]
    return [{"name": name, **dict(zip(keys, amounts, strict=True))} for name, amounts in totals.items()]


def regathered(stage: StageRows) -> list[dict[str, Any]]:
    """Return what each copy that is regathered in the backward pass frees and takes."""
    copies = sorted((row for row in stage.reshardings if row.get("is_regathered", False)), key=_copy_bytes)
    return [
        {
            "name": f"{row['tensor']} to {row['consumers'][0]}",
            "freed_bytes": -_copy_bytes(row),
            "time_us": row["regathering_us"],
        }
        for row in copies
    ]


def _copy_bytes(row: Row) -> int:
    """Return the negative bytes of a copy, to sort by; a copy that is a view of its source has none."""
    return -int(row.get("copy_bytes", 0))


def _descending(amounts: Mapping[_Key, float]) -> list[tuple[_Key, float]]:
    """Return amounts in descending order; zeros are left out."""
    return sorted(((key, amount) for key, amount in amounts.items() if amount > 0), key=lambda row: -row[1])


def _by_bytes(amounts: Mapping[str, float]) -> list[dict[str, Any]]:
    return [{"name": name, "bytes": n_bytes} for name, n_bytes in _descending(amounts)]
