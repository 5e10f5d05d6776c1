"""The devices and the links between them: measured at ``init``, read from a file, or taken from the catalogue.

A file has the format ``tensoropt/hardware``, version 1. An impossible value is refused when the object is built, so a
:class:`Hardware` that exists is valid; :meth:`Hardware.load` adds the file's name to the error.

A parallelism is p devices of one machine, or M machines with all their devices. On a part of the hardware fewer groups
contend, so a collective that was measured on all of the hardware is used on a part only where the contention is the
same: where the groups lie within levels (from the innermost outwards) whose units all take part.
:meth:`Hardware.measured_on` returns these; everything else on the part is modelled from the levels (``hardware_costs.py``).
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...common.errors import cut, short
from ...common.files import DAMAGE, JsonError, parse_json
from ...reschedule.layout import axes_text, parse_axes
from ...reschedule.mesh import MOST_UNITS, Level, Mesh
from . import checks
from .checks import HardwareError
from .frozen import FrozenMapping, freeze
from .rates import NO_RATES, Origin, Rates, rates_from_json, rates_to_json
from .topology import Topology, topology_from_json

FORMAT = "tensoropt/hardware"
VERSION = 1
COMMUNICATING_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
PARTS_OF_COLLECTIVES = ("collective_call_us", "collective_path_us")
_EMPTY: FrozenMapping[Any] = FrozenMapping({})
_MICROSECONDS, _PER_SECOND = ("microseconds, at least 0", 0), "a positive number per second"


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Attributes:
        name: its name, for people.
        memory_bytes: the bytes that a plan may use, before any safety factor.
        flops_per_s: floating-point operations per second by dtype; ``float32`` is always there.
        memory_bytes_per_s: bytes read plus bytes written, per second.
        operator_overhead_us: the time to start one operator.
        copied_bytes_per_s: bytes written per second where parts of a tensor are put together; 0 where that isn't known.
        watts: the power that it takes at work; None where that isn't known.
    """

    name: str
    memory_bytes: int
    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    operator_overhead_us: float = 0.0
    copied_bytes_per_s: float = 0.0
    watts: float | None = None

    def __post_init__(self) -> None:
        checks.text(self.name, "device.name")
        rates = checks.mapping(self.flops_per_s, "device.flops_per_s", "an object from dtype to operations per second")
        if "float32" not in rates:
            raise HardwareError(f"device.flops_per_s.float32: missing; got rates for {', '.join(rates) or 'no dtype'}")
        n_bytes = checks.positive_integer(self.memory_bytes, "device.memory_bytes", "a positive whole number of bytes")
        rates = {dtype: checks.number(rate, f"device.flops_per_s.{dtype}", _PER_SECOND) for dtype, rate in rates.items()}
        object.__setattr__(self, "memory_bytes", n_bytes)
        object.__setattr__(self, "flops_per_s", FrozenMapping(rates))
        checks.set_numbers(self, "device.", {
            "memory_bytes_per_s": (_PER_SECOND, None), "operator_overhead_us": _MICROSECONDS,
            "copied_bytes_per_s": ("bytes per second, at least 0", 0),
            **({} if self.watts is None else {"watts": ("a positive number of watts", None)}),
        })  # fmt: skip


@dataclass(frozen=True, slots=True)
class LinkLevel:
    """One level of the hardware: how many units one unit of the level above holds, and how they are joined.

    Attributes:
        name: ``machine``, ``device``.
        count: units in one unit of the level above.
        latency_us: the latency of one message between two units.
        bytes_per_s: the bytes that one unit sends to its neighbours per second, in one direction, while it receives as
            much. All devices below one unit share it.
    """

    name: str
    count: int
    latency_us: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        checks.text(self.name, "levels.name")
        path, units = f"levels[{self.name}]", f"a positive whole number of units, at most {MOST_UNITS:,}"
        object.__setattr__(self, "count", checks.positive_integer(self.count, f"{path}.count", units, MOST_UNITS))
        checks.set_numbers(self, f"{path}.", {"latency_us": _MICROSECONDS, "bytes_per_s": (_PER_SECOND, None)})


