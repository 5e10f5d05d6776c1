"""Time unchanged Keras scripts beside plain Keras: the seconds to the second step, and how long a step takes later on.

    python tests/benchmarks/unchanged.py [--ranks 1,2] [--steps 300] [--rounds 3] models|gallery|NAME ...

NAME is one of five ``models``, which ``fit`` trains with Adam, or a script of ``examples/gallery`` that changes nothing. A
script runs as it is, but for more steps: by plain Keras with all cores, then by ``tensoropt run -n`` for each number of
ranks, in turn for each round. A step's time is the median between the lines that two steps print, the first half left out;
the table has the least of the rounds, and what ranks took as a share of plain Keras' time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

GALLERY = Path(__file__).resolve().parents[2] / "examples" / "gallery"
STEPS = re.compile(r"^((?:\w+, )*)STEPS((?:, \w+)*) = (.*), 3((?:, [\d.]+)*)$", re.MULTILINE)
FIT = """
import keras, numpy as np
from keras import layers
BATCH, STEPS = 32, 3
keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
x = random.{x}.astype("float32")
inputs = keras.Input(x.shape[1:])
{model}
model = keras.Model(inputs, layers.Dense(10)(hidden))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
model.fit(x, random.integers(0, 10, len(x)), batch_size=BATCH, verbose=0, callbacks=[shown])
"""
ATTENTION = "hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(4, 16)(hidden, hidden))"
MODELS = {
    "mlp": ("normal(size=(BATCH * STEPS, 784))", "hidden = layers.Dense(64, 'relu')(layers.Dense(64, 'relu')(inputs))"),
    "cnn": (
        "normal(size=(BATCH * STEPS, 28, 28, 1))",
        "hidden = layers.MaxPooling2D()(layers.Conv2D(16, 3, activation='relu')(inputs))\n"
        "hidden = layers.Flatten()(layers.MaxPooling2D()(layers.Conv2D(32, 3, activation='relu')(hidden)))",
    ),
    "transformer": (
        "integers(0, 1000, (BATCH * STEPS, 32))",
        f"hidden = layers.Embedding(1000, 64)(inputs)\n{ATTENTION}\n{ATTENTION}\nhidden = layers.Flatten()(hidden)",
    ),
    "lstm": ("integers(0, 1000, (BATCH * STEPS, 32))", "hidden = layers.LSTM(64)(layers.Embedding(1000, 64)(inputs))"),
    "wide": ("normal(size=(BATCH * STEPS, 512))", "hidden = layers.Dense(2048, 'relu')(layers.Dense(2048, 'relu')(inputs))"),
}


def source_of(name: str, steps: int) -> str | None:
    """Return the script of a name that takes so many steps, None of one that isn't Keras unchanged."""
    text = FIT.format(x=MODELS[name][0], model=MODELS[name][1]) if name in MODELS else (GALLERY / f"{name}.py").read_text()
    return None if "tensoropt" in text.partition('"""\n\n')[2] else STEPS.sub(rf"\1STEPS\2 = \3, {steps}\4", text)


def times(script: Path, *command: str) -> tuple[float, float]:
    """Return the seconds to the second step of a script, and those of a step in the second half of them."""
    began, at = time.perf_counter(), dict[int, float]()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = (sys.executable, *command, str(script))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stdout or ():
            if match := re.match(r"(\d+) \{", line):
                at.setdefault(int(match[1]), time.perf_counter() - began)
    if process.returncode or len(at) < 3:
        raise SystemExit(f"{' '.join(command)}: {len(at)} steps, exit code {process.returncode}")
    shown = sorted(at.values())
    later = shown[len(shown) // 2 :]
    return at[1], statistics.median(after - before for before, after in itertools.pairwise(later))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="models|gallery|NAME")
    parser.add_argument("--ranks", type=lambda text: text.split(","), default=["1", "2"])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    ways = [(), *(("-m", "tensoropt", "run", "-n", n) for n in given.ranks)]
    rows: list[list[str]] = []
    all_of = {"models": [*MODELS], "gallery": sorted(path.stem for path in GALLERY.glob("*.py"))}
    for name in (name for names in given.names for name in all_of.get(names, [names])):
        text = source_of(name, given.steps)
        if text is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, f"{name}.py")
            script.write_text(text)
            rounds = [[times(script, *way) for way in ways] for _ in range(given.rounds)]
        (first, step), *others = ([min(each) for each in zip(*way, strict=True)] for way in zip(*rounds, strict=True))
        starts = [f"{seconds:.1f}" for seconds in (first, *(ours for ours, _ in others))]
        rows.append([name, *starts, f"{step * 1e3:.2f}", *(f"{ours / step:.2f}" for _, ours in others)])
        print(*rows[-1], flush=True)
    ranks = [f"-n {n}" for n in given.ranks]
    print(tabulate(rows, ["script", "second step, s: Keras", *ranks, "step, ms: Keras", *ranks], disable_numparse=True))


if __name__ == "__main__":
    main()
