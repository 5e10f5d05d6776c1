"""The times of collectives and operators on a hardware description: TensorOpt, section 3.2.

Bytes ``n`` of a collective: *all_gather* the result on one device; *reduce_scatter* its input; *all_reduce* the tensor;
*all_to_all* the input on one device; *local* the bytes that are written.

**Measured** (:class:`MeasuredCurve`). A table holds times at some sizes for one kind over one device partition, with all
groups at work at once, so that contention is included. Between two sizes that are at most a factor of 2 apart the
*bandwidth* is interpolated, as in section 3.2: ``n / (w0 + (w1 - w0) (n - n0) / (n1 - n0))`` with ``w = n / t``. Between
sizes further apart the *time* is interpolated. That is exact where the time is a latency plus bytes over bandwidth, for
which interpolating the bandwidth over a factor of 16 errs by half. Beyond the ends times are extrapolated linearly. A larger
tensor never costs less: a table's times are first replaced by their running maximum, and then both interpolations are
monotone.

**Modelled** (:func:`modelled`), where nothing was measured: rings, level by level. A group has ``g`` members along the
axes of a level. One unit of that level (a machine, or a device at the innermost one) has a link of ``B`` bytes per
second each way and messages of latency ``a``, both from the hardware description. Volumes per unit are those of
OneFlow's Table 2 divided by the number of devices (all_gather ``(p-1)|T|`` in total, all_reduce ``2(p-1)|T|``,
all_to_all ``(p-1)/p |T|`` with ``|T| = p n``):

    ==============  =========================================  ==================
    kind            time of one level                          implemented in
    ==============  =========================================  ==================
    all_gather      ``(g-1) a + c n (g-1)/g / B``              :func:`modelled`
    reduce_scatter  ``(g-1) a + c n (g-1)/g / B``              :func:`modelled`
    all_reduce      ``2 (g-1) a + 2 c n (g-1)/g / B``          :func:`modelled`
    all_to_all      ``(g-1) a + d n (g-1)/g / B``              :func:`modelled`
    local           ``n / copied_bytes_per_s``                 :func:`modelled`
    operator        in :class:`OperatorCosts`                  :class:`OperatorCosts`
    ==============  =========================================  ==================

Levels run one after the other, inner ones first for sums, last for gathers, so their times add. Outside of a machine a
group moves ``n`` bytes once, however many members it has there. ``c`` is contention: the number of groups that share one
unit's link, which is ``d``, the devices below one unit, over the group's members there. all_to_all has no such sharing:
every device below the unit sends its own part. A local step copies; where the rate of copies isn't known it reads and
writes at the memory's bandwidth, ``2 n / memory_bytes_per_s``. The 2 of all_reduce is its two passes.

Times are whole nanoseconds, so that all searches agree to the bit. A modelled time costs O(levels) and a measured one
O(log sizes); answers are cached.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..reschedule.mesh import Mesh
from ..reschedule.orders import Ints
from .hardware import COMMUNICATING_KINDS, CollectiveTable, Hardware, OperatorRate
from .hardware.rates import BACKWARD, WAYS
from .operator_model import FEWEST_TO_FIT, Key, amounts, fitted, key_of, samples_of, scaled
from .work import Measured, WorkItem

Floats = npt.NDArray[np.float64]
KINDS = (*COMMUNICATING_KINDS, "local")
NINE_IN_TEN = 0.9
MARGIN = 1.5
"""How much longer than predicted operators are assumed to take, at least 1, if few of their class were measured."""

_PASSES = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "all_to_all": 1}
_REMEMBERED = 1 << 18


@dataclass(frozen=True, slots=True)
class LatencyLine:
    """A time as latency plus bytes over bandwidth."""

    latency_ns: float
    ns_per_byte: float

    def time_ns(self, n_bytes: int) -> float:
        return self.latency_ns + self.ns_per_byte * n_bytes


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """A measured table as a function of the size; monotone, exact at sizes whose time is a running maximum."""

    sizes: tuple[int, ...]
    times_ns: tuple[float, ...]

    @classmethod
    def of(cls, table: CollectiveTable) -> MeasuredCurve:
        return cls(table.n_bytes, tuple(accumulate((time * 1e3 for time in table.time_us), max)))

    def time_ns(self, n_bytes: int) -> float:
        if n_bytes <= self.sizes[0]:
            # On the line through the first two sizes, but at least in proportion to the bytes: so it stays above zero.
            (x0, x1), (t0, t1) = self.sizes[:2], self.times_ns[:2]
            return max(t0 - (t1 - t0) / (x1 - x0) * (x0 - n_bytes), t0 * n_bytes / x0)
        if n_bytes >= self.sizes[-1]:
            # On the line through the last two sizes, but never flatter than the whole table: two equal last times are noise.
            (x0, x1), (t0, t1) = self.sizes[-2:], self.times_ns[-2:]
            overall = (t1 - self.times_ns[0]) / (x1 - self.sizes[0])
            return t1 + max((t1 - t0) / (x1 - x0), overall) * (n_bytes - x1)
        index = bisect_right(self.sizes, n_bytes) - 1
        (x0, x1), (t0, t1) = self.sizes[index : index + 2], self.times_ns[index : index + 2]
        part = (n_bytes - x0) / (x1 - x0)
        if x1 > 2 * x0:
            return t0 + (t1 - t0) * part
        return n_bytes / (x0 / t0 + (x1 / t1 - x0 / t0) * part)


def modelled(hardware: Hardware, mesh: Mesh, kind: str, axes: tuple[int, ...]) -> LatencyLine:
    """Return the modelled time of ``kind`` over the groups that ``axes`` make, by the formulas of the module docstring.

    Args:
        mesh: a mesh of ``hardware``: as many levels, outermost first.
    """
    if kind == "local":
        return LatencyLine(0.0, 1e9 / (hardware.device.copied_bytes_per_s or hardware.device.memory_bytes_per_s / 2))
    latency_ns = ns_per_byte = 0.0
    devices_below = members_below = 1
    for index in reversed(range(len(mesh.levels))):
        link = hardware.levels[index]
        g = mesh.size_of(tuple(axis for axis in axes if mesh.level_of_axis[axis] == index))
        sharing = devices_below if kind == "all_to_all" else devices_below // members_below
        latency_ns += _PASSES[kind] * (g - 1) * link.latency_us * 1e3
        ns_per_byte += _PASSES[kind] * sharing * (g - 1) / g / link.bytes_per_s * 1e9
        devices_below *= mesh.levels[index].count
        members_below *= g
    return LatencyLine(latency_ns, ns_per_byte)


class CollectiveCosts:
    """The times of collectives on a mesh of a hardware: measured where a table holds there, else modelled.

    Raises:
        ValueError: the mesh is not one of the hardware's.
    """

    def __init__(self, hardware: Hardware, mesh: Mesh) -> None:
        counts = [[level.count for level in m.levels] for m in (mesh, hardware.mesh(mesh.n_devices))]
        if counts[0] != counts[1]:
            raise ValueError(
                f"mesh {mesh} is not one of {hardware.name}: got levels of {counts[0]} units, expected {counts[1]}; "
                f"take Hardware.mesh({mesh.n_devices})"
            )
        self.hardware = hardware
        self.mesh = mesh
        self._curves = {key: MeasuredCurve.of(table) for key, table in hardware.measured_on(mesh).items()}
        self._line = lru_cache(maxsize=None)(partial(modelled, hardware, mesh))
        self._lines = lru_cache(maxsize=16)(self._lines_of)
        self._remembered = lru_cache(maxsize=_REMEMBERED)(self._time_ns)

    def __reduce__(self) -> tuple[Callable[..., CollectiveCosts], tuple[object, ...]]:
        return collective_costs, (self.hardware, self.mesh)

    def time_ns(self, kind: str, mesh: Mesh, axes: tuple[int, ...], n_bytes: int) -> int:
        """Return the time of one collective over all groups that ``axes`` make at once; 0 for groups of one device.

        Args:
            kind: one of :data:`KINDS`.
            mesh: the mesh that these costs are for.
            axes: in any order; the groups are the same.
            n_bytes: of the kind's own meaning, in the module docstring.

        Raises:
            ValueError: another mesh, an unknown kind, an axis that the mesh doesn't have, or fewer than 0 bytes.
        """
        self._check_mesh(mesh)
        return self._remembered(kind, axes, n_bytes)

    def times_ns(self, kinds: Sequence[str], mesh: Mesh, subsets: Sequence[tuple[int, ...]], n_bytes: Ints) -> Ints:
        """Return :meth:`time_ns` of each kind, each set of axes and each number of bytes, int64[kinds, subsets, sizes].

        Raises:
            ValueError: another mesh.
        """
        self._check_mesh(mesh)
        latency_ns, ns_per_byte, others = self._lines(tuple(kinds), tuple(subsets))
        times_ns = np.rint(latency_ns[:, :, None] + ns_per_byte[:, :, None] * n_bytes).astype(np.int64)
        for i, kind in enumerate(kinds):
            if kind != "local":
                np.maximum(times_ns[i], 1, out=times_ns[i])
        for i, j in others:
            times_ns[i, j] = [self.time_ns(kinds[i], mesh, subsets[j], n) for n in n_bytes.tolist()]
        return times_ns

    def _check_mesh(self, mesh: Mesh) -> None:
        if mesh is not self.mesh and mesh != self.mesh:
            raise ValueError(f"these costs are for mesh {self.mesh}, got {mesh}: make CollectiveCosts for that one")

    def _lines_of(
        self, kinds: tuple[str, ...], subsets: tuple[tuple[int, ...], ...]
    ) -> tuple[Floats, Floats, list[tuple[int, int]]]:
        """Return latency and nanoseconds per byte of what is modelled, [kinds, subsets], and the indices of all else."""
        lines, others = np.zeros((2, len(kinds), len(subsets))), []
        for i, kind in enumerate(kinds):
            for j, axes in enumerate(subsets):
                if self.mesh.size_of(axes) == 1 or self.is_measured(kind, axes):
                    others.append((i, j))
                else:
                    line = self._line(kind, tuple(sorted(axes)))
                    lines[:, i, j] = line.latency_ns, line.ns_per_byte
        return lines[0], lines[1], others

    def is_measured(self, kind: str, axes: tuple[int, ...]) -> bool:
        """Return whether the time of ``kind`` over ``axes`` comes from a measured table."""
        return (kind, tuple(sorted(axes))) in self._curves

    def source(self, kind: str, axes: tuple[int, ...]) -> str:
        """Return the provenance of the time of ``kind`` over ``axes``, as text."""
        measured = self.is_measured(kind, axes)
        local = "copied_bytes_per_s" if self.hardware.device.copied_bytes_per_s else "memory_bytes_per_s"
        field = "collectives" if measured else local if kind == "local" else "levels"
        text = self.hardware.provenance.get(field, "source not given")
        return f"{'measured' if measured else 'modelled'}: {text}"

    def _time_ns(self, kind: str, axes: tuple[int, ...], n_bytes: int) -> int:
        if kind not in KINDS:
            raise ValueError(f"unknown kind of collective: got {kind!r}, expected one of {', '.join(KINDS)}")
        if len(set(axes)) != len(axes) or not set(axes) <= set(self.mesh.axes):
            raise ValueError(f"axes {axes} of mesh {self.mesh}: expected different ones of {self.mesh.axes}")
        if n_bytes < 0:
            raise ValueError(f"a collective of {n_bytes} bytes: expected at least 0")
        if self.mesh.size_of(axes) == 1:
            return 0
        axes = tuple(sorted(axes))
        time_ns = (self._curves.get((kind, axes)) or self._line(kind, axes)).time_ns(n_bytes)
        return round(time_ns) if kind == "local" else max(1, round(time_ns))


@lru_cache(maxsize=8)
def collective_costs(hardware: Hardware, mesh: Mesh) -> CollectiveCosts:
    """Return the costs of collectives: one object for all stages on a mesh, which share the tables that are found by it."""
    return CollectiveCosts(hardware, mesh)


class OperatorCosts:
    """The times of operators on one device: measured where they were, else predicted by the first of these that is known:

    1. a model fitted to the measured operators of its class, where there are enough of them;

    2. the hardware's own rates of the operator type, else of the class (``Hardware.operators``), times a factor;

    3. the roofline ``overhead + max(flops / rate, bytes / bandwidth)``, times a factor.

    The factor is the median of measured over predicted times of the few measured operators of the class, 1 without any.
    Where the hardware has rates of a type, its operators are a class of their own.

    A dtype without a rate of its own takes another's: ``float64`` and other 8-byte numbers half of ``float32``'s;
    ``float16`` and ``bfloat16`` each other's; everything else ``float32``'s. The time of integers and the like nearly
    always depends on the bytes alone.

    Args:
        measured: the measured operators by the key of their work.
        is_cautious: see :class:`.work.MeasuredOperators`.
        speed: how fast the slowest device that takes part computes, over the rates of the hardware's device.
    """

    def __init__(
        self,
        hardware: Hardware,
        measured: Mapping[str, Measured] | None = None,
        is_cautious: bool = False,
        speed: float = 1.0,
    ) -> None:
        self.hardware, self._speed, self._ns_per_us = hardware, speed, 1e3 / speed
        self.measured: Mapping[str, Measured] = measured or {}
        self.is_cautious = is_cautious
        self._margin = lru_cache(maxsize=None)(self._margin_of)
        self._samples = samples_of(self.measured.values(), hardware.operators)
        self._rate = lru_cache(maxsize=None)(self._flops_per_s)
        self._key = lru_cache(maxsize=None)(partial(key_of, rates=hardware.operators))
        self._model = lru_cache(maxsize=None)(self._fitted)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return OperatorCosts, (self.hardware, self.measured, self.is_cautious, self._speed)

    @property
    def needs_keys(self) -> bool:
        """Return whether times depend on a work's key: where some operators were measured, or others count as slower."""
        return bool(self.measured) or self.is_cautious

    def time_ns(self, work: WorkItem) -> int:
        """Return the time of one operator, forward and, where it has a backward pass, backward."""
        sample = self.measured.get(work.key) if work.key else None
        if sample is not None:
            return round(sample.time_us * self._ns_per_us)
        ways = WAYS if work.n_gradients else WAYS[:1]
        return round(sum(self._unmeasured_us(work, way) for way in ways) * self._ns_per_us)

    def backward_ns(self, work: WorkItem) -> int:
        """Return the part of :meth:`time_ns` that is the backward pass."""
        if not work.n_gradients:
            return 0
        sample = self.measured.get(work.key) if work.key else None
        return round((self._unmeasured_us(work, BACKWARD) if sample is None else sample.backward_us) * self._ns_per_us)

    def predicted_us(self, work: WorkItem, way: str) -> float:
        """Return the predicted time of one way (forward or backward) of an operator, even if it has been measured."""
        rate, scale = self._model(self._key(work.type, work.dtype, way))
        flops, n_bytes = amounts(work, way)
        unscaled = rate.time_us(flops, n_bytes) if rate is not None else self.roofline_us(flops, n_bytes, work.dtype)
        return scale * unscaled

    def _unmeasured_us(self, work: WorkItem, way: str) -> float:
        """Return the time of one way of an operator that wasn't measured, with a margin if cautious and it could be
        measured.
        """
        margin = self._margin(self._key(work.type, work.dtype, way)) if self.is_cautious and work.key else 1.0
        return margin * self.predicted_us(work, way)

    def _margin_of(self, key: Key) -> float:
        """Return the factor over the prediction that nine in ten measured operators of a class stay within; at least 1."""
        samples = self._samples.get(key, [])
        if len(samples) < FEWEST_TO_FIT:
            return MARGIN
        rate, scale = self._model(key)
        assert rate is not None
        predicted_us = [scale * rate.time_us(sample.flops, sample.n_bytes) for sample in samples]
        ratios = sorted(sample.time_us / us for sample, us in zip(samples, predicted_us, strict=True) if us > 0)
        return max(1.0, ratios[int(NINE_IN_TEN * (len(ratios) - 1))]) if ratios else MARGIN

    def roofline_us(self, flops: float, n_bytes: float, dtype: str) -> float:
        """Return the time that the device's rates give, whatever the operator.

        Args:
            flops: floating-point operations, a multiply-add as two.
            n_bytes: read plus written.
            dtype: TensorFlow's name of the type it computes in.
        """
        device = self.hardware.device
        roofline_s = max(flops / self._rate(dtype), n_bytes / device.memory_bytes_per_s)
        return device.operator_overhead_us + roofline_s * 1e6

    def _fitted(self, key: Key) -> tuple[OperatorRate | None, float]:
        """Return the model of a class or type, dtype and way (None for the roofline), and the factor for its predictions."""
        samples = self._samples.get(key, [])
        if len(samples) >= FEWEST_TO_FIT:
            return fitted(samples), 1.0
        name, dtype, way = key
        rate = self.hardware.operators.get(name, {}).get(dtype, {}).get(way)
        if rate is not None:
            return rate, scaled(samples, [rate.time_us(sample.flops, sample.n_bytes) for sample in samples])
        return None, scaled(samples, [self.roofline_us(sample.flops, sample.n_bytes, dtype) for sample in samples])

    def _flops_per_s(self, dtype: str) -> float:
        rates = self.hardware.device.flops_per_s
        if dtype in rates:
            return rates[dtype]
        if dtype in ("float64", "complex128", "int64", "uint64"):
            return rates.get("float64", rates["float32"] / 2)
        if dtype in ("float16", "bfloat16"):
            return rates.get("float16", rates.get("bfloat16", rates["float32"]))
        return rates["float32"]


class Link(NamedTuple):
    """The link between the devices of two stages: how much these send at once, and what that takes of their cores.

    Attributes:
        call_us: of each end of each message.
        share: the share of the time on the link that both ends' cores are busy with it.
    """

    latency_us: float
    bytes_per_us: float
    call_us: float
    share: float


def link_between(hardware: Hardware, one: Sequence[int], other: Sequence[int]) -> Link:
    """Return the link between the devices of two stages: that of as many devices or machines as the smaller one has."""
    machine, device = hardware.levels[0], hardware.levels[-1]
    size = min(len(one), len(other))
    machines = [{number // device.count for number in devices} for devices in (one, other)]
    is_between = len(hardware.levels) > 1 and not machines[0] & machines[1]
    level, units = (machine, max(1, size // device.count)) if is_between else (device, size)
    share = 0.0 if hardware.measured is None else hardware.exposed_share if is_between else 1.0
    return Link(level.latency_us, units * level.bytes_per_s / 1e6, hardware.collective_call_us, share)
