"""Say in sentences what the plans of a frontier do, and what differs from data parallelism; a config in words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ..common.memory_units import memory_text
from ..common.words import counted
from .explanation import layer_costs
from .frontier_rows import FrontierRows
from .plan_rows import SOURCES, PlanRows, Row

_CONVOLUTION = {"n": "batch", "h": "height", "w": "width", "d": "depth", "o": "output channels", "c": "input channels",
                "i": "input channels", "p": "height", "q": "width", "m": "multiples of channels"}  # fmt: skip
_MATRICES = {"m": "rows", "n": "columns", "k": "the summed dimension"}
_WORDS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("MatMul", "BatchMatMulV2", "BatchMatMulV3", "BatchMatMul", "MatrixBandPart"), _MATRICES),
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool", "AvgPool"), _CONVOLUTION),
}


@cache  # few configs of a model differ
def config_words(kind: str, config: str, results: tuple[str, ...]) -> str:
    """Return a config in words, such as ``rows over a, columns over b``.

    Args:
        kind: the operator's type.
        config: the config's text, ``m:a n:b``.
    """
    if config == "-":
        return "a whole copy on every device"
    words = []
    for part in config.split():
        factor, _, axes = part.partition(":")
        word = _WORDS.get(kind, {}).get(factor) or _plain(factor, axes, results)
        words.append(f"{word} over {axes}")
    return ", ".join(words)


def _plain(factor: str, axes: str, results: tuple[str, ...]) -> str:
    """Return what a factor is by the dimension of the first result that its axes split."""
    if factor.startswith("+"):
        return "partial sums of its operands"
    dims = results[0].partition("]")[0].lstrip("[").split(",") if results else []
    for number, dim in enumerate(dims):
        if axes[0] in dim:
            return f"dimension {number}"
    return f"summed dimension {factor}"


MOST_DIFFERENCES = 8


def time_text(time_us: float) -> str:
    """Return a time as a short text, such as ``1.25 ms``."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(time_us) >= size:
            return f"{time_us / size:.4g} {unit}"
    return f"{time_us:.4g} us"


def milliseconds(time_us: float) -> str:
    """Return a time in milliseconds with three digits, or whole ones, such as ``0.181`` and ``1,109``."""
    return f"{time_us / 1e3:,.3g}" if time_us < 999_500 else f"{time_us / 1e3:,.0f}"


def point_sentences(frontier: FrontierRows, point: int, view: Row, other: PlanRows | None) -> list[str]:
    """Return the sentences on a point of a frontier, of which a step is stored.

    Args:
        other: the plan of data parallelism; None if it isn't known.
    """
    plan = frontier.plan(point)
    beside = [] if other is None else [_compared(plan.value, other.value), *_differences(plan, other), *_again(plan)]
    return [_costliest(plan), *_peak(view["memory"]), *beside]


def _costliest(plan: PlanRows) -> str:
    """Return the sentence on the layer that takes the most time."""
    layer, total = layer_costs(*plan.stages)[0], plan.time_us
    takes = layer["time_us"] + layer["network_time_us"]
    share = f", {takes / total:.0%} of the step" if total else ""
    return (
        f"Layer {layer['name']} takes the most time: {time_text(takes)}{share} "
        f"({time_text(layer['time_us'])} compute, {time_text(layer['network_time_us'])} collectives)."
    )


def _compared(costs: Row, other: Row) -> str:
    return (
        f"Data parallelism would take {time_text(other['time_us'])} per step "
        f"({_ratio(other['time_us'], costs['time_us'])} this plan) and {memory_text(other['sum_bytes'])} per device "
        f"as the frontier counts it ({_ratio(other['sum_bytes'], costs['sum_bytes'])} this plan)."
    )


def _differences(plan: PlanRows, other: PlanRows) -> list[str]:
    """Return sentences on what differs from data parallelism, the costliest first."""
    by_name = {op["name"]: op for op in other.operators}
    groups: dict[tuple[str, str, str], list[float]] = {}
    for op in plan.operators:
        before = by_name.get(op["name"])
        if before is not None and op["config"] != before["config"]:
            words = [config_words(row["type"], row["config"], tuple(row["results"])) for row in (before, op)]
            groups.setdefault((op["type"], words[0], words[1]), []).append(op["time_us"] + op["sum_bytes"] / 1e9)
    ordered = sorted(groups.items(), key=lambda row: -sum(row[1]))
    sentences = []
    for (kind, old, new), costs in ordered[:MOST_DIFFERENCES]:
        subject = counted(len(costs), "variable" if kind == "Variable" else kind)
        sentences.append(f"{subject}: {new}, where data parallelism has {old}.")
    rest = sum(len(costs) for _, costs in ordered[MOST_DIFFERENCES:])
    if rest:
        sentences.append(f"{counted(rest, 'other operator')} differ{'s' * (rest == 1)} too.")
    return sentences or ["No operator's config differs from data parallelism."]


def _again(plan: PlanRows) -> list[str]:
    """Return the sentence on what the backward pass computes or gathers again; none if that is nothing."""
    remade = sum(op.get("is_rematerialized", False) and op["type"] not in SOURCES for op in plan.operators)
    regathered = sum(row.get("is_regathered", False) for stage in plan.stages for row in stage.reshardings)
    if not remade and not regathered:
        return []
    copies = "1 copy" if regathered == 1 else f"{regathered} copies"
    return [f"It computes {counted(remade, 'operator')} again in the backward pass, and gathers {copies} again."]


def _peak(memory: Row) -> list[str]:
    """Return the sentence on the instant of the peak; none of a step without instructions."""
    if not memory["instructions"]:
        return []
    largest = next(iter(memory["peak_by_tensor"].items()), None)
    during = f" while it makes {memory['peak_runs']}" if memory["peak_runs"] else ""
    holds = f"; the largest tensor then is {largest[0]} with {memory_text(largest[1])}" if largest else ""
    return [
        f"The peak of {memory_text(memory['peak_bytes'])} is at instruction {memory['peak_instruction'] + 1} of "
        f"{memory['instructions']}{during}{holds}."
    ]


def _ratio(other: float, base: float) -> str:
    if not base:
        return "beside"
    ratio = other / base
    return f"{ratio:.2f} times" if ratio >= 1 else f"{ratio:.0%} of"
