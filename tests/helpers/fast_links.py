"""Hardware on which it pays to split all that can be split, also in small models."""

from __future__ import annotations

import json
from pathlib import Path

from tensoropt.profiling.hardware import Device, Hardware, LinkLevel


def on_fast_links(folder: Path) -> str:
    """Return options of unchanged scripts, as JSON, by which two ranks run on such hardware."""
    device = Device("slow", 8 << 30, {"float32": 1e8}, 1e8)
    Hardware("fast links", device, (LinkLevel("device", 2, 0.01, 1e12),)).save(folder / "slow.json")
    return json.dumps({"cluster": str(folder / "slow.json")})
