"""A plan as its file has it: rows of JSON, with what can be told of them without the model."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..common.memory_units import default_limit, memory_text
from ..common.words import counted
from ..program.orders.interleaved import INTERLEAVED, interleaving_of, most_in_flight
from ..program.orders.passes import merged
from ..program.orders.schedule import PLAIN, SCHEDULES, StepOrder
from ..reschedule.halo import HALO, HaloStep, Window
from ..reschedule.layout import Layout
from ..reschedule.mesh import Mesh, mesh_of
from ..reschedule.steps import State, make_step, move_between

Row = Mapping[str, Any]
SOURCES = ("Variable", "Placeholder", "Const")
"""Types of operators that compute nothing."""
NO_LAYER, MOSTLY = "(no layer)", 0.6
RECEIVED, LOSS_OF_STAGE = "what other stages send", "a loss in place of later stages"
_AMOUNTS = ("sum_bytes", "peak_bytes", "time_us", "compute_time_us", "overlap_time_us")
_NUMBERS_OF_A_TASK = 6
_NUMBERED = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class Way:
    """A collective on the way of a tensor, or of its gradient, from layout to layout."""

    kind: str
    text: str


@dataclass(frozen=True, eq=False)
class StageRows:
    """A stage's JSON value, as a plan's file has it; a damaged one raises whatever error it leads to.

    Attributes:
        layers: the layer of each operator by its name; see :func:`layers_of`.
    """

    value: Row
    layers: Mapping[str, str]

    @cached_property
    def mesh(self) -> Mesh:
        return mesh_of(self.value["mesh"])

    @cached_property
    def operators(self) -> Sequence[Row]:
        """The rows of operators; the type of one that only the stage has is what it stands for."""
        return [{**op, "type": kind_of(op)} if op.get("is_stand_in", False) else op for op in self.value["operators"]]

    @property
    def reshardings(self) -> Sequence[Row]:
        rows: Sequence[Row] = self.value["reshardings"]
        return rows

    @property
    def peak(self) -> Row | None:
        """The instant of the peak, see ``Peak.to_json``; None if the plan doesn't know it."""
        return peak_of(self.value)

    @property
    def n_split_operators(self) -> int:
        """The number of operators that use some mesh axis; variables, placeholders and constants don't count."""
        computing = (op for op in self.operators if op["type"] not in SOURCES and not op.get("is_stand_in", False))
        return sum(1 for op in computing if op["config"] != "-")

    @property
    def n_collectives(self) -> int:
        return sum(len(self.executed(row)) for row in self.reshardings)

    @cached_property
    def _known(self) -> dict[tuple[str, ...], tuple[Way, ...]]:
        """The collectives between layouts, by their texts: few differ."""
        return {}

    def collectives(self, layouts: Sequence[str]) -> tuple[Way, ...]:
        """Return the collectives along a path of layouts.

        Raises:
            ValueError: no step leads from one layout to the next.
        """
        key = tuple(layouts)
        if key not in self._known:
            stops = [Layout.parse(self.mesh, text) for text in layouts]
            ways = []
            for before, after in itertools.pairwise(stops):
                move = move_between(State.of(before), State.of(after))
                if move is None:
                    raise ValueError(f"no step leads from {before} to {after}")
                step = make_step(before, move)
                if step.communicates:
                    ways.append(Way(step.kind, str(step)))
            self._known[key] = tuple(ways)
        return self._known[key]

    def forward(self, row: Row) -> tuple[Way, ...]:
        """Return the collectives of a resharding's forward way."""
        return self._halo(row)[0] if "halo" in row else self.collectives(row["forward"])

    def backward(self, row: Row) -> tuple[Way, ...]:
        """Return the collectives of a resharding's way back in all backward passes; none if no gradient comes back."""
        if row["backward"] is None:
            return ()
        ways = self._halo(row)[1] if "halo" in row else self.collectives(row["backward"])
        return ways * int(row.get("n_passes", 1))

    def _halo(self, row: Row) -> tuple[tuple[Way, ...], tuple[Way, ...]]:
        layout = Layout.parse(self.mesh, row["forward"][0])
        windows = tuple(None if window is None else Window(*window) for window in row["halo"]["windows"])
        step = HaloStep(HALO, layout, windows, str(row["halo"]["fill"]))
        ways = tuple((Way(half.kind, str(half)),) if half.communicates else () for half in (step, step.backward()))
        return ways[0], ways[1]

    def executed(self, row: Row) -> tuple[Way, ...]:
        """Return the collectives that a step executes for a resharding, each as often as it does."""
        again = self.forward(row) if row.get("is_regathered", False) else ()
        return (*self.forward(row), *again, *self.backward(row)) * int(row.get("n_runs", 1))

    def layer_of(self, row: Row) -> str:
        """Return the layer that a resharding is charged to: that of its first consumer, else of its tensor."""
        for name in (row["consumers"][0], row["tensor"].rpartition(":")[0], row["tensor"]):
            if name in self.layers:
                return self.layers[name]
        return NO_LAYER


