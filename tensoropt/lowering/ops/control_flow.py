"""Lower composite operators: emit each operator of the body on its shards, without collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.python.eager import context

from ...ir.body import BODY, COMPOSITES, FORM, LOOP, VALUE_SHAPED, Definition, GradientForm, LoopForm
from ...ir.graph import CONSTANT, Operator
from ...rules.composition import Composition
from ...rules.rule import Config
from ..localise import opaque, uniform_shape
from ..operators import Job, Values, emit, lowering
from ..own_gradient import Gradients, with_own_gradient


@lowering(*COMPOSITES, always=True)
def composite(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit a loop, or tensors with a gradient of their own, on every rank that this process builds."""
    composition = Composition(job.op)
    emit_one = _loop if job.op.type == LOOP else _custom_gradient
    per_rank = [
        emit_one(_Local(composition, job.config, rank), job, _shaped(job, [values[i] for values in operands]))
        for i, rank in enumerate(job.ranks)
    ]
    return [list(values) for values in zip(*per_rank, strict=True)]


@lowering(VALUE_SHAPED, always=True)
def value_shaped(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit operators whose shapes depend on values, as on one device, on every rank that this process builds."""
    body: Definition = job.op.attrs[BODY]
    graph = tf.compat.v1.GraphDef.FromString(body.graph)
    for function in graph.library.function:  # a function that is called by name must be known where the graph runs
        if not context.context().has_function(function.signature.name):
            context.context().add_function_def(function)
    per_rank = []
    for i in range(len(job.ranks)):
        inputs = {name: tf.identity(values[i]) for name, values in zip(body.inputs, operands, strict=True)}
        per_rank.append(tf.graph_util.import_graph_def(graph, inputs, list(body.outputs), job.op.name))
    return [list(values) for values in zip(*per_rank, strict=True)]


@dataclass(frozen=True)
class _Local:
    """The body of a composite operator on one rank."""

    composition: Composition
    config: Config
    rank: int

    def emit(self, values: Mapping[str, tf.Tensor], constants: bool | None = None) -> dict[str, tf.Tensor]:
        """Emit the body's operators; return the body's tensors, the given ones included, by name.

        Args:
            values: the body's tensors that exist already, by name.
            constants: True emits the body's constants only, False all other operators, None everything.
        """
        tensors = dict(values)
        for op in self.composition.body.operators:
            if constants is None or constants == (op.type == CONSTANT):
                self._emit(op, tensors)
        return tensors

    def _emit(self, op: Operator, tensors: dict[str, tf.Tensor]) -> None:
        """Emit one operator of the body and add its results to ``tensors``."""
        config, interface = self.composition.inner(op, self.config)
        job = Job(op, self.composition.rules[op.name], config, interface, (self.rank,))
        results = emit(job, [[tensors[tensor.name]] for _, tensor in op.operands])
        tensors.update({tensor.name: values[0] for tensor, values in zip(op.outputs, results, strict=True)})

    def share(self, output: int, gradient: tf.Tensor) -> tf.Tensor:
        """Return a gradient of an operand on the first of the ranks that compute it alike, zeros on the others.

        Args:
            output: the index of the gradient among the body's outputs.
        """
        axes = self.composition.alike(output, self.config)
        if not axes:
            return gradient
        keeps = opaque(int(self.config.mesh.index_along(axes, self.rank) == 0), tf.int32)
        return tf.where(tf.equal(keeps, 1), gradient, tf.zeros_like(gradient))


def _shaped(job: Job, operands: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return the operands with the static shapes that are the same on all ranks."""
    for (position, tensor), value in zip(job.op.operands, operands, strict=True):
        value.set_shape(uniform_shape(job.interface.operand(position).layout, tensor.shape))
    return operands


def _loop(local: _Local, job: Job, operands: list[tf.Tensor]) -> list[tf.Tensor]:
    """Emit a loop over the body on one rank; return the stacked items and the final states."""
    form: LoopForm = job.op.attrs[FORM]
    body = local.composition.body
    n_stacks, n_items = len(form.reads), len(form.writes)
    stacks, states = operands[:n_stacks], operands[n_stacks : form.first_invariant]
    captured, starts = operands[form.first_invariant : len(body.inputs)], operands[len(body.inputs) :]
    stack_arrays = [tf.TensorArray(x.dtype, x.shape[0], clear_after_read=False).unstack(x) for x in stacks]
    item_arrays = [
        tf.TensorArray(tensor.dtype, length, element_shape=uniform_shape(layout, output.shape)[1:])
        for tensor, length, layout, output in zip(
            body.outputs[:n_items], form.lengths, job.interface.results[:n_items], job.op.outputs[:n_items], strict=True
        )
    ]
    for (k, place), value in zip(form.starts, starts, strict=True):
        item_arrays[k] = item_arrays[k].write(place, value)
    # Constants are emitted outside of the loop and captured, so that TensorFlow saves them once and not for each trip.
    invariants = {tensor.name: value for tensor, value in zip(body.inputs[form.first_invariant :], captured, strict=True)}
    constants = local.emit(invariants, constants=True)

    def trip(number: tf.Tensor, items: list[tf.TensorArray], states: list[tf.Tensor]) -> tuple[object, ...]:
        """Run the body once, on this trip's slices of the stacks and on the states."""
        slices = [stack.read(_place(places, number)) for stack, places in zip(stack_arrays, form.reads, strict=True)]
        inputs = {tensor.name: value for tensor, value in zip(body.inputs, [*slices, *states], strict=False)}
        tensors = local.emit({**constants, **inputs}, constants=False)
        results = [tensors[tensor.name] for tensor in body.outputs]
        arrays = [
            array.write(_place(places, number), value)
            for array, places, value in zip(items, form.writes, results, strict=False)
        ]
        return number + 1, arrays, results[n_items:]

    _, items, finals = tf.while_loop(
        lambda number, items, states: number < form.trips,
        trip,
        (tf.constant(0), item_arrays, states),
        maximum_iterations=form.trips,
        name=job.op.name,
    )
    return [*(array.stack() for array in items), *finals]


def _place(places: tuple[int, ...], number: tf.Tensor) -> tf.Tensor:
    """Return the index of the slice that the trip with this number reads, or writes."""
    if places == tuple(range(len(places))):
        return number
    if len(set(places)) == 1:
        return tf.constant(places[0])
    return tf.gather(tf.constant(places), number)


def _custom_gradient(local: _Local, job: Job, operands: list[tf.Tensor]) -> list[tf.Tensor]:
    """Emit, on one rank, tensors that pass through unchanged and whose gradient the body computes."""
    form: GradientForm = job.op.attrs[FORM]
    body = local.composition.body

    def gradient(tensors: Sequence[tf.Tensor], gradients: Gradients) -> Gradients:
        """Emit the body on the gradients of the results; return the gradients of the operands, then None for each result."""
        result_gradients = zip(form.passed, gradients[len(operands) :], strict=True)
        incoming = [tf.zeros_like(operands[i]) if g is None else g for i, g in result_gradients]
        read = [tensors[i] for i in form.reads]
        body_values = local.emit({tensor.name: value for tensor, value in zip(body.inputs, [*incoming, *read], strict=True)})
        totals: list[tf.Tensor | None] = [None] * len(operands)
        for k, (i, tensor) in enumerate(zip(form.into, body.outputs, strict=True)):
            share = local.share(k, body_values[tensor.name])
            total = totals[i]
            totals[i] = share if total is None else total + share
        return [*totals, *[None] * len(form.passed)]

    # Results are passed through beside the operands, since an operand may be several results, and the gradient may read it
    # too.
    results = with_own_gradient([*operands, *(operands[i] for i in form.passed)], gradient, job.op.name)
    return results[len(operands) :]
