"""A rank a GPU: what the driver tells is simulated, everything behind it is what runs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from helpers.mpirun import ROOT, run_ranks
from helpers.nvml import GIB, a_driver

from tensoropt.common.errors import InputError
from tensoropt.runtime.gpus import Gpu, shares, take, visible_gpus
from tensoropt.runtime.ranks import current_processes
from tensoropt.tools.cli import doctor


def a_gpu(number: int, name: str = "NVIDIA H100", gib: int = 80, mode: int = 0) -> Gpu:
    return Gpu(name, f"GPU-{number:08d}", gib * GIB, str(number), mode)


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, ["0", "1", "2", "3"]),
        ("2,0", ["2", "0"]),
        ("", []),
        ("-1", []),
        ("1,9,2", ["1"]),
        ("GPU-00000003,1", ["GPU-00000003", "1"]),
        ("GPU-7", []),
    ],
)
def test_what_is_visible_is_what_cuda_would_see(
    variable: str | None, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", a_driver(4))
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    gpus = visible_gpus(environment)
    assert [gpu.visible_as for gpu in gpus] == seen
    assert all(gpu.name == "NVIDIA H100" and gpu.memory_bytes == 80 * GIB for gpu in gpus)


@pytest.mark.parametrize("n_machines", [1, 2, 3])
@pytest.mark.parametrize("n_gpus", range(1, 9))
def test_each_rank_has_the_gpu_of_its_number_on_its_machine(n_gpus: int, n_machines: int) -> None:
    """Whether ranks come machine by machine or in turn, and whether a batch system gave each rank one already."""
    hosts = [f"host{machine}" for machine in range(n_machines) for _ in range(n_gpus)]
    every = tuple(map(a_gpu, range(n_gpus)))
    numbers = [number for _ in range(n_machines) for number in range(n_gpus)]
    assert shares([every] * len(hosts), hosts, False) == [every[number] for number in numbers]
    in_turn = [f"host{rank % n_machines}" for rank in range(len(hosts))]
    assert shares([every] * len(hosts), in_turn, False) == [every[rank // n_machines] for rank in range(len(hosts))]
    bound = [(every[n_gpus - 1 - number],) for number in numbers]
    assert shares(bound, hosts, False) == [gpu for (gpu,) in bound]


@pytest.mark.parametrize(
    ("seen", "is_shared", "said"),
    [
        ([(a_gpu(0), a_gpu(1))] * 3, False, "3 ranks on a, but 2 GPUs for them: rank 2 would share NVIDIA H100 (85.9 GB)"),
        ([(a_gpu(0),), ()], False, "rank 1 on a sees no GPU, and rank 0 on a sees 1 GPU: either all ranks have one or none"),
        ([(a_gpu(0),), (a_gpu(1, "Tesla T4", 16),)], False, "ranks 0 and 1 have different GPUs: NVIDIA H100"),
        ([(a_gpu(0, mode=3),)] * 2, True, "rank 0 can't use NVIDIA H100 (85.9 GB) on a, which is in exclusive mode"),
        ([(a_gpu(0, mode=2),)], False, "which is in a mode that prohibits computing"),
    ],
)
def test_what_can_not_be_shared_out_is_refused(seen: list[tuple[Gpu, ...]], is_shared: bool, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        shares(seen, ["a"] * len(seen), is_shared)


def test_ranks_may_have_none_or_share_for_trying_out() -> None:
    assert shares([(), ()], ["a", "a"], False) is None
    every = a_gpu(0), a_gpu(1)
    assert shares([every] * 4, ["a"] * 4, True) == [every[0], every[1], every[0], every[1]]


def test_a_rank_sees_its_gpu_alone_and_lets_its_memory_grow() -> None:
    environment: dict[str, str] = {}
    take(a_gpu(2), environment)
    assert environment == {
        "CUDA_VISIBLE_DEVICES": "2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "TF_FORCE_GPU_ALLOW_GROWTH": "true"
    }  # fmt: skip
    given = {"CUDA_VISIBLE_DEVICES": "GPU-7,GPU-8", "TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    take(a_gpu(8), given)
    assert given == {"CUDA_VISIBLE_DEVICES": "8", "TF_FORCE_GPU_ALLOW_GROWTH": "false"}


def test_a_process_alone_uses_one_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of four GPUs TensorFlow sees none: CUDA's libraries don't fit it."""
    monkeypatch.setitem(sys.modules, "pynvml", a_driver(4))
    monkeypatch.setenv("TENSOROPT_QUIET", "0")
    assert current_processes.__wrapped__().size == 1
    assert "this process computes on one of 4 GPUs; tensoropt run -n 4 SCRIPT uses all" in capsys.readouterr().err
    monkeypatch.setattr(doctor, "_has_library", lambda name, folders: "nccl" not in name)
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: True)
    page = doctor.Page()
    doctor._gpus(page, None, tf)
    doctor._cuda(page, tf)
    for said in ("4 GPUs want as many; tensoropt run -n 4", "CUDA's libraries or the driver don't fit", "libnccl.so: pip"):
        assert said in "\n".join(page.missing)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("n_ranks", "code", "said"),
    [
        (2, 1, [
            "rank 0: NVIDIA H100 (85.9 GB), CUDA_VISIBLE_DEVICES=0",
            "rank 1: NVIDIA H100 (85.9 GB), CUDA_VISIBLE_DEVICES=1",
            "a TensorFlow for GPUs", "collectives  mpi (the default", "4 MiB of all 2 ranks in ",
        ]),
        (3, 2, ["3 ranks on ", "but 2 GPUs for them: rank 2 would share"]),
    ],
)  # fmt: skip
def test_the_doctor_of_ranks_with_simulated_gpus(tmp_path: Path, n_ranks: int, code: int, said: list[str]) -> None:
    """A driver with two GPUs, and a TensorFlow that can't use them: it says so and computes on CPUs."""
    (tmp_path / "pynvml.py").write_text("from helpers.nvml import a_driver\nglobals().update(vars(a_driver(2)))\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "tests")])
    env = {"PYTHONPATH": paths}
    result = run_ranks(n_ranks, "-m", "tensoropt", "doctor", timeout=100, env=env, fresh=True)
    assert result.returncode == code, result.stdout + result.stderr
    for text in said:
        assert text in result.stdout + result.stderr, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
