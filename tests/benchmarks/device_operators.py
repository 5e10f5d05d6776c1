"""Compare the times that a hardware description gives operators with times measured on that device, and fit its rates.

    python tests/benchmarks/device_operators.py list CASES.json
    python3 tests/benchmarks/device_kernels.py CASES.json TIMES.json     # on the device, with PyTorch alone
    python tests/benchmarks/device_operators.py compare TIMES.json [--cluster h100tf32-1x8 --precision tfloat32]
    python tests/benchmarks/device_operators.py fit TIMES.json [--precision tfloat32]

``list`` records models of the zoo and writes some of their distinct operators of each type, at the local shapes of one
device of 1, 2, 4 and 8, and all operators of whole steps on one device. ``fit`` prints the field ``operators`` of a hardware
file, from every second case of the first kind. ``compare`` prints the errors on the others, and those of the steps' sums,
by the datasheet's rates and by the measured ones that the description has. ``h100_operators.json`` is what an H100 gave.

A case is an object: ``type``; the ``model`` and ``config`` it is from; ``operands`` (``[dtype, local shape]``); ``options``
(what else the operator needs); ``flops`` and ``n_bytes`` of the forward pass; ``gradients`` (the operands that get one);
``count`` (how many like it the model has); ``of_step``; ``held_out``; once measured, ``us`` by precision and way.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from tensoropt.costs.config_costs import costs_of_config
from tensoropt.profiling.hardware import Hardware, OperatorRate, Rates, resolve
from tensoropt.profiling.hardware.frozen import freeze
from tensoropt.profiling.hardware.rates import FORWARD, NO_RATES, WAYS, class_of, rates_to_json
from tensoropt.profiling.hardware_costs import OperatorCosts
from tensoropt.profiling.operator_model import Sample, fitted
from tensoropt.profiling.work import WorkItem

MODELS = (
    "vgg16:batch=64", "wide_resnet:batch=32", "transformer:batch=64", "bert_large:batch=32", "llama3_8b:batch=1",
    "gpt3:layers=2,batch=4",
)  # fmt: skip
STEPS = (
    "vgg16:batch=64", "wide_resnet:batch=16", "transformer:batch=64", "bert_large:batch=32", "llama3_8b:batch=1,length=4096",
    "gpt3:layers=2,batch=1",
)  # fmt: skip
"""Models whose whole step is on one device, of a batch at which each operator fits."""
DEGREES = (1, 2, 4, 8)
CASES = {
    "MatMul": 40, "Einsum": 24, "AddV2": 14, "BiasAdd": 10, "Mul": 14, "Sub": 8, "Neg": 6, "Relu": 12, "SelectV2": 8,
    "Square": 8, "Erf": 10, "Rsqrt": 6, "Sigmoid": 8, "Tanh": 4, "FusedBatchNormV3": 12, "Softmax": 14,
    "SparseSoftmaxCrossEntropyWithLogits": 12, "Mean": 16, "MaxPool": 8, "ConcatV2": 8, "Split": 8, "GatherV2": 10,
    "Variable": 16, "Conv2D": 30,
}
"""How many cases of each type of operator are listed; convolutions last, since trying their algorithms takes longest."""
LARGEST_BYTES, LONGEST_US = 5e9, 40e3
"""Larger or slower operators are left out: their inputs, results and gradients must fit, and all cases run in minutes."""
OPTIMIZER = "adam"
PRODUCTS = ("MatMul", "Einsum", "Conv2D")
"""What runs in other precisions than float32."""
KINDS = {"Einsum": "batched product", "GatherV2": "gather", "FusedBatchNormV3": "normalisation"}
SIZES = {"up to 10 us": 10.0, "up to 100 us": 1e2, "up to 1 ms": 1e3, "longer": math.inf}
FEWEST = 3
"""A rate is fitted to at least so many cases."""


def works(model: str, hardware: Hardware, degrees: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield a case for each operator and config of a model of the zoo; many are alike."""
    from tensoropt.costs.operator_costs import costing_of
    from tensoropt.costs.work_items import largest_operand_shapes
    from tensoropt.ir.body import COMPOSITES
    from tensoropt.rules.configs import configs
    from tensoropt.rules.registry import rule_of
    from tensoropt.rules.rule import interface_of
    from tensoropt.tools.offline import record_named

    recorded = record_named(f"zoo:{model}", OPTIMIZER).model
    for degree in degrees:
        mesh = hardware.mesh(degree)
        costing = costing_of(recorded, hardware, mesh)
        alike: dict[object, list[Any]] = defaultdict(list)
        for op in recorded.graph.operators.values():
            if op.type in CASES and op.type not in COMPOSITES:
                alike[costing.signature(op, rule_of(op))].append(op)
        for op, count in ((each[0], len(each)) for each in alike.values()):
            rule = rule_of(op)
            for config in configs(rule, mesh):
                interface = interface_of(rule, config)
                work = costs_of_config(costing, op, rule, config).work()
                if work is None or rule.exchanged(config):
                    continue
                shapes = largest_operand_shapes(op, rule, config, interface)
                operands = [[t.dtype, list(shape)] for (_, t), shape in zip(op.operands, shapes, strict=True)]
                if op.type == "Variable":
                    operands = [[op.result.dtype, list(interface.results[0].largest_local_shape(op.result.shape))]]
                gradients = [i for i, _ in op.operands if (op.name, i) in recorded.backward.gradients]
                yield {
                    "type": op.type, "model": model.partition(":")[0], "config": str(config),
                    "count": count,
                    "operands": operands, "options": options_of(op), "flops": work.flops, "n_bytes": work.n_bytes,
                    "gradients": gradients,
                }


