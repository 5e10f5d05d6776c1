"""Weights saved under one plan and loaded under another are the same to the bit, and plain TensorFlow reads them."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.checkpoint.states import ALONE, Logical, assert_values, entries, layout_by_seed, layouts, logicals, replicated

from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.checkpoint import entry_name, parts, read_metadata, restore, save, saving
from tensoropt.runtime.checkpoint.parts import parts_of_device, slice_spec


@settings(max_examples=60)
@given(st.data())
def test_saved_under_one_plan_and_loaded_under_another(data: st.DataObject) -> None:
    """All types, scalars, empty and uneven blocks; parts and files of a few bytes as well as of many."""
    variables = data.draw(logicals())
    mesh, saved_layouts = data.draw(layouts(variables))
    other, loaded_layouts = data.draw(layouts(variables))
    part_bytes, shared_bytes, shard_bytes = data.draw(st.sampled_from([(8, 2, 16), (1 << 20, 1, 1 << 20), (64, 64, 64)]))
    ranks, other_ranks = range(mesh.n_devices), range(other.n_devices)
    with tempfile.TemporaryDirectory() as folder:
        with (
            patch.object(parts, "PART_BYTES", part_bytes),
            patch.object(parts, "SHARED_BYTES", shared_bytes),
            patch.object(saving, "SHARD_BYTES", shard_bytes),
        ):
            prefix = save(f"{folder}/ckpt", entries(variables, saved_layouts, ranks), ALONE, {"step": 3})
        state = entries(variables, loaded_layouts, other_ranks, zero=True)
        assert restore(prefix, state, ALONE).content == {"step": 3}
        assert_values(variables, state, other_ranks)
        _assert_plain_tensorflow_reads(prefix, variables)


def _assert_plain_tensorflow_reads(prefix: str, variables: list[Logical]) -> None:
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    for variable in variables:
        name = f"{'model' if variable.step is None else 'optimizer'}/{variable.key}/.ATTRIBUTES/VARIABLE_VALUE"
        assert shapes[name] == list(variable.shape)
        assert reader.get_tensor(name).tobytes() == variable.value.tobytes()
    assert len(shapes) == len(variables) + 3


@given(st.data())
def test_every_element_is_written_once_and_holders_share_the_work(data: st.DataObject) -> None:
    """The parts of all ranks tile each variable; a variable that all hold is written in equal shares."""
    shape = tuple(data.draw(st.lists(st.integers(1, 12), max_size=3)))
    mesh = Mesh.of(*data.draw(st.sampled_from([(2,), (4,), (2, 3)])))
    logical = Logical("v", shape)
    layout = layout_by_seed(mesh, len(shape), data.draw(st.integers(0, 1000)))
    (variable,) = entries([logical], {"v": layout}, range(mesh.n_devices))
    counts = np.zeros(shape, int)
    with patch.object(parts, "PART_BYTES", data.draw(st.integers(4, 64))), patch.object(parts, "SHARED_BYTES", 1):
        for rank in range(mesh.n_devices):
            for part in parts_of_device([variable], rank):
                counts[tuple(slice(start, end) for start, end in part.bounds)] += 1
    assert np.all(counts == 1)


def test_replicas_are_shared_out_evenly() -> None:
    """Large variables by their elements, small ones in turn."""
    mesh = Mesh.of(4)
    large = [Logical("large", (1000, 300))]
    small = [Logical(f"small{i}", (5,)) for i in range(8)]
    state = entries(large + small, replicated(large + small, mesh), range(4))
    written = Counter({rank: sum(part.n_bytes for part in parts_of_device(state, rank)) for rank in range(4)})
    assert set(written.values()) == {(1000 * 300 + 8 * 5) * 4 // 4}


def test_a_part_is_never_longer_than_the_longest_allowed() -> None:
    mesh = Mesh.of(2)
    state = entries([Logical("v", (3, 5000))], replicated([Logical("v", (3, 5000))], mesh), range(2))
    with patch.object(parts, "PART_BYTES", 4000), patch.object(parts, "SHARED_BYTES", 1):
        lengths = [part.n_bytes for rank in range(2) for part in parts_of_device(state, rank)]
    assert max(lengths) <= 4000 and sum(lengths) == 3 * 5000 * 4


@pytest.mark.parametrize("shape", [(), (4,), (3, 2)])
def test_specs_say_what_tensorflow_says(shape: tuple[int, ...]) -> None:
    """Against TensorFlow's own text for a slice of a partitioned variable."""
    ranges = [[(start, end) for start in range(extent) for end in range(start + 1, extent + 1)] for extent in shape]
    for bounds in product(*ranges):
        info = tf.Variable.SaveSliceInfo("v", list(shape), [s for s, _ in bounds], [e - s for s, e in bounds])
        whole = math.prod(shape) == math.prod(end - start for start, end in bounds)
        assert slice_spec(shape, bounds) == ("" if whole else _dashed(shape, bounds, info.spec))


def _dashed(shape: tuple[int, ...], bounds: tuple[tuple[int, int], ...], spec: str) -> str:
    """TensorFlow's text with a dash where a dimension is whole, which its parser takes for the same."""
    head, _, tail = spec.rpartition(" ")
    dims = tail.split(":")
    whole = [pair == (0, extent) for pair, extent in zip(bounds, shape, strict=True)]
    return head + " " + ":".join("-" if full else dim for full, dim in zip(whole, dims, strict=True))


def test_names_are_readable(tmp_path) -> None:
    variables = [Logical("dense/kernel", (3, 2)), Logical("train/dense/kernel/momentum", (3, 2), step="train")]
    state = entries(variables, replicated(variables, Mesh.of(2)), range(2))
    assert [entry_name(held) for held in state] == ["model/dense/kernel", "optimizer/train/dense/kernel/momentum"]
    prefix = save(tmp_path / "ckpt", state, ALONE)
    assert [saved.name for saved in read_metadata(prefix).variables] == [entry_name(held) for held in state]
    assert np.array_equal(
        tf.train.load_variable(prefix, "model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE"), variables[0].value
    )
