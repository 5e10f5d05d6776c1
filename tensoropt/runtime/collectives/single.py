"""The communicator of one device, which needs no MPI: every group is the device alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy.typing as npt

from ...reschedule.layout import Axes, Shape
from .receive_buffers import OwnMemory

Array = npt.NDArray[Any]


class SingleCommunicator(OwnMemory):
    """A :class:`~tensoropt.reschedule.communicator.Communicator` whose groups have one member."""

    def prepare(self, axes_list: Iterable[Axes]) -> None:
        """Do nothing: there are no groups to form."""

    def all_gather(self, axes: Axes, send: Array, recv_shapes: Sequence[Shape], out: Array | None = None) -> list[Array]:
        return [self._copy(send, recv_shapes[0], out)]

    def all_to_all(
        self,
        axes: Axes,
        sends: Sequence[Array],
        recv_shapes: Sequence[Shape],
        out: Array | None = None,
        joined: Array | None = None,
    ) -> list[Array]:
        return [self._copy(sends[0], recv_shapes[0], out)]

    def reduce_scatter(self, axes: Axes, sends: Sequence[Array], own_shape: Shape, joined: Array | None = None) -> Array:
        return self._copy(sends[0], own_shape)

    def all_reduce(self, axes: Axes, array: Array, op: str = "sum") -> Array:
        return self._copy(array, array.shape)

    def _copy(self, array: Array, shape: Shape, out: Array | None = None) -> Array:
        result = self.empty(shape, array.dtype) if out is None else out.reshape(shape)
        result[...] = array.reshape(shape)
        return result
