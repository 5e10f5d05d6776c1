"""The rows of a plan: one for each operator and each resharding; read and write them as JSON."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.files import name_in_file
from ..reschedule.halo import HALO, HaloStep, Window
from ..reschedule.layout import Layout, Shape
from ..reschedule.mesh import Mesh
from ..reschedule.path import Path
from ..reschedule.steps import State, make_step, move_between
from ..rules.rule import Config, OperandSharding


@dataclass(frozen=True)
class PlannedOperator:
    """The row of one operator in a plan.

    Attributes:
        results: the produced layout of each result.
        sum_bytes: memory per device for parameters with their gradients and slots, and for results that are saved for the
            backward pass in their produced layout.
        time_us: the time of the operator per step, including its rematerialization.
        is_rematerialized: whether the backward pass computes it again instead of reading saved results.
        freed_bytes: the memory that rematerialization frees, of what would otherwise be in ``sum_bytes``.
        is_stand_in: whether only its stage has it, and not the model: what other stages feed to it, or the loss that stands
            in for the model's.
    """

    name: str
    type: str
    config: Config
    results: tuple[Layout, ...]
    sum_bytes: int
    time_us: float
    is_rematerialized: bool = False
    rematerialization_us: float = 0.0
    freed_bytes: int = 0
    is_stand_in: bool = False

    def to_json(self) -> dict[str, Any]:
        costs = {"rematerialization_us": self.rematerialization_us, "freed_bytes": self.freed_bytes}
        return {
            "name": self.name,
            "type": self.type,
            "config": str(self.config),
            "results": [str(layout) for layout in self.results],
            "sum_bytes": self.sum_bytes,
            "time_us": self.time_us,
            **({"is_rematerialized": True, **costs} if self.is_rematerialized else {}),
            **({"is_stand_in": True} if self.is_stand_in else {}),
        }

    @classmethod
    def from_json(cls, mesh: Mesh, value: Mapping[str, Any]) -> PlannedOperator:
        """Return the operator's row from its JSON value, the inverse of :meth:`to_json`.

        A damaged value raises whatever error it leads to; callers turn that into an InputError.
        """
        return cls(
            name=name_in_file(value["name"]),
            type=name_in_file(value["type"]),
            config=Config.parse(mesh, value["config"]),
            results=tuple(Layout.parse(mesh, text) for text in value["results"]),
            sum_bytes=int(value["sum_bytes"]),
            time_us=float(value["time_us"]),
            is_rematerialized=bool(value.get("is_rematerialized", False)),
            rematerialization_us=float(value.get("rematerialization_us", 0.0)),
            freed_bytes=int(value.get("freed_bytes", 0)),
            is_stand_in=bool(value.get("is_stand_in", False)),
        )


@dataclass(frozen=True, kw_only=True)
class ReshardedCopy:
    """A resharded copy of a tensor in a training step.

    Attributes:
        tensor: the tensor that is resharded; for a resharding inside an operator, the name of the operator.
        consumers: the names of the consumers that use the copy; they share it if ``is_shared``.
        is_regathered: whether the copy is regathered: the backward pass executes the forward path again.
        is_regathered_with_source: whether the copy is regathered because its source is: a regathered shared copy, or a
            rematerialized result of an operator.
        n_runs: the executions per step: one per micro-batch, or one.
        accumulator_bytes: the bytes in which micro-batches accumulate the gradients of the copy.
    """

    tensor: str
    consumers: tuple[str, ...]
    is_shared: bool = False
    is_regathered: bool = False
    is_regathered_with_source: bool = False
    n_runs: int = 1
    accumulator_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class PlannedResharding(ReshardedCopy):
    """The row of one resharding in a plan: one tensor brought to one operand sharding (OperandSharding).

    Attributes:
        forward: the path of the tensor.
        backward: the path of its gradient; None if no gradient comes back.
        time_us: the time of the resharding per step, including regathering.
        reduction: ``sum``, or ``max`` for a maximum over the partial axes.
        copy_bytes: the bytes of the copy if the backward pass reads it, whether it is saved or regathered; else 0.
        n_passes: the number of backward passes in which a gradient comes back.
    """

    sharding: OperandSharding
    forward: Path
    backward: Path | None
    time_us: float
    reduction: str = "sum"
    copy_bytes: int = 0
    regathering_us: float = 0.0
    n_passes: int = 1

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths that a step executes, each as often as it does."""
        regathering = (self.forward,) if self.is_regathered else ()
        backward = () if self.backward is None else (self.backward,) * self.n_passes
        return (self.forward, *regathering, *backward) * self.n_runs

    @property
    def n_collectives(self) -> int:
        return sum(path.n_collectives for path in self.paths)

    @property
    def halo(self) -> HaloStep | None:
        """The halo exchange, if this is the resharding of one inside an operator; else None."""
        step = self.forward.steps[0] if self.forward.steps else None
        return step if isinstance(step, HaloStep) else None

    def to_json(self) -> dict[str, Any]:
        options = {key: value for key, default in _IF_OTHER.items() if (value := getattr(self, key)) != default}
        return {
            "tensor": self.tensor,
            "consumers": list(self.consumers),
            "operand_sharding": str(self.sharding),
            "is_shared": self.is_shared,
            "shape": list(self.forward.shape),
            "forward": _path_layouts(self.forward),
            "backward": _path_layouts(self.backward) if self.backward is not None else None,
            "time_us": self.time_us,
            "reduction": self.reduction,
            **({} if self.halo is None else {"halo": _halo_json(self.halo)}),
            **({"regathering_us": self.regathering_us} if self.is_regathered else {}),
            **options,
        }


