"""The sharding rule of each operator type, as data."""

# Each module registers the rules of a family of operator types.
from . import (  # noqa: F401
    composition,
    convolution,
    elementwise,
    indexing,
    matrices,
    random,
    rearranging,
    reduction,
    shape,
)
