"""Collectives by TensorFlow's operators, between processes on CPUs; in one chain, too, as GPUs need it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf
from examples.test_examples import DIGITS, train
from helpers.large import first
from helpers.mpirun import ROOT, run_ranks

from tensoropt.common.errors import InputError, TensorOptError
from tensoropt.runtime.collectives import tensorflow_server
from tensoropt.runtime.collectives.tensorflow import NUMBER, check_chain, group_key
from tensoropt.runtime.execute import checked_collectives

HERE = Path(__file__).parent
EXECUTION_WORKER = ROOT / "tests" / "execution" / "worker.py"
KERAS_WORKER = ROOT / "tests" / "pipeline" / "keras_worker.py"
BY_TENSORFLOW = {"TENSOROPT_COLLECTIVES": "tensorflow"}
CHAINED = {**BY_TENSORFLOW, "TENSOROPT_CHAIN": "1", "TENSOROPT_CHECK": "1"}


@pytest.mark.timeout(1600)
@pytest.mark.parametrize("n_ranks", first(2, [4, 3, 2]))
def test_every_step_is_the_simulation_s(n_ranks: int, everything: bool) -> None:
    """Uneven blocks, every dtype, halos, maxima; the server starts at a second attempt. 4 ranks are chained."""
    worker = HERE / "operators_worker.py"
    result = run_ranks(n_ranks, "-m", "mpi4py", worker, "tensorflow", *["all"] * everything, timeout=1500)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"every step on {n_ranks} ranks" in result.stdout


@pytest.mark.parametrize(
    ("n_ranks", "case", "count"), first(1, [(3, "broadcasting", n) for n in (1, 2)] + [(4, "models", 3), (4, "windows", 2)])
)
def test_random_strategies_give_one_device_numbers_and_keep_the_chain(n_ranks: int, case: str, count: int) -> None:
    result = run_ranks(n_ranks, "-m", "mpi4py", EXECUTION_WORKER, case, count, "tensorflow", timeout=240, env=CHAINED)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count} strategies, " in result.stdout


@pytest.mark.ranks
def test_an_example_has_the_bits_of_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    by_mpi, _ = train(DIGITS, 2, "--dtype", "float64")
    for name, value in CHAINED.items():
        monkeypatch.setenv(name, value)
    by_tensorflow, _ = train(DIGITS, 2, "--dtype", "float64", "--collectives", "tensorflow")
    assert by_tensorflow["collectives_per_step"] > 0 and by_tensorflow["losses"] == by_mpi["losses"]


@pytest.mark.ranks
@pytest.mark.parametrize(("stages", "n_ranks"), first(0, [(1, 2), (2, 2), (2, 4), (1, 3), (1, 4)]))
def test_keras_in_micro_batches_has_the_bits_of_mpi(stages: int, n_ranks: int, tmp_path: Path) -> None:
    """Stages communicate by MPI, beside the server."""
    told = []
    for name, env in {"mpi": {}, "tensorflow": CHAINED}.items():
        (tmp_path / name).mkdir()
        result = run_ranks(n_ranks, KERAS_WORKER, tmp_path / name, 2, env={"STAGES": str(stages), **env})
        assert result.returncode == 0, result.stderr
        told.append(next(line for line in result.stdout.splitlines() if line.startswith("{")))
    assert told[0] == told[1]


def a_graph(*edges: tuple[str, str], numbers: dict[str, int]) -> tf.compat.v1.GraphDef:
    graph = tf.compat.v1.GraphDef()
    for name in sorted({name for edge in edges for name in edge} | numbers.keys()):
        node = graph.node.add(name=name, op="Any", input=[source for source, reader in edges if reader == name])
        if name in numbers:
            node.attr[NUMBER].i = numbers[name]
    return graph


def test_a_chain_that_is_broken_is_seen() -> None:
    numbers = {"a": 3, "b": 7, "c": 8}
    assert check_chain([a_graph(("a", "x"), ("x", "b"), ("b", "c"), numbers=numbers)]) == 3
    with pytest.raises(TensorOptError, match="collective 'c' out of the chain: it doesn't wait for 'b'"):
        check_chain([a_graph(("a", "b"), ("a", "c"), numbers=numbers)])
    with pytest.raises(TensorOptError, match="'b' out of the chain"):
        check_chain([a_graph(("a", "c"), ("b", "c"), numbers=numbers)])


def test_a_group_has_one_number_whoever_computes_it() -> None:
    keys = {group_key(members) for members in ([0, 1], [0, 2], [2, 3], [0, 1, 2, 3], range(64), [1, 0])}
    assert len(keys) == 6 and all(0 <= key < 2**31 for key in keys) and group_key(range(2)) == group_key([0, 1])


def test_collectives_that_were_not_started_are_refused() -> None:
    assert checked_collectives("tensorflow") == "tensorflow"
    with pytest.raises(InputError, match=r"must start before TensorFlow does.*Start with tensoropt run --collectives"):
        tensorflow_server.check_running()


def test_a_host_that_is_not_reached_is_named_with_the_port() -> None:
    here: Any = SimpleNamespace(hosts=("alpha", "beta"), rank=0, gather=lambda value, what: [value])
    address = f"127.0.0.1:{tensorflow_server.free_port()}"
    with pytest.raises(InputError, match=rf"alpha doesn't reach beta at port \d+ \({address}\): .*; open the ports between"):
        tensorflow_server._check_reachable(here, [address, address])


@pytest.mark.ranks
def test_a_script_that_uses_tensorflow_first_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import tensorflow as tf\ntf.constant(1)\nimport tensoropt\n")
    result = run_ranks(2, script, env=BY_TENSORFLOW)
    assert result.returncode == 2, result.stderr
    assert result.stderr.count("rank 0 used TensorFlow before import tensoropt") == 1


def test_what_a_rank_starts_is_no_rank() -> None:
    with mock.patch.dict(os.environ, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}):
        os.environ.pop(tensorflow_server.RANK_PROCESS, None)
        assert tensorflow_server.is_rank_itself() and tensorflow_server.is_rank_itself()
        with mock.patch.object(os, "getpid", lambda: 0):  # another process that has the rank's variables
            assert not tensorflow_server.is_rank_itself()
