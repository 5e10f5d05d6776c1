"""Import operators of which values decide what they do: the shapes of ``tf.boolean_mask``'s results, a ``tf.cond``'s branch.

A plan is made for known shapes. So all operators between which tensors of other shapes pass become one operator, whose
operands and results have known shapes. So does a conditional by itself. Such an operator runs replicated, on every rank with
all that it works on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ...common.errors import InputError
from ...ir.body import BODY, VALUE_SHAPED, Definition
from ...ir.graph import Operator, Tensor
from ..gradient_function import is_custom_gradient
from ..stateful import Treatment, treatment_of
from ..tracing.called import function_graph
from ..tracing.conditionals import CONDITIONALS
from ..tracing.written import LOOPS
from .body_builder import Collector, OuterImporter

_LEFT_OUT = ("Assert", "Print", "PrintV2")
_HANDLES = (tf.resource, tf.variant)
_SOURCES = ("Placeholder", "Const")
# They may have unknown shapes before they are imported: a loop's results are known from its body's.
_NEVER_FIRST = (*LOOPS, "Placeholder", "PlaceholderWithDefault", "FusedBatchNormV3", "TensorListStack", "TensorListGetItem")


@dataclass(frozen=True, eq=False)
class Group:
    """Operators that run as one.

    Attributes:
        operators: in order of creation.
        results: the tensors that other operators, or the user, take.
    """

    operators: tuple[tf.Operation, ...]
    results: tuple[tf.Tensor, ...]

    @property
    def inputs(self) -> list[tf.Tensor]:
        """The tensors from outside, each once. Lists, which can't pass, are taken with what makes them."""
        inside = {op.name for op in self.operators}
        inputs: dict[str, tf.Tensor] = {}
        pending = [tensor for op in self.operators for tensor in op.inputs]
        while pending:
            tensor = pending.pop()
            if tensor.dtype == tf.variant:
                if tensor.op.name not in inside:
                    inside.add(tensor.op.name)
                    pending += tensor.op.inputs
            elif tensor.op.name not in inside:
                inputs[tensor.name] = tensor
        return sorted(inputs.values(), key=lambda tensor: tensor.name)


def grouped(
    ops: Sequence[tf.Operation], static: Collection[str], fed: Collection[str], targets: Iterable[tf.Operation]
) -> list[tf.Operation | Group]:
    """Return operators in an order in which each follows what it needs, with groups in place of their operators.

    Args:
        ops: the operators to import, in order of creation.
        static: the names of those that follow from constants and shapes alone.
        fed: the names of those whose results are fed.
        targets: the operators whose results the user takes.
    """
    members = _members([op for op in ops if op.name not in static and op.name not in fed])
    if not members:
        return list(ops)
    ends = {tensor.name for op in targets for tensor in op.outputs}
    of: dict[str, Group] = {}
    for names in members:
        inside = tuple(op for op in ops if op.name in names)
        users = {tensor.name for op in ops if op.name not in names for tensor in op.inputs}
        results = tuple(tensor for op in inside for tensor in op.outputs if tensor.name in users | ends)
        of.update(dict.fromkeys(names, Group(inside, results)))
    return _in_order(ops, of)


def _members(ops: Sequence[tf.Operation]) -> list[set[str]]:
    """Return the names of each group's operators."""
    groups: dict[str, set[str]] = {}
    opened: set[str] = set()
    for op in ops:
        joined = [tensor.op.name for tensor in op.inputs if tensor.name in opened]
        begins = op.type not in _NEVER_FIRST and treatment_of(op.type) in (None, Treatment.READ)
        opens = begins and any(map(_is_open, op.outputs)) and not any(map(_is_open, op.inputs))
        if joined or opens or op.type in CONDITIONALS:
            group = {op.name}.union(*(groups[name] for name in joined))
            groups.update(dict.fromkeys(group, group))
            opened.update(tensor.name for tensor in op.outputs if _is_open(tensor) or tensor.dtype == tf.variant)
    return _closed(ops, list({id(group): group for group in groups.values()}.values()))


def _closed(ops: Sequence[tf.Operation], groups: list[set[str]]) -> list[set[str]]:
    """Add to each group what lies between its operators, and join groups that meet so."""
    for group in groups:
        behind, before = set(group), set(group)
        for op in ops:
            if any(tensor.op.name in behind for tensor in op.inputs):
                behind.add(op.name)
        for op in reversed(ops):
            if op.name in before:
                before.update(tensor.op.name for tensor in op.inputs)
        between = (behind & before) - group
        if between:
            meeting = [other for other in groups if other is group or other & between]
            rest = [other for other in groups if not any(other is one for one in meeting)]
            return _closed(ops, [*rest, between.union(*meeting)])
    return groups


