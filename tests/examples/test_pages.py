"""The tutorials are followed, and the Python of README and of the how-to pages runs; each page in a folder of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from helpers.fast_links import on_fast_links
from helpers.mpirun import ROOT, forked, run_command, run_ranks

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LOSS = re.compile(r"loss: (\d+\.\d+)")

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
    "sizing 0": """
import tensoropt
tensoropt.init()
x, y = tensoropt.placeholder(tensoropt.float32, [512, 64]), tensoropt.placeholder(tensoropt.int32, [512])
logits = tensoropt.matmul(x, tensoropt.get_variable("w", [64, 10]))
tensoropt.GradientDescentOptimizer(0.1).minimize(tensoropt.softmax_cross_entropy(y, logits))
""",
    "stages 1": 'tensoropt.init(hardware="v100-1x4")\nx = tensoropt.placeholder(tensoropt.float32, [64, 256])\n',
    "stages 2": KERAS.replace("256)", "64)"),
    "surviving 0": KERAS + """
data, trainer = dataset, tensoropt.parallelize(model, optimizer, loss, batch_size=256)
""",
    "surviving 1": """
batches = list(dataset) * 500
def step(x, y):
    with tf.GradientTape() as tape:
        result = loss(y, model(x))
    optimizer.apply(tape.gradient(result, model.trainable_variables), model.trainable_variables)
    return result
model, optimizer = small(), keras.optimizers.Adam(1e-3)
step = tensoropt.training_step(step, model=model, optimizer=optimizer, batch_size=256, data=batches[0])
""",
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


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(*program: object, n_ranks: int = 0, code: int = 0) -> str:
    """Run what a command line has after Python's name, on a number of ranks if there is one; return what it printed."""
    env = {"TENSOROPT_TIMEOUT": "120", "TENSOROPT_QUIET": "", "MPLBACKEND": "Agg"}
    if n_ranks:
        done = run_ranks(n_ranks, *program, timeout=280, env=env)
    else:
        done = run_command([sys.executable, *forked(*program)], timeout=280, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def write(**scripts: str) -> None:
    for name, text in scripts.items():
        Path(f"{name}.py").write_text(text)


def losses(output: str) -> list[float]:
    return [float(loss) for loss in LOSS.findall(output)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOROPT_COLLECTIVES", "emulated")
    write(page=program_of(page))
    said("page.py")


def test_readme_trains_on_two_ranks_as_on_one() -> None:
    write(train=blocks(ROOT / "README.md")[0].replace("4096", "1024"))
    options = on_fast_links(Path.cwd())  # by measurements it may pay to split nothing
    plain, ranks = said("train.py"), said("-m", "tensoropt.unchanged", options, "train.py", n_ranks=2)
    assert losses(ranks) == pytest.approx(losses(plain), abs=2e-4)
    assert re.search(r"plan: 2 devices, [1-9]\d* of \d+ operators split", ranks)


def test_from_a_keras_script_to_two_ranks_and_three() -> None:
    """Between two machines tests/runtime/test_two_machines.py trains."""
    script, changed, reads, resumes = blocks(ROOT / "docs" / "start" / "keras-to-two-machines.md")
    head, fit = changed.split("trainer.fit")
    head = "import tensoropt\n" + "".join(script.splitlines(keepends=True)[:-3]) + head
    step = "trainer.fit(data, epochs=1, steps_per_epoch=1, verbose=2)\n"
    fails = head + 'if trainer.ranks.rank == 1:\n    raise ValueError("not today")\n' + step
    limited = head.replace("batch_size=128,", 'batch_size=128, memory="3MB",')
    write(train=script, train_parallel=f"{head}trainer.fit{fit}", read=reads)
    write(resume=head + resumes.replace("epochs=5", "epochs=4"), limited=limited, fails=fails)
    plain, ranks = said("train.py"), said("train_parallel.py", n_ranks=2)
    assert losses(ranks) == pytest.approx(losses(plain), abs=2e-4) and "2 devices (1 | 2)" in ranks
    assert re.search(r"^0\.9\d+$", said("read.py"), re.MULTILINE)
    resumed = said("resume.py", n_ranks=3)
    assert "Epoch 4/4" in resumed and "Epoch 3/4" not in resumed and max(losses(resumed)) < losses(plain)[-1]
    assert re.search(r"micro-batches, ([12]\.\d+|3) MB per device", said("limited.py", n_ranks=2))
    assert "tensoropt: rank 1: ValueError: not today (at fails.py:" in said("fails.py", n_ranks=2, code=1)


def test_from_a_laptop_search_to_a_plan() -> None:
    """Tables of plans are those of the page: costs follow from a description of the hardware."""
    page = ROOT / "docs" / "start" / "search-to-plan.md"
    write(**dict(zip(("digits", "ask", "train_plan"), blocks(page), strict=True)))
    commands = [text.split() for text in blocks(page, "") if text.startswith("tensoropt search")]
    curve, frontier = (said("-m", *command) for command in commands)
    shown = [line for text in blocks(page, "") for line in text.splitlines() if re.match(r" +\d+ .*\d", line)]
    assert len(shown) == 9
    printed = {" ".join(line.split()) for line in (curve + frontier).splitlines()}
    assert not {" ".join(line.split()) for line in shown} - printed
    refused = said("-m", *commands[1], "--memory", "1MB", code=2)
    assert "tensoropt: no plan fits 1,000,000 bytes (1 MB) per device" in refused
    assert "5 plans" in said("ask.py")
    ranks = said("train_plan.py", n_ranks=2)
    assert "2 devices (1 | 2), 5.55 MB" in ranks and losses(ranks)[-1] < 0.5
