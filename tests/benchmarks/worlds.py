"""Count the lines that ask in which world they are: with stages or without, in micro-batches or not.

A plan is a list of stages, usually one, so that few places need to ask. Each line counts once, for the first kind that it is
of; imports don't count. A second table has the reasons of those that are left.

    python tests/benchmarks/worlds.py [ROOT]
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

CLASSES = r"(Staged\w+|Plan|StagePlan|\w*Frontier|\w*Engine|PlanRows|StageRows|FrontierRows|UnstagedPoint|\w*Execution)"
KINDS = {
    "isinstance": rf"isinstance\([^,]+, \(?[^)]*\b{CLASSES}\b",
    "key": r"\"(stages|plan|interleaved|rows)\" (not )?in\b",
    "union": r"\bPlan \| Staged|Frontier \| Saved|PlanRows \| (Stage|Frontier)Rows|\bAny(Plan|Point)\b|Points? \| Staged",
    "flag": (
        r"\b(_?has_stages|is_staged|asks_for_stages|stages_must_pay|unstaged)\b|\b(ends|interleaving) is (not )?None"
        r"|len\([\w.]*stages\) ([=!]=|[<>]=?) 1\b|(n_stages|stages\.n) ([=!]=|[<>]=?) 1\b"
        r"|max\((\w+\.)?(stages|counts)[^)]*\)+ [=>]"
    ),
    "call": (
        r"(?<!def )\b(load_any\w*|any_(text|json)|find_any_answer|find_answer_with_stages|execute_staged\w*"
        r"|peak_staged_beside|\w*staged_frontier_report|stages_report|stages_text|_stages_text|stages_explanation|stages_html|refuse_stages"
        r"|read_explained|frontier_of_plan|report_of_file|save_with_stages|rows_of_points|unstaged_frontier"
        r"|(fastest|parts)_without_stages|staged_curve_point|frontier_in_stages|_staged_(row|json)|_placed_plan"
        r"|find_with_stages|find_staged)\("
    ),
}

REASONS = {
    "the order of interleaved stages, which share devices": r"interleav",
    "an argument of a user is no plan": r"isinstance",
    "what ranks run: only of one stage they have all variables": r"runtime/|trainer_ranks",
    "what is asked for: stages, or whatever is best": r"search/request|asks_for|max\(counts",
    "a plan with stages beside the best without": r"tuning/|fastest_without|cli/compare|why_stages",
    "a model that isn't cut has no cut to open or to time": r"by_bound",
    "a file's schedule and timeline go with its stages": r"plan/plan\.py|self\.stages\) > 1",
    "texts: one stage needs no table of stages": r"stages\b",
    "a page shows the parts of one search for all of its points": r"frontier_rows",
    "a baseline's plan is stored where its differences are shown": r"page_data",
}
"""By reason, what is in the lines that have it, or in their files' names; the first that fits counts."""


def kinds_of(root: Path) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """Return how many lines there are of each kind, by file, and how many have each reason."""
    found, reasons = dict[str, Counter[str]](), Counter[str]()
    patterns = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}
    for file in sorted((root / "tensoropt").rglob("*.py")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if re.match(r"\s*(from|import|class)\b", line):
                continue
            kind = next((kind for kind, pattern in patterns.items() if pattern.search(line)), None)
            if kind is not None:
                name = str(file.relative_to(root))
                found.setdefault(name, Counter())[kind] += 1
                reasons[next((why for why, what in REASONS.items() if re.search(what, f"{name}: {line}")), "none")] += 1
    return found, reasons


def main() -> None:
    found, reasons = kinds_of(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[2])
    print("".join(f"{kind:>11}" for kind in KINDS) + "      total  file")
    rows = sorted(found.items(), key=lambda row: (-row[1].total(), row[0]))
    for file, counts in [*rows, (f"{len(rows)} files", sum(found.values(), Counter()))]:
        print("".join(f"{counts[kind] or '':>11}" for kind in KINDS) + f"{counts.total():>11}  {file}")
    print("\n" + "\n".join(f"{count:>11}  {why}" for why, count in reasons.most_common()))


if __name__ == "__main__":
    main()
