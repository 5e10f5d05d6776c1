"""States for tests: logical variables with known values, cut into pieces by given or random layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tensoropt.lowering.variables import StateEntry
from tensoropt.reschedule.layout import Layout, Shape
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.ranks import Processes

ALONE = Processes(0, 1, ("here",))
TYPES = "float32 float64 bfloat16 float16 int8 int32 int64 uint8 uint32 bool".split()


@dataclass(frozen=True)
class Logical:
    """A whole variable; its values follow from the key."""

    key: str
    shape: Shape
    dtype: str = "float32"
    step: str | None = None

    @property
    def value(self) -> np.ndarray:
        rng = np.random.default_rng(list(self.key.encode()))
        dtype = tf.as_dtype(self.dtype)
        drawn = rng.normal(size=self.shape) if dtype.is_floating else rng.integers(0, 100, self.shape)
        return np.asarray(drawn).astype(dtype.as_numpy_dtype)


def entry(logical: Logical, layout: Layout, ranks: Sequence[int], value: np.ndarray) -> StateEntry:
    """The pieces that these ranks hold of a whole value."""
    shards = []
    for rank in ranks:
        cut = tuple(slice(start, end) for start, end in layout.bounds(logical.shape, rank))
        shards.append(tf.Variable(value[cut], dtype=logical.dtype, shape=tf.TensorShape(None)))
    return StateEntry(logical.key, logical.shape, logical.dtype, layout, tuple(shards), tuple(ranks), None, logical.step)


def entries(
    logicals: Sequence[Logical], layouts: Mapping[str, Layout], ranks: Sequence[int], zero: bool = False
) -> list[StateEntry]:
    """A state of these variables, with their values or with zeros."""
    return [
        entry(logical, layouts[logical.key], ranks, np.zeros_like(logical.value) if zero else logical.value)
        for logical in logicals
    ]


def replicated(logicals: Sequence[Logical], mesh: Mesh) -> dict[str, Layout]:
    return {logical.key: Layout.replicated(mesh, len(logical.shape)) for logical in logicals}


def layout_by_seed(mesh: Mesh, n_dims: int, seed: int) -> Layout:
    """Each axis splits a dimension or none; drawn alike by all ranks."""
    splits: list[list[int]] = [[] for _ in range(n_dims)]
    for axis in np.random.default_rng(seed).permutation(len(mesh.axes)):
        seed, dim = divmod(seed, n_dims + 1)
        if dim < n_dims:
            splits[dim].append(int(axis))
    return Layout(mesh, tuple(tuple(split) for split in splits))


def assert_values(logicals: Sequence[Logical], state: Sequence[StateEntry], ranks: Sequence[int]) -> None:
    """Assert that every shard has the bits of its slice of the global value."""
    for logical, held in zip(logicals, state, strict=True):
        for rank, variable in zip(ranks, held.variables, strict=True):
            cut = tuple(slice(start, end) for start, end in held.layout.bounds(logical.shape, rank))
            expected = logical.value[cut]
            assert variable.numpy().shape == expected.shape
            assert variable.numpy().tobytes() == expected.tobytes(), f"{logical.key} on rank {rank}"


def logicals() -> st.SearchStrategy[list[Logical]]:
    """A few variables: scalars, empty ones, and extents that the devices don't divide."""
    shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
    one = st.tuples(shapes, st.sampled_from(TYPES), st.sampled_from([None, "train"]))
    return st.lists(one, min_size=1, max_size=5).map(
        lambda drawn: [Logical(f"v{i}", shape, dtype, step) for i, (shape, dtype, step) in enumerate(drawn)]
    )


@st.composite
def layouts(draw: st.DrawFn, variables: Sequence[Logical]) -> tuple[Mesh, dict[str, Layout]]:
    """A mesh, and any layouts on it."""
    mesh = Mesh.of(*draw(st.sampled_from([(1,), (2,), (3,), (4,), (2, 2), (6,), (2, 4)])))
    seeds = st.integers(0, 10**6)
    return mesh, {v.key: layout_by_seed(mesh, len(v.shape), draw(seeds)) for v in variables}