def kind_of(stand_in: Row) -> str:
    """Return what an operator that only its stage has stands for, as the user didn't write it."""
    return RECEIVED if stand_in["type"] == "Placeholder" else LOSS_OF_STAGE


def device_bytes_of(assumed: Row) -> int | None:
    """Return the device's memory that a plan or a frontier assumes; None if it isn't known.

    Raises:
        ValueError: it isn't an amount of memory.
    """
    n_bytes = assumed.get("device_memory_bytes")
    if n_bytes is None or (type(n_bytes) is int and n_bytes > 0):
        return n_bytes
    raise ValueError(f"device_memory_bytes: got {n_bytes!r}, expected a positive whole number of bytes")


def peak_of(value: Row) -> Row | None:
    """Return the instant of the peak that a stage's JSON value has; None if it has none.

    Raises:
        ValueError: it isn't one of the stage's own peak.
    """
    peak: Row | None = value.get("peak")
    if peak is None:
        return None
    amounts = [*peak["peak_by_use"].values(), *peak["peak_by_tensor"].values()]
    numbers = [*amounts, peak["peak_instruction"], peak["instructions"], peak["peak_bytes"]]
    if not all(type(number) is int and number >= 0 for number in numbers) or not isinstance(peak["peak_runs"], str):
        raise ValueError("its peak has numbers that are no whole numbers, or no text")
    if not sum(peak["peak_by_use"].values()) == peak["peak_bytes"] == value["peak_bytes"]:
        raise ValueError("what is alive at its peak doesn't add up to the peak")
    return peak


class AllStages:
    """Numbers of operators and collectives of a plan, or of a plan's JSON value: those of its stages, added up."""

    stages: Any

    @property
    def n_split_operators(self) -> int:
        """The number of operators that use some mesh axis of their stage."""
        return sum(stage.n_split_operators for stage in self.stages)

    @property
    def n_collectives(self) -> int:
        """The number of collectives of all stages in a step."""
        return sum(stage.n_collectives for stage in self.stages)


