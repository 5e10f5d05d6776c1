"""A rank a GPU: what the driver tells is simulated, everything behind it is what runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import tensorflow as tf
from helpers.large import first
from helpers.mpirun import ROOT, run_ranks
from helpers.nvml import GIB, a_driver

from tensoropt.common.errors import InputError
from tensoropt.runtime.gpus import Gpu, shares, take, visible_gpus
from tensoropt.runtime.ranks import current_processes
from tensoropt.tools.cli.runs import doctor


@pytest.fixture(autouse=True)
def _default_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSOROPT_COLLECTIVES")


def a_gpu(number: int, name: str = "NVIDIA H100", gib: int = 80, mode: int = 0) -> Gpu:
    return Gpu(name, f"GPU-{number:08d}", gib * GIB, str(number), mode)


@pytest.mark.parametrize(
    ("variable", "seen"),
    [(None, ["0", "1", "2", "3"]), ("2,0", ["2", "0"]), ("", []), ("-1", []), ("1,9,2", ["1"]),
     ("GPU-00000003,1", ["GPU-00000003", "1"]), ("GPU-7", [])],
)  # fmt: skip
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


def test_what_is_set_stays_but_for_the_gpu_that_a_rank_sees() -> None:
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


def ranks(*given: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ranks that see the given GPUs, by HOST:GPUS[:NAME:MODE]; all hosts are this machine."""
    env = {"TENSOROPT_ADDRESS": "127.0.0.1", **env}
    return run_ranks(len(given), Path(__file__).with_name("gpus_rank.py"), *given, env=env)


@pytest.mark.parametrize(("n_gpus", "n_machines"), first(2, [(2, 3), (8, 1), *product(range(1, 9), (1, 2, 3))]))
def test_processes_with_simulated_gpus_have_one_each_and_nccl(n_gpus: int, n_machines: int) -> None:
    n = n_gpus * n_machines
    result = ranks(*(f"host{rank // n_gpus}:{n_gpus}" for rank in range(n)))
    assert result.returncode == 0, result.stderr
    by = "tensorflow True True" if n > 1 else "mpi False False"
    expected = {f"{i} host{i // n_gpus} {i % n_gpus} {n} true PCI_BUS_ID {by}" for i in range(n)}
    assert set(result.stdout.splitlines()) == expected


def test_processes_that_share_gpus_for_trying_out_do_without_nccl() -> None:
    expected = {f"{each} 4 true PCI_BUS_ID tensorflow True False" for each in ("0 a 0", "1 a 1", "2 a 0", "3 b 0")}
    assert set(ranks("a:2", "a:2", "a:2", "b:2", TENSOROPT_SHARE_GPUS="1").stdout.splitlines()) == expected


@pytest.mark.parametrize(
    ("seen", "said"),
    [(["a:2"] * 3, "3 ranks on a, but 2 GPUs for them: rank 2 would share NVIDIA H100 (85.9 GB) with another; start"),
     (["a:1", "b:0"], "rank 1 on b sees no GPU, and rank 0 on a sees 1 GPU: either all ranks have one or none"),
     (["a:1", "b:1:Tesla T4"], "ranks 0 and 1 have different GPUs: NVIDIA H100 (85.9 GB) on a and Tesla T4"),
     (["a:1:V100:3"] * 2, "rank 0 can't use V100 (85.9 GB) on a, which is in exclusive mode; give each rank one of its"),
     (["a:1:V100:2"], "rank 0 can't use V100 (85.9 GB) on a, which is in a mode that prohibits computing")],
)  # fmt: skip
def test_gpus_that_can_not_be_shared_out_are_refused(seen: list[str], said: str) -> None:
    hosts, gpus = [], []
    for host, n_gpus, *named in (text.split(":") for text in seen):
        hosts.append(host)
        gpus.append([a_gpu(number, *named[:1], mode=int(*named[1:])) for number in range(int(n_gpus))])
    with pytest.raises(InputError, match=re.escape(said)):
        shares(gpus, hosts, "V100" in seen[0])


def test_a_refusal_ends_all_processes_with_one_sentence() -> None:
    result = ranks("a:1", "b:0")
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert result.stderr.count("sees no GPU, and rank 0 on a sees 1 GPU") == result.stderr.count("tensoropt: ") == 1
    assert "Traceback" not in result.stderr


def test_the_doctor_of_ranks_with_simulated_gpus(tmp_path: Path) -> None:
    """A driver with two GPUs, and a TensorFlow that can't use them: it says so and computes on CPUs."""
    (tmp_path / "pynvml.py").write_text("from helpers.nvml import a_driver\nglobals().update(vars(a_driver(2)))\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "tests")])
    env = {"PYTHONPATH": paths, "TENSOROPT_QUIET": "0"}
    result = run_ranks(2, "-m", "tensoropt", "doctor", timeout=100, env=env)
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stderr.count("ranks have GPUs (NVIDIA H100 (85.9 GB)), but this TensorFlow can't use them") == 1
    of_ranks = [f"rank {rank}: NVIDIA H100 (85.9 GB), CUDA_VISIBLE_DEVICES={rank}" for rank in range(2)]
    for text in (*of_ranks, "a TensorFlow for GPUs", "collectives  mpi (the default", "4 MiB of all 2 ranks in "):
        assert text in result.stdout, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
