"""Hardware descriptions, and those that ship with the package."""

from .catalogue import named, resolve, shipped
from .checks import HardwareError
from .description import COMMUNICATING_KINDS, CollectiveTable, Device, Hardware, LinkLevel
from .rates import OperatorRate, Origin, Rates

__all__ = [
    "COMMUNICATING_KINDS",
    "CollectiveTable",
    "Device",
    "Hardware",
    "HardwareError",
    "LinkLevel",
    "OperatorRate",
    "Origin",
    "Rates",
    "named",
    "resolve",
    "shipped",
]
