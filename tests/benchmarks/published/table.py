"""Hold predictions against published figures: ``python tests/benchmarks/published/table.py [NAME ...]``.

The figures and their sources are in ``figures.json``; each of a table that is more than 30 % off has its reason there.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tabulate import tabulate

from tensoropt.ft import Budget
from tensoropt.profiling.hardware import named
from tensoropt.profiling.hardware_costs import CollectiveCosts
from tensoropt.search.options import profiling
from tensoropt.search.request import Request
from tensoropt.sharding.model import Model
from tensoropt.tools.offline import record

FAR = 0.3


@cache
def resnet50(batch: int) -> Model:
    """Return ResNet-50 with softmax cross entropy and momentum, on images of 224 x 224."""
    import keras

    def made() -> keras.Model:
        model = keras.applications.ResNet50(weights=None)
        model.compile(keras.optimizers.SGD(momentum=0.9), "sparse_categorical_crossentropy")
        return model

    return record(made, "resnet50", batch_size=batch).model


def samples_per_s(row: dict) -> float:
    model = resnet50(row["batch_per_device"] * row["devices"])
    request = Request(model, named(row["cluster"]), None, budget=Budget(seconds=0), wants_frontier=False)
    (point,) = profiling([(request, row["devices"])]).points
    assert point.samples_per_s is not None
    return point.samples_per_s


def bus_gb_per_s(row: dict) -> float:
    hardware = named(row["cluster"])
    mesh, n = hardware.mesh(), row["devices"]
    time_ns = CollectiveCosts(hardware, mesh).time_ns("all_reduce", mesh, tuple(range(len(mesh.axes))), row["n_bytes"])
    return row["n_bytes"] / time_ns * 2 * (n - 1) / n


def main() -> None:
    figures = json.loads(Path(__file__).with_name("figures.json").read_text())
    rows, errors, reasons = [], [], []
    for name in sys.argv[1:] or figures:
        table = figures[name]
        for row in table["rows"]:
            ours = bus_gb_per_s(row) if name == "all_reduce" else samples_per_s(row)
            ratio = ours / row["published"]
            errors.append(abs(ratio - 1))
            size = row.get("batch_per_device") or row["n_bytes"]
            about = [name, row["cluster"], row["devices"], size, table["unit"]]
            rows.append([*about, row["published"], f"{ours:.4g}", f"{ratio:.2f}"])
            if errors[-1] > FAR and table["why"] not in reasons:
                reasons.append(table["why"])
    headers = ("table", "cluster", "devices", "batch or bytes", "unit", "published", "ours", "ratio")
    print(tabulate(rows, headers, disable_numparse=True))
    print(f"\nmean error {sum(errors) / len(errors):.0%}; more than {FAR:.0%} off:")
    print("\n".join(f"- {reason}" for reason in reasons))


if __name__ == "__main__":
    main()
