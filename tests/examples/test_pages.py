"""The tutorials are followed, and the Python of README and of the how-to pages runs; each page in a folder of its own."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from helpers.fast_links import on_fast_links
from helpers.mpirun import ROOT, run_command

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LOSS = re.compile(r"loss: (\d+\.\d+)")
RUN = ("run", "-n", "2")

LINE = "import json, keras, numpy as np, tensorflow as tf, tensoropt\n"
MODEL = """
def small(weights=None):
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers])
images = np.random.default_rng(0).random((512, 8, 8, 1), dtype="float32")
dataset = tf.data.Dataset.from_tensor_slices((images, np.arange(512) % 10)).batch(256)
validation, loss = dataset, keras.losses.SparseCategoricalCrossentropy()
model, optimizer = small(), keras.optimizers.Adam(1e-3)
"""
KERAS = LINE + MODEL + """
import functools
keras.applications.ResNet50 = small
tensoropt.parallelize = functools.partial(tensoropt.parallelize, cluster="v100-1x2")
tensoropt.training_step = functools.partial(tensoropt.training_step, cluster="v100-1x2")
"""
BEFORE = {
    "checkpoints 0": KERAS + """
trainer = tensoropt.parallelize(model, optimizer, loss, batch_size=256)
trainer.fit(dataset)
""",
    "checkpoints 1": """
session = tensoropt.init(hardware="v100-1x1")
tensoropt.GradientDescentOptimizer(0.1).minimize(tensoropt.zoo.lenet5(batch=8))
tensoropt.build_execution_graph(plan=tensoropt.find_strategy())
entries, processes = session.engine.state(), session.execution.processes
""",
    "keras 0": KERAS,
    "keras 1": """
w = tf.Variable(tf.zeros([784, 10]))
def loss(x, y):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w))
optimizer, batches = keras.optimizers.SGD(0.1), [(np.ones((64, 784), "float32"), np.arange(64) % 10)]
""",
    "keras 3": f"""
import sys
sys.path.append({str(ROOT / "examples" / "gallery")!r})
import wgan_gp
WGAN, critic, generator, images = lambda *_: wgan_gp.Wgan(), None, None, images[:256]
""",
    "keras 4": """
def loss_function(y, result):
    return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, result))
model, optimizer = small(), keras.optimizers.Adam(1e-3)
""",
    "stages 1": 'tensoropt.init(hardware="v100-1x4")\nx = tensoropt.placeholder(tensoropt.float32, [64, 256])\n',
    "stages 2": KERAS.replace("256)", "64)"),
}
"""What a block needs that its page doesn't say, by the page and the block's number among its blocks of Python."""
RECORDED = ("frontier", "stages")
"""Pages whose blocks go on from the model that options.md records."""
AFTER = {
    "unchanged 0": LINE + MODEL + "model.compile(optimizer, loss)\nmodel.fit(dataset)\n",
    "stages 1": """
