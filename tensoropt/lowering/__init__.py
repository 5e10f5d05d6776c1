"""Lower a plan to the TensorFlow graph that each rank runs."""

# Each module registers the special lowerings of a family of operator types.
from .ops import control_flow, lookups, matrices, random, statistics  # noqa: F401
