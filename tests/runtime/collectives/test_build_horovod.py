"""Check what ``make horovod`` says where what it needs isn't there; the build itself takes minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from tensoropt.common.errors import InputError
from tensoropt.runtime.collectives import build_horovod


def test_the_build_finds_headers_that_tensorflow_has_and_this_environment_s_mpi(tmp_path: Path) -> None:
    build_horovod.write_forwarding_headers(tmp_path)
    headers = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(headers) == 5
    for header in headers:
        (name,) = [line.split('"')[1] for line in header.read_text().splitlines()]
        assert Path(tf.sysconfig.get_include(), name).is_file(), name
    environment = build_horovod.build_environment({"PATH": "/usr/bin", "CPATH": "/opt/include"}, tmp_path)
    assert environment["CPATH"] == f"{tmp_path}:/opt/include"
    assert environment["PATH"].endswith(":/usr/bin") and environment["HOROVOD_WITH_MPI"] == "1"


def test_what_is_missing_is_said_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build_horovod.missing(tmp_path) == ["g++", "cmake", "make", "libhighwayhash-dev", "libfarmhash-dev"]
    with pytest.raises(InputError, match=r"no g\+\+, no cmake.*apt install g\+\+ cmake make"):
        build_horovod.build_wheel(tmp_path)
