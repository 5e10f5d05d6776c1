"""A config in words: which dimension each mesh axis splits, as someone says it who doesn't know the factors' letters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

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
        results: the texts of the results' layouts.
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
