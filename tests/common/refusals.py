"""The page docs/reference/refusals.md: what models, scripts and calls are refused, why, and the way round.

``python tests/common/refusals.py`` writes its lists again, from the sentences in the code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "refusals.md"
PACKAGES = ("frontend", "trainer", "unchanged", "session", "optimizers", "lowering")
"""The packages that meet a user's model and script."""
GAP = "…"
LEAST_WORDS = 4
"""A sentence with fewer words of its own is put together elsewhere."""

MEANINGLESS = "What was asked for has no meaning, or more than one"
"""The reason of wrong arguments. Their sentences say all there is to say, so the page leaves them out."""

WHEN = {
    "frontend": "the model is captured or recorded",
    "frontend/tracing/tapes.py": "a step is captured",
    "trainer": "`parallelize` is called",
    "trainer/data": "`fit`, `evaluate` or `predict` is called",
    "trainer/callbacks.py": "`fit`, `evaluate` or `predict` is called",
    "trainer/deferred.py": "no batch has been seen yet",
    "trainer/functions/function.py": "`capture` or `step` is called",
    "trainer/variables/live.py": "values are read or assigned",
    "trainer/live_model.py": "the trainer is used as a model",
    "trainer/capture/own_step.py": "a step is captured",
    "trainer/trainer_ranks.py": "values are read or assigned",
    "trainer/runs.py": "a batch is seen",
    "trainer/saving.py": "values are saved, loaded or assigned",
    "trainer/functions/step_function.py": "`training_step` is called",
    "trainer/trainer.py": "`fit`, `evaluate` or `predict` is called",
    "unchanged": "a script [runs unchanged](../how-to/unchanged.md)",
    "session": "a recorded script calls TensorOpt",
    "optimizers": "the optimizer starts, or its rate is set",
    "lowering": "gradients are derived, or the step is built",
}
"""What a user does when a sentence is said, by the file or package that says it; the longest path that fits counts."""

BECAUSE = {
    "All devices run the same operators equally often, so that none waits in a collective for one that doesn't come": (
        "frontend/control_flow", "frontend/tracing/tapes.py",
        "frontend/tracing/flatten.py: updates a variable inside", "lowering/resharding",
    ),
    "A plan is made for shapes: layouts, memory and collectives follow from them": (
        "frontend/recorded_graph.py",
        "frontend/importer.py: every extent",
        "frontend/tracing/capture.py: every extent",
        "trainer/data/fit_progress.py",
        "trainer/capture/signature.py: every extent",
        "trainer/capture/signature.py: dense tensors",
        "trainer/data/element_parts.py",
        "trainer/data/batch_shares.py: is empty",
        "trainer/data/batch_shares.py: which rank 0 reads for all|different shapes",
        "trainer/deferred.py",
        "trainer/runs.py",
        "trainer/functions/step_function.py: first called|samples, expected|dense tensors",
    ),
    "A step's Python runs once, when it is captured; what runs is the graph that it leaves": (
        "frontend/stateful.py: function|can't be recorded",
        "frontend/stateful.py",
        "frontend/tracing/flatten.py",
        "frontend/tracing/capture.py: variables that are made",
        "trainer/capture/accepting.py: run_eagerly",
        "trainer/capture/own_step.py",
        "trainer/functions/step_function.py: numbers|left out|called so",
    ),
    "Each rank reads its share of the samples, and what is no number can't be split over devices": (
        "frontend/tracing/preprocessing.py",
    ),
    "Gradients are those of TensorFlow, taken operator by operator; other ways would train to other numbers": (
        "frontend/gradient_function.py", "frontend/gradient_placeholders.py", "frontend/imported_gradients.py",
        "frontend/stateful.py: another gradient", "frontend/recording.py: made of gradients|has no gradient",
        "lowering/gradient_analysis.py",
    ),
    "A graph of operators on values is planned; an array that grows in a loop has no layout outside of it": (
        "frontend/importer.py",
        "frontend/initial_values.py",
    ),
    "Trained values are shards on the ranks, and what runs was captured": (
        "trainer/variables/live.py", "unchanged: trained other", "trainer/live_model.py",
    ),
    "All ranks must do the same, with the same values": (
        "trainer/trainer_ranks.py", "trainer/data/batch_shares.py", "trainer/parallelize.py: different plans",
        "unchanged: rank",
    ),
    "Each device updates its shards alone, and replicas must stay equal": ("optimizers",),
    MEANINGLESS: ("frontend", "trainer", "session", "unchanged"),
}  # fmt: skip
"""Why a sentence is needed, with where it is said: a file or package, and after a colon a pattern of the sentence. The first
that fits counts."""

ADVICE = re.compile(
    r"[;:,…]\s(?:or )?(?:add|build|call|carry|choose|clip|collect|compute|convert|count|cut|decide|do|each|every|feed|fetch|"
    r"find|give|its get_config|keep|leave|let|look|loop|make|multiply|name|pad|read|reduce|return|run|say|see|so that every|"
    r"split|take|to set|use|where no|write)\b"
    r"|[;:,]\s…|\b(?:takes?|expected|must be|call|belongs under|needs TensorFlow)\b|\bcomes? after\b"
)
"""A pattern of the part of a sentence that tells the user what to do, or what is expected."""


@dataclass(frozen=True)
class Refusal:
    """A sentence in the code.

    Attributes:
        file: its path below ``tensoropt/``.
        text: the sentence; a gap stands for what is put in.
    """

    file: str
    text: str

    @property
    def because(self) -> str:
        for reason, places in BECAUSE.items():
            for place in places:
                path, _, pattern = place.partition(": ")
                if self.file.startswith(path) and re.search(pattern, self.text):
                    return reason
        raise AssertionError(f"no reason fits {self}")

    @property
    def when(self) -> str:
        return WHEN[max((path for path in WHEN if self.file.startswith(path)), key=len)]

    @property
    def says_what_to_do(self) -> bool:
        return ADVICE.search(self.text) is not None


def refusals() -> list[Refusal]:
    """Return all sentences of ``InputError`` in the packages, by file."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / "tensoropt" / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "InputError":
                    found += [Refusal(str(path.relative_to(ROOT / "tensoropt")), text) for text in _texts(node.args[0])]
    return list(dict.fromkeys(each for each in found if len(re.findall(r"\w+", each.text)) >= LEAST_WORDS))


def _texts(node: ast.expr) -> Iterator[str]:
    """Yield the sentences that an expression may be, with gaps."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(each.value if isinstance(each, ast.Constant) else GAP for each in node.values)
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "describe":
        parts = {each.arg: next(_texts(each.value), GAP) for each in node.keywords}
        asked = f", expected {parts['expected']}" if "expected" in parts else ""
        yield f"{next(_texts(node.args[0]))}{asked}; {parts.get('advice', '')}"
    else:
        yield GAP


def lists() -> str:
    """Return a list for each reason, in the order of the reasons, with a heading for each moment."""
    lines = []
    for reason in (each for each in BECAUSE if each != MEANINGLESS):
        rows = [refusal for refusal in refusals() if refusal.because == reason]
        lines += [f"## {reason}", ""]
        for when in dict.fromkeys(refusal.when for refusal in rows):
            texts = dict.fromkeys(refusal.text for refusal in rows if refusal.when == when)
            lines += [f"When {when}:", "", *(f"- {_plain(text)}" for text in texts), ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*")


def with_lists(page: str) -> str:
    """Return the page with its lists."""
    return re.sub(r"(?<=<!-- lists -->\n).*(?=<!-- end -->\n)", lambda _: lists(), page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_lists(PAGE.read_text()))
