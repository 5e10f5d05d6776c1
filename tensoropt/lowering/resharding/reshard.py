"""Emit reshardings: a path of steps forward, and the path between the gradient layouts backward.

The backend's carrier emits paths that communicate. Other paths are made of TensorFlow's own operators.

The backward path is attached as a registered gradient of the callback or of an ``IdentityN``, and found by a number among
the reshardings of the graph that is being built; ``tf.custom_gradient`` would add an entry to a global registry with each
resharding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow as tf

from ...reschedule.layout import Shape, axes_text
from ...reschedule.mesh import Mesh
from ...reschedule.path import Path
from ...sharding.resharding import Resharding, Route
from ..operators import Values
from .buckets import Buckets
from .callbacks import Carrier, CollectiveRequest
from .local_steps import LocalSteps

GRADIENT_TYPE, NUMBER = "TensorOptResharding", "_tensoropt_resharding"
CALLBACK = "PyFunc"
"""The type of a callback's operator."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry of the log of collectives, which is equal on all ranks.

    Attributes:
        kind: the collective's kind, such as "all_reduce".
        axes: the mesh axes of its groups, as text.
        shape: the global shape of the tensor.
        dtype: TensorFlow's name of the type.
        operator: the operator that it is for.
        is_overlappable: whether only updates wait for it.
        together: the operators and shapes of the reshardings that share this collective; empty if it is for one alone.
            ``shape`` is then the number of elements of all shapes, and ``operator`` the first operator.
    """

    kind: str
    axes: str
    shape: Shape
    dtype: str
    operator: str
    is_overlappable: bool = False
    together: tuple[tuple[str, Shape], ...] = ()

    @property
    def parts(self) -> tuple[tuple[str, Shape], ...]:
        """Return the operator and the shape of each resharding that the collective is for."""
        return self.together or ((self.operator, self.shape),)

    def __str__(self) -> str:
        if self.together:
            return f"{self.kind}({self.axes}) of {len(self.together)} {self.dtype} for {self.operator} and others"
        return f"{self.kind}({self.axes}) of {self.dtype}{list(self.shape)} for {self.operator}"


class Backend(Protocol):
    """The ranks that this process builds, and what runs their paths: real collectives, or a simulation of all ranks."""

    @property
    def mesh(self) -> Mesh: ...

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that this process builds."""
        ...

    def carrier(self) -> Carrier:
        """Return a new carrier for one graph."""
        ...

    def watched(self, log: Sequence[Collective]) -> AbstractContextManager[None]:
        """Return a context to be entered while a function with these collectives runs."""
        ...


