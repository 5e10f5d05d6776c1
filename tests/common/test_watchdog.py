"""What the watchdog decides of a long wait, by the answers of the other ranks."""

from dataclasses import replace

import pytest

from tensoropt.common.process.watchdog import CRITICAL, OVERLAPPABLE, LongWait, RankReport, Report, verdict

OWN = RankReport((7, 3), ("all_reduce(a)", ""), call="run at train.py:5")
CHAINED = RankReport((7, 3), ("all_reduce(a)", "all_reduce(b)"))


def of(*begun: int, what=("", ""), idle_s=9.0, **named) -> Report:
    return Report(RankReport(begun, what, idle_s=idle_s, where="in the user's code at train.py:9", **named))


CASES = {
    # Of another call by as many collectives, which is not to be taken for the connection.
    "others": (of(7, 3, what=("a gather", ""), call="fit at b.py:2"), "rank 1 is in a gather, in fit at b.py:2. All"),
    "call": (of(7, 3, what=OWN.what, call="fit at b.py:2"), "rank 1 is in all_reduce(a), in fit at b.py:2. All"),
    "line": (of(7, 3, what=OWN.what, call="run at b.py:2"), "all ranks have come to it, so the connection between them"),
    "late": (of(6, 3), "rank 1 hasn't come to it and has been in the user's code at train.py:9 for 9 s. All"),
    "early": (of(6, 3, what=("slice(b)", "")), "rank 1 hasn't come to it and has been in slice(b) for 9 s. All"),
    "at work": (of(6, 3, idle_s=1), None),
    "has just come": (of(7, 3, what=OWN.what, call=OWN.call, idle_s=1), None),
    "not asked yet": (Report(None), None),
    "silent": (Report(None, silent_s=9), "rank 1 hasn't answered for 9 s. All"),
    "stopped": (Report(of(6, 3).answer, silent_s=9), "rank 1 hasn't answered for 9 s; it was last known in the user's code"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_ends_a_wait(case):
    report, said = CASES[case]
    found = verdict(LongWait(0, CRITICAL, 12.3, OWN), {1: report}, 5.0)
    if said is None:
        assert found is None
    else:
        assert found.startswith(f"rank 0 has waited for 12 s in all_reduce(a), in run at train.py:5: {said}"), found
    for idle_s, ended in (50.0, ()), (61.0, ("others", "call")):
        is_idle = report.answer is not None and report.answer.idle_s > 5
        idle = replace(report, answer=report.answer._replace(idle_s=idle_s)) if is_idle else report
        found = verdict(LongWait(0, CRITICAL, 62.3, OWN), {1: idle}, 5.0, is_deadlock_only=True)
        assert (found is not None) == (case in ended)


def test_an_exchange_while_the_others_wait_in_a_step_ends_soon():
    own = OWN._replace(what=("values that were assigned", ""), is_exchange=True)
    cases = [((7, 3), ("all_reduce(a)", ""), {}), ((6, 4), ("", "all_reduce(b)"), {})]
    cases += [((6, 3), ("slice(a)", ""), {}), ((7, 3), ("a gather", ""), {"is_exchange": True}), ((7, 3), ("", ""), {})]
    reports = [{1: of(*begun, what=what, call=OWN.call, **named)} for begun, what, named in cases]
    found = [verdict(LongWait(0, CRITICAL, 6.0, own), report, 5.0, is_deadlock_only=True) for report in reports]
    assert [sentence is not None for sentence in found] == [True, True, False, False, False]
    assert "in values that were assigned, in run at train.py:5: rank 1 is in all_reduce(a)" in found[0]


def test_a_rank_that_waits_itself_is_not_to_blame_for_one_at_work():
    """Rank 1 waits for rank 2, which is in a search, as rank 0 does; once rank 2 is late, both are named."""
    waits, works = of(6, 3, what=("a gather", "")), of(5, 3, idle_s=1)
    assert verdict(LongWait(0, CRITICAL, 12.3, OWN), {1: waits, 2: works}, 5.0) is None
    found = verdict(LongWait(0, CRITICAL, 12.3, OWN), {1: waits, 2: of(5, 3)}, 5.0)
    assert "rank 1 hasn't come to it and has been in a gather" in found
    assert "rank 2 hasn't come to it and has been in the user's code" in found


def test_a_rank_without_work_is_none_that_is_missing():
    without = Report(RankReport((2, 0), ("", ""), is_at_work=False))
    found = verdict(LongWait(0, CRITICAL, 12.3, OWN), {1: of(6, 3), 2: without}, 5.0)
    assert ": rank 1 hasn't come to it" in found and "rank 2" not in found


def test_who_is_missing_is_told_by_chain():
    """A rank that has begun as many collectives, but others, hasn't come; it may be in two."""
    reports = {1: of(6, 4, what=("slice(c)", "all_reduce(d)"))}
    found = verdict(LongWait(0, CRITICAL, 12.3, CHAINED), reports, 5.0)
    assert ": rank 1 hasn't come to it and has been in slice(c) and in all_reduce(d) for 9 s. All" in found
    found = verdict(LongWait(0, OVERLAPPABLE, 12.3, CHAINED), reports, 5.0)
    assert "rank 1 is in slice(c) and in all_reduce(d). All" in found
