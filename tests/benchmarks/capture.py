"""Time from a Keras model to a training step that is ready to run, phase by phase.

    python tests/benchmarks/capture.py [DEVICES ...] [--only NAME ...]

Every model of ``tests/models`` at full size: ``keras.applications`` on images of their default size in batches of 32,
Transformers and recurrent networks at the size of BERT-base. Seconds of processor time, which other work on the machine
doesn't lengthen much; the last column is by the clock. Weights and activations are never computed.

| stage | what happens |
|---|---|
| trace | Keras's layers become a TensorFlow graph |
| import | the graph is made flat, and imported |
| backward | TensorFlow is asked what the backward pass reads |
| costs | configs, and what operators and reshardings cost |
| search | the frontier |
| unroll | the strategy of the chosen point, with its reshardings |
| build | one rank's graph, with gradients and updates |
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
import tensorflow as tf
from helpers.strategies import uncut_engine
from models import sequences
from models.catalog import Entry, application, images, segments, words
from models.sequences import Size

from tensoropt.lowering.gradient_analysis import analyse
from tensoropt.lowering.resharding.backends import CommunicatingBackend
from tensoropt.optimizers.keras_optimizer import KerasOptimizer
from tensoropt.profiling.hardware import resolve
from tensoropt.program.fetch import Fetch
from tensoropt.runtime.step.functions import Feed
from tensoropt.search.candidates.whole_frontier import frontier_of_whole
from tensoropt.search.frontiers.find_frontier import find_frontier
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.search.request import Request
from tensoropt.sharding.model import Model
from tensoropt.sharding.resharding import PlainCosts
from tensoropt.trainer.capture.objective import Compilation, KerasObjective
from tensoropt.trainer.capture.programs import TRAIN, capture_program
from tensoropt.trainer.capture.signature import Signature, signature_of

STAGES = ("trace", "import", "backward", "costs", "search", "unroll", "build")
MOST_SECONDS = 30.0
BATCH = 32
BASE = Size(length=128, vocabulary=30522, width=768, depth=12, heads=12)
FULL: dict[str, Entry] = {
    name: application(name, size, BATCH, 1000)
    for name, size in {
        "VGG16": 224,
        "ResNet50": 224,
        "ResNet50V2": 224,
        "InceptionV3": 299,
        "InceptionResNetV2": 299,
        "Xception": 299,
        "DenseNet121": 224,
        "MobileNet": 224,
        "MobileNetV2": 224,
        "MobileNetV3Small": 224,
        "EfficientNetB0": 224,
        "EfficientNetV2B0": 224,
        "NASNetMobile": 224,
        "ConvNeXtTiny": 224,
    }.items()
} | {
    "bert": segments(sequences.bert, BASE, BATCH),
    "gpt": words(sequences.gpt, BASE, BATCH),
    "gpt_untied": words(partial(sequences.gpt, tied=False), BASE, BATCH),
    "vit": images(lambda: sequences.vit(224, 16, BASE, 1000), 224, BATCH, 1000),
    "encoder_decoder": words(sequences.encoder_decoder, BASE, BATCH, n_inputs=2),
    "lstm": words(sequences.lstm, Size(128, 30522, 768, 2, 1), BATCH),
    "gru": words(sequences.gru, Size(128, 30522, 768, 2, 1), BATCH),
    "gru_unrolled": words(partial(sequences.gru, unroll=True), Size(32, 30522, 768, 2, 1), BATCH),
}


@dataclass
class Seconds:
    """Seconds of processor time.

    Attributes:
        of: the seconds, by stage.
    """

    of: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.of[name] = time.process_time() - started


class _Traced(KerasObjective):
    """An objective that traces each of its functions once, however often it is asked for them."""

    def functions(self, signature: Signature) -> dict[str, tuple[Callable[..., Any], Any]]:
        if not hasattr(self, "_made"):
            self._made = {kind: (tf.function(f), given) for kind, (f, given) in super().functions(signature).items()}
        return self._made


def measured(entry: Entry, n_devices: int, builds: bool) -> tuple[Seconds, str]:
    """Capture, plan and if wanted build one model; return the seconds, and a summary of the search."""
    keras.utils.clear_session()
    model = entry.make()
    seconds = Seconds()
    objective = _Traced(model, Compilation(entry.loss, None, None, None))
    signature = signature_of(model, entry.loss, entry.batch_size, None, False, None)
    with seconds.stage("trace"):
        function, given = objective.functions(signature)[TRAIN]
        function.get_concrete_function(*given)
    with seconds.stage("import"):
        captured = capture_program(
            TRAIN, objective, signature, lambda _, trained: KerasOptimizer.of(keras.optimizers.Adam(), trained)
        )
    with seconds.stage("backward"):
        planned = Model(captured.graph, analyse(captured.graph))
    frontier = _found(planned, n_devices, seconds)
    with seconds.stage("unroll"):
        plan = frontier_of_whole(frontier).fastest()
    if not builds:
        return seconds, frontier.told
    with seconds.stage("build"):
        view = planned.view(plan.stages[0].strategy)
        values = captured.capture.variables
        backend = CommunicatingBackend(plan.mesh, 0, _Silent())
        engine = uncut_engine(view, plan.stages[0].path_finder(PlainCosts()), backend, lambda name: values[name].numpy())
        engine.function(Fetch((), (TRAIN,)), tuple(Feed(tensor, False) for tensor in captured.inputs))
    return seconds, frontier.told


def _found(model: Model, n_devices: int, seconds: Seconds) -> ModelFrontier:
    began = {}

    def told(stage: str, done: int, total: int) -> None:
        began.setdefault(stage, time.process_time())

    started = time.process_time()
    frontier = find_frontier(Request(model, resolve(f"v100-1x{n_devices}"), None, progress=told), n_devices)
    seconds.of.update(costs=began["search"] - started, search=time.process_time() - began["search"])
    return frontier


class _Silent:
    """Stands for a communicator where a graph is built and never run."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nothing is communicated here, but {name} was asked for")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", nargs="*", type=int, default=[2])
    parser.add_argument("--only", nargs="+", default=list(FULL), choices=list(FULL))
    parser.add_argument("--search", action="store_true", help="print a summary of each search")
    parser.add_argument("--planned", action="store_true", help="leave out the stage build")
    given = parser.parse_args()
    for n_devices in given.devices:
        print(f"{n_devices} devices of v100-1x{n_devices}, seconds")
        print(f"{'model':20}" + "".join(f"{stage:>9}" for stage in STAGES) + f"{'planned':>9}{'clock':>9}")
        for name in given.only:
            started = time.perf_counter()
            seconds, summary = measured(FULL[name], n_devices, not given.planned)
            planned = sum(seconds.of.values()) - seconds.of.get("build", 0.0)
            row = "".join(f"{seconds.of.get(stage, 0.0):9.2f}" for stage in STAGES)
            late = "" if planned < MOST_SECONDS else f"  more than {MOST_SECONDS:.0f}"
            print(f"{name:20}{row}{planned:9.2f}{time.perf_counter() - started:9.2f}{late}", flush=True)
            if given.search:
                print(f"    {summary}", flush=True)
            gc.collect()


if __name__ == "__main__":
    main()
