"""List the reshardings of a variable's update; both its costs and its execution come from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..ir.graph import Operator, Tensor
from ..ir.optimizer import ParameterUpdate
from ..reschedule.layout import Layout, Shape
from ..reschedule.mesh import Mesh
from ..rules.rule import Config, OperandSharding, Rule, interface_of
from .resharding import Resharding


def sum_resharding(mesh: Mesh, length: int, item_bytes: int) -> Resharding:
    """Return the resharding that sums a vector over all devices."""
    source = Layout(mesh, ((),), mesh.axes)
    return Resharding((length,), item_bytes, source, OperandSharding(Layout.replicated(mesh, 1), None))


def gather_resharding(tensor: Tensor, layout: Layout) -> Resharding:
    """Return the resharding that replicates a parameter, or its gradient, on every device."""
    replicated = Layout.replicated(layout.mesh, len(tensor.shape))
    return Resharding(tensor.shape, tensor.item_bytes, layout, OperandSharding(replicated, None))


def split_resharding(tensor: Tensor, layout: Layout) -> Resharding:
    """Return the resharding that cuts a replicated parameter back into its shards."""
    replicated = Layout.replicated(layout.mesh, len(tensor.shape))
    return Resharding(tensor.shape, tensor.item_bytes, replicated, OperandSharding(layout, None))


def update_reshardings(
    updates: Sequence[ParameterUpdate], tensor: Tensor, layout: Layout, by_rows: bool
) -> Iterator[Resharding]:
    """Yield the reshardings of a parameter's updates; there is one update for each training step that trains it.

    Args:
        by_rows: whether the gradient comes as rows, which every device has.
    """
    mesh = layout.mesh
    for update in updates:
        if mesh.n_devices > 1:
            yield from (sum_resharding(mesh, length, item_bytes) for length, item_bytes in update.sums)
        if update.is_global and not layout.is_replicated:
            # The gradient, the parameter, and the parameter's shard on the way back.
            if not by_rows:
                yield gather_resharding(tensor, layout)
            yield gather_resharding(tensor, layout)
            yield split_resharding(tensor, layout)


def row_reshardings(op: Operator, rule: Rule, config: Config) -> tuple[Resharding, Resharding]:
    """Return the two reshardings of a lookup whose table is updated by rows.

    They replicate the indices, and the gradient of the rows that were found, on every device.
    """
    interface, indices = interface_of(rule, config), op.operand(1)
    return (
        _to_replicated(indices.shape, indices.item_bytes, interface.operand(1).layout),
        _to_replicated(op.result.shape, op.result.item_bytes, interface.results[0].with_partial(())),
    )


def _to_replicated(shape: Shape, item_bytes: int, source: Layout) -> Resharding:
    return Resharding(shape, item_bytes, source, OperandSharding(Layout.replicated(source.mesh, len(shape)), None))
