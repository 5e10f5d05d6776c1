"""Tests, benchmarks, packages, pages and headings that pages name are there, and examples print what pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks import figures

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
SCRIPT = re.compile(r"\b(?:tests|examples)/[\w/]+\.(?:py|sh)\b")
TEST = re.compile(r"(tests/[\w/]+\.py)?::(test_\w+)")
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([\w-]*))?\)")
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
PACKAGE = re.compile(r"^\| `(?:tensoropt/)?(\w+)/` \|", re.MULTILINE)
PRINTS = re.compile(r"^```python\n([^`]*)```\n(?:It )?prints\n```text\n(.*?)```", re.DOTALL | re.MULTILINE)
EXAMPLES = [(page.stem, *block) for page in PAGES for block in PRINTS.findall(page.read_text())]


def missing(page: Path, text: str) -> list[str]:
    """Return the scripts, tests, files and headings that a page names and that aren't there."""
    gone = [name for name in SCRIPT.findall(text) if not (ROOT / name).exists()]
    for link, heading in LINK.findall(text):
        target = page.parent / link if link else page
        if "://" in link:
            continue
        if not target.exists():
            gone.append(link)
        elif heading and heading not in headings(text if target == page else target.read_text()):
            gone.append(f"{link}#{heading}")
    path = ""
    for match in TEST.finditer(text):
        path = match[1] or path
        if (ROOT / path).is_file() and f"def {match[2]}(" not in (ROOT / path).read_text():
            gone.append(f"{path}::{match[2]}")
    return gone


def headings(text: str) -> set[str]:
    """Return the names by which links lead to a page's headings."""
    titles = re.findall(r"^#+ (.*)$", CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    assert not missing(page, page.read_text())


def test_what_is_not_there_is_seen() -> None:
    named = "`tests/common/test_documentation.py::test_nothing`, `::test_neither`, tests/no/such.py"
    text = f"{named}, [a](no.md), [b](docs/README.md#no)"
    assert missing(ROOT / "README.md", text) == [
        "tests/no/such.py",
        "no.md",
        "docs/README.md#no",
        "tests/common/test_documentation.py::test_nothing",
        "tests/common/test_documentation.py::test_neither",
    ]


def test_the_first_page_names_all_others_from_which_the_site_is_made() -> None:
    named = {link for link, _ in LINK.findall((ROOT / "docs" / "README.md").read_text())}
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    assert not pages - named - {"README.md"}


def test_the_table_of_packages_is_the_tree() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| package | what it does |")[2].partition("\n\n")[0]
    tree = [path.parent.name for path in ROOT.glob("tensoropt/*/__init__.py")]
    assert sorted(PACKAGE.findall(table)) == sorted(tree)


def test_pages_have_examples() -> None:
    assert {"loops", "problem", "resharding", "rules"} <= {page for page, *_ in EXAMPLES}


@pytest.mark.parametrize(("page", "program", "output"), EXAMPLES, ids=[page for page, *_ in EXAMPLES])
def test_an_example_prints_what_its_page_says(
    page: str, program: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(program, {"__name__": page})
    assert capsys.readouterr().out == output


def test_a_table_is_renewed_by_what_its_command_prints() -> None:
    prints = "from tabulate import tabulate; print(tabulate([['a b', 1]], ['x', 'y y']))"
    before = f'By `python -c\n"{prints}"` on a machine,\n1 May 2026:\n\n| x | y |\n|---|---|\n| no | 0 |\n'
    (table,) = figures.TABLE.finditer(f"Text.\n\n{before}\nBy `another` command.\n")
    after = figures.renewed(table)
    assert after is not None and after.endswith(":\n\n| x | y y |\n|---|---|\n| a b | 1 |\n")
    assert " ".join(after.split()).startswith(f'By `python -c "{prints}"` on {figures.machine()}, ')
    (failing,) = figures.TABLE.finditer(before.replace("print(", "exit("))
    assert figures.renewed(failing) is None
