"""Renew the tables of the documentation that commands print: ``make figures``, or this with a part of commands or pages.

    python tests/benchmarks/figures.py [--list] [PART ...]

A table of a page under a paragraph "By `COMMAND` on MACHINE, DATE:" is the last one that COMMAND prints. Commands run in the
root of the repository with nothing else beside them; one that fails leaves its table, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"^By `(?P<command>[^`]+)`\s+on\s+[^:|`]+,\s+\d+\s+\w+\s+\d{4}:\n\n(?:\|.*\n)+", re.MULTILINE)
DASHES = re.compile(r"-+(?:  +-+)+")


def last_table(output: str) -> str | None:
    """Return the last table that tabulate printed as one of Markdown's; None without one."""
    lines = output.splitlines()
    starts = [number for number, line in enumerate(lines) if number and DASHES.fullmatch(line.rstrip())]
    if not starts:
        return None
    spans = [match.span() for match in re.finditer("-+", lines[starts[-1]])]
    rows = [lines[starts[-1] - 1]]
    for line in lines[starts[-1] + 1 :]:
        if not line.strip():
            break
        rows.append(line)
    cells = [[row[first:last].strip() for first, last in spans] for row in rows]
    first, *others = (f"| {' | '.join(row)} |\n" for row in cells)
    return "".join([first, f"|{'---|' * len(spans)}\n", *others])


def machine() -> str:
    """Return what this machine is called in a table's paragraph."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = re.sub(r"[(](R|TM)[)]", "", model[1]) if model else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores of an {name}"


def renewed(match: re.Match[str]) -> str | None:
    """Return a paragraph and its table as its command prints it now, None if it fails."""
    command = " ".join(match["command"].split())
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, shell=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    rows = last_table(done.stdout)
    if done.returncode or rows is None:
        return None
    day = datetime.date.today()
    paragraph = f"By `{command}` on {machine()}, {day.day} {day:%B %Y}:"
    return f"{textwrap.fill(paragraph, 128, break_long_words=False, break_on_hyphens=False)}\n\n{rows}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="only show which commands there are")
    parser.add_argument("parts", nargs="*", help="parts of commands or of pages' names; default: all")
    given, failed = parser.parse_args(), False
    for page in [ROOT / "README.md", ROOT / "examples/gallery/README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for match in list(TABLE.finditer(page.read_text())):
            about = f"{page.relative_to(ROOT)}: {' '.join(match['command'].split())}"
            if given.parts and not any(part in about for part in given.parts):
                continue
            print(about, flush=True)
            if not given.list:
                text = renewed(match)
                failed |= text is None
                page.write_text(page.read_text().replace(match[0], text or match[0]))
                print(text or "  failed: its table stays", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