@dataclass(frozen=True, slots=True)
class CollectiveTable:
    """The measured times of one kind of collective over one device partition, all groups at once.

    ``n_bytes`` is ascending, and ``time_us[i]`` belongs to ``n_bytes[i]``; the docstring of ``hardware_costs.py`` defines
    the bytes of each kind. ``spread[i]``, where it is known, is the difference of the upper and the lower quartile of its
    repeats, over the lower.
    """

    n_bytes: tuple[int, ...]
    time_us: tuple[float, ...]
    spread: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        sizes = checks.sequence(self.n_bytes, "bytes", "a list of sizes")
        times = checks.sequence(self.time_us, "time_us", "a list of times")
        sizes = tuple(checks.positive_integer(size, "bytes", "positive whole numbers") for size in sizes)
        times = tuple(checks.number(time, "time_us", "positive microseconds") for time in times)
        if len(sizes) < 2 or any(low >= high for low, high in pairwise(sizes)):
            raise checks.fail("bytes", list(sizes), "at least two sizes, each larger than the one before")
        if len(times) != len(sizes):
            raise checks.fail("time_us", list(times), f"one time for each of the {len(sizes)} sizes")
        spreads = checks.sequence(self.spread, "spread", "a list of relative spreads")
        spreads = tuple(checks.number(spread, "spread", "numbers of at least 0", least=0) for spread in spreads)
        if spreads and len(spreads) != len(sizes):
            raise checks.fail("spread", list(spreads), f"one for each of the {len(sizes)} sizes, or none")
        object.__setattr__(self, "n_bytes", sizes)
        object.__setattr__(self, "time_us", times)
        object.__setattr__(self, "spread", spreads)

    def to_json(self) -> dict[str, Any]:
        value = {"bytes": list(self.n_bytes), "time_us": list(self.time_us)}
        return {**value, "spread": list(self.spread)} if self.spread else value


