"""The tables of docs/rules.md: ``python tests/rules/documentation.py`` writes them anew."""

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

from tensoropt.rules.registry import rule_of, rule_types
from tensoropt.rules.rule import Rule

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def rules_table() -> str:
    """All operator types; those whose first cases have the same rule stand in one row."""
    types_of: dict[str, list[str]] = {}
    for op_type in rule_types():
        rule = rule_of(next(case for case in CASES if case.type == op_type).op)
        types_of.setdefault(_row(rule), []).append(op_type)
    lines = ["| operator types | factors | not split | collectives inside | linear in |", "|---|---|---|---|---|"]
    lines += [f"| {' '.join(types)} | {row} |" for row, types in types_of.items()]
    return "\n".join(lines)


def _row(rule: Rule) -> str:
    fixed = [name for name in rule.extents if name in rule.fixed]
    linear = [" and ".join(str(position) for position in group) for group in rule.linear]
    inner = [name for name in rule.extents if name in rule.inner]
    cells = [f"`{rule}`", " ".join(fixed), " ".join(inner), ", or ".join(linear)]
    return " | ".join(cells)


def missing_table() -> str:
    """The splits that would be right and aren't offered."""
    lines = ["| case | splits | why not |", "|---|---|---|"]
    lines += [f"| {label} | `{splits}` | {why} |" for label, splits, why in missing.table()]
    return "\n".join(lines)


TABLES = {"rules": rules_table, "missing": missing_table}


def section(page: str, name: str) -> str:
    """What stands on the page between the marks of a table."""
    return _marked(name).findall(page)[0]


def _marked(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n)(.*?)(?=\n<!-- end -->)", re.DOTALL)


if __name__ == "__main__":
    text = PAGE.read_text()
    for name, table in TABLES.items():
        made = table()
        text = _marked(name).sub(lambda _, made=made: made, text)
    PAGE.write_text(text)
