"""A Transformer with four times the parameters that replication could hold, on ranks that really have no more memory."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.mpirun import run_ranks

from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.search.options import mini_time
from tensoropt.search.request import Request
from tensoropt.tools.offline import record_named

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_transformer.py"
HARDWARE, RANKS = "v100-1x4", 4
MEMORY, ROOM = 145_000_000, "550MB"


@functools.cache
def planned(folder: Path, algorithm: str, memory: int | None, width: int = 1024) -> tuple[Plan, int]:
    """A plan of the example's model, kept in a file, and the bytes of the model's parameters."""
    model = folder / f"model_{width}.py"
    model.write_text(
        f"import sys\nsys.path.insert(0, {str(EXAMPLE.parent)!r})\nimport train_transformer\n\n"
        f"def model():\n    train_transformer.create_model({width})\n"
    )
    recorded = record_named(f"{model}:model").model
    plan = mini_time(Request(recorded, named(HARDWARE), memory, algorithm=algorithm), RANKS)
    plan.save(folder / f"{algorithm}_{width}.json")
    return plan, recorded.graph.parameter_bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transformer")


def losses(*arguments: str, n_ranks: int, log: Path) -> dict:
    done = run_ranks(n_ranks, EXAMPLE, "--steps", "2", "--json", log, *arguments, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(log.read_text())


def test_it_trains_in_little_memory_with_the_losses_of_one_device(folder: Path) -> None:
    planned(folder, "ft-ldp", MEMORY)
    arguments = ("--hardware", HARDWARE, "--plan", str(folder / "ft-ldp_1024.json"), "--process-memory", ROOM)
    together = losses(*arguments, n_ranks=RANKS, log=folder / "together.json")
    alone = losses("--hardware", "v100-1x1", n_ranks=1, log=folder / "alone.json")
    assert len(alone["losses"]) == 2 and alone["losses"][1] < alone["losses"][0]
    np.testing.assert_allclose(together["losses"], alone["losses"], rtol=1e-5)
    assert max(together["parameter_bytes_per_rank"]) < 0.26 * together["parameter_bytes"]


def test_replication_fails_in_the_same_process_memory_with_one_sentence(folder: Path) -> None:
    planned(folder, "data-parallel", None)
    arguments = ("--hardware", HARDWARE, "--plan", str(folder / "data-parallel_1024.json"), "--process-memory", ROOM)
    done = run_ranks(RANKS, EXAMPLE, *arguments, timeout=240)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("tensoropt: out of memory: the plan needs") == 1, done.stderr
    assert "loss" not in done.stdout and "Traceback" not in done.stderr


# Starts no ranks, but where those that do run, the plan of the whole is there already.
@pytest.mark.ranks
def test_replication_could_hold_a_quarter_of_it_at_most(folder: Path) -> None:
    """Replicating a narrower Transformer, with a quarter of the parameters, needs more memory than the split plan has."""
    quarter, n_bytes = planned(folder, "data-parallel", None, width=504)
    whole, n_bytes_of_whole = planned(folder, "ft-ldp", MEMORY)
    assert 4 * n_bytes <= n_bytes_of_whole and quarter.peak_bytes > MEMORY >= whole.peak_bytes
