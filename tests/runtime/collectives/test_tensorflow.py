"""Collectives by TensorFlow's operators, between processes on CPUs; in one chain, too, as GPUs need it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from examples.test_examples import DIGITS, train
from helpers.large import first
from helpers.mpirun import ROOT, child_environment, run_ranks

from tensoropt.common.errors import InputError, TensorOptError
from tensoropt.runtime.collectives import tensorflow_server
from tensoropt.runtime.collectives.chain_check import NUMBER, check_chain
from tensoropt.runtime.collectives.tensorflow import group_key
from tensoropt.runtime.execute import checked_collectives

HERE = Path(__file__).parent
EXECUTION_WORKER = ROOT / "tests" / "execution" / "worker.py"
LATE = ROOT / "tests" / "runtime" / "late_rank.py"
BY_TENSORFLOW = {"TENSOROPT_COLLECTIVES": "tensorflow"}
CHAINED = {**BY_TENSORFLOW, "TENSOROPT_CHAIN": "1", "TENSOROPT_CHECK": "1"}


@pytest.mark.parametrize("n_ranks", first(3, [4, 2, 3]))
def test_every_step_is_the_simulation_s(n_ranks: int, everything: bool) -> None:
    """Uneven blocks, every dtype, halos, maxima; the server starts at a second attempt. 4 ranks are chained."""
    worker = HERE / "operators_worker.py"
    result = run_ranks(n_ranks, "-m", "mpi4py", worker, "tensorflow", *["all"] * everything, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"every step on {n_ranks} ranks" in result.stdout


@pytest.mark.parametrize(
    ("n_ranks", "case", "count"), first(1, [(3, "broadcasting", 2), (4, "models", 3), (4, "windows", 2)])
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
    assert by_tensorflow["collectives_per_step"] > 0
    assert by_tensorflow["losses"] == by_mpi["losses"]


@pytest.mark.alone
def test_a_rank_that_does_not_come_is_named() -> None:
    result = run_ranks(3, LATE, "sleep", "0", timeout=60, env={**BY_TENSORFLOW, "TENSOROPT_TIMEOUT": "3"})
    assert result.returncode == 1
    begins = r"tensoropt: rank 0 has waited for \d+ s in a run with \d+ collectives, the first \w+\(a\) of .* for \w+"
    said = r"rank 1 hasn't come to it and has been in the user's code at late_rank.py:\d+ for \d+ s"
    assert len(re.findall(rf"{begins}, in run at late_rank.py:\d+: {said}\. All", result.stderr)) == 1, result.stderr
    assert "Traceback" not in result.stderr


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


def test_what_a_rank_starts_is_no_rank() -> None:
    program = (
        "import subprocess, sys\n"
        "from tensoropt.runtime.collectives.tensorflow_server import is_rank_itself\n"
        "print(is_rank_itself(), flush=True)\n"
        "if len(sys.argv) == 1: subprocess.run([sys.executable, '-c', sys.orig_argv[2], 'child'], check=True)\n"
    )
    environment = child_environment({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"})
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, timeout=60, text=True, capture_output=True
    )
    assert done.stdout.split() == ["True", "False"]
