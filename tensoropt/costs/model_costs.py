"""Set up the costs of a model's operators and reshardings on some hardware."""

from __future__ import annotations

from ..profiling.hardware import Hardware
from ..profiling.hardware_costs import OperatorCosts, collective_costs
from ..profiling.work import NOTHING_KNOWN, MeasuredOperators
from ..reschedule.mesh import Mesh
from ..sharding.model import Model
from .operator_costs import OperatorCosting
from .resharding_costs import ReshardingCosting


def costing_of(model: Model, hardware: Hardware, mesh: Mesh, known: MeasuredOperators = NOTHING_KNOWN) -> OperatorCosting:
    """Return the costs of a model's operators and reshardings on some hardware, given what is known of operators.

    Of unequal devices the slowest one's are returned: a step whose operators are split evenly waits for it.
    """
    origin = hardware.measured
    run_by = hardware.run_by if origin is None else "nccl" if origin.is_by_nccl else origin.collectives
    reshardings = ReshardingCosting(
        *(mesh, collective_costs(hardware, mesh), hardware.exposed_share_on(mesh)),
        in_graph=run_by in ("tensorflow", "nccl"),
        nccl_bytes_per_s=hardware.levels[-1].bytes_per_s if run_by == "nccl" else None,
    )
    speed = 1.0 if hardware.topology is None else hardware.topology.slowest(mesh.n_devices)
    costs = OperatorCosts(hardware, known.measured, known.is_cautious, speed)
    return OperatorCosting(model.graph, model.backward, costs, reshardings)
