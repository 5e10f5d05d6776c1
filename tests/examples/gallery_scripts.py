"""The gallery's scripts, what each changes for TensorOpt, and how a test runs one: as it is, or with its changes undone.

mpirun -n 2 gallery_scripts.py NAME    the script, as tensoropt run does, by a plan that splits all that can be split
gallery_scripts.py NAME plain          the script without TensorOpt
gallery_scripts.py                     write the table of examples/gallery/README.md

Most scripts change nothing. A line that is changed ends in a comment: ``# added``, or ``# was:`` and the line as it would be
without TensorOpt.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import tempfile
from pathlib import Path

import keras

import tensoropt
from tensoropt.profiling.hardware import Device, Hardware, LinkLevel
from tensoropt.unchanged.start import start

GALLERY = Path(__file__).resolve().parents[2] / "examples" / "gallery"
CHANGED = re.compile(r"^( *)(.*\S)  # (?:added|was: (.*))$")
IMPORT = re.compile(r"(?:import|from) ")
TABLE = re.compile(r"(?<=<!-- table -->\n).*(?=<!-- end -->\n)", re.DOTALL)
APART = "recommender"
"""A script that shows a plan under a memory limit."""
IN_FLOAT32 = ("captcha_ctc", "image_augmentation", "tensorflow_1")
"""Scripts in which a layer of Keras, a loss of TensorFlow or the script itself computes in float32 alone."""


def tolerance(name: str) -> float:
    return 1e-5 if name in IN_FLOAT32 else 1e-9


def changed_lines(source: str) -> list[str]:
    """Return the lines, beside imports, that a script has changed for TensorOpt or added."""
    found = map(CHANGED.match, source.splitlines())
    return [match[2] for match in found if match and not IMPORT.match(match[2])]


def plain(source: str) -> str:
    """Return a script without its changes for TensorOpt; other lines keep their numbers, by which AutoGraph finds them."""
    lines = []
    for line in source.splitlines():
        match = CHANGED.match(line)
        if match is None:
            lines.append(line if line != "import tensoropt" else "")
        else:
            lines.append(match[1] + match[3] if match[3] else "")
    return "\n".join(lines)


def steps_shown(output: str) -> list[dict[str, float]]:
    """Return what a script has printed of each step, which with several ranks may be printed by each."""
    steps: dict[int, dict[str, float]] = {}
    for found in re.finditer(r"^(\d+) (\{.*\})$", output, re.MULTILINE):
        values = ast.literal_eval(found[2])
        assert steps.setdefault(int(found[1]), values) == values, output
    assert list(steps) == list(range(len(steps))), output
    return list(steps.values())


def with_table(page: str) -> str:
    """Return the page with the table of the scripts."""
    rows = ["| script | trains | lines changed |", "|---|---|---|"]
    for path in sorted(GALLERY.glob("*.py")):
        source = path.read_text()
        if path.stem != APART:
            title, n = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0], len(changed_lines(source))
            rows.append(f"| [{path.name}]({path.name}) | {title.removeprefix('Train ').rstrip('.')} | {n} |")
    return TABLE.sub(lambda _: "\n".join(rows) + "\n", page)


def fast_links(n_devices: int) -> Hardware:
    """Return hardware on which it pays to split all that can be split, also in models this small."""
    device = Device("slow", 8 << 30, {"float32": 1e8}, 1e8)
    return Hardware("slow devices, fast links", device, (LinkLevel("device", n_devices, 0.01, 1e12),))


def run(name: str, how: str = "") -> None:
    source = (GALLERY / f"{name}.py").read_text()
    keras.config.set_floatx("float32" if name in IN_FLOAT32 else "float64")
    if how == "plain":
        source = plain(source)
    elif "import tensoropt" not in source:
        start({"cluster": fast_links(2)})
    for each in ("parallelize", "training_step", "find_strategy"):
        setattr(tensoropt, each, functools.partial(getattr(tensoropt, each), cluster=fast_links(2)))
    with tempfile.NamedTemporaryFile("w", prefix=f"{name}-", suffix=".py") as script:
        script.write(source)
        script.flush()
        exec(compile(source, script.name, "exec"), {"__name__": "__main__", "__file__": script.name})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(*sys.argv[1:])
    else:
        page = GALLERY / "README.md"
        page.write_text(with_table(page.read_text()))
