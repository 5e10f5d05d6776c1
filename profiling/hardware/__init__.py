"""Hardware descriptions, and those that ship with the package."""

from .catalogue import named, resolve, shipped
from .checks import HardwareError
from .description import COMMUNICATING_KINDS, CollectiveTable, Device, Hardware, LinkLevel

__all__ = [
    "COMMUNICATING_KINDS",
    "CollectiveTable",
    "Device",
    "Hardware",
    "HardwareError",
    "LinkLevel",
    "named",
    "resolve",
    "shipped",
]
