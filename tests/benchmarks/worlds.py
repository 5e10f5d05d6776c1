"""Count the lines that ask in which world they are: with stages or without, in micro-batches or not.

A plan is a list of stages, usually one, so that few places need to ask. Each line counts once, for the first kind that it is
of; imports don't count.

    python tests/benchmarks/worlds.py [ROOT]
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

CLASSES = (
    r"(Staged\w+|Plan|StagePlan|\w*Frontier|\w*Engine|PlanRows|StageRows|FrontierRows|StagedPoint|UnstagedPoint"
    r"|\w*Execution)"
)
KINDS = {
    "isinstance": rf"isinstance\([^,]+, \(?[^)]*\b{CLASSES}\b",
    "key": r"\"(stages|plan|interleaved)\" (not )?in\b",
    "union": r"\bPlan \| Staged|Frontier \| Saved|PlanRows \| (Stage|Frontier)Rows|\bAny(Plan|Point)\b|Points? \| Staged",
    "flag": (
        r"\b(_?has_stages|is_staged|ends is (not )?None|asks_for_stages|stages_must_pay)\b"
        r"|\bunstaged\b|interleaving is (not )?None"
        r"|len\([\w.]*stages\) [=<>!]=? ?1\b|n_stages [=<>!]=? ?1\b|max\((stages|counts)[^)]*\)+ [=>]"
    ),
    "call": (
        r"(?<!def )\b(load_any\w*|any_(text|json)|find_any_answer|find_answer_with_stages|execute_staged\w*"
        r"|peak_staged_beside|\w*staged_frontier_report|stages_report|stages_text|_stages_text|stages_explanation|stages_html|refuse_stages"
        r"|read_explained|frontier_of_plan|report_of_file|save_with_stages|rows_of_points|unstaged_frontier"
        r"|(fastest|parts)_without_stages|staged_curve_point|frontier_in_stages|_staged_(row|json)|_placed_plan"
        r"|find_with_stages|find_staged)\("
    ),
}


def kinds_of(root: Path) -> dict[str, Counter[str]]:
    """Return by file how many lines there are of each kind."""
    found: dict[str, Counter[str]] = {}
    patterns = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}
    for file in sorted((root / "tensoropt").rglob("*.py")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if re.match(r"\s*(from|import|class)\b", line):
                continue
            kind = next((kind for kind, pattern in patterns.items() if pattern.search(line)), None)
            if kind is not None:
                found.setdefault(str(file.relative_to(root)), Counter())[kind] += 1
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Count the lines that ask in which world they are.")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[2])
    found = kinds_of(parser.parse_args().root)
    print("".join(f"{kind:>11}" for kind in KINDS) + "      total  file")
    rows = sorted(found.items(), key=lambda row: (-row[1].total(), row[0]))
    for file, counts in [*rows, (f"{len(rows)} files", sum(found.values(), Counter()))]:
        print("".join(f"{counts[kind] or '':>11}" for kind in KINDS) + f"{counts.total():>11}  {file}")


if __name__ == "__main__":
    main()
