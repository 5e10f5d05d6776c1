"""Import a loop as a composite operator.

TensorFlow puts the elements that a loop's trips read, and those that they write, into lists of tensors: variants, which have
no dimensions. The operator absorbs the lists, so that only tensors cross its border: stacks in, stacks out. Counters are
computed beforehand (:mod:`.trip_counts`). A value that depends on them alone becomes a constant of the body, or a stack of
constants where it changes from trip to trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from ...common.errors import InputError, short
from ...ir.body import BODY, FORM, LOOP, Body, LoopForm
from ...ir.graph import Operator, Tensor
from ..tracing.called import is_call_by_name
from ..tracing.loops import behind_identities, is_passed_on, loop_functions
from .body_builder import Collector, OuterImporter
from .trip_counts import Counters, Trips

LIST_MAKERS = ("TensorListReserve", "TensorListFromTensor", "EmptyTensorList", "TensorListSetItem")
LIST_STACK, LIST_ITEM = "TensorListStack", "TensorListGetItem"


def import_loop(op: tf.Operation, outside: OuterImporter) -> tuple[Operator, dict[str, Tensor]]:
    """Return the operator that stands for a ``While``.

    Returns:
        The operator; and by name of each result of TensorFlow's that it doesn't have, the tensor that it equals.

    Raises:
        InputError: the number of trips, or the elements that a trip reads or writes, depend on what the loop computes.
    """
    return _Reader(op, outside).run()


@dataclass
class _Write:
    """The item that each trip writes into one list, and the index at which it does."""

    variable: int
    item: tf.Tensor
    index: tf.Tensor


@dataclass
class _Reader:
    op: tf.Operation
    outside: OuterImporter
    stacks: dict[tuple[str, tuple[int, ...]], tf.Tensor] = field(default_factory=dict)
    stack_operands: list[Tensor] = field(default_factory=list)

    @cached_property
    def functions(self) -> tuple[Any, Any]:
        functions = loop_functions(self.op)
        if any(is_call_by_name(inner) for function in functions for inner in function.get_operations()):
            raise InputError(
                f"{self.where} calls a function by its name, as tf.nn.ctc_loss does, which can't be recorded; write the "
                "loss as a function and give it to tensoropt.capture, or use keras.losses.CTC() with tensoropt.parallelize"
            )
        return functions

    @property
    def body(self) -> Any:
        return self.functions[1]

    @property
    def where(self) -> str:
        return f"the loop '{self.op.name}' ({self.outside.line(self.op)})"

    @cached_property
    def lists(self) -> tuple[int, ...]:
        return tuple(k for k, tensor in enumerate(self.op.inputs) if tensor.dtype == tf.variant)

    @cached_property
    def counters(self) -> Counters:
        starts = {
            k: value
            for k, tensor in enumerate(self.op.inputs)
            if k not in self.lists and (value := self.outside.value(tensor)) is not None
        }
        return Counters(*self.functions, starts)

    @cached_property
    def states(self) -> tuple[int, ...]:
        """The indices of the loop variables that are carried from trip to trip."""
        others = {*self.lists, *self.counters.values}
        return tuple(k for k in range(len(self.op.inputs)) if k not in others and not is_passed_on(self.body, k))

    @cached_property
    def invariants(self) -> tuple[int, ...]:
        others = {*self.lists, *self.counters.values, *self.states}
        return tuple(k for k in range(len(self.op.inputs)) if k not in others)

    @cached_property
    def writes(self) -> tuple[_Write, ...]:
        return tuple(self._write(k) for k in self.lists if not is_passed_on(self.body, k))

    @cached_property
    def counts(self) -> dict[str, tf.Tensor]:
        """The counted tensors that the body's other operators read or the trips write, by name.

        Indices into lists aren't among them.
        """
        static, counted = self.counters.static, self.counters.counted
        tensors = {write.item.name: write.item for write in self.writes if write.item.name in counted}
        for reader in self.body.get_operations():
            if not _is_on_lists(reader) and any(result.name not in static for result in reader.outputs):
                tensors.update({tensor.name: tensor for tensor in reader.inputs if tensor.name in counted})
        return tensors

    @cached_property
    def trips(self) -> Trips:
        """The loop's trips, from a run of the counters, with the values of :attr:`counts` and of all indices into lists."""
        readers = [inner for inner in self.body.get_operations() if inner.type == "TensorListGetItem"]
        places = {index.name: index for index in (*(r.inputs[1] for r in readers), *(w.index for w in self.writes))}
        if not self.counters.static.issuperset(places):
            raise InputError(
                f"{self.where} reads or writes a place that depends on what it computes, which can't be captured; count "
                "the steps in a variable of its own"
            )
        trips = self.counters.run(list({**places, **self.counts}.values()), self.where)
        if not trips.count:
            raise InputError(f"{self.where} doesn't run even once; leave it out")
        return trips

    def run(self) -> tuple[Operator, dict[str, Tensor]]:
        outside, collector = self.outside, self.collector
        for k, value in self.counters.values.items():
            if k not in self.counters.changing:
                collector.copies[self.body.inputs[k].name] = collector.constant(value, self.body.inputs[k].dtype)
        for name in self.counts:
            collector.copies[name] = self._scheduled(name, self.trips.values[name])
        carried = {k: self._input(k) for k in (*self.states, *self.invariants)}
        outputs = collector.copy([write.item for write in self.writes] + [self.body.outputs[k] for k in self.states])
        # Some invariants only decide how often the loop runs.
        indices = [k for k in carried if k in self.states or carried[k].consumers() or carried[k] in outputs]
        body = collector.body([*self.stacks.values(), *(carried[k] for k in indices)], outputs)
        operands = [*self.stack_operands, *(outside.operand(self.op.inputs[k]) for k in indices)]
        writes = tuple(self._places(write.index) for write in self.writes)
        lengths, starts = [], {}
        for item, (write, places) in enumerate(zip(self.writes, writes, strict=True)):
            length, put_before = self._begin(write, places)
            lengths.append(length)
            starts.update({(item, place): tensor for place, tensor in put_before.items()})
        operands += [outside.operand(tensor) for tensor in starts.values()]
        reads = tuple(places for _, places in self.stacks)
        form = LoopForm(self.trips.count, reads, len(self.states), writes, tuple(lengths), tuple(starts))
        before = body.inputs[len(form.reads) : form.first_invariant]
        for start, end in zip(before, body.outputs[len(form.writes) :], strict=True):
            if start.shape != end.shape:
                raise InputError(
                    f"{self.where} changes a variable from shape {list(start.shape)} to {list(end.shape)}, which "
                    "can't be captured; expected the same shape in each trip"
                )
        results = self._results(body, lengths)
        attributes = {BODY: body, FORM: form}
        operator = Operator(self.op.name, LOOP, tuple(operands), results, {}, attributes, source=outside.line(self.op))
        return operator, self._others()

    @cached_property
    def collector(self) -> Collector:
        return Collector(self.outside, self.op.name, own=self._own)

    def _results(self, body: Body, lengths: Sequence[int]) -> tuple[Tensor, ...]:
        names = [self.op.outputs[k].name for k in (*(write.variable for write in self.writes), *self.states)]
        shapes = [(length, *item.shape) for length, item in zip(lengths, body.outputs, strict=False)]
        shapes += [state.shape for state in body.outputs[len(lengths) :]]
        return tuple(Tensor(name, shape, end.dtype) for name, shape, end in zip(names, shapes, body.outputs, strict=True))

    def _others(self) -> dict[str, Tensor]:
        """Return the results that no trip computes: loop variables that are passed on, and counters that have a consumer."""
        results = {self.op.outputs[k].name: self.outside.operand(self.op.inputs[k]) for k in self.invariants}
        for k, value in self.trips.finals.items():
            if self.op.outputs[k].consumers():
                results[self.op.outputs[k].name] = self.outside.constant(f"{self.op.name}:{k}", value)
        return results

    def _input(self, k: int) -> tf.Tensor:
        tensor = self.outside.operand(self.op.inputs[k])
        self.collector.copies[self.body.inputs[k].name] = placeholder = self.collector.input(tensor.shape, tensor.dtype)
        return placeholder

    def _scheduled(self, name: str, values: np.ndarray) -> tf.Tensor:
        """Return the body's tensor for a counted value: a constant, or the element of a stack of constants."""
        inner = self.body.get_tensor_by_name(name)
        if (values == values[0]).all():
            return self.collector.constant(values[0], inner.dtype)
        places = tuple(range(len(values)))
        key = f"counter {name}", places
        self.stack_operands.append(self.outside.constant(f"{self.op.name}/{name.replace(':', '_')}", values))
        self.stacks[key] = self.collector.input(values.shape[1:], inner.dtype.name)
        return self.stacks[key]

    def _own(self, inner: tf.Operation) -> list[tf.Tensor] | None:
        """Return the results of an operator of the body that works on lists; None for other operators."""
        if inner.type == "TensorListGetItem":
            stack = self._stack(self._list(inner.inputs[0]))
            key = stack.name, self._places(inner.inputs[1])
            if key not in self.stacks:
                self.stacks[key] = self.collector.input(stack.shape[1:], stack.dtype)
                self.stack_operands.append(stack)
            return [self.stacks[key]]
        if inner.type == "TensorListLength":
            source = self._list(inner.inputs[0])
            return [self.collector.constant(np.asarray(self._stack(source).shape[0]), tf.int32)]
        if _is_on_lists(inner):
            raise InputError(
                f"{inner.type} '{inner.name}' ({self.outside.line(inner)}) in {self.where} can't be captured; expected "
                "that each trip reads from TensorArrays made by unstack, and writes to others"
            )
        return None

    def _places(self, index: tf.Tensor) -> tuple[int, ...]:
        return tuple(int(value) for value in self.trips.values[index.name])

    def _list(self, inner: tf.Tensor) -> tf.Operation:
        """Return the operator that made the list that ``inner`` is in the body."""
        position = next((k for k in self.lists if self.body.inputs[k] is inner), None)
        is_read = position is not None and is_passed_on(self.body, position)
        maker = behind_identities(self.op.inputs[position]).op if is_read else None
        if maker is None or maker.type != "TensorListFromTensor":
            raise InputError(
                f"{self.where} reads from a TensorArray that it writes, or that isn't made by unstack, which can't be "
                "captured; carry what a trip needs of the one before it as a loop variable"
            )
        return maker

    def _stack(self, source: tf.Operation) -> Tensor:
        return self.outside.operand(source.inputs[0])

    def _write(self, k: int) -> _Write:
        writer = behind_identities(self.body.outputs[k]).op
        if writer.type != "TensorListSetItem" or writer.inputs[0] is not self.body.inputs[k]:
            raise InputError(
                f"{self.where} must write once to each TensorArray in a trip, got {writer.type}; collect several values in "
                "several TensorArrays, and give each its size"
            )
        return _Write(k, writer.inputs[2], writer.inputs[1])

    def _begin(self, write: _Write, places: tuple[int, ...]) -> tuple[int, dict[int, tf.Tensor]]:
        """Return the length of a list that the trips fill, and the items that are in it before and stay, by index."""
        maker = self.op.inputs[write.variable].op
        before: dict[int, tf.Tensor] = {}
        while maker.type == "TensorListSetItem" and (place := self.outside.value(maker.inputs[1])) is not None:
            before.setdefault(int(place), maker.inputs[2])
            maker = maker.inputs[0].op
        value = self.outside.value(maker.inputs[1]) if maker.type == "TensorListReserve" else None
        length = 0 if value is None else int(value)
        if {*places, *before} != set(range(length)):
            raise InputError(
                f"{self.where} fills places {short(sorted(set(places)))} of a TensorArray of {length or 'unknown'} elements;"
                " expected that it fills all: give the TensorArray the size that the loop fills"
            )
        return length, {place: tensor for place, tensor in before.items() if place not in places}


def _is_on_lists(op: tf.Operation) -> bool:
    return any(tensor.dtype == tf.variant for tensor in (*op.inputs, *op.outputs))
