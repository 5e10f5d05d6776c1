"""Copy a traced function to a flat ``tf.Graph``, as if the user had recorded its operators one by one.

Calls of other functions are inlined. Variables, which a trace reaches through handles, become variables of the flat graph.
Tensors that the function closes over become constants. Reads and writes of variables keep their order: each waits for the
last write of its variable, and nothing else waits for anything. In loops and branches a variable's value stands for its
handle; what they write is assigned after them. So the flat graph looks to the importer like a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from ...common.errors import InputError
from ...common.source_lines import source_line
from ..gradient_function import copy_custom_gradient, is_custom_gradient
from ..gradient_placeholders import GRADIENT_ATTRIBUTE, UPDATE_ATTRIBUTE, mark_update, update_of
from ..stateful import Treatment, check_is_known, has_only_an_effect, left_out, treatment_of
from ..writes import value_read, value_written
from .by_sample import BySample
from .called import function_graph, is_call_by_name
from .conditionals import CONDITIONALS, branch_graphs, copy_conditional, is_constant, is_taken, taken_branch
from .effects import Effect, effect_of, has_effects, is_check_of_text, takes_resource
from .loops import copy_while, loop_functions
from .written import CALLS, LOOPS, behind_controls, handle_behind, written_in


def handle_of(variable: tf.Variable) -> tf.Tensor:
    """Return a variable's handle, without an access to the value of one of which a trainer has shards."""
    handle: tf.Tensor = vars(variable)["_handle"]
    return handle


@dataclass
class Flattener:
    """A copier of a traced function into a graph.

    Attributes:
        layer_of: returns the text by which messages name the layer of an operator, given the operator's name; None if it is
            of none.
        handles: by the id of a variable's eager handle, its handle in the flat graph.
        lines: by name of a copied operator, the line of the user's code that made its original.
        by_sample: returns the scope of the layer of an operator, given the operator's name, if the layer computes each
            sample by itself; else None.
        tables: lookup tables and other resources that the functions use, by the names of their placeholders in the flat
            graph.
        checks: copies of checks of values, which no other operator needs.
        conditions: whether an optimizer is applied, by the name of an assignment that stands for its update.
        is_of_body: whether the graph is a loop's body, or a branch.
    """

    graph: tf.Graph
    layer_of: Callable[[str], str | None] = lambda name: None
    handles: dict[int, tf.Tensor] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    by_sample: BySample = lambda name: None
    tables: dict[str, Any] = field(default_factory=dict)
    checks: list[tf.Operation] = field(default_factory=list)
    conditions: dict[str, tf.Tensor] = field(default_factory=dict)
    is_of_body: bool = False

    def add_variable(self, variable: tf.Variable, name: str) -> None:
        """Make a handle for one of the user's variables in the flat graph; the variable's value isn't copied."""
        with self.graph.as_default():
            handle = tf.raw_ops.VarHandleOp(dtype=variable.dtype, shape=variable.shape, shared_name=name, name=name)
        self.handles[id(handle_of(variable))] = handle

    def flatten(
        self, traced: Any, arguments: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Operation], list[Effect]]:
        """Copy a traced function (a ``FuncGraph``), with ``arguments`` in place of its own inputs.

        Returns:
            The function's results; the operations that update variables, and what has an effect on the world, in program
            order.

        Raises:
            InputError: the function holds something that can't be captured; the message names the user's line.
        """
        captured = {id(inner): outer for outer, inner in traced.captures}
        own = [tensor for tensor in traced.inputs if id(tensor) not in captured]
        counterparts = dict(zip((tensor.name for tensor in own), arguments, strict=True))
        with self.graph.as_default():
            for outer, inner in traced.captures:
                counterparts[inner.name] = self._captured(outer, inner)
            n_samples = next((tensor.shape[0] for tensor in arguments if tensor.shape.rank), None)
            copy = _Copy(self, traced, counterparts, "", n_samples)
            copy.run()
            return copy.outputs, copy.writes, copy.effects

    def _captured(self, outer: Any, inner: tf.Tensor) -> tf.Tensor:
        if outer.dtype != tf.resource:
            return tf.constant(outer.numpy(), name="captured")
        if id(outer) not in self.handles and all(map(takes_resource, inner.consumers())):
            # Ids of handles stay what they are only while someone has the handle, as the tables' dictionary has.
            self.handles[id(outer)] = tf.compat.v1.placeholder(tf.resource, [], "table")
            self.tables[self.handles[id(outer)].name] = outer
        if id(outer) not in self.handles:
            user = next(iter(inner.consumers()), inner.op)
            layer = self.layer_of(user.name)
            # A model's layers are called once more when it is captured, so the operators' lines aren't those of the layers.
            subject = layer or f"{user.type} '{user.name}' ({source_line(user)})"
            raise InputError(
                f"{subject} uses something of its own outside of the function that is no variable, such as an iterator or a "
                f"table ({user.type}); do that before the model, as by dataset.map(lambda x, y: (layer(x), y)), and "
                "build the model for what it gives"
            )
        return self.handles[id(outer)]


