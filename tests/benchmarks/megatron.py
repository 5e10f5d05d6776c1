"""Compare plans with stages that the search finds for a GPT-3-like model with Megatron-LM's, under the same costs.

    python tests/benchmarks/megatron.py [--layers 16] [--stages 16] [--micro-batches 96] [--cluster h100-64x8]
        [--memory 72GB] [--plans searched,megatron]

Megatron-LM's configuration of 175 billion parameters is tensor 8, pipeline 16, and the rest by batch: 96 layers, batch 1536
(``NVIDIA/Megatron-LM``, ``examples/gpt3/train_gpt3_175b_distributed.sh`` at d98e8a6). Here ``force`` gives
products, attention and lookups of each stage these degrees: query, key, value and up by columns, output and down by rows,
attention by heads, the table by words. What else there is, the search chooses; so it may be better than Megatron's own.

Within --memory the plans that are searched rematerialize what they must. Megatron-LM recomputes every layer
(``--recompute-granularity full``): each backward pass of the fastest plan with its degrees comes after another forward pass,
and a micro-batch in flight keeps only what is sent. That column doesn't ask whether this fits.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from dataclasses import replace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tabulate import tabulate

from tensoropt import zoo
from tensoropt.common.memory_units import memory_text, parse_memory
from tensoropt.ft import Budget
from tensoropt.ir.graph import Graph
from tensoropt.plan.frontier import Frontier
from tensoropt.profiling.hardware import named
from tensoropt.program.orders.fast_makespan import PassTimes, step_us
from tensoropt.search.candidates.plan_points import PlanPoint
from tensoropt.search.candidates.search_candidates import search_with_stages
from tensoropt.search.request import Request
from tensoropt.tools.offline import record

HEADERS = "plans,points,least peak,its time,fastest,its peak,fastest that fits,every layer rematerialized,CPU s".split(",")


def of_megatron(graph: Graph, tensor: int, data: int) -> Mapping[str, Mapping[str, int]]:
    """Return Megatron-LM's degrees of a GPT-3's operators."""
    found: dict[str, dict[str, int]] = {}
    for op in graph.step_operators:
        if op.type == "MatMul":
            by_rows = op.name.split("/")[-2:-1] in (["output"], ["down"])
            found[op.name] = {"m": data, "k" if by_rows else "n": tensor}
        elif op.type == "Einsum":
            found[op.name] = {"b": data, "h": tensor}
        elif op.type == "GatherV2":
            found[op.name] = {"i0": data, "rows": tensor}
    return found


def with_all_again_us(point: PlanPoint) -> float:
    """Return the time of a plan's step if each backward pass came after another forward pass."""
    searched = point.searched
    if searched.stages.n == 1:  # its backward pass takes twice as long as its forward pass
        return point.time_us + point.costs.compute_time_us / 3
    passes = [each + PassTimes(backward=each.forward) for each in searched._times_of(point.numbers)]
    return float(step_us(passes, searched.transfers, point.order))


def row(title: str, found: Frontier, device_bytes: int, cpu_s: float) -> list[str]:
    """Return a line of the table."""
    least, fastest, fitting = found.points_of[0], found.points_of[-1], found.fastest_within(device_bytes)
    fits = "none" if fitting is None else f"{found.points_of[fitting].time_us / 1e3:,.0f} ms"
    times = [f"{point.time_us / 1e3:,.0f} ms" for point in (least, fastest)]
    peaks = [memory_text(point.peak_bytes) for point in (least, fastest)]
    has_none = all(each.built.transient is None for each in fastest.frontiers)
    again = f"{with_all_again_us(fastest) / 1e3:,.0f} ms" if has_none else ""
    return [title, str(len(found)), peaks[0], times[0], times[1], peaks[1], fits, again, f"{cpu_s:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--stages", default="16", help="several numbers, each a line; default: 16")
    parser.add_argument("--micro-batches", type=int, default=96)
    parser.add_argument("--tensor", type=int, default=8)
    parser.add_argument("--plans", default="searched,megatron", help="which of both; default: both")
    parser.add_argument("--cluster", default="h100-64x8")
    parser.add_argument("--memory", help="limit per device of what is searched; default: none")
    given = parser.parse_args()
    model = record(lambda: zoo.gpt3(layers=given.layers), "gpt3", "adam").model
    request = Request(
        model, named(given.cluster), None, budget=Budget(seconds=0), micro_batches=given.micro_batches, wants_frontier=False
    )
    limit = None if given.memory is None else parse_memory(given.memory)
    device_bytes = limit or int(request.hardware.device.memory_bytes)
    rows = []
    for count in map(int, given.stages.split(",")):
        per_stage = request.hardware.n_devices // count
        force = of_megatron(model.graph, given.tensor, per_stage // given.tensor)
        of_force = f"{count} stages, tensor {given.tensor}, data {per_stage // given.tensor}"
        ways = {"searched": (f"{count} stages", {}, limit), "megatron": (of_force, force, None)}
        for title, forced, limit_bytes in (ways[each] for each in given.plans.split(",")):
            start = time.process_time()
            asked = replace(request, force=forced, limit_bytes=limit_bytes, stages=(count,))
            found = search_with_stages(asked, request.hardware.n_devices).frontier()
            rows.append(row(title, found, device_bytes, time.process_time() - start))
            print(tabulate(rows[-1:], HEADERS, disable_numparse=True), flush=True)
    print(f"\n{tabulate(rows, HEADERS, disable_numparse=True)}")


if __name__ == "__main__":
    main()
