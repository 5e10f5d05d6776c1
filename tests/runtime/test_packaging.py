"""The wheel's contents, and what make says to a Python that can't be used."""

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from helpers.mpirun import ROOT, run_command

from tensoropt.common import versions
from tensoropt.common.errors import InputError
from tensoropt.common.process import tensorflow_import
from tensoropt.common.versions import TRIED

# Not at the top of site-packages, where their names would collide.
COMPONENTS = ("ft", "reschedule", "profiling")
MPI_SETTINGS = "tensoropt-0.2.0.data/data/etc/prte-mca-params.conf"
SOURCES = ("setup.py", "pyproject.toml", "MANIFEST.in", "Makefile", "README.md", "LICENSE", "tensoropt", *COMPONENTS)


@pytest.fixture
def checkout(tmp_path):
    """A copy of what is packaged, so that a build leaves nothing behind and .venv doesn't exist."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_the_wheel_holds_real_files_under_one_name(checkout, tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "."]
    result = run_command(command, timeout=120, cwd=checkout)
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert archive.read("tensoropt/ft/__init__.py") == (ROOT / "ft" / "__init__.py").read_bytes()
        # More ranks than cores, by bare mpirun.
        assert b"\nrmaps_default_mapping_policy = :oversubscribe" in archive.read(MPI_SETTINGS)
        metadata = archive.read("tensoropt-0.2.0.dist-info/METADATA").decode()
    assert {"Author: The TensorOpt authors", "Requires-Python: >=3.10,<3.14"} <= set(metadata.splitlines())
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    assert not any("tensoropt" in line for line in required)  # resolved without an index that knows us
    for extra, tensorflow in (("cpu", "tensorflow-cpu>="), ("gpu", "tensorflow[and-cuda]>=")):
        assert any(f'extra == "{extra}"' in line and tensorflow + TRIED["TensorFlow"][0] in line for line in required)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"tensoropt"}
    for component in ("", *COMPONENTS):
        folder = ROOT / "tensoropt" / component
        expected = {
            str(Path("tensoropt") / component / file.relative_to(folder))
            for pattern in ("**/*.py", "hardware/*.json")
            for file in folder.glob(pattern)
        }
        assert expected and expected <= names, expected - names


def make_install(checkout: Path, python: Path):
    environment = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(checkout)}
    return run_command(["make", "install"], timeout=60, cwd=checkout, env=environment)


def fake_python(folder: Path, prelude: str) -> Path:
    """A python3 that runs ``prelude`` before the script which it is given."""
    folder.mkdir()
    python = folder / "python3"
    python.write_text(
        f"#!{sys.executable}\n"
        f"import runpy, sys\n{prelude}\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    python.chmod(0o755)
    return python


def test_make_names_the_pythons_that_tensorflow_supports(checkout, tmp_path):
    for name, version in (("new", (3, 99, 0)), ("old", (3, 9, 18))):
        python = fake_python(tmp_path / name, f"sys.version_info = {version}")
        result = make_install(checkout, python)
        assert result.returncode != 0
        assert f"no wheel for Python {version[0]}.{version[1]}" in result.stderr
        assert "expected Python 3.10 to 3.13" in result.stderr
        assert re.search(r"make install PYTHON=python3\.1[0-3]\b", result.stderr)
        assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_make_says_what_to_install_for_a_python_without_venv(checkout, tmp_path, module):
    python = fake_python(tmp_path / "split", f"sys.modules[{module!r}] = None")
    result = make_install(checkout, python)
    assert result.returncode != 0
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"apt install python{version}-venv" in result.stderr and "Traceback" not in result.stderr
    assert not (checkout / ".venv").exists()


def test_make_says_what_to_install_without_python(checkout):
    result = run_command(["make", "install", "PYTHON=no-such-python"], timeout=60, cwd=checkout)
    assert result.returncode != 0 and "no no-such-python on the PATH" in result.stderr
    assert "apt install python3 python3-venv" in result.stderr


def test_make_alone_lists_the_targets(checkout):
    result = run_command(["make"], timeout=60, cwd=checkout)
    assert result.returncode == 0
    for target in ("install", "demo", "test", "lint", "figures", "clean"):
        assert f"make {target} " in result.stdout


def test_make_and_setup_have_the_versions_that_are_tried():
    makefile = (ROOT / "Makefile").read_text()
    for at, name in enumerate(("OLDEST", "NEWEST")):
        assert f"{name}_PYTHON ?= python{TRIED['Python'][at]}\n" in makefile
        assert f"tensorflow-cpu=={TRIED['TensorFlow'][at]}.* keras=={TRIED['Keras'][at]}.*\n" in makefile


@pytest.mark.parametrize(
    ("version", "says"),
    [("3.9.2", "Keras 3.9.2 is untried, TensorOpt was tried with 3.10 to 3.15"), ("3.10.0", ""), ("3.16", "Keras 3.16")],
)
def test_other_versions_have_a_sentence_with_both_numbers(monkeypatch, version, says):
    monkeypatch.setattr(versions, "_version", {"keras": version, "tensorflow": "2.19.0"}.get)
    monkeypatch.setattr(versions.platform, "python_version", lambda: "3.13.1")
    said = versions.untried_versions()
    assert len(said) == bool(says) and all(line.startswith(says) for line in said)
    with pytest.raises(ImportError, match=r"Python 3\.9\.18 is too old; expected 3\.10 or newer"):
        versions.check_python("3.9.18")


def test_a_missing_tensorflow_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(tensorflow_import.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install tensorflow-cpu, or for GPUs with pip install 'tensorflow"):
        tensorflow_import.import_tensorflow()
