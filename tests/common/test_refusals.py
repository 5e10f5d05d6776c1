"""Every sentence that refuses a model, a script or a call has a reason and says what to do, and the page has it."""

from __future__ import annotations

from common.refusals import MEANINGLESS, PAGE, Refusal, refusals, with_lists

FOUND = refusals()


def test_each_sentence_has_one_reason_and_says_what_to_do() -> None:
    assert len(FOUND) > 150 and all(each.because for each in FOUND)
    assert [f"{each.file}: {each.text}" for each in FOUND if not each.says_what_to_do] == []


def test_a_sentence_that_only_complains_is_seen() -> None:
    for text in ("the model … can't be captured", "… has no known shape, so it was refused", "a batch is too large"):
        assert not Refusal("trainer/runs.py", text).says_what_to_do


def test_the_page_is_that_of_the_code() -> None:
    page = PAGE.read_text()
    assert page == with_lists(page), "run: python tests/common/refusals.py"
    assert all(f"When {each.when}:" in page for each in FOUND if each.because != MEANINGLESS)
