"""The sharding rule of each operator type, as data."""

# Each module registers the rules of a family of operator types.
from . import (  # noqa: F401
    control_flow,
    convolution,
    elementwise,
    indexing,
    linear_algebra,
    matrices,
    random,
    rearranging,
    reduction,
    resizing,
    scattering,
    searching,
    shape,
    softmax,
)
