"""Emit reshardings: a path of steps forward, and the path between the gradient layouts backward.

The backend's emitter emits paths that communicate. Other paths are made of TensorFlow's own operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy.typing as npt
import tensorflow as tf

from ...reschedule.layout import Shape, axes_text
from ...reschedule.mesh import Mesh
from ...reschedule.path import Path
from ...reschedule.summing import Array
from ...sharding.resharding import Resharding, ReshardingPaths
from ..operators import Values
from .local_steps import LocalSteps
from .path_callbacks import CollectiveRequest, PathEmitter


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry of the log of collectives, which is equal on all ranks.

    Attributes:
        kind: the collective's kind, such as "all_reduce".
        axes: the mesh axes of its groups, as text.
        shape: the global shape of the tensor.
        dtype: TensorFlow's name of the type.
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

    def emitter(self) -> PathEmitter:
        """Return a new emitter for one graph."""

    def empty(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Return an uninitialised array for a message between stages."""

    def watched(self, log: Sequence[Collective]) -> AbstractContextManager[None]:
        """Return a context to be entered while a function with these collectives runs."""


@dataclass
class Resharder:
    """An emitter of reshardings into the graph that is being built. It logs their collectives in order."""

    backend: Backend
    log: list[Collective] = field(default_factory=list)
    emitter: PathEmitter = field(init=False)
    _local_steps: LocalSteps = field(default_factory=LocalSteps)

    def __post_init__(self) -> None:
        self.emitter = self.backend.emitter()

    def reshard(
        self, resharding: Resharding, paths: ReshardingPaths, values: Values, operator: str, is_overlappable: bool = False
    ) -> Values:
        """Return local values after the forward path of a resharding.

        Args:
            is_overlappable: whether only updates wait for the values.
        """
        return self.run(paths.forward, values, operator, is_overlappable, resharding.reduction)

    @property
    def joins(self) -> bool:
        """Return whether several gradients can be summed in one collective."""
        return self.emitter.joins

    def run(
        self,
        path: Path,
        values: Values,
        operator: str,
        is_overlappable: bool = False,
        reduction: str = "sum",
        after: Sequence[tf.Tensor] = (),
    ) -> Values:
        """Emit a path and log its collectives; return the local values after it.

        Args:
            operator, is_overlappable: see :meth:`reshard`.
            after: values that must have been computed before.
        """
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
        text = ", then ".join(map(str, collectives))
        return self.emitter.emit(path, values, CollectiveRequest(operator, text, reduction, is_overlappable, tuple(after)))

    def send_back_together(self, paths: Sequence[Path], values: Sequence[Values], operators: Sequence[str]) -> list[Values]:
        """Return, by path, the sums over devices of gradients that only updates wait for, in one collective."""
        (step,), parts = paths[0].steps, tuple((name, path.shape) for name, path in zip(operators, paths, strict=True))
        shape = (sum(math.prod(path.shape) for path in paths),)
        entry = Collective(step.kind, axes_text(step.group_axes), shape, values[0][0].dtype.name, operators[0], True, parts)
        self.log.append(entry)
        return self.emitter.emit_together(paths, values, CollectiveRequest(operators[0], str(entry), is_overlappable=True))

    @contextmanager
    def building(self) -> Iterator[None]:
        """Return a context in which a graph is built; what belongs to that graph is forgotten at the end."""
        try:
            yield
        finally:
            self._local_steps = LocalSteps()
            self.emitter = self.backend.emitter()
