"""Hold predictions against published figures: ``python tests/benchmarks/published/table.py [NAME[:ROW] ...]``.

The figures and their sources are in ``figures.json``; each of a table that is more than 30 % off has its reason there. What
is named is computed and kept in ``ours.json``, so it can be computed in pieces; the table is of all that is kept.
GPTs are in bfloat16 with float32 variables, split by Megatron-LM's degrees; language models have dropout.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.append(str(Path(__file__).parents[1]))

import tensorflow as tf
from megatron import of_megatron, with_all_again_us
from tabulate import tabulate

from tensoropt import AdamOptimizer, zoo
from tensoropt.ft import Budget
from tensoropt.plan.frontier import Frontier
from tensoropt.profiling.hardware import Hardware, named
from tensoropt.profiling.hardware_costs import CollectiveCosts
from tensoropt.search.candidates.plan_points import frontier_of
from tensoropt.search.candidates.search_candidates import search_with_stages
from tensoropt.search.request import Request
from tensoropt.search.stages.points import SearchedWhole
from tensoropt.sharding.model import Model
from tensoropt.tools.offline import record
from tensoropt.zoo import language, layers

FAR, BUDGET, LENGTH, WORDS = 0.3, Budget(seconds=5.0), 2048, 51200
FIGURES, OURS = (Path(__file__).with_name(f"{name}.json") for name in ("figures", "ours"))


@cache
def resnet50(batch: int, policy: str) -> Model:
    import keras

    def made() -> keras.Model:
        keras.config.set_dtype_policy(policy)
        model = keras.applications.ResNet50(weights=None)
        model.compile(keras.optimizers.SGD(momentum=0.9), "sparse_categorical_crossentropy")
        return model

    return record(made, "resnet50", batch_size=batch).model


def language_model(made: Callable[[], tf.Tensor], is_halved: bool, optimizer: str) -> Model:
    """Record a model of the zoo with the dropout that published runs have, in bfloat16 with float32 variables if asked."""
    dense, softmax = layers.dense, tf.nn.softmax

    def dropped(x: tf.Tensor, units: int, name: str) -> tf.Tensor:
        return tf.nn.dropout(dense(x, units, name), 0.1) if name in ("output", "down") else dense(x, units, name)

    def halved(variable: Callable[..., tf.Variable], *arguments: object) -> tf.Tensor:
        return tf.cast(variable(*arguments), tf.bfloat16)

    changes = [(language, "dense", dropped), (tf.nn, "softmax", lambda x: tf.nn.dropout(softmax(x), 0.1))]
    if is_halved:
        changes += [(layers, name, partial(halved, getattr(layers, name))) for name in ("weights", "zeros", "ones")]
        changes += [(language, name, partial(halved, getattr(language, name))) for name in ("weights", "zeros")]
        changes += [(language, "DTYPE", tf.bfloat16)]

    def loss() -> tf.Tensor:
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(mock.patch.object(*change))
            return tf.cast(made(), tf.float32)

    return record(loss, "language_model", optimizer).model


def hardware_of(row: dict) -> Hardware:
    """Return a row's hardware, with the network cards that its source tells."""
    hardware = named(row["cluster"])
    outer, inner = hardware.levels
    return replace(hardware, levels=(replace(outer, bytes_per_s=row.get("network_bytes_per_s", outer.bytes_per_s)), inner))


def searched(row: dict, model: Model, **asked: Any) -> Frontier:
    asked = {"micro_batches": 1, "budget": BUDGET, "wants_frontier": False, "without": frozenset({"remat"}), **asked}
    request = Request(model, hardware_of(row), None, stages=(row.get("pipeline", 1),), **asked)
    search = search_with_stages(request, row["devices"])
    return frontier_of(request, row["devices"], [*map(SearchedWhole.of, search.whole), *search.cuts])


