"""The gallery's scripts, what each changes for TensorOpt, and how a test runs one: as it is, or with its changes undone.

mpirun -n 2 gallery.py NAME            the script
gallery.py NAME plain                  the script without TensorOpt

A line that is changed ends in a comment: ``# added``, or ``# was:`` and the line as it would be without TensorOpt.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path

import keras

import tensoropt
from tensoropt.profiling.hardware import Device, Hardware, LinkLevel

GALLERY = Path(__file__).resolve().parents[2] / "examples" / "gallery"
CHANGED = re.compile(r"^( *)(.*\S)  # (?:added|was: (.*))$")
IMPORT = re.compile(r"(?:import|from) ")
IN_FLOAT32 = ("image_augmentation", "tensorflow_1")
"""Scripts in which a layer of Keras, or the script itself, takes nothing but float32."""


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


def shown(output: str) -> list[dict[str, float]]:
    """Return what a script has printed of each step."""
    lines = filter(None, (re.match(r"(\d+) (\{.*\})$", line) for line in output.splitlines()))
    numbered = [(int(number), ast.literal_eval(values)) for number, values in (line.groups() for line in lines)]
    assert [number for number, _ in numbered] == list(range(len(numbered))), output
    return [values for _, values in numbered]


def fast_links(n_devices: int) -> Hardware:
    """Return hardware on which it pays to split all that can be split, also in models this small."""
    device = Device("slow", 8 << 30, {"float32": 1e8}, 1e8)
    return Hardware("slow devices, fast links", device, (LinkLevel("device", n_devices, 0.01, 1e12),))


def main(name: str, how: str = "") -> None:
    path = GALLERY / f"{name}.py"
    source = path.read_text()
    keras.config.set_floatx("float32" if name in IN_FLOAT32 else "float64")
    if how == "plain":
        source = plain(source)
    for each in ("parallelize", "training_step", "find_strategy"):
        setattr(tensoropt, each, functools.partial(getattr(tensoropt, each), cluster=fast_links(2)))
    exec(compile(source, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})


if __name__ == "__main__":
    main(*sys.argv[1:])
