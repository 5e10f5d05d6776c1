"""A curve's best points, and the curve as the files that cluster schedulers read: Gavel's throughputs, Sia's placements and
scalability, a table.

Gavel (OSDI 2020, ``scheduler/utils.py: read_all_throughputs_json_v2``) counts steps of one worker's batch, summed over all
workers. Its devices are named by their kind, with ``_unconsolidated`` behind it where each is in a machine of its own.

Sia (SOSP 2023, ``sia-simulator/applications.py: Application``) has a row for each placement, whose digits are the devices on
each machine, and each batch of a device, with the seconds of a step and those of its network that compute doesn't hide.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.errors import InputError
from .plan_rows import Row

TARGETS = ("gavel", "sia", "csv")
UNCONSOLIDATED = "_unconsolidated"
SIA_COLUMNS = {
    "placements": ("placement", "local_bsz", "step_time", "sync_time"),
    "scalability": ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"),
}
MOST_DIGITS = 9
"""The most devices of a machine that a digit can say."""


def unbeaten(points: Sequence[Row]) -> list[int]:
    """Return the numbers of the points that no other beats in both the time and the price of a sample, by ascending time.

    What has no price, or doesn't fit, isn't compared.
    """
    compared = [
        (1 / point["samples_per_s"], point["price_per_hour"] / point["samples_per_s"], number)
        for number, point in enumerate(points)
        if point.get("samples_per_s") and point.get("price_per_hour") is not None
    ]
    numbers, least = list[int](), math.inf
    for _, price, number in sorted(compared):
        if price < least:
            numbers.append(number)
            least = price
    return numbers


def files_of(curve: Row, target: str) -> Mapping[str, str]:
    """Return the texts of the files for one of ``TARGETS``, by name.

    Raises:
        InputError: the curve has no point that fits and knows its batch, or several plans of one batch and place.
    """
    points = [point for point in curve["curve"] if point["fits"] and (target == "csv" or point["batch"])]
    if not points:
        raise InputError(f"the curve has no point that {target} can take: none fits, or the batch isn't known")
    name = curve.get("model", "model").rpartition("/")[2].removeprefix("zoo:").removesuffix(".keras").replace(":", " ")
    if target == "csv":
        columns = [key for key in points[0] if key != "ends"]
        return {"curve.csv": _table(columns, [[point[key] for key in columns] for point in curve["curve"]])}
    return {"throughputs.json": _gavel(points, name)} if target == "gavel" else _sia(points)


def kind_of(point: Row) -> str:
    """Return the kind of a point's devices: ``v100`` of ``v100-2x8``."""
    return re.sub(r"-\d+x\d+$", "", point["cluster"])


def _gavel(points: Sequence[Row], name: str) -> str:
    """Return Gavel's file: by worker type and job type, the steps per second; all worker types have all job types."""
    by_worker: dict[str, dict[str, dict[str, float]]] = {}
    for point in sorted(points, key=lambda point: bool(point["machines"] == point["parallelism"] > 1)):
        count, batch, kind = point["parallelism"], point["batch"] / point["parallelism"], kind_of(point)
        job, rate = f"('{name} (batch size {batch:g})', {count})", {"null": point["samples_per_s"] / batch}
        by_worker.setdefault(kind, {}).setdefault(job, rate)  # where none is in fewer machines, that of as many as devices
        if point["machines"] == count > 1:
            by_worker.setdefault(kind + UNCONSOLIDATED, {})[job] = rate
    jobs = dict.fromkeys(job for rows in by_worker.values() for job in rows)
    # A job that doesn't fit a kind of device has no throughput there.
    complete = {worker: {job: rows.get(job, {"null": 0.0}) for job in jobs} for worker, rows in by_worker.items()}
    return json.dumps(complete, indent=1) + "\n"


def _sia(points: Sequence[Row]) -> dict[str, str]:
    """Return Sia's two files of each kind of device."""
    files: dict[str, str] = {}
    for kind in dict.fromkeys(map(kind_of, points)):
        rows: dict[str, list[list[Any]]] = {name: [] for name in SIA_COLUMNS}
        for point in sorted(points, key=lambda point: (point["parallelism"], point["machines"], point["batch"])):
            count, machines = point["parallelism"], point["machines"]
            per_device, per_machine = divmod(point["batch"], count), count // machines
            if kind_of(point) != kind or per_device[1]:
                continue
            costs = [per_device[0], point["time_us"] / 1e6, point["network_time_us"] / 1e6]
            rows["scalability"].append([machines, count, *costs])
            if per_machine <= MOST_DIGITS:
                rows["placements"].append([str(per_machine) * machines, *costs])
        if not rows["placements"]:
            raise InputError(
                f"no point on {kind} has a batch that its devices divide and at most {MOST_DIGITS} of them in a machine, as "
                "Sia's placements say it; search with --batch-per-device"
            )
        files |= {f"{name}-{kind}.csv": _table(SIA_COLUMNS[name], rows[name]) for name in SIA_COLUMNS}
    return files


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()
