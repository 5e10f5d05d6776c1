"""Simulate the step of a strategy on a device topology: FlexFlow, section 5.

:func:`timeline_of` is the full simulation, with all that can be told of it.
"""

from __future__ import annotations

from .actions import StepActions
from .network import Network
from .step_graph import step_graph
from .timeline import StepTimeline, timeline_of
from .topology_network import network_of

__all__ = ["Network", "StepActions", "StepTimeline", "network_of", "step_graph", "timeline_of"]