def _is_open(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in _HANDLES and not tensor.shape.is_fully_defined()


def _in_order(ops: Sequence[tf.Operation], of: dict[str, Group]) -> list[tf.Operation | Group]:
    """Return operators and groups in topological order, and else in order of creation."""
    import networkx as nx  # type: ignore[import-untyped,unused-ignore]  # here, since loading it takes .2 s

    nodes = {op.name: of.get(op.name, op) for op in ops}
    place: dict[tf.Operation | Group, int] = {}
    graph = nx.DiGraph()
    for op in ops:
        node = nodes[op.name]
        place.setdefault(node, len(place))
        graph.add_node(node)
        sources = (*(tensor.op for tensor in op.inputs), *op.control_inputs)
        before = [nodes[source.name] for source in sources if source.name in nodes]
        graph.add_edges_from((earlier, node) for earlier in before if earlier is not node)
    return list(nx.lexicographical_topological_sort(graph, place.__getitem__))


def import_group(group: Group, outside: OuterImporter) -> Operator:
    """Return the operator that stands for a group; raise InputError if an operator or a result's shape can't be in one."""
    first = group.operators[0]
    for op in group.operators:
        if _does_more(op) or not op.outputs:
            raise InputError(
                f"{op.type} '{op.name}' ({outside.line(op)}) depends on values, in its shape or its branch, by {first.type} "
                f"'{first.name}' ({outside.line(first)}), and updates variables, draws random numbers or has a gradient of "
                "its own, which can't be captured; keep all elements there, and choose by tf.where(c, x, y) or a mask"
            )
    collector = Collector(outside, first.name)
    placeholders: dict[Tensor, tf.Tensor] = {}
    for tensor in group.inputs:
        value = outside.value(tensor)
        if value is not None:
            collector.copies[tensor.name] = collector.constant(value, tensor.dtype)
            continue
        operand = outside.operand(tensor)
        if operand not in placeholders:
            placeholders[operand] = collector.input(operand.shape, operand.dtype)
        collector.copies[tensor.name] = placeholders[operand]
    results = tuple(outside.known(tensor) for tensor in group.results)
    outputs = collector.copy(group.results)
    operands = tuple(placeholders)
    most = max((math.prod(operand.shape) for operand in operands), default=1)
    longest = max((extent for operand in operands for extent in operand.shape), default=1)
    definition = Definition(
        _named_by_content(collector.graph.as_graph_def()).SerializeToString(deterministic=True),
        tuple(tensor.name for tensor in placeholders.values()),
        tuple(tensor.name for tensor in outputs),
        _most_inside(group.operators, most)[0],
        *_most_inside(group.operators, longest),
    )
    return Operator(first.name, VALUE_SHAPED, operands, results, {}, {BODY: definition}, source=outside.line(first))


def _most_inside(ops: Iterable[tf.Operation], bound: int) -> tuple[int, int]:
    """Return the most bytes that operators make, and the most flops that they do: of a conditional, in any of its branches.
    """
    n_bytes = flops = 0
    for op in ops:
        if op.type in CONDITIONALS:
            functions = (function_graph(op, reference.name) for reference in _references(op.node_def))
            branches = [_most_inside(function.get_operations(), bound) for function in functions]
            n_bytes, flops = n_bytes + max(branch[0] for branch in branches), flops + max(branch[1] for branch in branches)
        for tensor in op.outputs if op.type not in _SOURCES else ():
            if tensor.dtype not in _HANDLES and tensor.shape.rank is not None:
                n_elements = _n_elements(tensor, bound)
                n_bytes += n_elements * tensor.dtype.size
                flops += n_elements * (2 * _n_summed(op, bound) if tensor.dtype.is_floating else 1)
    return n_bytes, flops


def _n_summed(op: tf.Operation, bound: int) -> int:
    """Return how many products an operator adds up for an element of its result."""
    if op.type.startswith(("Conv2D", "Conv3D")):
        return _n_elements(op.inputs[1], bound) // (op.inputs[1].shape[-1] or 1)
    if "MatMul" not in op.type or not op.inputs[0].shape.rank:
        return 1
    is_transposed = any(name in op.node_def.attr and op.get_attr(name) for name in ("transpose_a", "adj_x"))
    return op.inputs[0].shape[-2 if is_transposed else -1] or bound


def _n_elements(tensor: tf.Tensor, bound: int) -> int:
    return math.prod(bound if extent is None else extent for extent in tensor.shape)


def _does_more(op: tf.Operation) -> bool:
    """Return whether an operator, or one in its branches or its body, does something else than compute with its inputs."""
    functions = [function_graph(op, reference.name) for reference in _references(op.node_def)]
    if functions:
        return any(_does_more(inner) for function in functions for inner in function.get_operations())
    return is_custom_gradient(op) or (treatment_of(op.type) not in (None, Treatment.READ) and op.type not in _LEFT_OUT)


def _named_by_content(graph: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Return a graph definition whose functions (branches, bodies of loops) have names that follow from what it computes.

    TensorFlow numbers functions by what was made before. All ranks must have the same names, and other functions others.
    """
    functions = {function.signature.name: function for function in graph.library.function}
    order: dict[str, int] = {}

    def visit(nodes: Iterable[Any]) -> None:
        for reference in (reference for node in nodes for reference in _references(node)):
            if reference.name in functions and reference.name not in order:
                order[reference.name] = len(order)
                visit(functions[reference.name].node_def)

    visit(graph.node)
    digest = hashlib.sha256(_renamed(graph, functions, order, "").SerializeToString(deterministic=True)).hexdigest()[:16]
    return _renamed(graph, functions, order, digest)


def _renamed(
    graph: tf.compat.v1.GraphDef, functions: Mapping[str, Any], order: Mapping[str, int], digest: str
) -> tf.compat.v1.GraphDef:
    definition = tf.compat.v1.GraphDef(node=graph.node, versions=graph.versions)
    definition.library.function.extend(functions[name] for name in order)
    for function in definition.library.function:
        function.signature.name = f"tensoropt_{digest}_{order[function.signature.name]}"
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    for reference in (reference for node in nodes for reference in _references(node)):
        if reference.name in order:
            reference.name = f"tensoropt_{digest}_{order[reference.name]}"
    for node in nodes:
        node.ClearField("experimental_debug_info")
    return definition


def _references(node: Any) -> list[Any]:
    """Return the references to functions among a node's attributes."""
    return [reference for _, attribute in sorted(node.attr.items()) for reference in _functions(attribute)]


def _functions(attribute: Any) -> list[Any]:
    return [attribute.func] if attribute.HasField("func") else list(attribute.list.func)
