"""Have ``keras.callbacks.TensorBoard`` write about a plan beside the metrics: predicted and measured step time, and more.

They go to the callback as further metrics of an epoch, so that it writes them as it writes the others.
"""

from __future__ import annotations

import time

from ..plan.plan import Plan

PREFIX = "tensoropt/"


class StepScalars:
    """A clock of the steps of an epoch, on rank 0."""

    def __init__(self) -> None:
        self._ends: tuple[float, float, int] | None = None

    def note(self, hook: str) -> None:
        """Note that a hook of the callbacks is called."""
        if hook == "on_epoch_begin":
            self._ends = None
        elif hook == "on_train_batch_end":
            now_s = time.perf_counter()
            first, _, count = self._ends or (now_s, now_s, 0)
            self._ends = first, now_s, count + 1

    def of(self, plan: Plan, batch_size: int) -> dict[str, float]:
        """Return the scalars of the epoch; what is measured needs two steps, as the first one's begin isn't known."""
        predicted = {"predicted_step_ms": plan.time_us / 1e3, "memory_bytes_per_device": float(plan.sum_bytes)}
        if plan.peak_bytes is not None:
            predicted["peak_bytes_per_device"] = float(plan.peak_bytes)
        if self._ends is None or self._ends[2] < 2:
            return {PREFIX + name: value for name, value in predicted.items()}
        first, last, count = self._ends
        seconds = (last - first) / (count - 1)
        measured = {"measured_step_ms": 1e3 * seconds, "samples_per_s": batch_size / seconds}
        return {PREFIX + name: value for name, value in (predicted | measured).items()}