@cache
def of_layers(sizes: tuple[tuple[str, Any], ...], n_layers: int) -> tuple[float, ...]:
    """Return what a step of a GPT takes: in all, in all if each layer is rematerialized, and in bytes."""
    row = dict(sizes)
    asked = {"layers": n_layers, "length": LENGTH, "vocabulary": WORDS} | {k: row[k] for k in ("batch", "width", "heads")}
    model, per_stage = language_model(partial(zoo.gpt3, **asked), True, "adam"), row["devices"] // row["pipeline"]
    force, placed = of_megatron(model.graph, row["tensor"], per_stage // row["tensor"]), {}
    for name in (each for each in force if each.startswith("layer_") and row["pipeline"] > 1):
        first = (int(name.split("/")[0][6:]) - 1) * row["pipeline"] // n_layers * per_stage
        placed[name] = tuple(range(first, first + per_stage))
    point = searched(row, model, force=force, placed=placed, micro_batches=row["micro_batches"]).points_of[-1]
    return point.time_us, with_all_again_us(point), point.peak_bytes


def of_gpt(row: dict) -> list[float]:
    """Return :func:`of_layers`, of more than two layers a stage as far as one and two say, since all are alike."""
    sizes, each = tuple((key, row[key]) for key in row if key != "published"), row["layers"] // row["pipeline"]
    one, two = (of_layers(sizes, n * row["pipeline"]) for n in (1, 2))
    return [a + (each - 1) * (b - a) for a, b in zip(one, two, strict=True)]


def tflops_per_gpu(row: dict) -> float:
    """Return what a GPU computes per second by Equation (3) of Megatron-LM's paper, which counts what is done again."""
    n_layers, width = row["layers"], row["width"]
    flops = 96 * row["batch"] * LENGTH * n_layers * width**2 * (1 + LENGTH / (6 * width) + WORDS / (16 * n_layers * width))
    return flops / of_gpt(row)[1] / 1e6 / row["devices"]


def samples_per_s(row: dict) -> float:
    batch, policy = row["batch_per_device"] * row["devices"], row.get("policy", "float32")
    sizes = {key: row.get(key) for key in ("length", "predictions")} | {"batch": row.get("sequences", batch)}
    of_bert = language_model(partial(zoo.bert_large, **sizes), policy != "float32", "sgd") if "length" in row else None
    return batch / searched(row, of_bert or resnet50(batch, policy)).points_of[-1].time_us * 1e6


def gb_of_model(row: dict) -> float:
    """Return what a device needs to train a model by Adam, all gradients of which are held, at least if rematerialized."""
    name, again, dtype, patch = row["model"], row["rematerialized"], getattr(tf, row["dtype"]), mock.patch.object
    dense = partial(lambda gather, table, rows: gather(1.0 * tf.convert_to_tensor(table), rows), tf.gather)

    def step() -> None:
        adam = AdamOptimizer()
        gradients, variables = zip(*adam.compute_gradients(getattr(zoo, name)(**row["sizes"])), strict=True)
        adam.apply_gradients(zip(tf.clip_by_global_norm(gradients, 1.0)[0], variables, strict=True))

    with patch(layers, "DTYPE", dtype), patch(language, "DTYPE", dtype), patch(tf, "gather", dense):
        model = record(step, name).model
    found = searched(row, model, **{"wants_frontier": True, "without": frozenset()} if again else {})
    return found.points_of[0 if again else -1].peak_bytes / 1e9


def bus_gb_per_s(row: dict) -> float:
    mesh, n = (hardware := hardware_of(row)).mesh(), row["devices"]
    time_ns = CollectiveCosts(hardware, mesh).time_ns("all_reduce", mesh, tuple(range(len(mesh.axes))), row["n_bytes"])
    return row["n_bytes"] / time_ns * 2 * (n - 1) / n


OF_TABLE = {
    "all_reduce": bus_gb_per_s, "megatron": tflops_per_gpu, "recomputed": lambda row: of_gpt(row)[1] / 1e6,
    "kept": lambda row: of_gpt(row)[0] / 1e6, "memory": lambda row: of_gpt(row)[2] / 2**30, "models": gb_of_model,
}  # fmt: skip


def main() -> None:
    figures, ours = json.loads(FIGURES.read_text()), json.loads(OURS.read_text())
    for asked in sys.argv[1:]:
        name, _, number = asked.partition(":")
        for at, row in enumerate(figures[name]["rows"]):
            if number in ("", str(at)):
                ours[f"{name}:{at}"] = float(f"{OF_TABLE.get(name, samples_per_s)(row):.4g}")
                OURS.write_text(json.dumps(ours, indent=1, sort_keys=True) + "\n")
                print(f"{name}:{at} {ours[f'{name}:{at}'] / row['published']:.2f}", flush=True)
    rows, errors, reasons = [], [], {}
    for name, at in [(name, at) for name, table in figures.items() for at in range(len(table["rows"]))]:
        row, found = figures[name]["rows"][at], ours.get(f"{name}:{at}")
        size = next(row[key] for key in ("batch", "batch_per_device", "n_bytes") if key in row)
        ratio = found and found / row["published"]
        about = [name, row["cluster"], row["devices"], size, figures[name]["unit"], row["published"]]
        rows.append([*about, found, ratio and f"{ratio:.2f}"])
        errors += [abs(ratio - 1)] if ratio else []
        if ratio and abs(ratio - 1) > FAR:
            reasons[figures[name]["why"]] = name
    print(tabulate(rows, "table cluster devices size unit published ours ratio".split(), disable_numparse=True))
    print(f"\n{len(errors)} of {len(rows)} computed, mean error {sum(errors) / len(errors):.0%}; more than {FAR:.0%} off:")
    print("\n".join(f"- {name}: {reason}" for reason, name in reasons.items()))


if __name__ == "__main__":
    main()
