"""How many threads compiled code may use: one, unless a search was told otherwise.

Only the Pareto union of one large product is divided, by its targets, which don't share anything. It pays where frontiers
are long; on machines that others use, idle threads cost them more than they save.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

_pool: ContextVar[tuple[int, ThreadPoolExecutor] | None] = ContextVar("pool", default=None)


@contextmanager
def using(n_threads: int) -> Iterator[None]:
    """While this lasts compiled code may use so many threads."""
    if n_threads == 1:
        yield
        return
    with ThreadPoolExecutor(n_threads) as pool:
        token = _pool.set((n_threads, pool))
        try:
            yield
        finally:
            _pool.reset(token)


def available() -> tuple[int, ThreadPoolExecutor] | None:
    """The number of threads and who runs them; None for this thread alone."""
    return _pool.get()
