"""The formats of files that several packages read, with their versions."""

from __future__ import annotations

PLAN = "tensoropt/plan", 6
FRONTIER = "tensoropt/frontier", 8
CURVE = "tensoropt/curve", 2
CHECK = "tensoropt/check", 2