@dataclass(frozen=True, slots=True)
class Hardware:
    """Devices, their links, and the measurements made on them.

    Attributes:
        name: ``v100-2x8``, or the name that the measurement was given.
        device: all devices are alike.
        levels: outermost (between machines) to innermost (between the devices of a machine).
        collectives: by kind, then by the axes of the mesh of all devices as text (``"ab"``), the measured table.
        provenance: the source of each number, by field.
        operators: the rates of classes of operators, by class, dtype and way; classes that aren't there go by the
            device's rates.
        measured: the circumstances of the measurement; None if it wasn't measured.
        collective_call_us: the part of every measured collective's time that is the engine's call into Python.
        collective_path_us: the part of every measured collective's time that is spent in Python before and after the
            collective, next to copies.
        exposed_share: how much of the time of a collective for which nothing waits is taken from the compute beside it,
            in (0, 1]; 1 where a device doesn't compute while it communicates, as in Equation (3) of the TensorOpt paper.
        topology: the devices and links as a graph, which the simulator goes by; None where only the levels are known.
        price_per_hour: what a device costs for an hour, in a currency of the user's; None if that isn't known.
        run_by: what runs collectives here (``mpi``, ``tensorflow``, ``nccl``), where that wasn't measured; not in files.
    """

    name: str
    device: Device
    levels: tuple[LinkLevel, ...]
    collectives: Mapping[str, Mapping[str, CollectiveTable]] = field(default_factory=lambda: _EMPTY)
    provenance: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    operators: Rates = NO_RATES
    measured: Origin | None = None
    collective_call_us: float = 0.0
    collective_path_us: float = 0.0
    exposed_share: float = 1.0
    topology: Topology | None = None
    price_per_hour: float | None = None
    run_by: str = "mpi"

    def __post_init__(self) -> None:
        checks.text(self.name, "name")
        if self.price_per_hour is not None:
            checks.set_numbers(self, "", {"price_per_hour": ("a price of at least 0", 0)})
        share = "a share, more than 0 and at most 1"
        checks.set_numbers(self, "", {**dict.fromkeys(PARTS_OF_COLLECTIVES, _MICROSECONDS), "exposed_share": (share, None)})
        if self.exposed_share > 1:
            raise checks.fail("exposed_share", self.exposed_share, share)
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels:
            raise checks.fail("levels", [], "at least one level")
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise checks.fail("levels", names, "levels of different names")
        try:
            mesh = self._mesh_of(tuple(level.count for level in self.levels))
        except ValueError as error:
            raise HardwareError(f"levels: {error}") from None
        for kind, tables in self.collectives.items():
            if kind not in COMMUNICATING_KINDS:
                raise checks.fail("collectives", kind, f"one of {', '.join(COMMUNICATING_KINDS)}")
            for axes in tables:
                ordered = all(low < high for low, high in pairwise(axes))
                if not axes or not ordered or not set(axes) <= set(axes_text(mesh.axes)):
                    expected = f"some of the letters {axes_text(mesh.axes) or '(none)'}, in order: the axes of {mesh}"
                    raise checks.fail(f"collectives.{kind}", axes, expected)
        for key, source in self.provenance.items():
            checks.text(source, f"provenance.{key}", "a text that says where the number comes from")
        if self.topology is not None:
            self.topology.check_count(tuple(level.count for level in self.levels))
        for name in ("collectives", "provenance", "operators"):
            object.__setattr__(self, name, freeze(getattr(self, name)))

    # Meshes

    @property
    def n_devices(self) -> int:
        return math.prod(level.count for level in self.levels)

    def _mesh_of(self, counts: tuple[int, ...]) -> Mesh:
        return Mesh(tuple(Level(level.name, count) for level, count in zip(self.levels, counts, strict=True)))

    def _counts_by_parallelism(self) -> dict[int, tuple[int, ...]]:
        """Return, for each allowed number of devices, ascending, the units of each level that take part."""
        shapes: dict[int, tuple[int, ...]] = {}
        inner: tuple[int, ...] = ()
        for index, level in reversed(list(enumerate(self.levels))):
            for count in range(1, level.count + 1):
                shapes.setdefault(count * math.prod(inner), (1,) * index + (count, *inner))
            inner = (level.count, *inner)
        return shapes

    def parallelisms(self) -> tuple[int, ...]:
        """Return the numbers of devices a plan can use, ascending: p of one machine, or M machines with all of theirs."""
        return tuple(sorted(self._counts_by_parallelism()))

    def mesh(self, parallelism: int | None = None) -> Mesh:
        """Return the mesh of ``parallelism`` devices, or of all.

        Raises:
            HardwareError: no such number of devices is p of one machine or M machines with all of theirs; the
                neighbouring numbers are named.
        """
        if parallelism is None:
            parallelism = self.n_devices
        shapes = self._counts_by_parallelism()
        if parallelism not in shapes:
            counts = sorted(shapes)
            index = bisect_left(counts, parallelism) if isinstance(parallelism, int) else len(counts)
            names = " or ".join(str(count) for count in counts[max(0, index - 1) : index + 1])
            per_machine = self.levels[-1].count
            raise HardwareError(
                f"parallelism {parallelism!r} is not possible on {self.name}: expected 1 to {per_machine} devices of "
                f"one {self.levels[-2].name if len(self.levels) > 1 else 'machine'}, or several with all {per_machine} "
                f"devices each, {self.n_devices} in all; nearest are {names}"
            )
        return self._mesh_of(shapes[parallelism])

    def measured_on(self, mesh: Mesh) -> dict[tuple[str, tuple[int, ...]], CollectiveTable]:
        """Return the measured tables that hold on ``mesh``, by kind and by axes of ``mesh`` (see the module docstring)."""
        whole = self.mesh()
        same_from = len(self.levels)
        while same_from > 0 and mesh.levels[same_from - 1].count == whole.levels[same_from - 1].count:
            same_from -= 1
        n_same = sum(level >= same_from for level in mesh.level_of_axis)
        first, shift = len(mesh.axes) - n_same, len(whole.axes) - len(mesh.axes)
        return {
            (kind, tuple(axis - shift for axis in parse_axes(axes))): table
            for kind, tables in self.collectives.items()
            for axes, table in tables.items()
            if min(parse_axes(axes)) - shift >= first
        }

    def exposed_share_on(self, mesh: Mesh) -> float:
        """Return :attr:`exposed_share` on a mesh of this hardware; 1 on one machine of several, whose ranks wait for no
        link.
        """
        return self.exposed_share if mesh.levels[0].count > 1 or self.levels[0].count == 1 else 1.0

    def basis(self) -> str:
        """Return in words what the times of operators rest on."""
        if self.measured is not None:
            return f"measured on {self.measured.date}"
        source = self.provenance.get("operators", "peaks of datasheets")
        return f"modelled, operators {source.partition(' with ')[0].partition(',')[0]}"

    # Files

    def to_json(self) -> dict[str, Any]:
        """Return the description as a JSON object of a hardware file."""
        device = {**asdict(self.device), "flops_per_s": dict(self.device.flops_per_s)}
        fields = {key: value for key, value in device.items() if value or key not in ("copied_bytes_per_s", "watts")}
        collectives = {
            kind: {axes: table.to_json() for axes, table in tables.items()} for kind, tables in self.collectives.items()
        }
        measured = {} if self.measured is None else {"measured": asdict(self.measured)}
        return {
            "format": FORMAT, "version": VERSION, "name": self.name, "device": fields,
            "levels": [asdict(level) for level in self.levels], "collectives": collectives,
            "operators": rates_to_json(self.operators), "provenance": dict(self.provenance),
            **{name: getattr(self, name) for name in PARTS_OF_COLLECTIVES if getattr(self, name)},
            **({"exposed_share": self.exposed_share} if self.exposed_share < 1 else {}),
            **({} if self.topology is None else {"topology": self.topology.to_json()}),
            **({} if self.price_per_hour is None else {"price_per_hour": self.price_per_hour}), **measured,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: object) -> Hardware:
        """Read the result of :meth:`to_json`.

        Raises:
            HardwareError: a field is missing, unknown or impossible, or the format or version is another.
        """
        check_format(value)
        top = checks.fields(
            value,
            "",
            ("format", "version", "name", "device", "levels"),
            ("collectives", "operators", "provenance", "measured", *PARTS_OF_COLLECTIVES, "exposed_share", "topology",
             "price_per_hour"),
        )  # fmt: skip
        device = checks.dataclass_of(Device, top["device"], "device")
        levels = enumerate(checks.sequence(top["levels"], "levels", "a list of levels, outermost first"))
        optional = {name: top.get(name, {}) for name in ("collectives", "operators", "provenance")}
        for name, option in optional.items():
            checks.mapping(option, name, "an object")
        return cls(
            name=top["name"], device=device,
            levels=tuple(checks.dataclass_of(LinkLevel, level, f"levels[{index}]") for index, level in levels),
            collectives={kind: tables_from_json(kind, tables) for kind, tables in optional["collectives"].items()},
            provenance=optional["provenance"], operators=rates_from_json(optional["operators"]),
            measured=checks.dataclass_of(Origin, top["measured"], "measured") if "measured" in top else None,
            **{name: top.get(name, 0.0) for name in PARTS_OF_COLLECTIVES}, exposed_share=top.get("exposed_share", 1.0),
            topology=topology_from_json(top["topology"]) if "topology" in top else None,
            price_per_hour=top.get("price_per_hour"),
        )  # fmt: skip

    @classmethod
    def load(cls, path: str | Path, read: Callable[[object], Hardware] | None = None) -> Hardware:
        """Read a hardware file, by :meth:`from_json` or ``read``.

        Raises:
            HardwareError: the file can't be read, isn't JSON, or describes no possible hardware; names the file.
        """
        try:
            return (read or cls.from_json)(parse_json(Path(path).read_bytes(), allow_any_number=True))
        except OSError as error:
            raise HardwareError(f"{cut(path)}: cannot be read: {error.strerror or error}") from None
        except JsonError as error:
            raise HardwareError(
                f"{cut(path)}: {cut(error)}; expected one JSON object of format {FORMAT!r}: is the file cut off?"
            ) from None
        except HardwareError as error:
            raise HardwareError(f"{cut(path)}: {cut(error, 360)}") from None
        except DAMAGE as error:
            raise HardwareError(f"{cut(path)}: is no hardware file ({type(error).__name__}: {cut(error)})") from None

    def save(self, path: str | Path) -> None:
        """Write a file that :meth:`load` reads back as an equal description."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")


def check_format(value: object) -> None:
    values = checks.mapping(value, "the file", f"an object of format {FORMAT!r}")
    form = (values.get("format"), values.get("version"))
    if form[0] != FORMAT or isinstance(form[1], bool) or form[1] != VERSION:
        raise HardwareError(
            f"format, version: got {short(form[0])}, {short(form[1])}, expected {FORMAT!r}, {VERSION}: is it another kind "
            f"of file, or from another release?"
        )


def tables_from_json(kind: str, tables: object) -> dict[str, CollectiveTable]:
    """Read the tables of a kind of collective, by the axes of their groups.

    Raises:
        HardwareError: a field is missing, unknown or impossible.
    """
    result = {}
    for axes, value in checks.mapping(tables, f"collectives.{kind}", "an object from axes to tables").items():
        path = f"collectives.{kind}.{axes}"
        table = checks.fields(value, path, ("bytes", "time_us"), ("spread",))
        try:
            result[axes] = CollectiveTable(table["bytes"], table["time_us"], table.get("spread", ()))
        except HardwareError as error:
            raise HardwareError(f"{path}.{error}") from None
    return result