tensoropt.GradientDescentOptimizer(0.1).minimize(tensoropt.reduce_mean(logits))
tensoropt.build_execution_graph(plan=tensoropt.find_strategy())
""",
}
PAGES = sorted(page for page in (ROOT / "docs" / "how-to").glob("*.md") if "```python" in page.read_text())


def blocks(page: Path, kind: str = "python") -> list[str]:
    return [text for of_kind, text in BLOCK.findall(page.read_text()) if of_kind == kind]


def program_of(page: Path) -> str:
    """Return all Python of a how-to page, with what it needs around each block."""
    name = page.stem
    begin = LINE + blocks(page.with_name("options.md"))[0] if name in RECORDED else LINE * (name == "options")
    parts = [BEFORE.get(f"{name} {i}", "") + block + AFTER.get(f"{name} {i}", "") for i, block in enumerate(blocks(page))]
    return begin + "\n".join(parts)


@pytest.mark.large
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(program_of(page))
    env = {"TENSOROPT_COLLECTIVES": "emulated", "MPLBACKEND": "Agg"}
    done = run_command([sys.executable, str(script)], timeout=240, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def said(folder: Path, *command: str, code: int = 0) -> str:
    """Run a script, or a command of tensoropt's, in a folder; return what it printed."""
    program = ["-m", "tensoropt", *command] if not command[0].endswith(".py") else command
    env = {"TENSOROPT_TIMEOUT": "120", "TENSOROPT_QUIET": ""}
    done = run_command([sys.executable, *program], timeout=280, env=env, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def losses(output: str) -> list[float]:
    return [float(loss) for loss in LOSS.findall(output)]


def test_readme_trains_on_two_ranks_as_on_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(blocks(ROOT / "README.md")[0])
    cluster = json.loads(on_fast_links(tmp_path))["cluster"]  # by measurements it may pay to split nothing
    plain, ranks = said(tmp_path, "train.py"), said(tmp_path, *RUN, "--cluster", cluster, "train.py")
    assert losses(ranks) == pytest.approx(losses(plain), abs=2e-4)
    assert re.search(r"plan: 2 devices, [1-9]\d* of \d+ operators split", ranks)


def follow_first_tutorial(folder: Path) -> None:
    """Write the scripts of the tutorial from a Keras script to two machines, with fewer steps where it shows but one."""
    script, changed, reads, resumes = blocks(ROOT / "docs" / "start" / "keras-to-two-machines.md")
    head = "import tensoropt\n" + "".join(script.splitlines(keepends=True)[:-3]) + changed.split("trainer.fit")[0]
    fit = "trainer.fit(data, epochs=1, steps_per_epoch=2, verbose=2)\n"
    files = {
        "train": script, "train_parallel": head + "trainer.fit" + changed.split("trainer.fit")[1],
        "reads": reads, "resume": head + resumes,
        "limited": head.replace("batch_size=128,", 'batch_size=128, memory="3MB",') + fit,
        "fails": head + 'if trainer.ranks.rank == 1:\n    raise ValueError("not today")\n' + fit,
    }  # fmt: skip
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


@pytest.mark.large
def test_from_a_keras_script_to_two_ranks_and_three(tmp_path: Path) -> None:
    """Between two machines tests/runtime/test_two_machines.py trains."""
    follow_first_tutorial(tmp_path)
    plain, ranks = said(tmp_path, "train.py"), said(tmp_path, *RUN, "train_parallel.py")
    assert losses(ranks) == pytest.approx(losses(plain), abs=2e-4) and "2 devices (1 | 2)" in ranks
    assert re.search(r"^0\.9\d+$", said(tmp_path, "reads.py"), re.MULTILINE)
    resumed = said(tmp_path, "run", "-n", "3", "resume.py")
    assert "Epoch 4/5" in resumed and "Epoch 3/5" not in resumed and max(losses(resumed)) < losses(plain)[-1]


@pytest.mark.large
def test_from_a_keras_script_to_a_memory_limit_and_a_failure(tmp_path: Path) -> None:
    follow_first_tutorial(tmp_path)
    assert re.search(r"micro-batches, ([12]\.\d+|3) MB per device", said(tmp_path, *RUN, "limited.py"))
    assert "tensoropt: rank 1: ValueError: not today (at fails.py:" in said(tmp_path, *RUN, "fails.py", code=1)


@pytest.mark.large
def test_from_a_laptop_search_to_a_plan(tmp_path: Path) -> None:
    """Tables of plans are those of the page: costs follow from a description of the hardware."""
    page = ROOT / "docs" / "start" / "search-to-plan.md"
    digits, asks, trains = blocks(page)
    for name, text in {"digits": digits, "ask": asks, "train_plan": trains}.items():
        (tmp_path / f"{name}.py").write_text(text)
    commands = [text.split() for text in blocks(page, "") if text.startswith("tensoropt search")]
    curve, frontier = (said(tmp_path, *command[1:]) for command in commands)
    shown = [line for text in blocks(page, "") for line in text.splitlines() if re.match(r" +\d+ .*\d", line)]
    assert len(shown) == 9
    printed = {" ".join(line.split()) for line in (curve + frontier).splitlines()}
    assert not {" ".join(line.split()) for line in shown} - printed
    refused = said(tmp_path, *commands[1][1:], "--memory", "1MB", code=2)
    assert "tensoropt: no plan fits 1,000,000 bytes (1 MB) per device" in refused
    assert "5 plans" in said(tmp_path, "ask.py")
    ranks = said(tmp_path, *RUN, "train_plan.py")
    assert "2 devices (1 | 2), 5.55 MB" in ranks and losses(ranks)[-1] < 0.5