@dataclass(frozen=True, eq=False)
class PlanRows(AllStages):
    """A plan's JSON value; a damaged one raises whatever error it leads to.

    Attributes:
        layers_of_all: the layer of each operator, where the plan is one of many of one model; None to find them.
    """

    value: Row
    layers_of_all: Mapping[str, str] | None = None

    @cached_property
    def stages(self) -> Sequence[StageRows]:
        """The stages, in the order in which data passes them."""
        return [StageRows(stage, self.layers) for stage in self.value["stages"]]

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of all devices."""
        return mesh_of(self.value["mesh"])

    @property
    def operators(self) -> Sequence[Row]:
        """The operators of all stages, but those that only stages have."""
        return [op for stage in self.value["stages"] for op in stage["operators"] if not op.get("is_stand_in", False)]

    @cached_property
    def layers(self) -> Mapping[str, str]:
        """The layer of each operator by its name; see :func:`layers_of`."""
        if self.layers_of_all is not None:
            return self.layers_of_all
        stages = self.value["stages"]
        layers = layers_of(
            [(op["name"], op["type"]) for op in self.operators], [row for stage in stages for row in stage["reshardings"]]
        )
        stand_ins = (op for stage in stages for op in stage["operators"] if op.get("is_stand_in", False))
        return {**layers, **{op["name"]: kind_of(op) for op in stand_ins}}

    @property
    def micro_batches(self) -> int:
        return int(self.value["schedule"]["micro_batches"])

    @property
    def time_us(self) -> float:
        return float(self.value["time_us"])

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that is alive at once; None if the plan doesn't know it."""
        n_bytes: int | None = self.value["peak_bytes"]
        return n_bytes

    @property
    def needed_bytes(self) -> int:
        """The bytes that a device needs, to which limits apply: the peak, or the sum where no peak is known."""
        return int(self.value["sum_bytes"] if self.peak_bytes is None else self.peak_bytes)

    @property
    def device_bytes(self) -> int | None:
        """The memory of the device that the plan was found for; None if the plan doesn't know it."""
        return device_bytes_of(self.value["assumed"])

    @property
    def summary(self) -> str:
        """One line on what the plan is and what it costs."""
        value, on = self.value, f"{counted(self.mesh.n_devices, 'device')} {self.mesh}"
        of, passes = passes_text(len(self.stages), on, self.micro_batches, value["schedule"]["name"])
        slices = f"{passes}, " if passes else ""
        hidden = f", {value['overlap_time_us']:,.0f} us network beside it" if value["overlap_time_us"] else ""
        why = f"; {value['why_stages']}" if value.get("why_stages") else ""
        return (
            f"{value['option']}: {of}, {slices}{memory_text(self.needed_bytes)} per device, {self.time_us:,.0f} us per step "
            f"({value['compute_time_us']:,.0f} us compute{hidden}), {counted(self.n_split_operators, 'operator')} "
            f"split, {counted(self.n_collectives, 'collective')} per step{why}"
        )

    def too_large(self, fitting: tuple[int, Row] | None = None) -> str | None:
        """Return the sentence that the plan needs more memory than its device has, and what would fit; None if it doesn't.

        Args:
            fitting: the number and the costs of its frontier's fastest point that fits the device; None if none is known.
        """
        need, memory = self.needed_bytes, self.device_bytes
        if memory is None or need <= memory:
            return None
        device = self.value["assumed"].get("device", "the device")
        text = f"this plan needs {memory_text(need)} per device, but {device} has {memory_text(memory)}: it won't run there"
        limit = default_limit(memory)
        if fitting is None:
            ways = f"within {limit} bytes (--memory, or memory=), which tries micro-batches, too, or on more devices"
            return f"{text}; search {ways}"
        point, costs = fitting
        fits = f"{memory_text(costs.get('peak_bytes') or costs['sum_bytes'])} and {costs['time_us'] / 1e3:,.4g} ms per step"
        return f"{text}; point {point + 1} fits with {fits} (--memory {limit})"

    def check(self) -> None:
        """Read all that is told of a plan, which raises whatever error damage leads to."""
        _ = self.checked_order(), self.layers, self.needed_bytes, self.n_collectives
        _ = [stage.peak for stage in self.stages]

    def checked_order(self) -> StepOrder:
        """Return the order of a step's passes, after checking that it can run and that the stages fit together.

        Raises:
            LookupError, TypeError, ValueError: it can't, or they don't.
        """
        value, stages = self.value, self.value["stages"]
        if not stages:
            raise ValueError("a plan has at least one stage")
        schedule, n_stages, timeline = value["schedule"], len(stages), value.get("timeline")
        name, n, _ = schedule["name"], schedule["micro_batches"], self.device_bytes
        rows = [row for stage in stages for row in (stage, *stage["operators"], *stage["reshardings"])]
        negative = [key for row in (value, *rows) for key in _AMOUNTS if (row.get(key) or 0) < 0]
        if negative:
            raise ValueError(f"{negative[0]} is below 0")
        if (n_stages > 1) != (timeline is not None):
            raise ValueError(f"{counted(n_stages, 'stage')} {'without' if timeline is None else 'with'} a timeline")
        # Each micro-batch has tasks, so a wrong number doesn't make an order that is longer than the file.
        n_tasks = None if timeline is None else checked_timeline(timeline)["tasks"].count(";") + 1
        if type(n) is not int or n < 1 or (n_tasks is not None and n > n_tasks):
            raise ValueError(f"{n} micro-batches")
        if name not in ((PLAIN,) if timeline is None else SCHEDULES):
            raise ValueError(f"{counted(n_stages, 'stage')} by a schedule {name!r}")
        counts = [(stage["in_flight"], stage["deferred"]) for stage in stages]
        if not all(type(ahead) is int is type(later) and 1 <= ahead <= n and 0 <= later <= n for ahead, later in counts):
            raise ValueError(f"stages have (in flight, deferred) {counts} of {n} micro-batches")
        in_flight, deferred = zip(*counts, strict=True)
        order = StepOrder(name, n, in_flight, deferred, interleaving_of(schedule if name == INTERLEAVED else None, n_stages))
        if timeline is not None:
            merged(order.orders)
        devices = [tuple(stage["devices"]) for stage in stages]
        submeshes = list(dict.fromkeys(devices))
        sizes = [mesh_of(stage["mesh"]).n_devices for stage in stages]
        are_all = [device for submesh in submeshes for device in submesh] == list(range(self.mesh.n_devices))
        is_cyclic = tuple(map(submeshes.index, devices)) == order.submeshes
        is_cyclic &= timeline is None or timeline["devices"] == [list(submesh) for submesh in submeshes]
        if not are_all or not is_cyclic:
            raise ValueError("its stages don't fit together")
        for own, size in zip(devices, sizes, strict=True):
            if len(own) != size:
                raise ValueError(f"a stage on {counted(len(own), 'device')} has a mesh of {size}")
        if order.interleaving and counts != [(count, 0) for count in most_in_flight(n_stages, order.orders)]:
            raise ValueError("its stages don't have as many micro-batches in flight as it says")
        n_runs = {row.get("n_runs", 1) for row in rows} - {1, n}
        if n_runs:
            raise ValueError(f"a resharding is made {n_runs.pop()!r} times in a step of {n} micro-batches")
        return order