def options_of(op: Any) -> dict[str, Any]:
    """Return what an operator needs to run besides its tensors."""
    options = {}
    for name in ("transpose_a", "transpose_b", "equation", "strides", "ksize", "padding", "keep_dims", "num_split"):
        if name in op.attrs:
            value = op.attrs[name]
            options[name] = value.decode() if isinstance(value, bytes) else value
    for name, of_type, position in (("axis", "Mean", 1), ("axis", "ConcatV2", -1), ("axis", "Split", 0)):
        if op.type == of_type:
            options[name] = op.statics[position if position >= 0 else max(op.statics)].tolist()
    return options | ({"optimizer": OPTIMIZER} if op.type == "Variable" else {})


def listed(hardware: Hardware) -> list[dict[str, Any]]:
    """Return cases of each type, as many of each model, evenly over the logarithm of predicted times plus a microsecond."""
    costs = OperatorCosts(hardware)
    distinct: dict[str, dict[str, list[tuple[float, dict[str, Any]]]]] = {of_type: defaultdict(list) for of_type in CASES}
    taken, found = set(), []
    for model in MODELS:
        for case in works(model, hardware, DEGREES):
            us = costs.roofline_us(case["flops"], case["n_bytes"], "float32")
            same = json.dumps([case[name] for name in ("type", "operands", "options", "gradients")])
            fits = us < LONGEST_US and 0 < case["n_bytes"] * (1 + len(case["gradients"])) < LARGEST_BYTES
            if fits and same not in taken:
                taken.add(same)
                distinct[case["type"]][model].append((math.log1p(us), case))
    for of_type, most in CASES.items():
        for number, left in enumerate(distinct[of_type].values()):
            share = (number + 1) * most // len(distinct[of_type]) - number * most // len(distinct[of_type])
            sizes = [size for size, _ in left]
            for size in np.linspace(min(sizes), max(sizes), min(share, len(left))):
                nearest = min(left, key=lambda each, size=size: abs(each[0] - size))
                left.remove(nearest)
                found.append({**nearest[1], "of_step": False, "held_out": bool(len(found) % 2)})
    return found


def of_steps(hardware: Hardware) -> list[dict[str, Any]]:
    """Return the distinct operators of whole models on one device, each with how many of it a step has."""
    found: dict[str, dict[str, Any]] = {}
    for model in STEPS:
        for case in works(model, hardware, (1,)):
            if case["n_bytes"]:
                same = json.dumps([case[name] for name in ("model", "type", "operands", "options", "gradients")])
                count = found[same]["count"] if same in found else 0
                found[same] = {**case, "count": count + case["count"], "of_step": True, "held_out": True}
    return list(found.values())


def sample(case: dict[str, Any], way: str, precision: str) -> Sample | None:
    """Return the sample of a case one way, a product's in the given precision; None where nothing was measured.

    Only products count flops: all else waits for memory.
    """
    us = case["us"].get(precision if case["type"] in PRODUCTS else "float32", {}).get(way, 0.0)
    times = 1 if way == FORWARD else len(case["gradients"])
    width = 0.5 if precision == "bfloat16" and case["type"] in PRODUCTS else 1.0
    flops = case["flops"] * times if case["type"] in PRODUCTS else 0
    return Sample(flops, case["n_bytes"] * times * width, us) if us else None


def fitted_rates(cases: Sequence[dict[str, Any]], precision: str) -> Rates:
    """Return the rates of classes, and of the types that aren't alone in theirs, from the cases that aren't held out."""
    groups: dict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    types_of: dict[str, set[str]] = defaultdict(set)
    for case, way in product(cases, WAYS):
        types_of[class_of(case["type"])].add(case["type"])
        dtypes = ["float32", *(["bfloat16"] if case["type"] in PRODUCTS else [])]
        for dtype in dtypes if not case["held_out"] else ():
            found = sample(case, way, precision if dtype == "float32" else dtype)
            for name in (case["type"], class_of(case["type"])) if found else ():
                groups[name, dtype, way].append(found)
    rates: dict[str, dict[str, dict[str, OperatorRate]]] = {}
    for (name, dtype, way), found in groups.items():
        if len(found) >= FEWEST and (name in types_of or len(types_of[class_of(name)]) > 1):
            rates.setdefault(name, {}).setdefault(dtype, {})[way] = rounded(fitted(found))
    return freeze({name: rates[name] for name in sorted(rates)})


