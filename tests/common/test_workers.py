"""Worker processes: the same results with any number, nothing of this process's, and what happens when they die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from helpers.worker_functions import asleep, circumstances, ended, ended_once, squared

from tensoropt.common.errors import InputError
from tensoropt.common.process import workers
from tensoropt.common.process.workers import Calls, can_be_sent, n_workers, started_early


def results(function: Callable[..., Any], arguments: list[Any], n: int, report: Callable[..., None]) -> Iterator[Any]:
    with closing(Calls(n, function.__module__, report)) as calls:
        for number, each in enumerate(arguments):
            calls.add(number, function, each)
        for _ in arguments:
            yield calls.next_result()


def test_results_and_errors_come_back() -> None:
    reported: list[tuple[int, int]] = []
    with started_early(2, "helpers.worker_functions"):
        early, left = workers._EARLY[1], workers._EARLY[0]
        found = dict(results(squared, [(number,) for number in range(7)], 1, lambda *values: reported.append(values)))
        assert early.poll() is not None and left.poll() is None
    assert left.poll() is not None and found == {number: number * number for number in range(7)}
    assert reported == [(number, number) for number in range(7)]  # single values are never left out
    with pytest.raises(ValueError, match="-1 is negative"):
        list(results(squared, [(-1,)], 1, lambda *values: None))


def test_this_process_makes_calls_that_no_worker_has_begun() -> None:
    with closing(Calls(1, "helpers.worker_functions", lambda *values: None)) as calls:
        calls.add("of a worker", asleep, (0.5,))
        while calls._waiting:
            time.sleep(0.05)
        for number in (3, -1):
            calls.add(number, squared, (number,))
        calls.add("dropped", squared, (1,))
        assert calls.drop("dropped") and not calls.drop("of a worker")
        worker, here = calls.result("of a worker"), os.getpid()
        assert worker != here and not calls._waiting  # this process made the others meanwhile
        assert calls.result(3) == 9
        with pytest.raises(ValueError, match="-1 is negative"):
            calls.result(-1)


def test_a_worker_has_nothing_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    ((_, (process, *others)),) = results(circumstances, [()], 1, lambda *values: None)
    assert process != os.getpid() and others == [False, False, []]


def test_what_a_dead_worker_had_is_done_by_others(tmp_path: Path) -> None:
    found = dict(results(ended_once, [(str(tmp_path / "first"), i) for i in range(4)], 2, lambda *values: None))
    assert {number: value for number, (value, _) in found.items()} == {number: number for number in range(4)}
    assert len({process for _, process in found.values()}) == 1 and os.getpid() not in {p for _, p in found.values()}


def test_what_no_worker_survives_this_process_does() -> None:
    given = [(os.getpid(), number) for number in range(3)]
    assert sorted(results(ended, given, 2, lambda *values: None)) == [(number, number) for number in range(3)]


def test_ctrl_c_ends_workers_that_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = [], workers._start
    monkeypatch.setattr(workers, "_start", lambda needed: started.append(start(needed)) or started[-1])
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(results(asleep, [(60,), (60,)], 2, lambda *values: None))
    assert time.monotonic() - began < 30.0
    assert len(started) == 2 and all(each.poll() is not None for each in started)


def test_what_can_t_be_sent() -> None:
    assert can_be_sent((squared, {"a": 1})) and not can_be_sent(lambda: None)


def test_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSOROPT_WORKERS", raising=False)
    assert n_workers(1 << 50) == len(os.sched_getaffinity(0)) and n_workers(2 * workers.WORKER_BYTES) <= 2
    assert n_workers(0) == 1
    monkeypatch.setenv("TENSOROPT_WORKERS", "3")
    assert n_workers(0) == 3
    for wrong in ("0", "-1", "two", ""):
        monkeypatch.setenv("TENSOROPT_WORKERS", wrong)
        with pytest.raises(InputError, match="TENSOROPT_WORKERS takes a whole number of processes from 1 up, got"):
            n_workers(0)
