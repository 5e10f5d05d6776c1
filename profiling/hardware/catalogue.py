"""The hardware that ships with the package: ``DEVICE-MxD`` is M machines with D devices each.

Each ``DEVICE.json`` beside this module is a complete hardware file of that device in its usual machine; a name such as
``v100-2x8`` replaces its counts. A topology is that of the usual machines: fewer of them keep their part of it, and
other ones have none.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import replace
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from . import checks
from .checks import HardwareError
from .description import Hardware, check_format
from .frozen import FrozenMapping

_MEASURED, _UNMEASURED = "h100", "a100 a100gb40 a100pcie a10g h100pcie h200 h200nvl b200 l4 l40s rtx4090 rtx5090 t4"
_NEAREST = dict.fromkeys(_UNMEASURED.split(), _MEASURED)
"""Devices whose operators nobody measured, and the nearest device that was."""
_NAME = re.compile(r"(?P<device>[a-z0-9]+)-(?P<machines>[1-9][0-9]*)x(?P<devices>[1-9][0-9]*)")


@cache
def shipped() -> FrozenMapping[Hardware]:
    """Return the shipped descriptions by device name, in alphabetical order."""
    result = {}
    for entry in sorted(files(__package__).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".json"):
            with as_file(entry) as path:
                result[entry.name.removesuffix(".json")] = Hardware.load(path)
    for device, nearest in _NEAREST.items():
        result[device] = _as_near(result[device], result[nearest])
    return FrozenMapping(result)


def _as_near(own: Hardware, measured: Hardware) -> Hardware:
    """Return hardware whose operators are assumed to reach the fractions of its peaks that those of another reach of its."""
    rates = own.device.flops_per_s
    flops = {dtype: rate / rates[dtype] for dtype, rate in measured.device.flops_per_s.items() if dtype in rates}
    slower = measured.device.memory_bytes_per_s / own.device.memory_bytes_per_s
    operators = {
        name: {
            dtype: {
                way: replace(rate, us_per_gflop=rate.us_per_gflop * flops[dtype], us_per_gb=rate.us_per_gb * slower)
                for way, rate in ways.items()
            }
            for dtype, ways in dtypes.items()
            if dtype in rates
        }
        for name, dtypes in measured.operators.items()
    }
    overhead_us, copied = measured.device.operator_overhead_us, measured.device.copied_bytes_per_s / slower
    source = f"assumed: the fractions of its peaks that a {measured.device.name} was measured to reach, the nearest that was"
    return replace(
        own,
        device=replace(own.device, operator_overhead_us=overhead_us, copied_bytes_per_s=copied),
        operators=FrozenMapping(operators),
        provenance=FrozenMapping({**own.provenance, "operators": source}),
    )


def named(name: str) -> Hardware:
    """Return the hardware of a name such as ``v100-2x8``.

    Raises:
        HardwareError: no such name; the nearest ones are offered.
    """
    match = _NAME.fullmatch(name)
    if match is None or match["device"] not in shipped():
        raise HardwareError(
            f"no hardware is called {name!r}; expected DEVICE-MxD, M machines with D devices each, with DEVICE one of "
            f"{', '.join(shipped())}: did you mean {' or '.join(_nearest(name))}? Other devices need a hardware file: "
            "tensoropt calibrate writes this machine's, docs/reference/formats.md describes one"
        )
    hardware = shipped()[match["device"]]
    outer, inner = hardware.levels
    levels = (replace(outer, count=int(match["machines"])), replace(inner, count=int(match["devices"])))
    if levels == hardware.levels:
        return hardware
    is_part = levels[1] == inner and levels[0].count < outer.count
    topology = hardware.topology.first(levels[0].count * inner.count) if hardware.topology and is_part else None
    return replace(hardware, name=name, levels=levels, collectives=FrozenMapping({}), topology=topology)


def resolve(name_or_path: str | Path) -> Hardware:
    """Return the hardware of a file's path, or of a name for :func:`named`; a path has a suffix, a folder, or exists.

    Raises:
        HardwareError: neither a readable hardware file nor a known name.
    """
    path = Path(name_or_path)
    if path.suffix == ".json" or len(path.parts) > 1 or path.is_file():
        return Hardware.load(path, _read)
    return _named_for_plans(str(name_or_path))


def _named_for_plans(name: str) -> Hardware:
    """Return the hardware of a name, whose GPUs communicate by NCCL unless plans are for other collectives."""
    hardware, choice = named(name), os.environ.get("TENSOROPT_COLLECTIVES") or "tensorflow"
    return replace(hardware, run_by="nccl") if choice == "tensorflow" else hardware


def _read(value: object) -> Hardware:
    """Read a hardware file, which may name one of :func:`named` as ``like``, and a name, price and watts of its own."""
    if not isinstance(value, dict) or "like" not in value:
        return Hardware.from_json(value)
    fields = checks.fields(value, "", ("format", "version", "like"), ("name", "price_per_hour", "watts"))
    check_format(fields)
    original = _named_for_plans(checks.text(fields["like"], "like"))
    device = replace(original.device, watts=fields.get("watts", original.device.watts))
    name, price = fields.get("name", original.name), fields.get("price_per_hour")
    return replace(original, name=name, price_per_hour=price, device=device)


def part_of(hardware: Hardware, machines: int, devices: int) -> Hardware:
    """Return so many machines with so many devices each of some hardware; what was measured on all doesn't hold on a part.

    Raises:
        HardwareError: it has fewer machines, or fewer devices in each.
    """
    counts = [level.count for level in hardware.levels]
    if len(counts) != 2 or machines > counts[0] or devices > counts[1]:
        size = "x".join(map(str, counts))
        raise HardwareError(f"parallelism {machines}x{devices} is not possible on {hardware.name}, which has {size} devices")
    outer, inner = hardware.levels
    levels = (replace(outer, count=machines), replace(inner, count=devices))
    name = f"{hardware.name.removesuffix('-{}x{}'.format(*counts))}-{machines}x{devices}"
    return replace(hardware, name=name, levels=levels, collectives=FrozenMapping({}), topology=None)


def _nearest(name: str) -> list[str]:
    usual = [hardware.name for hardware in shipped().values()]
    device, _, counts = name.lower().partition("-")
    names = [
        f"{near}-{counts}"
        for near in difflib.get_close_matches(device, shipped(), n=2, cutoff=0.5)
        if _NAME.fullmatch(f"{near}-{counts}")
    ]
    return names or difflib.get_close_matches(name.lower(), usual, n=2, cutoff=0.5) or usual
