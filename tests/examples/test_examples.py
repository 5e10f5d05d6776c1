"""The examples as a user starts them: one device's losses on any number of ranks, and plans that really split."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.kept import kept
from helpers.large import first
from helpers.mpirun import forked, run_command, run_ranks

ROOT = Path(__file__).resolve().parents[2]
DIGITS, LISTING, PLAIN = (ROOT / "examples" / name for name in ("train_digits.py", "listing1.py", "listing1_tensorflow.py"))
KERAS = ROOT / "examples" / "train_keras.py"
RECOMMENDER = ROOT / "examples" / "gallery" / "recommender.py"
STEPS = 4


def train(example: Path, n_ranks: int, *arguments: str) -> tuple[dict, str]:
    """Run an example on a number of ranks; return its training log and its output. Equal runs are one."""

    def run() -> tuple[dict, str]:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "log.json")
            done = run_ranks(n_ranks, example, "--steps", str(STEPS), "--json", str(log), *arguments, timeout=240)
            assert done.returncode == 0, done.stderr
            return json.loads(log.read_text()), done.stdout

    return kept(f"{example.name} {n_ranks} {arguments}", run)


@pytest.mark.parametrize("n_ranks", first(1, [2, 4, 3]))
def test_the_demo_has_the_same_losses_on_any_number_of_ranks_by_a_plan_that_splits(n_ranks: int) -> None:
    """Float32 sums in another order may turn a ReLU or a maximum the other way, from which losses drift apart."""
    alone, _ = train(DIGITS, 1, "--dtype", "float64")
    together, output = train(DIGITS, n_ranks, "--dtype", "float64")
    assert len(alone["losses"]) == STEPS
    np.testing.assert_allclose(together["losses"], alone["losses"], rtol=1e-10)
    assert len(together["parameter_bytes_per_rank"]) == n_ranks
    assert together["split_operators"] > 0 and together["collectives_per_step"] > 0
    assert re.search(r"^test accuracy: 0\.\d{4}$", output.splitlines()[-1])
    for shown in ("hardware", "per device", "turning point", "config"):
        assert shown in output


def test_on_one_device_nothing_is_split() -> None:
    log, _ = train(DIGITS, 1, "--dtype", "float64")
    assert (log["split_operators"], log["collectives_per_step"]) == (0, 0)
    assert log["parameter_bytes_per_rank"] == [log["parameter_bytes"]]


def test_a_limit_that_replication_cannot_meet_splits_parameters() -> None:
    """Parameters, gradients and slots alone are three times the model: a limit below that rules replication out."""
    alone, _ = train(DIGITS, 1, "--dtype", "float64")
    whole = alone["parameter_bytes"]
    limit = 3 * whole - 1
    # Activations need room as well, so a small batch.
    arguments = ("--memory", f"{limit}B", "--batch", "32", "--dtype", "float64")
    log, _ = train(DIGITS, 2, *arguments)
    assert log["split_operators"] > 0 and log["collectives_per_step"] > 0
    assert all(held < whole for held in log["parameter_bytes_per_rank"])
    reference, _ = train(DIGITS, 1, "--batch", "32", "--dtype", "float64")
    np.testing.assert_allclose(log["losses"], reference["losses"], rtol=1e-10)


def test_the_demo_learns_the_digits() -> None:
    done = run_ranks(2, DIGITS, "--steps", 60, timeout=240)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1].removeprefix("test accuracy: ")) >= 0.9
    assert "samples/s" in done.stderr  # the progress bar


def test_listing_1_gives_the_losses_of_plain_tensorflow(tmp_path: Path) -> None:
    log = tmp_path / "plain.json"
    done = run_command([sys.executable, *forked(PLAIN, "--steps", STEPS, "--json", log)], timeout=120)
    assert done.returncode == 0, done.stderr
    plain = json.loads(log.read_text())["losses"]
    for n_ranks in (1, 2):
        ours, _ = train(LISTING, n_ranks)
        np.testing.assert_allclose(ours["losses"], plain, rtol=1e-5)


@pytest.mark.parametrize("goes_on", first(1, [False, True]))
def test_a_keras_model_learns_the_same_on_two_ranks_and_goes_on_where_it_stopped(tmp_path: Path, goes_on: bool) -> None:
    """Dropout is off: how it draws depends on the plan. In float32 rounding may turn a ReLU the other way."""

    def losses(n_ranks: int, epochs: int, *arguments: str) -> tuple[dict, str]:
        log = tmp_path / "log.json"
        where = ("--cluster", f"v100-1x{n_ranks}")  # of measured hardware one device may be as fast
        # An epoch is three batches, and none of them smaller, for which each program would be built once more.
        given = ("--dropout", "0", "--dtype", "float64", "--batch", "479", "--epochs", str(epochs), "--json", str(log))
        done = run_ranks(n_ranks, KERAS, *given, *where, *arguments, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(log.read_text()), done.stdout

    alone, output = losses(1, 1 + goes_on)
    assert re.search(r"^test accuracy: 0\.\d{4}$", output.splitlines()[-1])
    checkpoint = "--checkpoint", str(tmp_path / "ckpt")
    parts = [losses(1, 1, *checkpoint)[0]] if goes_on else []
    parts.append(losses(2, 1 + goes_on, *checkpoint)[0])
    assert parts[-1]["split_operators"] > 0
    for name in ("losses", "val_losses"):
        np.testing.assert_allclose([loss for part in parts for loss in part[name]], alone[name], rtol=1e-10)


def test_a_recommender_whose_tables_do_not_fit_one_rank_has_one_device_s_loss(everything: bool) -> None:
    def said(n_ranks: int, *arguments: str) -> list[str]:
        done = run_ranks(n_ranks, RECOMMENDER, "--cluster", f"v100-1x{n_ranks}", *arguments, timeout=240)
        assert done.returncode == (0 if n_ranks > 1 or not arguments else 2), done.stderr
        return (done.stdout or done.stderr).splitlines()

    *_, split, held, loss = said(2, "--memory", "30MB")
    assert split == "tables split: 6 of 6" and held == "parameters per rank: 8.7 MB, 8.7 MB"
    assert said(1)[-1] == loss
    if everything:
        assert said(1, "--memory", "30MB")[0].startswith("tensoropt: no plan fits 30,000,000 bytes")
