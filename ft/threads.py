"""Set how many threads compiled code may use: one, unless a search was given more.

Only the Pareto union of one large product is divided among threads, by its target cells, which are independent of each
other. It pays where frontiers are long. On machines that others use too, idle threads cost those others more than they save.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

_pool: ContextVar[tuple[int, ThreadPoolExecutor] | None] = ContextVar("pool", default=None)


@contextmanager
def using(n_threads: int) -> Iterator[None]:
    """Let compiled code use ``n_threads`` threads while this context lasts."""
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
    """Return the number of threads and the pool that runs them; None if there is only the calling thread."""
    return _pool.get()
