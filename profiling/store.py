"""Keep measured operators and steps on disk, so that each is measured once for a machine and a release of TensorFlow.

There is one SQLite file for all runs of a user. Ranks and runs write at the same time (by write-ahead logging, and
waiting for each other's locks). A measurement is filed under its environment (device, TensorFlow, threads, how many
ranks compute at once) and the key of its work. A file that can't be used never stops a run: a broken file is set aside
and a new one begun; a file that can't be written is read; without a file that can't be opened, nothing is kept. The user
is told of each in one sentence.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ..common.errors import cut
from .work import Measured, WorkItem

CACHE, OFF = "TENSOROPT_CACHE", "off"
VERSION = 4
FILE = "operators.sqlite"
PATIENCE_S = 5.0
"""How long to wait for a lock of another process."""
RETRY_S = 0.02
"""The time between two attempts to open a locked file."""

_COLUMNS = "type dtype flops n_bytes n_gradients gradient_bytes forward_us backward_us spread".split()
_SCHEMA = f"""CREATE TABLE IF NOT EXISTS operators (
    environment TEXT NOT NULL, key TEXT NOT NULL, type TEXT NOT NULL, dtype TEXT NOT NULL,
    flops INTEGER NOT NULL, n_bytes INTEGER NOT NULL, n_gradients INTEGER NOT NULL, gradient_bytes INTEGER,
    forward_us REAL NOT NULL, backward_us REAL NOT NULL, spread REAL NOT NULL, measured TEXT NOT NULL,
    PRIMARY KEY (environment, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS plans_in_turn (
    environment TEXT NOT NULL, key TEXT NOT NULL, plan_s REAL NOT NULL, data_parallel_s REAL NOT NULL,
    measured TEXT NOT NULL,
    PRIMARY KEY (environment, key)) WITHOUT ROWID;
PRAGMA user_version = {VERSION}"""
_OF_WORK = 5
_READ = f"SELECT {', '.join([*_COLUMNS[:_OF_WORK], 'key', *_COLUMNS[_OF_WORK:]])} FROM operators WHERE environment = ?"
_WRITE = (
    f"INSERT OR REPLACE INTO operators (environment, key, {', '.join(_COLUMNS)}, measured) "
    f"VALUES (?, ?, {', '.join('?' * len(_COLUMNS))}, datetime('now'))"
)
_READ_STEPS = "SELECT key, plan_s, data_parallel_s FROM plans_in_turn WHERE environment = ?"
_WRITE_STEPS = "INSERT OR REPLACE INTO plans_in_turn VALUES (?, ?, ?, ?, datetime('now'))"

Say = Callable[[str], None]


def say_on_stderr(sentence: str) -> None:
    print(f"tensoropt: {sentence}", file=sys.stderr, flush=True)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder that keeps measurements between runs; None if ``TENSOROPT_CACHE=off`` keeps and looks up nothing.

    It is ``$TENSOROPT_CACHE``, else ``tensoropt`` in the user's folder of caches, and may not exist yet.
    """
    value = environ.get(CACHE)
    if value:
        return None if value == OFF else Path(value).expanduser()
    caches = environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path("~/.cache").expanduser()) / "tensoropt"


class Store:
    """The measurements of one environment. Added ones are kept for later runs where the file can be written.

    Args:
        path: the file, whose folder is made; None to keep nothing beyond this process.
        environment: all that measurements depend on besides the work.
        say: is called with a sentence about what went wrong.
        patience_s: how long to wait for a lock of another process.

    Attributes:
        measured: the measured operators by the key of their work.
        step_s: seconds of a step of a plan and of data parallelism, measured interleaved, by the plan's key.
    """

    def __init__(
        self, path: Path | None, environment: str, say: Say = say_on_stderr, patience_s: float = PATIENCE_S
    ) -> None:
        self.environment = environment
        self._path, self._say, self._patience_s = path, say, patience_s
        self.measured: dict[str, Measured] = {}
        self.step_s: dict[str, tuple[float, float]] = {}
        self._connection: sqlite3.Connection | None = None
        self._connection = self._opened()

    def add(self, operators: Iterable[Measured]) -> None:
        """Keep measurements; an earlier one of an equal work is replaced."""
        added = {operator.work.key: operator for operator in operators}
        self.measured.update(added)
        self._write(_WRITE, [(self.environment, key, *_row(operator)) for key, operator in added.items()])

    def add_step_s(self, key: str, plan_s: float, data_parallel_s: float) -> None:
        """Keep the seconds of a step of a plan and of data parallelism, measured interleaved; earlier ones of the key
        are replaced.
        """
        self.step_s[key] = plan_s, data_parallel_s
        self._write(_WRITE_STEPS, [(self.environment, key, plan_s, data_parallel_s)])

    def close(self) -> None:
        """Close the file; measurements stay known in this process."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _write(self, command: str, rows: Sequence[tuple[object, ...]]) -> None:
        if self._connection is None or not rows:
            return
        try:
            with self._connection:
                self._connection.executemany(command, rows)
        except sqlite3.Error as error:
            self._do_without(error)

    def _opened(self) -> sqlite3.Connection | None:
        if self._path is None:
            return None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return self._connected(self._path)
        except sqlite3.OperationalError as error:  # locked, read-only, not to be opened
            self._do_without(error)
            self._read_only(self._path)
        except sqlite3.DatabaseError as error:
            return self._restarted(self._path, error)
        except OSError as error:
            self._do_without(error)
        return None

    def _connected(self, path: Path) -> sqlite3.Connection:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return self._connected_once(path)
            except sqlite3.OperationalError as error:
                # While another process switches the journal to write-ahead logging, SQLite doesn't wait by itself.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)

    def _connected_once(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=self._patience_s)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, VERSION):
                raise sqlite3.DatabaseError(f"it is of version {version}, expected {VERSION}")
            (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(state)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)
            self._read(connection)
        except (TypeError, ValueError, OverflowError) as error:  # the values read aren't those that were written
            connection.close()
            raise sqlite3.DatabaseError(f"{type(error).__name__}: {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _read(self, connection: sqlite3.Connection) -> None:
        for row in connection.execute(_READ, (self.environment,)):
            work = WorkItem(*row[: _OF_WORK + 2])
            self.measured[work.key] = Measured(work, *row[_OF_WORK + 2 :])
        for key, plan_s, data_parallel_s in connection.execute(_READ_STEPS, (self.environment,)):
            self.step_s[key] = plan_s, data_parallel_s

    def _read_only(self, path: Path) -> None:
        """Read what can be read of a file that can't be written; if its folder can't be written either, read it without
        locks.
        """
        for mode in ("mode=ro", "immutable=1"):
            with contextlib.suppress(sqlite3.Error, TypeError, ValueError):
                connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=self._patience_s)
                with contextlib.closing(connection):
                    self._read(connection)
                    return

    def _restarted(self, path: Path, error: sqlite3.Error) -> sqlite3.Connection | None:
        backup = path.with_name(f"{path.name}.broken-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        self.measured.clear()
        self.step_s.clear()
        try:
            with contextlib.suppress(FileNotFoundError):  # another rank was first
                path.replace(backup)
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            connection = self._connected(path)
        except (OSError, sqlite3.Error) as another:
            self._do_without(another)
            return None
        self._say(
            f"the store of measured operators '{path}' is broken ({cut(error)}); it is now '{backup.name}', and a new one "
            "begun"
        )
        return connection

    def _do_without(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else error
        self._say(f"what is measured isn't kept for later runs: the store '{self._path}' can't be used ({cut(reason)})")
        self.close()


def _row(measurement: Measured) -> tuple[object, ...]:
    work = measurement.work
    of_work = (work.type, work.dtype, work.flops, work.n_bytes, work.n_gradients, work.gradient_bytes)
    return (*of_work, measurement.forward_us, measurement.backward_us, measurement.spread)
