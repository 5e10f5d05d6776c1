"""Collectives between real processes give what the simulation gives, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.large import first
from helpers.mpirun import run_ranks

from tensoropt.runtime.collectives.receive_buffers import ALIGNMENT, OwnMemory, aligned_empty
from tensoropt.runtime.collectives.single import SingleCommunicator

WORKER = Path(__file__).with_name("collectives_worker.py")
ROOT = WORKER.parents[3]


@pytest.mark.alone
@pytest.mark.parametrize("n_ranks", first(2, [4, 3, 2]))
def test_ranks_agree_with_the_simulation(n_ranks: int, everything: bool) -> None:
    """4 ranks are two axes of 2, which together are one, and by --all also one; ranks that nap hold fewer shapes."""
    done = run_ranks(n_ranks, "-m", "mpi4py", WORKER, *(["all"] if everything else []))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"all collectives agree on {n_ranks} ranks"]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (4096,)])
@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.float16, np.complex128])
def test_aligned_buffers(shape: tuple[int, ...], dtype: type) -> None:
    array = aligned_empty(shape, dtype)
    assert array.shape == shape and array.dtype == dtype and array.flags.c_contiguous and array.flags.writeable
    assert array.size == 0 or array.ctypes.data % ALIGNMENT == 0


def test_scratch_is_used_again_and_grows() -> None:
    scratch = OwnMemory()
    asked = ("a", 10, np.int32), ("a", 5, np.int64), ("b", 10, np.int32)
    small, again, other = (scratch.scratch(*each) for each in asked)
    assert np.shares_memory(small, again) and not np.shares_memory(small, other)
    assert scratch.scratch("a", 1000, np.float64).shape == (1000,)


def test_one_device_needs_no_mpi() -> None:
    program = (
        "import sys, numpy as np\n"
        "from tensoropt.runtime.collectives.single import SingleCommunicator\n"
        "assert SingleCommunicator().all_reduce((), np.ones(3)).tolist() == [1, 1, 1]\n"
        "assert not {'mpi4py', 'tensorflow'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], env=dict(os.environ, PYTHONPATH=str(ROOT)), check=True, timeout=60)


def test_one_device_hands_back_copies() -> None:
    communicator, array = SingleCommunicator(), np.arange(6.0).reshape(2, 3)
    out = np.empty(6)
    results = [
        communicator.all_gather((), array, [(2, 3)])[0], communicator.all_to_all((), [array], [(2, 3)], out)[0],
        communicator.reduce_scatter((), [array], (2, 3)), communicator.all_reduce((), array, "max"),
    ]  # fmt: skip
    for result in results:
        assert np.array_equal(result, array) and not np.shares_memory(result, array)
    assert np.shares_memory(results[1], out)
