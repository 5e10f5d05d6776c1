"""``tensoropt calibrate``: what it writes, who uses it, and what an interruption leaves."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from helpers.mpirun import child_environment, forked, run_ranks

from tensoropt.common.process.progress import Display
from tensoropt.profiling.description_text import hardware_table
from tensoropt.profiling.hardware import (
    COMMUNICATING_KINDS,
    CollectiveTable,
    Hardware,
    HardwareError,
    OperatorRate,
    Origin,
    named,
)
from tensoropt.profiling.store import Store
from tensoropt.profiling.tensorflow_engine import TensorFlowEngine
from tensoropt.runtime.launch.mpirun import mpirun_command
from tensoropt.runtime.measuring import disturbance
from tensoropt.runtime.measuring import local_hardware as here
from tensoropt.runtime.measuring.operator_timer import OperatorTrial, Timed
from tensoropt.runtime.ranks import Processes
from tensoropt.tools.cli.main import main
from tensoropt.tools.cli.runs import calibrate as calibrate_command
from tensoropt.tools.operator_probes import Calibration

ALONE = Processes(0, 1, ("here",))
SCRIPT = Path(__file__).with_name("calibrating_rank.py")
MODEL = "zoo:vgg16"


class Probe:
    """Times by the rates of a device: 10 us, 50 us per 10^9 flops; backward as long for each operand."""

    def __init__(self, costing_of: dict[str, float]) -> None:
        self.slower = costing_of

    def time(self, trial: OperatorTrial) -> Timed:
        factor = self.slower.get(trial.op.type, 1.0)
        time_us = factor * (10 + trial.predicted_us)
        return Timed(time_us, len(trial.indices) * time_us, 0.01)


@cache
def probes(dtype: str) -> list[Any]:
    """The quick probes, recorded once."""
    return Calibration(ALONE, named("v100-1x1"), Store(None, "x"), 1.0, True)._probes(dtype)


def calibration(probe: Probe) -> Calibration:
    made = Calibration(ALONE, named("v100-1x1"), Store(None, "x"), 1.0, True, timer=probe, clock=lambda: 0.0)
    made._probes = probes  # type: ignore[method-assign]
    return made


def test_every_class_of_operators_is_rated_and_the_fit_follows_the_times():
    *_, usual = calibration(Probe({})).rated()
    *_, odd = calibration(Probe({"MatMul": 7.0, "BatchMatMulV2": 7.0})).rated()
    classes = {"convolution", "matrix product", "pooling", "reduction", "softmax", "transcendental", "copy", "elementwise"}
    assert set(usual.operators) == classes | {"update"}
    for name in classes:
        for way in ("forward", "backward"):
            one, other = (each.operators[name]["float32"][way] for each in (usual, odd))
            assert one.samples >= 6
            factor = 7 if name == "matrix product" else 1
            assert other.time_us(1e9, 1e7) == pytest.approx(factor * one.time_us(1e9, 1e7), rel=1e-6)
    assert set(usual.operators["update"]["float32"]) == {"forward"}


def test_a_deadline_leaves_every_class_some_of_its_sizes():
    probe = calibration(Probe({}))
    now = iter(range(1000))
    probe.clock, probe.deadline = lambda: float(next(now)), 60.0
    *_, last = probe.rated()
    assert len(last.operators) >= 6
    probe.deadline = 0.0
    *_, none = probe.rated()
    assert set(none.operators) == {"update"}


def measured_here(**changes: object) -> Hardware:
    """Hardware as if it had been calibrated here today."""
    engine = TensorFlowEngine()
    device = replace(named("v100-1x1").device, name=engine.device_name())
    today = datetime.date.today().isoformat()
    origin = Origin(**{"date": today, "tensorflow": tf.__version__, "threads": engine.threads, **changes})
    return replace(named("v100-1x1"), name="mine", device=device, measured=origin)


def test_what_is_fresh():
    today = datetime.date.today()
    assert here.why_stale(measured_here(), today) == ""
    assert here.why_stale(measured_here(), today + datetime.timedelta(days=here.MOST_DAYS)) == ""
    for hardware, days, why in [
        (measured_here(), here.MOST_DAYS + 1, "8 days old"),
        (measured_here(is_complete=False), 0, "not complete"),
        (measured_here(tensorflow="1.15"), 0, "measured with TensorFlow 1.15, this is"),
        (measured_here(threads=77), 0, "measured with 77 threads"),
        (replace(measured_here(), device=named("v100-1x1").device), 0, "its device is 'V100-SXM2-16GB', this one"),
        (named("v100-1x1"), 0, "not complete"),
    ]:
        assert why in here.why_stale(hardware, today + datetime.timedelta(days=days))


def test_init_takes_a_fresh_calibration_with_the_memory_of_now(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSOROPT_CACHE", str(tmp_path))
    measured = named("v100-1x2")
    monkeypatch.setattr(here, "measure_here", lambda *given: measured)
    file = here.calibrated_file(ALONE)
    assert here.hardware_here(ALONE) is measured
    file.parent.mkdir()
    measured_here().save(file)
    found = here.hardware_here(ALONE)
    assert found.name == "mine" and found.device.memory_bytes != measured_here().device.memory_bytes
    file.write_text("cut off")
    assert here.hardware_here(ALONE) is measured
    monkeypatch.setenv("TENSOROPT_CACHE", "off")
    assert here.calibrated_file(ALONE) is None and here.hardware_here(ALONE) is measured


def of_spread(spread: float) -> Hardware:
    """Measured hardware on which the repeats of collectives lie so far apart."""
    table = CollectiveTable((1024, 2048), (10.0, 20.0), (spread, spread))
    return replace(named("v100-1x2"), collectives={"all_reduce": {"a": table}, "all_gather": {"a": table}})


def test_a_disturbed_measurement_is_repeated_or_gives_way_to_an_older_calibration(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TENSOROPT_CACHE", str(tmp_path))
    monkeypatch.delenv("TENSOROPT_QUIET")
    monkeypatch.setattr(disturbance.os, "cpu_count", lambda: 2)
    own = {"rank": 0, "local_size": 2, "is_alone": False, "hosts": ("here", "here"), "machines": 1, "devices_per_machine": 2}
    two: Any = SimpleNamespace(**own, broadcast=lambda value: value, gather_max=lambda value: value)
    calm, disturbed, worse = of_spread(0.1), of_spread(0.8), of_spread(2.0)

    def found(*measured: Hardware, waited_s: float = 0.0) -> tuple[Hardware, str, int]:
        left, clocks = list(measured), iter([(1.0, 1.0), (2.0, 1.0 + waited_s)] * len(measured))
        monkeypatch.setattr(here, "measure_here", lambda *given: left.pop(0))
        monkeypatch.setattr(disturbance, "core_times_s", lambda: next(clocks))
        return here.hardware_here(two, display=Display()), capsys.readouterr().err, len(left)

    def sentence(waited: str, apart: str) -> str:
        return (
            f"tensoropt: other work disturbs these devices (ranks waited for a core in {waited} of the time, and repeats of "
            f"a collective differ by {apart}); plans may differ from run to run, until tensoropt calibrate measures in a "
            "quiet hour\n"
        )

    assert found(calm, worse) == (calm, "", 1)
    assert found(disturbed, calm) == (calm, "", 0)
    assert found(worse, disturbed) == (disturbed, sentence("0%", "80%"), 0)
    assert found(calm, calm, waited_s=0.25) == (calm, "", 1)
    assert found(calm, calm, waited_s=1.0) == (calm, sentence("50%", "10%"), 0)
    assert found(calm, calm, waited_s=3.0) == (calm, sentence("75%", "10%"), 1)
    file = here.calibrated_file(two)
    file.parent.mkdir()
    measured_here(date="2020-02-02").save(file)
    hardware, said, n_left = found(worse, calm)
    assert (hardware.name, n_left) == ("mine", 1)
    assert said.endswith("repeats of a collective differ by 200%); the calibration of 2020-02-02 is used instead\n")


def test_a_file_of_another_tensorflow_is_warned_of_or_refused(tmp_path, capsys):
    file = tmp_path / "old.json"
    measured_here(tensorflow="1.15").save(file)
    assert main(["search", MODEL, "--cluster", str(file)]) == 0
    told = capsys.readouterr()
    assert told.err == (
        f"tensoropt: hardware mine: it was measured with TensorFlow 1.15, this is {tf.__version__}; its costs may be off: "
        "tensoropt calibrate measures again\n"
    )
    assert main(["search", MODEL, "--cluster", str(file), "--strict"]) == 2
    assert "measure it again with tensoropt calibrate, or leave out --strict" in capsys.readouterr().err
    measured_here().save(file)
    assert main(["search", MODEL, "--cluster", str(file), "--strict"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("arguments", "said"), [
    (["--seconds", "0"], "--seconds takes a number of seconds above 0, got '0'"),
    (["--seconds", "soon"], "--seconds takes a number of seconds of at least 0, got 'soon'"),
    (["--output", "/nowhere/file.json"], "there is no folder '/nowhere'"),
    ([], "TENSOROPT_CACHE=off leaves no place for the hardware file; say --output FILE.json"),
])
def test_what_calibrate_refuses(arguments, said, capsys):
    assert main(["calibrate", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_table_shows_rates_and_their_error():
    rates = {"pooling": {"float32": {"forward": OperatorRate(1.5, 500.0, 0.0, 0.07, 12)}}}
    table = hardware_table(replace(named("v100-1x1"), operators=rates))
    (line,) = (text for text in table.splitlines() if "pooling" in text)
    assert line.split() == ["pooling", "float32", "forward", "1.5", "2,000.0", "7%", "12"]


def calibrated_by_ranks(tmp_path: Path, suffix: str = "", **env: str) -> Hardware:
    """Return what two ranks write, and ranks of later scripts take."""
    env["TENSOROPT_CACHE"] = str(tmp_path)
    done = run_ranks(2, "-m", "tensoropt", "calibrate", "--seconds", 3, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (tmp_path / "hardware").glob(f"1x2-*{suffix}.json")
    assert f"wrote {file}" in done.stdout
    hardware = Hardware.load(file)
    assert set(hardware.collectives) == set(COMMUNICATING_KINDS)
    done = run_ranks(2, SCRIPT, env=env)
    assert done.stdout == f"rates of {', '.join(hardware.operators)} complete True\n", done.stderr
    return hardware


@pytest.mark.alone
def test_ranks_calibrate_and_init_uses_what_they_wrote(tmp_path):
    hardware = calibrated_by_ranks(tmp_path)
    assert hardware.measured is not None and hardware.measured.is_complete and hardware.measured.is_quick
    assert hardware.measured.tensorflow == tf.__version__
    for tables in hardware.collectives.values():
        assert len(tables["a"].spread) == len(tables["a"].n_bytes)
    assert "update" in hardware.operators


@pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None and "CI" not in os.environ, reason="Horovod isn't installed: make horovod"
)
@pytest.mark.alone
def test_collectives_are_measured_by_horovod_too(tmp_path):
    hardware = calibrated_by_ranks(tmp_path, "-horovod", TENSOROPT_COLLECTIVES="horovod")
    assert hardware.measured is not None and hardware.measured.collectives == "horovod"
    assert "as operators of horovod" in hardware.provenance["collectives"]
    assert (hardware.collective_call_us, hardware.collective_path_us) == (0.0, 0.0)
    # No collective of two processes is done in less than 10 us, as what waits for nothing would be.
    assert all(time_us > 10 for tables in hardware.collectives.values() for time_us in tables["a"].time_us)


def test_a_file_of_other_collectives_is_told_of(monkeypatch):
    hardware = measured_here()
    assert here.warning_of(hardware, is_strict=False, is_run_here=True) == ""
    monkeypatch.setenv("TENSOROPT_COLLECTIVES", "horovod")
    told = here.warning_of(hardware, is_strict=False, is_run_here=True)
    assert "its collectives are by mpi, these by horovod; its costs may be off" in told
    assert here.warning_of(hardware, is_strict=False) == ""
    # Plans are checked by MPI whatever others run by: its own calibration still holds for that.
    assert here.why_stale(hardware, datetime.date.today()) == ""
    assert main(["calibrate", "--collectives", "emulated"]) == 2
    assert main(["calibrate", "--collectives", "carrier pigeons"]) == 2


@pytest.mark.alone
def test_an_interruption_leaves_a_file_of_what_was_measured(tmp_path):
    file = tmp_path / "cut.json"
    command = mpirun_command(2, forked("-m", "tensoropt", "calibrate", "--seconds", "200", "--output", file))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_environment(),
                               start_new_session=True)
    try:
        deadline = time.monotonic() + 90
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert file.exists()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0
    hardware = Hardware.load(file)
    assert hardware.measured is not None and not hardware.measured.is_complete
    assert hardware.n_devices == 2 and "all_gather" in hardware.collectives
    assert here.why_stale(hardware, datetime.date.today()) == "it is not complete"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_with_an_impossible_number_is_refused(tmp_path):
    value = measured_here().to_json()
    value["device"]["memory_bytes_per_s"] = -1
    (tmp_path / "bad.json").write_text(json.dumps(value))
    with pytest.raises(HardwareError, match=r"bad.json: device.memory_bytes_per_s: got -1"):
        Hardware.load(tmp_path / "bad.json")
    assert calibrate_command.QUICK_SECONDS < calibrate_command.SECONDS <= 300
