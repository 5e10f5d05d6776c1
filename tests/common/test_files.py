"""Reading JSON: numbers are checked one by one only where a text may have one that is too large."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.common import files
from tensoropt.common.files import JsonError, parse_json, write_json

DIGITS = st.text("0123456789", min_size=1, max_size=40)
NUMBERS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.one_of(st.just("0"), st.builds("{}{}".format, st.sampled_from("123456789"), DIGITS)),
    st.one_of(st.just(""), st.builds(".{}".format, DIGITS)),
    st.one_of(st.just(""), st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), DIGITS)),
)


def outcome(text: str) -> object:
    try:
        return parse_json(text.encode())
    except JsonError as error:
        return str(error)


@given(NUMBERS, st.booleans())
def test_a_number_is_read_or_refused_as_where_each_is_checked(number: str, is_alone: bool) -> None:
    text = number if is_alone else json.dumps({"e000": "7" * 9, "x": 1.5}).replace("1.5", number)
    found = outcome(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_LONG", (b"",))  # is in each text
        assert outcome(text) == found
    is_too_long = not set(number) & set(".eE") and len(number.lstrip("-")) > files.MOST_DIGITS
    assert isinstance(found, str) == (is_too_long or float(number) in (float("inf"), float("-inf")))


@pytest.mark.parametrize("text", ["1e400", "-1E400", "1e+0400", "9" * 31, "1" + "0" * 400 + ".5", "NaN", "[Infinity]"])
def test_numbers_that_are_too_large_or_none_are_refused(text: str) -> None:
    with pytest.raises(JsonError):
        parse_json(text.encode())


def test_a_link_stays_one_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real.json", tmp_path / "link.json", tmp_path / "pipe"
    real.write_text("old")
    link.symlink_to(real)
    for file in (link, pipe):
        files.check_writable(file, "result")
    write_json(link, {"new": 1}, "result")
    assert link.is_symlink() and json.loads(real.read_text()) == {"new": 1}
    os.mkfifo(pipe)
    files.check_writable(pipe, "result")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json(pipe, {"new": 2}, "result")
    assert json.loads(os.read(reader, 100)) == {"new": 2}
    os.close(reader)
    assert pipe.is_fifo() and sorted(each.name for each in tmp_path.iterdir()) == ["link.json", "pipe", "real.json"]
