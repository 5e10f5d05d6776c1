"""The tables of docs/reference/operators.md and docs/how-it-works/rules.md.

``python tests/rules/documentation.py`` writes them again.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.path.insert(0, str(Path(__file__).parents[1]))

from rules import missing
from rules.cases import CASES

from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Rule

DOCS = Path(__file__).parents[2] / "docs"


def operators_table() -> str:
    """All operator types with cases; those whose first cases have the same rule stand in one row."""
    types_of: dict[str, list[str]] = {}
    for op_type in dict.fromkeys(sorted(case.type for case in CASES)):
        rule = rule_of(next(case for case in CASES if case.type == op_type).op)
        types_of.setdefault(_row(rule), []).append(op_type)
    lines = ["| operator types | factors | never split | collectives inside | linear in |", "|" + "---|" * 5]
    lines += [f"| {' '.join(types)} | {row} |" for row, types in types_of.items()]
    return "\n".join(lines)


def _row(rule: Rule) -> str:
    linear = [" and ".join(str(position) for position in group) for group in rule.linear]
    inner = [name for name in rule.splittable if name in rule.inner]
    inner += [f"{name} (halo)" for name in rule.splittable if name in rule.halos]
    whole = [name for name in rule.extents if name in rule.fixed]
    cells = [f"`{rule}`", " ".join(whole), " ".join(inner), ", or ".join(linear)]
    return " | ".join(cells)


def missing_table() -> str:
    """Return the splits that would be right and aren't offered; cases with the same splits and reason stand in one row."""
    lines = ["| case | splits | why not |", "|---|---|---|"]
    labels: dict[tuple[str, str], list[str]] = {}
    for label, splits, why in missing.table():
        labels.setdefault((splits, why), []).append(label)
    lines += [f"| {', '.join(alike)} | `{splits}` | {why} |" for (splits, why), alike in labels.items()]
    return "\n".join(lines)


TABLES = {
    "operators": (DOCS / "reference" / "operators.md", operators_table),
    "missing": (DOCS / "how-it-works" / "rules.md", missing_table),
}


def section(page: str, name: str) -> str:
    """The page's text between the marks of a table."""
    return _marked(name).findall(page)[0]


def _marked(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n)(.*?)(?=\n<!-- end -->)", re.DOTALL)


if __name__ == "__main__":
    for name, (path, table) in TABLES.items():
        made = table()
        path.write_text(_marked(name).sub(lambda _, made=made: made, path.read_text()))