def checked_timeline(value: Row) -> dict[str, Any]:
    """Return the timeline of a JSON value, whose tasks are all of devices, operators and kinds that it names.

    Raises:
        LookupError, TypeError, ValueError: it is damaged.
    """
    timeline = {key: value[key] for key in ("makespan_ns", "devices", "operators", "kinds", "tasks")}
    for text in filter(None, timeline["tasks"].split(";")):
        numbers = [int(number) for number in text.split(",")]
        if len(numbers) != _NUMBERS_OF_A_TASK:
            raise ValueError(f"a task has {len(numbers)} numbers, expected {_NUMBERS_OF_A_TASK}")
        for column, key in ((0, "devices"), (4, "operators"), (5, "kinds")):
            _ = timeline[key][numbers[column]]
    return timeline


def passes_text(n_stages: int, devices: str, n_micro_batches: int, schedule: str) -> tuple[str, str]:
    """Return in words in how many stages a model is on devices, and in how many passes it takes a batch; "" at once."""
    slices = f"{n_micro_batches} micro-batches" if n_micro_batches > 1 else ""
    if n_stages == 1:
        return devices, slices
    return f"{n_stages} stages on {devices}", f"{slices} by {schedule}" if slices else "the batch at once"


def layers_of(operators: Iterable[tuple[str, str]], reshardings: Iterable[Row] = ()) -> dict[str, str]:
    """Return each operator's layer: the first part of its name that tells it from most others.

    A model's own name, with which most nested names of operators begin, is left out. Keras numbers the scope of a layer each
    time that it is called: ``dense_1`` is the layer ``dense`` where it uses that layer's variables, or none is ``dense_1``.

    Args:
        operators: names and types.
        reshardings: which operators use which variables.
    """
    named = [(name, name.split("/"), kind) for name, kind in operators]
    firsts: dict[str, int] = {}
    for _, parts, kind in named:
        if len(parts) > 2 and kind not in SOURCES:
            firsts[parts[0]] = firsts.get(parts[0], 0) + 1
    roots = {first for first, count in firsts.items() if count > MOSTLY * sum(firsts.values())}
    roots |= {_NUMBERED.sub("", root) for root in roots}
    scopes = {name: parts[1:-1] if parts[0] in roots and len(parts) > 2 else parts[:-1] for name, parts, _ in named}
    variables = {scopes[name][0] for name, _, kind in named if kind == "Variable" and scopes[name]}
    called: dict[str, str] = {}
    for row in reshardings:
        used = scopes.get(row["tensor"].rpartition(":")[0])
        for consumer in row["consumers"]:
            scope = scopes.get(consumer)
            if used and scope and used[0] in variables and _NUMBERED.sub("", scope[0]) == used[0]:
                called[scope[0]] = used[0]
    kinds = {name: kind for name, _, kind in named}
    layers = {}
    for name, inside in scopes.items():
        layer = inside[0] if inside else NO_LAYER
        if kinds[name] != "Variable" and layer in called:
            layer = called[layer]
        elif layer not in variables and _NUMBERED.sub("", layer) in variables:
            layer = _NUMBERED.sub("", layer)
        layers[name] = layer
    return layers
