"""Name the algorithms that a search can be asked for beside those of :mod:`..ft`."""

from __future__ import annotations

from types import MappingProxyType

BASELINES = ("data-parallel", "one-weird-trick", "optcnn", "tofu", "mesh-tensorflow")
"""The algorithms of :mod:`.baselines`, under the same costs."""
UNSPLIT = "unsplit"
"""The baseline that nobody asks for: every device does the work of one device alone."""
MONTE_CARLO, FT_SIMULATED, MONTE_CARLO_SECONDS = "mcmc", "ft-simulated", 60.0
BY_SIMULATION = (MONTE_CARLO, FT_SIMULATED)
"""FlexFlow's search, :mod:`.flexflow.monte_carlo`, and the same from the frontier on: their cost is the simulated step, so
they aren't searches under the same costs."""
OTHERS = (*BASELINES, *BY_SIMULATION)
"""The algorithms that decide by themselves what is split: they take no ``force``, micro-batches or objectives."""
SPACES = MappingProxyType(
    {
        "data-parallel": "data-parallel: one strategy, which splits the batch everywhere",
        "one-weird-trick": "one-weird-trick: one strategy, which splits dense layers by output, all else by batch",
        "tofu": "tofu: all tensors split over all devices, axis by axis",
        "mesh-tensorflow": "mesh-tensorflow: each logical dimension split the same way everywhere",
    }
)
"""The spaces of the baselines that have their own, in words."""
