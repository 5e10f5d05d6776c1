"""Tell which versions of Python, TensorFlow and Keras TensorOpt was tried with. None of them is imported for that."""

from __future__ import annotations

import platform

# The oldest and the newest of each, which `make test-versions` runs. setup.py and the Makefile have the same numbers.
TRIED = {"Python": ("3.10", "3.13"), "TensorFlow": ("2.19", "2.21"), "Keras": ("3.10", "3.15")}
PACKAGES = {
    "TensorFlow": ("tensorflow", "tensorflow-cpu", "tensorflow-cpu-aws", "tf-nightly", "tf-nightly-cpu"),
    "Keras": ("keras", "keras-nightly"),
}


def check_python(version: str = platform.python_version()) -> None:
    """Raise ImportError if this Python is too old to import TensorOpt."""
    if _numbers(version) < _numbers(TRIED["Python"][0]):
        raise ImportError(f"tensoropt: Python {version} is too old; expected {TRIED['Python'][0]} or newer")


def untried_versions() -> list[str]:
    """Return a sentence on each version that is older or newer than those that TensorOpt was tried with."""
    versions = {"Python": platform.python_version()}
    versions |= {name: next(filter(None, map(_version, packages)), "") for name, packages in PACKAGES.items()}
    sentences = []
    for name, version in versions.items():
        oldest, newest = TRIED[name]
        is_older, is_newer = _numbers(version) < _numbers(oldest), _numbers(version) > _numbers(newest)
        if version and (is_older or is_newer):
            advice = f"install {oldest} or newer" if is_older else f"if something fails, install {newest}"
            sentences.append(f"{name} {version} is untried, TensorOpt was tried with {oldest} to {newest}: {advice}")
    return sentences


def _version(package: str) -> str:
    import importlib.metadata  # here, since it takes long, and commands that need no TensorFlow shall be quick

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2]] if version else []