@dataclass
class Resharder:
    """An emitter of reshardings into the graph that is being built. It logs their collectives in order."""

    backend: Backend
    log: list[Collective] = field(default_factory=list)
    _carrier: Carrier = field(init=False)
    _local_steps: LocalSteps = field(default_factory=LocalSteps)
    _backward: list[Callable[[Values], Values]] = field(default_factory=list)
    _buckets: Buckets = field(init=False)

    def __post_init__(self) -> None:
        self._carrier = self.backend.carrier()
        self._buckets = Buckets(self._run_together)

    def reshard(
        self, resharding: Resharding, route: Route, values: Values, operator: str, is_overlappable: bool = False
    ) -> Values:
        """Return local values after a route's forward path; their gradients come back along its backward path.

        Args:
            operator: the operator that the resharding is for.
            is_overlappable: whether only updates wait for the gradients, or for the values where no gradient comes back.
        """
        if route.is_free:
            return values
        forward, backward = route.forward, route.backward
        if backward is None:
            return self._run(forward, values, resharding.reduction, operator, is_overlappable)

        def back(gradients: Values) -> Values:
            """Return the gradients after the backward path, which may be summed in a bucket."""
            if route.in_bucket and self._carrier.joins:
                return self._buckets.add(backward, gradients, operator)
            return self._run(backward, gradients, "sum", operator, is_overlappable)

        number = len(self._backward)
        self._backward.append(back)
        overridden = dict.fromkeys((CALLBACK, "IdentityN"), GRADIENT_TYPE)
        with tf.compat.v1.get_default_graph().gradient_override_map(overridden):
            results = self._run(forward, values, resharding.reduction, operator)
            if not forward.steps:
                results = tf.identity_n(values, name="resharding")
            elif results[0].op.type != CALLBACK:
                # The operands pass through the identity too, so that TensorFlow sees a way to them that isn't that of the
                # steps.
                results = tf.identity_n([*values, *results], name="resharding")[len(values) :]
        results[0].op._set_attr(NUMBER, tf.compat.v1.AttrValue(i=number))
        return list(results)

    def regather(self, path: Path, values: Values, operator: str, after: Values) -> Values:
        """Return local values after a path that is run once more, when the values ``after`` have been computed.

        Nothing is differentiated.
        """
        return self._run(path, values, "sum", operator, after=tuple(after))

    def on_gradient(self, values: Values, act: Callable[[Values], None]) -> Values:
        """Return the same values; ``act`` is called with their gradients before anything is emitted that uses these."""

        def passed(gradients: Values) -> Values:
            """Call ``act``, and return the gradients."""
            act(gradients)
            return gradients

        number = len(self._backward)
        self._backward.append(passed)
        with tf.compat.v1.get_default_graph().gradient_override_map({"IdentityN": GRADIENT_TYPE}):
            results = tf.identity_n(values, name="on_gradient")
        results[0].op._set_attr(NUMBER, tf.compat.v1.AttrValue(i=number))
        return list(results)

    def _run(
        self,
        path: Path,
        values: Values,
        reduction: str,
        operator: str,
        is_overlappable: bool = False,
        after: tuple[tf.Tensor, ...] = (),
    ) -> Values:
        """Emit a path and log its collectives; return the local values after it."""
        if not path.steps:
            return values
        if not path.communicates:
            with tf.control_dependencies(after):
                return [
                    self._local_steps.run(path, rank, value) for rank, value in zip(self.backend.ranks, values, strict=True)
                ]
        collectives = [
            Collective(step.kind, axes_text(step.group_axes), path.shape, values[0].dtype.name, operator, is_overlappable)
            for step in path.steps
            if step.communicates
        ]
        self.log += collectives
        request = CollectiveRequest(operator, ", then ".join(map(str, collectives)), reduction, is_overlappable, after)
        return self._carrier.carry(path, values, request)

    def _run_together(
        self, paths: Sequence[Path], values: Sequence[Values], operators: Sequence[str]
    ) -> list[Values]:
        """Emit the sums of gradients that only updates wait for, in one collective; return them by path."""
        if len(paths) == 1:
            return [self._run(paths[0], values[0], "sum", operators[0], is_overlappable=True)]
        (step,), parts = paths[0].steps, tuple((name, path.shape) for name, path in zip(operators, paths, strict=True))
        shape = (sum(math.prod(path.shape) for path in paths),)
        entry = Collective(
            step.kind, axes_text(step.group_axes), shape, values[0][0].dtype.name, operators[0], True, parts
        )
        self.log.append(entry)
        return self._carrier.carry_together(paths, values, CollectiveRequest(operators[0], str(entry), is_overlappable=True))

    def send_buckets(self) -> None:
        """Emit the sums of all gradients that wait in buckets; to be called when a backward pass has been emitted."""
        self._buckets.send_all()

    @contextmanager
    def building(self) -> Iterator[None]:
        """Return a context in which this object emits the gradients of the graph's reshardings; it is reset at the end."""
        _building.append(self)
        try:
            yield
        finally:
            _building.pop()
            self._backward.clear()
            self._local_steps = LocalSteps()
            self._carrier = self.backend.carrier()

    def gradient(self, number: int, gradients: Values) -> Values:
        """Return the gradients that come back through the resharding with this number."""
        return self._backward[number](gradients)


_building: list[Resharder] = []


def send_buckets() -> None:
    """Call :meth:`Resharder.send_buckets` of the resharder whose graph is being built."""
    _building[-1].send_buckets()


@tf.RegisterGradient(GRADIENT_TYPE)
def _resharding_gradient(op: tf.Operation, *gradients: Any) -> list[Any]:
    """Emit the backward path of the resharding whose number the operator has."""
    resharder = _building[-1]
    n_ranks, ahead = len(resharder.backend.ranks), 1 if op.type == CALLBACK else 0
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients[-n_ranks:]]
    found = resharder.gradient(op.get_attr(NUMBER), dense)
    return [*[None] * ahead, *found, *[None] * (len(op.inputs) - ahead - n_ranks)]