@dataclass
class _Copy:
    """One traced function that is being copied into the flat graph.

    Attributes:
        counterparts: the inputs' counterparts, by name.
        prefix: the prefix of the copies' names.
        n_samples: the number of samples in a batch, if that is known.
        writes: copies of the operations that update variables, those of called functions included.
        effects: what has an effect on the world, in program order, likewise.
        latest: by name of a variable's handle, the last of the operations that update it.
        updates: in a branch, by number of an application of an optimizer whether it is applied, and what each variable, by
            the name of its handle in the source, is updated by.
    """

    flattener: Flattener
    source: Any
    counterparts: dict[str, tf.Tensor]
    prefix: str
    n_samples: int | None = None
    writes: list[tf.Operation] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    latest: dict[str, tf.Operation] = field(default_factory=dict)
    updates: dict[int, tuple[tf.Tensor, dict[str, tf.Tensor]]] = field(default_factory=dict)
    _tensors: dict[str, tf.Tensor] = field(default_factory=dict)

    @cached_property
    def _returned(self) -> set[str]:
        return {tensor.name for tensor in self.source.outputs}

    def run(self) -> None:
        self._tensors.update(self.counterparts)
        for op in self.source.get_operations():
            if not (op.outputs and all(tensor.name in self.counterparts for tensor in op.outputs)):
                self._copy(op)

    def tensor(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the counterpart of a tensor of the source."""
        return self._tensors[handle_behind(tensor).name]

    @property
    def outputs(self) -> list[tf.Tensor]:
        """The counterparts of the source's results."""
        return [self.tensor(behind_controls(tensor)) for tensor in self.source.outputs]

    def _copy(self, op: tf.Operation) -> None:
        if has_only_an_effect(op, self._returned):
            inputs = [self.tensor(tensor) for tensor in op.inputs]
            if self.flattener.is_of_body or not is_check_of_text(op, inputs):
                self.effects.append(effect_of(op, inputs, self.flattener.tables))
            if op.type != "Assert" or self.flattener.is_of_body:
                return
        if op.type == "NoOp":
            return
        check_is_known(op, source_line(op))
        if op.type == "Placeholder" and GRADIENT_ATTRIBUTE not in op.node_def.attr:
            raise InputError(
                f"placeholder '{op.name}' ({source_line(op)}) is inside of the function; make it one of its arguments"
            )
        inputs = [self.tensor(tensor) for tensor in op.inputs]
        of_value = treatment_of(op.type) if self.flattener.is_of_body and inputs else None
        if of_value in (Treatment.READ, Treatment.WRITE):
            self._check_is_read_before_updated(op)
        if op.type == "Identity" and op.inputs[0].dtype == tf.resource:
            results = inputs
        elif of_value is Treatment.READ:
            results = [value_read(op.type, inputs[0], inputs[1:], op.node_def.attr)]
        elif of_value is Treatment.WRITE and UPDATE_ATTRIBUTE in op.node_def.attr:
            results = self._update(update_of(op), op.inputs[0], inputs[1], tf.constant(True))
        elif of_value is Treatment.WRITE:
            results = self._write(op.inputs[0], value_written(op.type, inputs[0], inputs[1:], op.node_def.attr))
        elif op.type in CALLS:
            results = self._inline(op, op.get_attr("f").name, inputs)
        elif op.type in CONDITIONALS and is_constant(inputs[0]):
            results = self._inline(op, taken_branch(op, inputs[0]), inputs[1:])
        elif op.type in CONDITIONALS:
            results = self._copy_branches(op, inputs)
        elif op.type in LOOPS:
            results = self._copy_loop(op, inputs)
        elif is_call_by_name(op):
            results = self._inline(op, op.type, inputs)
        elif op.type == "Empty":
            # Memory that isn't written yet may have any value; a constant, unlike this operator, is never split.
            results = [tf.zeros(inputs[0], op.outputs[0].dtype, name=self.prefix + op.name)]
        elif is_custom_gradient(op):
            results = copy_custom_gradient(op, inputs, self.tensor)
        else:
            results = self._copy_plain(op, inputs)
        for tensor, result in zip(op.outputs, results, strict=True):
            if tensor.dtype != tf.resource:  # inside of a loop its counterpart is a value
                result.set_shape(tensor.shape)
                result.set_shape(self._known_by_sample(tensor, result))
            self._tensors[tensor.name] = result

    def _known_by_sample(self, tensor: tf.Tensor, result: tf.Tensor) -> tf.TensorShape:
        """Return a result's shape: what leaves a layer that computes each sample by itself is led by the samples."""
        if result.shape.rank and result.shape[0] is None and result.shape[1:].is_fully_defined():
            scope = self.flattener.by_sample(self.prefix + tensor.op.name)
            users = [self.prefix + user.name for user in tensor.consumers()]
            if scope is not None and not all(user.startswith(f"{scope}/") for user in users):
                return tf.TensorShape([self.n_samples, *result.shape[1:]])
        return result.shape

    def _copy_plain(self, op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        graph, treatment = self.flattener.graph, treatment_of(op.type)
        in_order = inputs and treatment in (Treatment.READ, Treatment.WRITE)
        n_before = graph.version
        with graph.control_dependencies(self._last_write(inputs[0]) if in_order else None):
            new_op = graph._create_op_internal(
                op.type,
                list(inputs),
                [tensor.dtype for tensor in op.outputs],
                name=self.prefix + op.name,
                attrs={key: value for key, value in op.node_def.attr.items() if key != "_class"},
            )
        copies = graph.get_operations()[n_before:] if graph.version > n_before + 1 else [new_op]
        self.flattener.lines.update(dict.fromkeys((copy.name for copy in copies), source_line(op)))
        if op.type == "Assert":
            self.flattener.checks.append(new_op)
        if treatment is Treatment.WRITE:
            self._note_write(new_op)
        return list(new_op.outputs)

    # Variables

    def _last_write(self, handle: tf.Tensor) -> list[tf.Operation]:
        return [self.latest[handle.name]] if handle.name in self.latest else []

    def _note_write(self, write: tf.Operation) -> None:
        self.writes.append(write)
        self.latest[write.inputs[0].name] = write

    def _value(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return a tensor, or the value of a variable whose handle it is, as it is at this place of the program."""
        if tensor.dtype != tf.resource or tensor.name in self.flattener.tables:
            return tensor
        with self.flattener.graph.control_dependencies(self._last_write(tensor)):
            return tf.raw_ops.ReadVariableOp(resource=tensor, dtype=tensor.op.get_attr("dtype"))

    def _write(self, source: tf.Tensor, value: tf.Tensor) -> list[tf.Tensor]:
        """Assign to a variable, given by its handle in the source."""
        if self.flattener.is_of_body:
            self._tensors[handle_behind(source).name] = value
        else:
            handle = self.tensor(source)
            with self.flattener.graph.control_dependencies(self._last_write(handle)):
                self._note_write(tf.raw_ops.AssignVariableOp(resource=handle, value=value))
        return []

    def _update(self, number: int, source: tf.Tensor, gradient: tf.Tensor, condition: tf.Tensor) -> list[tf.Tensor]:
        """Emit what stands for an optimizer's update of a variable, where a condition holds."""
        if self.flattener.is_of_body:
            self.updates.setdefault(number, (condition, {}))[1][handle_behind(source).name] = gradient
            return []
        self._write(source, gradient)
        assignment = self.writes[-1]
        mark_update(assignment, number)
        self.flattener.conditions[assignment.name] = condition
        return []

    def _check_is_read_before_updated(self, op: tf.Operation) -> None:
        if any(handle_behind(op.inputs[0]).name in gradients for _, gradients in self.updates.values()):
            raise InputError(
                f"{op.type} '{op.name}' ({source_line(op)}) reads or assigns a variable in the branch of a condition in "
                "which an optimizer has updated it, which can't be captured; do it after the condition"
            )

    # Functions

    def _inline(self, op: tf.Operation, function: str, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        inner = self._inside(op, function, inputs)
        if self.flattener.is_of_body:
            operands = op.inputs[len(op.inputs) - len(inputs) :]
            handles = {own.name: tensor for own, tensor in zip(inner.source.inputs, operands, strict=True)}
            self._tensors.update((handle_behind(operands[k]).name, inner._at(k)) for k in written_in(inner.source).variables)
            for number, (condition, gradients) in inner.updates.items():
                for name, gradient in gradients.items():
                    self._update(number, handles[name], gradient, condition)
        return inner.outputs

    def _inside(self, op: tf.Operation, function: str, inputs: Sequence[tf.Tensor]) -> _Copy:
        graph = function_graph(op, function)
        counterparts = dict(zip((tensor.name for tensor in graph.inputs), inputs, strict=True))
        copy = _Copy(self.flattener, graph, counterparts, f"{self.prefix}{op.name}/", self.n_samples)
        copy.writes, copy.effects, copy.latest = self.writes, self.effects, self.latest
        copy.run()
        return copy

    def _at(self, position: int) -> tf.Tensor:
        """Return what an input's counterpart is after the source's last operator: for a variable, its value."""
        return self._tensors[self.source.inputs[position].name]

    def _copy_body(self, function: Any, inputs: Sequence[tf.Tensor]) -> _Copy:
        """Copy the body of a loop, or a branch, into the default graph, which is the one that TensorFlow builds for it."""
        flattener, graph = self.flattener, tf.compat.v1.get_default_graph()
        inside = Flattener(
            graph, flattener.layer_of, flattener.handles, flattener.lines, tables=flattener.tables, is_of_body=True
        )
        counterparts = dict(zip((tensor.name for tensor in function.inputs), inputs, strict=True))
        copy = _Copy(inside, function, counterparts, "")
        copy.run()
        return copy

    def _copy_loop(self, op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        cond, body = loop_functions(op)
        if written_in(cond).variables:
            raise InputError(
                f"{op.type} '{op.name}' ({source_line(op)}) updates a variable in the condition of a loop, which can't be "
                "captured; carry its value through the loop, and assign it afterwards"
            )
        written = sorted(written_in(body).variables)

        def copy_function(graph: Any, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            copy = self._copy_body(graph, values)
            if copy.effects:
                raise left_out(copy.effects[0].where, "a loop")
            return copy.outputs

        results = copy_while(op, list(map(self._value, inputs)), copy_function, written)
        for k in written:
            self._write(op.inputs[k], results[k])
        return [tensor if tensor.dtype == tf.resource else result for tensor, result in zip(inputs, results, strict=True)]

    def _copy_branches(self, op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        writes = list(map(written_in, branch_graphs(op)))
        written = sorted(set[int]().union(*(branch.variables for branch in writes)))
        updates = {number: at for branch in writes for number, at in branch.updates.items()}
        values = list(map(self._value, inputs))
        of_branches = [self._effects_of(graph, values[1:]) for graph in branch_graphs(op)]
        extras = [[tensor for effect in effects for tensor in effect.needed_in(graph)] for graph, effects in of_branches]

        def copy_branch(graph: Any, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            copy = self._copy_body(graph, values)
            results = [*copy.outputs, *map(copy._at, written)]
            for number, at in updates.items():
                condition, gradients = copy.updates.get(number, (tf.constant(False), {}))
                of_inputs = [gradients.get(graph.inputs[k].name) for k in at]
                results += [condition]
                results += [tf.zeros_like(values[k]) if g is None else g for k, g in zip(at, of_inputs, strict=True)]
            own = iter(t for effect in copy.effects for t in effect.needed_in(tf.compat.v1.get_default_graph()))
            for tensors, branch in zip(extras, branch_graphs(op), strict=True):
                results += [next(own) if branch is graph else tf.zeros(t.shape, t.dtype) for t in tensors]
            return results

        results = copy_conditional(op, values, copy_branch)
        more = iter(results[len(op.outputs) :])
        for k in written:
            self._write(op.inputs[1 + k], next(more))
        for number, at in updates.items():
            condition = next(more)
            for k in at:
                self._update(number, op.inputs[1 + k], next(more), condition)
        for branch, (graph, effects) in enumerate(of_branches):
            for effect in effects:
                needs = [next(more) if tensor.graph is graph else tensor for tensor in effect.needs]
                self.effects.append(effect.under(is_taken(op, values[0], branch), needs))
        return results[: len(op.outputs)]

    def _effects_of(self, function: Any, inputs: Sequence[tf.Tensor]) -> tuple[tf.Graph, list[Effect]]:
        """Return what has an effect in a branch, with the graph, of no use else, that has what it needs."""
        graph = FuncGraph("effects")
        if not has_effects(function):
            return graph, []
        with graph.as_default():
            return graph, self._copy_body(function, inputs).effects
