"""Record what a traced training step does with gradients: of which loss, with respect to what, and what they update.

While a step is traced, :meth:`StepGradients.watching` stands in for two calls. ``GradientTape.gradient`` returns
placeholders, so that TensorFlow derives the gradients later, from each rank's local graph. ``apply`` of an optimizer
becomes an assignment of the gradient to the variable, marked as the optimizer's: so reads that come after the update wait
for it, as TensorFlow orders them. Gradients that are no gradients of variables (a penalty on those of inputs, say), or that
another tape differentiates again, are TensorFlow's own operators, and part of the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.ops.control_flow_v2_func_graphs import CondBranchFuncGraph

from ...common.errors import InputError
from ...common.gradient_types import carries_gradient
from ...common.source_lines import running_line
from ..connected import differentiated
from ..gradient_placeholders import Gradient, LossGradients, assign_gradients, pending_on, placeholders, variable_of


@dataclass(frozen=True, eq=False)
class Applied:
    """A call of an optimizer's ``apply``.

    Attributes:
        variables: the variables that are updated, as the optimizer was given them.
        line: the line of the user's code.
    """

    optimizer: Any
    variables: tuple[Any, ...]
    line: str


@dataclass(eq=False)
class StepGradients:
    """The gradients that one trace of a training step takes and applies.

    Attributes:
        taken: the gradients that were taken, in order.
        applied: the applications of optimizers, in order.
        scaled: the ids of the optimizers that were asked to scale the loss.
    """

    taken: list[LossGradients] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    scaled: set[int] = field(default_factory=set)
    _graph: Any = None
    _tapes: list[tuple[Any, list[list[int]]]] = field(default_factory=list)

    @contextmanager
    def watching(self, replaced: Sequence[tuple[type, str, Callable[..., Any]]] = ()) -> Iterator[None]:
        """Return a context in which the step is traced. It is entered inside of the traced function.

        Args:
            replaced: triples of a class, the name of its method, and what stands in for the method.
        """
        self._graph = tf.compat.v1.get_default_graph()
        tape = tf.GradientTape
        with ExitStack() as entered:
            for kind, name, function in (
                *replaced,
                (tape, "_push_tape", self._pushing(tape._push_tape)),
                (tape, "_pop_tape", self._popping(tape._pop_tape)),
                (tape, "gradient", self._taking(tape.gradient)),
            ):
                entered.enter_context(mock.patch.object(kind, name, function))
            yield

    @property
    def is_inside(self) -> bool:
        """Return whether the default graph is that of a loop, a condition or a function inside of the step."""
        return tf.compat.v1.get_default_graph() is not self._graph

    # Tapes

    def _pushing(self, push: Callable[[Any], None]) -> Callable[[Any], None]:
        def pushed(tape: Any) -> None:
            push(tape)
            self._spans(tape).append([len(self._graph.get_operations())])

        return pushed

    def _popping(self, pop: Callable[[Any], None]) -> Callable[[Any], None]:
        def popped(tape: Any) -> None:
            pop(tape)
            spans = self._spans(tape)
            if spans and len(spans[-1]) == 1:
                spans[-1].append(len(self._graph.get_operations()))

        return popped

    def _spans(self, tape: Any) -> list[list[int]]:
        """Return the spans of the graph's operators that a tape has recorded; the last one has no end while it records."""
        tape_spans = next((spans for other, spans in self._tapes if other is tape), None)
        if tape_spans is None:
            tape_spans = []
            self._tapes.append((tape, tape_spans))
        return tape_spans

    def _taking(self, gradient: Callable[..., Any]) -> Callable[..., Any]:
        def take(
            tape: Any, target: Any, sources: Any, output_gradients: Any = None, unconnected_gradients: Any = "none"
        ) -> Any:
            gradients = None
            if tape._recording and not tape._persistent:
                tape._pop_tape()
            if output_gradients is None and not self.is_inside and not tape._recording:
                gradients = self._placeholders(tape, target, sources)
            if gradients is None:
                return gradient(tape, target, sources, output_gradients, tf.UnconnectedGradients(unconnected_gradients))
            if not tape._persistent:
                tape._tape = None  # as TensorFlow has it: a second call is an error
            if tf.UnconnectedGradients(unconnected_gradients) == tf.UnconnectedGradients.ZERO:
                flat = zip(gradients, tf.nest.flatten(sources), strict=True)
                gradients = [tf.zeros(source.shape, source.dtype) if one is None else one for one, source in flat]
            return tf.nest.pack_sequence_as(sources, gradients)

        return take

    def _placeholders(self, tape: Any, target: Any, sources: Any) -> list[Gradient] | None:
        """Return placeholders of the gradients; None where TensorFlow's own gradients are to be part of the forward pass."""
        variables = [variable_of(source) for source in tf.nest.flatten(sources)]
        ends = tf.nest.flatten(target)
        others_record = any(len(span) == 1 for other, spans in self._tapes for span in spans if other is not tape)
        if (
            tape._tape is None
            or others_record
            or not tape._watch_accessed_variables
            or not all(isinstance(end, tf.Tensor) and carries_gradient(end.dtype) for end in ends)
            or any(v is None or not v.trainable or not carries_gradient(v.dtype) for v in variables)
            or any(pending_on(end.op) is not None for end in ends)
        ):
            return None
        inner = {id(outer): placeholder for outer, placeholder in self._graph.captures}
        handles = [inner.get(id(variable.handle)) for variable in variables]  # type: ignore[union-attr]
        with tf.control_dependencies(None):
            loss = ends[0] if len(ends) == 1 and ends[0].shape.rank == 0 else tf.add_n([tf.reduce_sum(e) for e in ends])
        used = [handle.op.name for handle in handles if handle is not None]
        reach = differentiated(loss, used)
        if not self._recorded_all(tape, [*reach.operands], {*used, loss.op.name}):
            return None
        gradients = placeholders(loss, variables, handles, reach)
        self.taken.append(gradients)
        return gradients.gradients_of(variables)

    def _recorded_all(self, tape: Any, names: Sequence[str], but: set[str]) -> bool:
        """Return whether a tape recorded all these operators: otherwise gradients don't pass where operators depend."""
        place = {op.name: i for i, op in enumerate(self._graph.get_operations())}
        spans = [span for span in self._spans(tape) if len(span) == 2]
        return all(any(start <= place[name] < end for start, end in spans) for name in names if name not in but)

    # Optimizers

    def apply(self, optimizer: Any, pairs: Sequence[tuple[tf.Tensor | tf.IndexedSlices, Any]]) -> None:
        """Record an update by pairs of a gradient and a variable; raise InputError in a loop, or for computed rows."""
        line = running_line()
        graph = tf.compat.v1.get_default_graph()
        while isinstance(graph, CondBranchFuncGraph) and graph is not self._graph:
            graph = graph.outer_graph
        if graph is not self._graph:
            raise InputError(
                f"{type(optimizer).__name__} is applied inside of a loop or a tf.function ({line}), which can't be "
                "captured; expected it in the step itself, or in a branch of a condition: write loops in Python"
            )
        assign_gradients(pairs, self.taken, len(self.applied), line)
        self.applied.append(Applied(optimizer, tuple(variable for _, variable in pairs), line))