_IF_OTHER: dict[str, Any] = {
    "copy_bytes": 0, "is_regathered": False, "is_regathered_with_source": False, "n_runs": 1, "accumulator_bytes": 0,
    "n_passes": 1,
}  # fmt: skip
"""Fields that a resharding's row in a plan's file leaves out where they have these values."""


def _path_layouts(path: Path) -> list[str]:
    return [str(path.source), *(str(step.target) for step in path.steps)]


def _path(mesh: Mesh, layouts: list[str], shape: Shape) -> Path:
    """Return a path from its layouts, the inverse of :func:`_path_layouts`."""
    stops = [Layout.parse(mesh, text) for text in layouts]
    steps = []
    for source, target in itertools.pairwise(stops):
        move = move_between(State.of(source), State.of(target))
        if move is None:
            raise ValueError(f"no step leads from {source} to {target}")
        steps.append(make_step(source, move))
    return Path(stops[0], stops[-1], tuple(steps), shape)


def _halo_json(step: HaloStep) -> dict[str, Any]:
    windows = [None if window is None else list(dataclasses.astuple(window)) for window in step.windows]
    return {"windows": windows, "fill": step.fill}


def _names(values: list[Any]) -> tuple[str, ...]:
    """Return names from their JSON value; there must be at least one."""
    if not values:
        raise ValueError("expected at least one name, got none")
    return tuple(map(name_in_file, values))


def planned_resharding(mesh: Mesh, d: dict[str, Any]) -> PlannedResharding:
    """Return a resharding's row from its JSON value, the inverse of :meth:`PlannedResharding.to_json`."""
    sharding, shape = OperandSharding.parse(mesh, d["operand_sharding"]), tuple(d["shape"])
    if "halo" in d:
        windows = tuple(None if window is None else Window(*window) for window in d["halo"]["windows"])
        step = HaloStep(HALO, sharding.layout, windows, str(d["halo"]["fill"]))
        paths = [Path(sharding.layout, sharding.layout, (halo_step,), shape) for halo_step in (step, step.backward())]
    else:
        paths = [_path(mesh, d[direction], shape) for direction in ("forward", "backward") if d[direction] is not None]
    return PlannedResharding(
        tensor=name_in_file(d["tensor"]),
        consumers=_names(d["consumers"]),
        sharding=sharding,
        is_shared=bool(d["is_shared"]),
        forward=paths[0],
        backward=paths[1] if d["backward"] is not None else None,
        time_us=float(d["time_us"]),
        reduction=str(d["reduction"]),
        regathering_us=float(d.get("regathering_us", 0.0)),
        **{key: type(default)(d.get(key, default)) for key, default in _IF_OTHER.items()},
    )
