"""The display of progress: what it writes and when, by a clock that the test drives."""

from __future__ import annotations

import io
import queue
import sys
import threading
from types import SimpleNamespace

import pytest
from numba.core import event

from tensoropt.common.compiled import njit
from tensoropt.common.process import progress
from tensoropt.common.process.progress import NOT_SHOWN, Display

QUIET = "TENSOROPT_QUIET"


class DrivenClock:
    """The clock and the event of a display: time passes only by :meth:`pass_time`, which returns when it waits again."""

    def __init__(self) -> None:
        self.seconds, self.ended = 0.0, threading.Event()
        self.waits: queue.Queue[float] = queue.Queue()
        self.goes_on: queue.Queue[bool] = queue.Queue()

    def monotonic(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> bool:
        self.waits.put(seconds)
        return self.ended.wait() if self.goes_on.get() else False

    def set(self) -> None:
        self.ended.set()

    def pass_time(self) -> float:
        """Let the display's current wait end, and return how long it was."""
        waited = self.waits.get(timeout=60)
        self.seconds += waited
        self.goes_on.put(False)
        self.waits.put(self.waits.get(timeout=60))
        return waited

    def cleared(self) -> DrivenClock:
        self.ended.clear()
        return self

    def end(self) -> None:
        self.goes_on.put(True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> DrivenClock:
    monkeypatch.delenv(QUIET)
    clock = DrivenClock()
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress, "threading", SimpleNamespace(Thread=threading.Thread, Event=clock.cleared))
    return clock


def test_lines_come_after_two_seconds_and_each_ten_and_name_the_innermost_phase(
    clock: DrivenClock, capsys: pytest.CaptureFixture[str]
) -> None:
    display = Display()
    with display.phase("capture"):
        waited = [clock.pass_time()]
        with display.phase("search"):
            waited.append(clock.pass_time())
            display.update("costs", 3, 7)
            waited.append(clock.pass_time())
        waited.append(clock.pass_time())
        clock.end()
    assert waited == [2, 10, 10, 10]
    assert capsys.readouterr().err.splitlines() == [
        "tensoropt: after 2 s: capture", "tensoropt: after 12 s: search", "tensoropt: after 22 s: costs, 3 of 7",
        "tensoropt: after 32 s: capture",
    ]  # fmt: skip


def test_a_second_wait_counts_from_its_own_start_and_short_work_shows_nothing(
    clock: DrivenClock, capsys: pytest.CaptureFixture[str]
) -> None:
    display = Display()
    clock.end()
    with display.phase("short"):
        clock.seconds += 100.0
    clock.waits.get(timeout=60)
    with display.phase("long"):
        clock.pass_time()
        clock.end()
    assert capsys.readouterr().err == "tensoropt: after 2 s: long\n"


def test_a_terminal_shows_one_bar_that_is_wiped_even_by_an_error(
    clock: DrivenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    display = Display()
    with pytest.raises(ValueError, match="wrong"), display.phase("capture"):
        waited = [clock.pass_time()]
        display.update("costs", 3, 6)
        waited.append(clock.pass_time())
        clock.end()
        raise ValueError("wrong")
    assert waited == [2, 0.5]
    _, first, second, last = terminal.getvalue().split("\r\x1b[K")
    assert first == "tensoropt: capture, 2 s"
    assert second.startswith("tensoropt: costs:  50%|") and "| 3/6 [" in second
    assert last == "" and "\n" not in terminal.getvalue()


def test_quiet_and_hidden_show_nothing_and_start_nothing(
    clock: DrivenClock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(QUIET, "1")
    for display in (Display(), NOT_SHOWN):
        with display.phase("capture"):
            display.update("costs", 3, 7)
            assert clock.waits.empty()
        display.say("plan: 2 devices")
    assert not capsys.readouterr().err


def test_a_compilation_shows_instead_of_what_waits_for_it(clock: DrivenClock, capsys: pytest.CaptureFixture[str]) -> None:
    @njit
    def waits(n: int) -> int:
        return n + 1

    class WhenCompiled(event.Listener):
        def on_start(self, _: object) -> None:
            clock.pass_time()

        def on_end(self, _: object) -> None:
            pass

    display = Display()
    with display.phase("peaks"), event.install_listener("numba:compile", WhenCompiled()):
        display.update("peaks", 0, 35)
        assert waits(1) == 2
        clock.end()
    assert capsys.readouterr().err.splitlines()[0] == ("tensoropt: after 2 s: peaks: compiling loops, once on this machine")