def rounded(rate: OperatorRate) -> OperatorRate:
    """Return a rate with numbers of four digits, as a hardware file has them."""
    numbers = (float(f"{value:.4g}") for value in (rate.overhead_us, rate.us_per_gflop, rate.us_per_gb))
    return OperatorRate(*numbers, round(rate.spread, 3), rate.samples)


def work_of(case: dict[str, Any], precision: str) -> WorkItem:
    """Return the work that a case is, in bfloat16 of half the bytes."""
    halved = precision == "bfloat16"
    n_bytes = case["n_bytes"] // 2 if halved else case["n_bytes"]
    return WorkItem(case["type"], "bfloat16" if halved else "float32", case["flops"], n_bytes, len(case["gradients"]))


def before(hardware: Hardware) -> Hardware:
    """Return the hardware with nothing measured: the datasheet's rates."""
    return replace(hardware, operators=NO_RATES, device=replace(hardware.device, operator_overhead_us=0.0))


def kind_of(case: dict[str, Any]) -> str:
    """Return a case's class, or a narrower name where its type has rates of its own for a reason of its own."""
    return KINDS.get(case["type"], class_of(case["type"]))


def errors_table(cases: Sequence[dict[str, Any]], hardware: Hardware, precision: str) -> str:
    """Return the errors on the single operators that were held out, both ways together, by kind and by measured time."""
    costs = [OperatorCosts(before(hardware)), OperatorCosts(hardware)]
    groups: dict[str, list[tuple[float, list[float]]]] = defaultdict(list)
    for case, way in product(cases, WAYS):
        found = sample(case, way, precision)
        if found and case["held_out"] and (precision == "float32" or case["type"] in PRODUCTS):
            entry = found.time_us, [each.predicted_us(work_of(case, precision), way) for each in costs]
            size = next(text for text, most_us in SIZES.items() if found.time_us < most_us)
            for group in (kind_of(case), size, "all"):
                groups[group].append(entry)
    names = [*sorted(groups.keys() - SIZES.keys() - {"all"}), *SIZES, "all"]
    rows = [[name, len(groups[name]), *_errors(groups[name])] for name in names if name in groups]
    return tabulate(rows, ["operators", "times", *("median", "p90", "sum") * 2], disable_numparse=True)


def _errors(compared: Sequence[tuple[float, list[float]]]) -> list[str]:
    """Return, of each prediction, median and 90th percentile of the relative errors, and the sum over the measured sum."""
    cells = []
    for predicted in zip(*(us for _, us in compared), strict=True):
        measured = np.array([us for us, _ in compared])
        wrong = np.abs(np.array(predicted) / measured - 1)
        cells += [f"{np.median(wrong):.0%}", f"{np.quantile(wrong, 0.9):.0%}", f"{sum(predicted) / measured.sum():.2f}"]
    return cells


def steps_table(cases: Sequence[dict[str, Any]], hardware: Hardware, precision: str) -> str:
    """Return the compute time of whole steps: the sum of their operators as measured, and as predicted."""
    costs = [OperatorCosts(before(hardware)), OperatorCosts(hardware)]
    rows = []
    for model in dict.fromkeys(case["model"] for case in cases):
        sums = np.zeros(3)
        for case, way in product([case for case in cases if case["model"] == model], WAYS):
            if found := sample(case, way, precision):
                predicted = [each.predicted_us(work_of(case, precision), way) for each in costs]
                sums += case["count"] * np.array([found.time_us, *predicted])
        rows.append([model, *(f"{each / 1e3:.1f}" for each in sums), *(f"{each / sums[0]:.2f}" for each in sums[1:])])
    return tabulate(rows, ["model", "measured ms", "datasheet ms", "measured rates ms", "ratio", "ratio"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("list", "compare", "fit"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--cluster", default="h100-1x8", help="default: h100-1x8")
    parser.add_argument("--precision", default="float32", choices=("float32", "tfloat32", "bfloat16"), help="of products")
    given = parser.parse_args()
    if given.action == "list":
        hardware = resolve(given.cluster)
        cases = sorted([*listed(hardware), *of_steps(hardware)], key=lambda case: case["type"] == "Conv2D")
        given.file.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
        print(tabulate((of_type, sum(case["type"] == of_type for case in cases)) for of_type in CASES))
        return
    cases = json.loads(given.file.read_text())["cases"]
    alone, steps = ([case for case in cases if case["of_step"] == of_step] for of_step in (False, True))
    if given.action == "fit":
        print(json.dumps(rates_to_json(fitted_rates(alone, given.precision))))
        return
    hardware = resolve(given.cluster)
    print(errors_table(alone, hardware, given.precision))
    if given.precision != "bfloat16":
        print(steps_table(steps, hardware, given.precision))


if __name__ == "__main__":
    main()
