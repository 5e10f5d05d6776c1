"""Digests of the data that ranks are given: equal for equal tensors, other ones wherever they differ."""

import numpy as np

from tensoropt.runtime.same_data import BLOCK_BYTES, DIGESTED_BYTES, N_BLOCKS, digest


def test_digests_depend_on_type_and_shape_and_not_on_how_tensors_lie_in_memory():
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert digest(values) == digest(np.asfortranarray(values))
    assert len({digest(values), digest(values.reshape(24)), digest(values.view(np.int32))}) == 3


def test_each_byte_of_a_large_tensor_is_digested_within_a_round_of_turns():
    n_bytes = 3 * DIGESTED_BYTES + 11
    values, n_turns = np.zeros(n_bytes, np.uint8), -(-(n_bytes // N_BLOCKS) // BLOCK_BYTES)
    same = [digest(values, turn) for turn in range(n_turns)]
    for place in (0, 1, BLOCK_BYTES, n_bytes // 2, n_bytes // N_BLOCKS - 1, n_bytes - 1):
        other = values.copy()
        other[place] = 1
        assert [digest(other, turn) for turn in range(n_turns)] != same, place
