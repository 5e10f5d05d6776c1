"""Functions that worker processes call in tests."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any


def squared(number: int, report: Callable[..., None]) -> int:
    report(number)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number * number


def circumstances(report: Callable[..., None]) -> tuple[int, bool, bool, list[str]]:
    """Return the process, and whether it has a main module of a file, TensorFlow, and variables of mpirun."""
    main = sys.modules["__main__"]
    of_mpi = [name for name in os.environ if name.startswith("OMPI_")]
    return os.getpid(), hasattr(main, "__file__"), "tensorflow" in sys.modules, of_mpi


def without_tensorflow(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns that has needed no TensorFlow, nor have its arguments."""
    result = function(*arguments)
    assert "tensorflow" not in sys.modules
    return result


def ended(parent: int, number: int, report: Callable[..., None]) -> int:
    """Return a number in the process that was given; end any other."""
    if os.getpid() != parent:
        os._exit(1)
    return number


def ended_once(file: str, number: int, report: Callable[..., None]) -> tuple[int, int]:
    """End the process that is the first to create a file; return the number and the process in all others."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return number, os.getpid()
    os._exit(1)


def asleep(seconds: float, report: Callable[..., None]) -> int:
    time.sleep(seconds)
    return os.getpid()
