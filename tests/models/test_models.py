"""Whatever the strategy, a Keras model trains as it does by plain Keras: losses, gradients, parameters, averages, seeds.

Two steps by SGD with momentum, whose momentums after the first step are the gradients, and for some models by Adam; on two,
four or six emulated devices, by random strategies and by the search's fastest and smallest plans. In
float64 to 1e-9 of each tensor's largest magnitude, and some in float32 to 1e-4.

``make test`` holds one of the families of ``keras.applications`` with few blocks and Transformers of one layer, on two
devices; all families, and all models at full depth, by ``make test-all``. Dropout draws as on one device here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.large import first

from models.all_strategies import MOST_TOLD, differing
from models.catalog import APPLICATIONS, SEQUENCES

# Strategy of each shallow model: a seed, or a plan. By default one, beside the Transformers of SINGLE and ADAM.
FAST = (("resnet", "3"),)
ALIKE = (
    ("resnet", "0"), ("encoder_decoder_of_one_layer", "smallest"), ("convnext", "fastest"), ("mobilenet_v3", "0"),
    ("gpt_of_one_layer", "0"), ("densenet", "fastest"), ("bert_of_one_layer", "0"), ("resnet_v2", "fastest"),
    ("efficientnet", "0"), ("efficientnet_v2", "smallest"), ("fnet_of_one_layer", "0"), ("vit_of_one_layer", "fastest"),
    ("gru_of_one_layer", "fastest"), ("gru_unrolled_of_one_layer", "0"), ("lstm_of_one_layer", "2"),
)  # fmt: skip
SINGLE = (("bert_of_one_layer", "3"), ("bert_of_one_layer", "1"), ("resnet", "fastest"))
ADAM = (("vit_of_one_layer", "3"), ("vit_of_one_layer", "1"), ("gpt_untied_of_one_layer", "0"), ("lstm_of_one_layer", "1"))


def check(name: str, strategy: str, dtype: str = "float64", optimizer: str = "sgd") -> None:
    off = differing(name, strategy, dtype, optimizer)
    assert not off, f"{len(off)} tensors differ:\n" + "\n".join(off[:MOST_TOLD])


@pytest.mark.large
@pytest.mark.parametrize("name", [*APPLICATIONS, *SEQUENCES])
def test_every_model_at_full_depth(name: str) -> None:
    """Each model has a process of its own, since graphs of its ranks take gigabytes; first, while this process is small."""
    folder = Path(__file__).parents[1]
    command = [sys.executable, "-m", "models.all_strategies", name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=7200)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "strategy"), first(len(FAST), [*FAST, *ALIKE]))
def test_models_train_as_on_one_device(name: str, strategy: str) -> None:
    check(name, strategy)


@pytest.mark.parametrize(("name", "strategy"), first(1, SINGLE))
def test_models_train_in_single_precision(name: str, strategy: str) -> None:
    check(name, strategy, dtype="float32")


@pytest.mark.parametrize(("name", "strategy"), first(1, ADAM))
def test_models_train_by_adam(name: str, strategy: str) -> None:
    check(name, strategy, optimizer="adam")
