"""Files of frontiers: what they hold, and that any damage to them is noticed."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.searches import plans_of
from hypothesis import given
from hypothesis import strategies as st
from plan.frontiers import changed

import tensoropt
from tensoropt.plan.frontier_file import _runs
from tensoropt.report.frontier_rows import column_of


def test_a_file_that_is_cut_off_anywhere_is_refused(file):
    text = file.read_text()
    for length in range(0, len(text) - 2, 499):
        file.write_text(text[:length])
        with pytest.raises(tensoropt.InputError, match="is not whole JSON"):
            tensoropt.load_frontier(file)


def all_of(value):
    return {**value["searches"][0], **value}


def test_any_key_that_is_missing_is_noticed(whole, file):
    value = json.loads(whole.read_text())
    for key in value:
        changed(file, lambda value, key=key: value.pop(key), checked=False)
        with pytest.raises(tensoropt.InputError):
            tensoropt.load_frontier(file)
        file.write_bytes(whole.read_bytes())
    for part in ("operators", "reshardings", "points"):
        for key in all_of(value)[part][0]:
            changed(file, lambda value, part=part, key=key: all_of(value)[part][0].pop(key), checked=False)
            with pytest.raises(tensoropt.InputError, match=r"is damaged|was changed since it was saved"):
                tensoropt.load_frontier(file)
            file.write_bytes(whole.read_bytes())


@pytest.mark.parametrize(
    "change",
    [lambda value: value["points"][1].update(sum_bytes=value["points"][1]["sum_bytes"] + 1),
     lambda value: value["points"][1].update(compute_time_us=0.5),
     lambda value: value["points"][1].update(exact=False),
     lambda value: all_of(value)["operators"][0]["choices"][0].update(sum_bytes=1),
     lambda value: all_of(value)["operators"][0]["choices"][0].update(config="-"),
     lambda value: all_of(value)["reshardings"][0]["pool"][0].update(time_us=0.001),
     lambda value: value.update(model_digest="0123456789abcdef"),
     lambda value: value["assumed"].update(tensorflow="1.0"),
     lambda value: value.update(checksum="0123456789abcdef"),
     lambda value: value.update(added="after the checksum")],
)  # fmt: skip
def test_what_was_changed_by_hand_is_noticed(file, change):
    before = json.loads(file.read_text())
    changed(file, change, checked=False)
    assert json.loads(file.read_text()) != before
    with pytest.raises(tensoropt.InputError, match=r"was changed since it was saved: its checksum is '[0-9a-f]{16}', its"):
        tensoropt.load_frontier(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda value: all_of(value)["columns"].__setitem__(0, "0"), "column '0' doesn't tell the choices of"),
     (lambda value: all_of(value)["columns"].__setitem__(0, "0x99999999999999"), "doesn't tell the choices of"),
     (lambda value: all_of(value)["columns"].__setitem__(0, f"9x{len(value['points'])}"), "a point takes choice 9 of"),
     (lambda value: all_of(value)["columns"].__setitem__(0, f"-1x{len(value['points'])}"), "doesn't tell the choices of"),
     (lambda value: all_of(value)["columns"].__setitem__(0, "a"), "ValueError"),
     (lambda value: all_of(value)["operators"][0].update(column=999), "there is no column 999"),
     (lambda value: all_of(value)["operators"][0].update(column=-1), "there is no column -1"),
     (lambda value: all_of(value)["operators"][0].update(column="0"), "TypeError"),
     (lambda value: all_of(value)["reshardings"][0].update(choices=[]), "a point takes choice"),
     (lambda value: all_of(value)["reshardings"][0]["choices"].__setitem__(0, [999]), "a choice names row 999 of"),
     (lambda value: value["points"][0].update(plan={"stages": [{"number": -1}]}), "there is no plan -1 of search 0"),
     (lambda value: value["points"].reverse(), "strictly ascending memory"),
     (lambda value: value["points"][0].update(sum_bytes=1.5), "must be integers"),
     (lambda value: value["points"][0].update(sum_bytes="1"), "must be integers"),
     (lambda value: value["points"][0].update(sum_bytes=2**80), "must be integers"),
     (lambda value: value.update(points=[]), "at least one point"),
     (lambda value: value.update(mesh=[{"name": "device", "count": 0}]), "ValueError"),
     (lambda value: value.update(bound=3), "TypeError")],
)  # fmt: skip
def test_parts_that_do_not_fit_together_are_named(file, change, said):
    with pytest.raises(tensoropt.InputError, match=rf"frontier '.*' is damaged \(.*{re.escape(said)}"):
        tensoropt.load_frontier(changed(file, change))


def test_a_config_that_makes_no_sense_is_noticed_when_its_plan_is_asked_for(file):
    loaded = tensoropt.load_frontier(
        changed(file, lambda value: [op.update(choices=[{**op["choices"][0], "config": "n:Z"}] * 99)
                                     for op in all_of(value)["operators"]])
    )  # fmt: skip
    with pytest.raises(tensoropt.InputError, match=r"point 0 of the frontier is damaged \(IndexError"):
        loaded.plan(0)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60))
def test_runs_tell_every_choice(choices):
    column = np.array(choices, np.int32)
    text = _runs(column)
    np.testing.assert_array_equal(column_of(text, len(choices)), column)
    assert all(a.split("x")[0] != b.split("x")[0] for a, b in zip(text.split(), text.split()[1:], strict=False))


def test_the_file_has_what_points_share_once(found, tmp_path):
    whole = tmp_path / "all.json"
    (every,) = found.without_stages
    found = plans_of(replace(every, found=every.certified, searched=None, _peaks={}))
    found.save(whole)
    (value,) = json.loads(whole.read_text())["searches"]
    for operator in value["operators"]:
        texts = [json.dumps(choice) for choice in operator["choices"]]
        assert len(set(texts)) == len(texts)
    for part in value["reshardings"]:
        texts = [json.dumps(row) for row in part["pool"]]
        assert len(set(texts)) == len(texts) and len(set(map(tuple, part["choices"]))) == len(part["choices"])
    assert len(set(value["columns"])) == len(value["columns"])
    plans = sum(len(json.dumps(plan.to_json())) for plan in map(found.plan, range(len(found))))
    assert len(whole.read_text()) < plans / 4
    assert len(tensoropt.load_frontier(whole)) == len(found)
