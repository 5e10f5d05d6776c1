"""Hardware descriptions, and those that ship with the package."""

from .catalogue import named, part_of, resolve, shipped
from .checks import HardwareError
from .description import COMMUNICATING_KINDS, CollectiveTable, Device, Hardware, LinkLevel
from .rates import OperatorRate, Origin, Rates
from .topology import Link, Topology

__all__ = [
    "COMMUNICATING_KINDS",
    "CollectiveTable",
    "Device",
    "Hardware",
    "HardwareError",
    "Link",
    "LinkLevel",
    "OperatorRate",
    "Origin",
    "Rates",
    "Topology",
    "named",
    "part_of",
    "resolve",
    "shipped",
]
