"""Import a recorded ``tf.Graph`` into the intermediate representation.

Shape arithmetic and constants are folded: with a known batch every operator that depends on constants and shapes alone has a
value, which TensorFlow computes. Reads of variables and identities become aliases. Operators that only initialise variables
are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..common.source_lines import source_line
from ..ir.graph import ARGUMENTS, CONSTANT, LOADED, PLACEHOLDER, VARIABLE, Graph, Operator, Tensor, TrainStep
from ..rules.registry import static_positions
from .attributes import LOADED_ATTRIBUTE, SHAPE_READERS, attributes_of, reads_known_shapes, shape_values
from .control_flow.custom_gradients import import_custom_gradient
from .control_flow.value_shaped import Group, grouped, import_group
from .control_flow.while_loops import LIST_ITEM, LIST_MAKERS, LIST_STACK, import_loop
from .dilated_convolution import find_dilated
from .gradient_function import GradientFunction, is_custom_gradient
from .imported_gradients import ImportedGradients
from .recorded_graph import RecordedGradients, RecordedStep, conditions_of, known_shape, wanted_operators
from .stateful import check_is_plain
from .tracing.written import LOOPS
from .writes import ASSIGNMENTS

_READS = ("ReadVariableOp",)
_NOT_FOLDED = ("Placeholder", "PlaceholderWithDefault", "VarHandleOp", "NoOp", *LIST_MAKERS, *_READS, *ASSIGNMENTS)
# EnsureShape is an alias since every extent is known, so that the shape is ensured already.
_ALIASING = ("Identity", "Snapshot", "EnsureShape")


def import_graph(
    recorded: tf.Graph,
    steps: Iterable[RecordedStep],
    lines: Mapping[str, str] | None = None,
    targets: Iterable[tf.Operation] | None = None,
    gradients: Iterable[RecordedGradients] = (),
    fed: Iterable[tf.Tensor] = (),
) -> Graph:
    """Import everything that was recorded, except operators that only initialise variables.

    Args:
        lines: by name of an operator, the line of the user's code that made it, where its traceback doesn't tell.
        targets: import only the operators that these and the steps need.
        gradients: those that the model computes with.
        fed: tensors that are fed, so that what computes them isn't imported.

    Raises:
        InputError: a shape is not fully known, or an operator can't be captured.
    """
    roots = None if targets is None else tuple(targets)
    return _Importer(recorded, lines or {}, roots, {tensor.op.name for tensor in fed}).run(tuple(steps), tuple(gradients))


@dataclass
class _Importer:
    recorded: tf.Graph
    lines: Mapping[str, str] = field(default_factory=dict)
    targets: tuple[tf.Operation, ...] | None = None
    fed: set[str] = field(default_factory=set)
    operators: dict[str, Operator] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    static: set[str] = field(default_factory=set)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    _shapes: dict[str, np.ndarray] = field(default_factory=dict)
    steps: set[str] = field(default_factory=set)
    gradients: dict[str, GradientFunction] = field(default_factory=dict)
    _step_of: dict[str, str] = field(default_factory=dict)
    _reads: dict[tuple[str, ...], str] = field(default_factory=dict)
    _gradients: ImportedGradients = field(init=False)

    def run(self, steps: tuple[RecordedStep, ...], recorded_gradients: tuple[RecordedGradients, ...] = ()) -> Graph:
        trained = {name for step in steps for name in step.variables}
        self.steps = {step.op.name for step in steps}
        self._step_of = {op.name: step.op.name for step in steps for op in step.assigns}
        by_name = {gradients.name: gradients for gradients in recorded_gradients}
        roots = None if self.targets is None else (*self.targets, *(step.op for step in steps))
        ops, self.gradients = wanted_operators(self.recorded, roots, steps, recorded_gradients, self.fed)
        self._gradients = ImportedGradients(self.recorded, by_name, self.gradients, self.aliases, self.line)
        self._find_static(ops)
        targets = {op.name for op in self.targets or ()}
        self._fold(ops, targets)
        dilated = find_dilated((op for op in ops if op.name not in self.static), self.value, self.targets or ())
        inside = {op.name for triple in dilated.values() for op in (triple.batches, triple.convolution)}
        step_operands = (tensor.op for step in steps for tensor in (*step.gradients, *conditions_of([step])))
        for op in grouped(ops, self.static, self.fed, [*(self.targets or ()), *step_operands]):
            if isinstance(op, Group):
                self._add(import_group(op, self))
                continue
            if op.name in inside:
                continue
            if op.name in self.fed:
                self._import_fed(op)
            elif op.type == "VarHandleOp":
                self._import_variable(op, op.name in trained)
            elif op.type in _READS and not op.control_inputs:
                self.aliases[op.outputs[0].name] = op.inputs[0].name
            elif is_custom_gradient(op) and op.name not in self.static:
                self._import_composite(*import_custom_gradient(op, self.gradients[op.name], self))
            elif op.name in dilated:
                self._add(dilated[op.name].operator(self))
            elif op.type in LOOPS and op.name not in self.static:
                self._import_composite(*import_loop(op, self))
            elif op.type == LIST_STACK:
                self._import_stack(op)
            elif op.type == LIST_ITEM:
                self._import_item(op)
            elif op.type in _ALIASING and not op.control_inputs and op.name not in self.static:
                self.aliases[op.outputs[0].name] = self._canonical(op.inputs[0].name)
            elif op.name in self.static:
                for tensor in op.outputs:
                    # A constant that the user may fetch; a reader of shapes is left over from TensorFlow's checks.
                    if op.name in targets or (not tensor.consumers() and op.type not in SHAPE_READERS):
                        self._import_constant(tensor)
            elif op.name in self._gradients:
                self._add(self._gradients.operator(op, self.known(op.outputs[0])))
            elif op.type not in ("NoOp", *LIST_MAKERS) and op.name not in self._step_of:
                self._import_operator(op)
        imported = {step.op.name: self._import_step(step) for step in steps}
        differentiated = self._gradients.differentiated(steps, self.operators, self.tensors)
        gradients = self._gradients.imported(self.operand)
        return Graph(self.operators, imported, self.aliases, differentiated=differentiated, gradients=gradients)

    def _find_static(self, ops: list[tf.Operation]) -> None:
        for op in ops:
            if op.type in _NOT_FOLDED or op.name in self.fed or op.op_def.is_stateful or not op.outputs:
                continue
            if reads_known_shapes(op) or all(tensor.op.name in self.static for tensor in op.inputs):
                self.static.add(op.name)

    def _fold(self, ops: list[tf.Operation], targets: set[str]) -> None:
        """Have TensorFlow compute the static tensors that an operator which isn't static, or the user, reads."""
        tensors = [
            tensor
            for op in ops
            if op.name in self.static
            for tensor in op.outputs
            if op.name in targets
            or not tensor.consumers()
            or any(user.name not in self.static for user in tensor.consumers())
        ]
        if not tensors:
            return
        shapes = shape_values(op for op in ops if op.name in self.static)
        tensors = [tensor for tensor in tensors if tensor.name not in shapes]
        self.values.update(shapes)
        self._shapes = shapes
        with self._session() as session:
            for tensor, value in zip(tensors, session.run(tensors, feed_dict=shapes), strict=True):
                self.values[tensor.name] = np.asarray(value)

    def _session(self) -> tf.compat.v1.Session:
        """Return a session without TensorFlow's optimizer, which asks for the inputs of a ``ShapeN`` that is fed."""
        config = tf.compat.v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        return tf.compat.v1.Session(graph=self.recorded, config=config)

    def line(self, op: tf.Operation) -> str:
        """Return the line of the user's code that made an operator."""
        return self.lines[op.name] if op.name in self.lines else source_line(op)

    def _canonical(self, name: str) -> str:
        return self.aliases.get(name, name)

    def known(self, tensor: tf.Tensor) -> Tensor:
        """Return what a result becomes in the imported graph; raise InputError if its shape isn't known."""
        return Tensor(tensor.name, known_shape(tensor, self.line(tensor.op)), tensor.dtype.base_dtype.name)

    def _add(self, op: Operator) -> None:
        self.positions.setdefault(op.name, len(self.positions))
        self.operators[op.name] = op
        self.tensors.update({tensor.name: tensor for tensor in op.outputs})

    def _import_variable(self, op: tf.Operation, is_trained: bool) -> None:
        shape = tf.TensorShape(op.get_attr("shape"))
        if not shape.is_fully_defined():
            raise InputError(
                f"variable '{op.name}' ({self.line(op)}) has shape {shape}; every extent must be known: give its shape"
            )
        result = Tensor(op.outputs[0].name, tuple(shape.as_list()), op.get_attr("dtype").name)
        self._add(Operator(op.name, VARIABLE, (), (result,), attrs={"trainable": is_trained}, source=self.line(op)))

    def _import_fed(self, op: tf.Operation) -> None:
        """Import an operator's results as placeholders."""
        for tensor in op.outputs:
            if tensor.consumers() or len(op.outputs) == 1:
                name = op.name if len(op.outputs) == 1 else f"{op.name}:{tensor.value_index}"
                attributes = {LOADED: True} if LOADED_ATTRIBUTE in op.node_def.attr else {}
                self._add(Operator(name, PLACEHOLDER, (), (self.known(tensor),), {}, attributes, source=self.line(op)))

    def _import_constant(self, tensor: tf.Tensor) -> Tensor:
        """Return the result of a constant operator with the folded value, which is added when it is first asked for."""
        if tensor.name not in self.tensors:
            op = tensor.op
            name = op.name if len(op.outputs) == 1 else f"{op.name}:{tensor.value_index}"
            value = self.values[tensor.name]
            result = Tensor(tensor.name, value.shape, tensor.dtype.base_dtype.name)
            self._add(Operator(name, CONSTANT, (), (result,), statics={0: value}, source=self.line(op)))
        return self.tensors[tensor.name]

    def operand(self, tensor: tf.Tensor) -> Tensor:
        """Return a tensor's counterpart in the imported graph; for a variable's handle, the variable's value."""
        if tensor.op.name in self.static:
            return self._import_constant(tensor)
        return self.tensors[self._canonical(tensor.name)]

    def _import_operator(self, op: tf.Operation) -> None:
        check_is_plain(op, self.line(op))
        if op.type in ASSIGNMENTS or (op.type in _READS and op.control_inputs):
            self._import_update(op)
            return
        if op.type == "ResourceGather" and not op.control_inputs:
            # The lookup that tf.gather makes in a variable is a lookup in its value, like any other.
            self._add_lookup(op, self.tensors[op.inputs[0].name], self.known(op.outputs[0]), op.get_attr("batch_dims"))
            return
        inputs: list[Tensor | None] = []
        statics = {}
        steered = static_positions(op.type, len(op.inputs))
        for index, tensor in enumerate(op.inputs):
            if tensor.op.name in self.static and index in steered:
                inputs.append(None)
                statics[index] = self.values[tensor.name]
            elif tensor.dtype == tf.resource:
                raise InputError(
                    f"{op.type} '{op.name}' ({self.line(op)}) works on a variable in place, which can't be recorded; "
                    "expected assign, assign_add or assign_sub, or an optimizer of tensoropt"
                )
            elif tensor.dtype == tf.variant:
                raise InputError(
                    f"{op.type} '{op.name}' ({self.line(op)}) works on a TensorArray outside of a loop, which can't be "
                    "recorded; expected unstack before the loop and stack after it, and nothing else"
                )
            else:
                inputs.append(self.operand(tensor))
        outputs = tuple(map(self.known, op.outputs))
        kind = PLACEHOLDER if op.type == "Placeholder" else op.type
        self._add(
            Operator(
                name=op.name, type=kind, inputs=tuple(inputs), outputs=outputs, statics=statics, attrs=attributes_of(op),
                controls=self._controls(op), source=self.line(op),
            )
        )

    def _import_composite(self, operator: Operator, left_out: Mapping[str, Tensor]) -> None:
        self._add(operator)
        self.aliases.update({name: tensor.name for name, tensor in left_out.items()})

    def _import_stack(self, op: tf.Operation) -> None:
        """Import the stack of a list that a loop filled: it is a result of the imported loop."""
        name = self._canonical(op.inputs[0].name)
        if name not in self.tensors:
            raise InputError(
                f"{op.type} '{op.name}' ({self.line(op)}) stacks a TensorArray that no loop filled; use tf.stack"
            )
        self.aliases[op.outputs[0].name] = name

    def value(self, tensor: tf.Tensor) -> np.ndarray | None:
        """Return the value of a tensor that follows from constants and shapes alone, else None."""
        if tensor.op.name not in self.static:
            return None
        if tensor.name not in self.values:
            with self._session() as session:
                self.values[tensor.name] = np.asarray(session.run(tensor, feed_dict=self._shapes))
        return self.values[tensor.name]

    def constant(self, name: str, value: np.ndarray) -> Tensor:
        """Add a constant operator and return its result."""
        tensor = Tensor(f"{name}:0", value.shape, value.dtype.name)
        self._add(Operator(name, CONSTANT, (), (tensor,), statics={0: value}))
        return tensor

    def import_body(self, graph: tf.Graph, outputs: Sequence[tf.Operation], lines: Mapping[str, str]) -> Graph:
        return import_graph(graph, (), lines, outputs)

    def _import_item(self, op: tf.Operation) -> None:
        """Import one element of a list, outside of a loop: a lookup in the tensor that the list was made from."""
        maker = op.inputs[0].op
        stack = self.tensors.get(self._canonical(op.inputs[0].name))
        if maker.type == "TensorListFromTensor":
            stack = self.operand(maker.inputs[0])
        if stack is None:
            raise InputError(
                f"{op.type} '{op.name}' ({self.line(op)}) reads from a TensorArray that no loop filled; use the value itself"
            )
        self._add_lookup(op, stack, Tensor(op.outputs[0].name, stack.shape[1:], stack.dtype), 0)

    def _add_lookup(self, op: tf.Operation, table: Tensor, result: Tensor, axis: int) -> None:
        inputs = (table, self.operand(op.inputs[1]), None)
        attributes = {"batch_dims": axis, ARGUMENTS: (("params", None), ("indices", None), ("axis", None))}
        statics = {2: np.asarray(axis, np.int32)}
        self._add(Operator(op.name, "GatherV2", inputs, (result,), statics, attributes, source=self.line(op)))

    def _import_update(self, op: tf.Operation) -> None:
        """Import an assignment, or a read that must come after one."""
        value = tuple(self.operand(tensor) for tensor in op.inputs[1:])
        outputs = tuple(map(self.known, op.outputs))
        variable, controls = op.inputs[0].op.name, self._controls(op)
        same = (variable, *controls)
        if op.type in _READS and same in self._reads:
            self.aliases[op.outputs[0].name] = self._reads[same]
            return
        if op.type in _READS:
            self._reads[same] = op.outputs[0].name
        self._add(Operator(op.name, op.type, value, outputs, {}, {}, variable, controls, self.line(op)))

    def _controls(self, op: tf.Operation) -> tuple[str, ...]:
        """Return the imported operators that an operator was told to wait for, in the order in which they were imported.

        An operator that only groups others is replaced by them.
        """
        names: dict[str, None] = {}
        of_steps: dict[str, None] = {}
        pending = list(op.control_inputs)
        while pending:
            control = pending.pop()
            if control.name in self._step_of or control.name in self.steps:
                of_steps[self._step_of.get(control.name, control.name)] = None
            elif control.name in self.operators:
                names[control.name] = None
            elif control.type == "NoOp":
                pending += control.control_inputs
            else:
                # An alias stands for the operator behind it; nobody needs to wait for a constant.
                names_behind = [self.aliases[tensor.name] for tensor in control.outputs if tensor.name in self.aliases]
                behind = [self.recorded.get_tensor_by_name(name).op for name in names_behind]
                pending += [op for op in behind if op.name in self.operators]
        return (*sorted(names, key=self.positions.__getitem__), *of_steps)

    def _import_step(self, step: RecordedStep) -> TrainStep:
        return TrainStep(
            step.op.name,
            None if step.loss is None else self.operand(step.loss),
            step.variables,
            step.optimizer.imported(self.operand),
            step.step_counter,
            self._controls(step.op),
            tuple(map(self.operand, step.gradients)),
            step.of,
        )
