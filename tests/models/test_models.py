"""Whatever the strategy, a Keras model trains as it does by plain Keras: losses, gradients, parameters, averages, seeds.

Two steps by SGD with momentum, whose momentums after the first step are the gradients, and for some models by Adam; on four
emulated devices (every third strategy on six), by random strategies and by the search's fastest and smallest plans. In
float64 to 1e-9 of each tensor's largest magnitude, and some in float32 to 1e-4.

``make test`` holds the families of ``keras.applications`` with few blocks, and Transformers and recurrent networks of one
layer; all models at full depth by ``make test-all``. Dropout draws as on one device here.
"""

from __future__ import annotations

import gc
import warnings
from functools import lru_cache

import keras
import pytest
from execution.strategies import random_router, random_strategy

from models.catalog import APPLICATIONS, SEQUENCES, SMALL
from models.training import Case, by_strategy, case_of, differences, floats, sgd, without_gradient
from tensoropt.deliveries import PlainCosts
from tensoropt.frontier import ModelFrontier, find_frontier
from tensoropt.profiling.hardware import resolve
from tensoropt.reschedule.mesh import Mesh
from tensoropt.strategy import StrategyView

TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
MAKES = {"sgd": sgd, "adam": lambda: keras.optimizers.Adam(0.001)}
N_RANDOM = 2
PLANS = ("fastest", "smallest")
# Strategy of each model that is held by default: a seed, or a plan.
FAST = {
    "resnet": "0",
    "resnet_v2": "fastest",
    "densenet": "fastest",
    "mobilenet_v3": "0",
    "efficientnet": "0",
    "efficientnet_v2": "smallest",
    "convnext": "fastest",
    "bert_of_one_layer": "0",
    "gpt_of_one_layer": "0",
    "vit_of_one_layer": "fastest",
    "encoder_decoder_of_one_layer": "smallest",
    "lstm_of_one_layer": "2",
    "gru_of_one_layer": "fastest",
    "gru_unrolled_of_one_layer": "0",
}
SINGLE = {("resnet", "fastest"), ("bert_of_one_layer", "1")}
ADAM = {("vit_of_one_layer", "1"), ("gpt_untied_of_one_layer", "0"), ("lstm_of_one_layer", "1")}
# One process holds all strategies of a model (pytest --dist loadgroup), so that it is captured once.
ALL = [
    pytest.param(name, strategy, marks=pytest.mark.xdist_group(name))
    for name in (*APPLICATIONS, *SEQUENCES)
    for strategy in (*map(str, range(N_RANDOM)), *PLANS)
]

pytestmark = pytest.mark.usefixtures("graphs_as_built")


@lru_cache(maxsize=1)
def _case(name: str, dtype: str, optimizer: str) -> Case:
    gc.collect()
    with floats(dtype), warnings.catch_warnings():
        # The functions of models that are held one after the other look to TensorFlow like one that changes.
        warnings.filterwarnings("ignore", ".*triggered tf.function retracing")
        return case_of(SMALL[name], MAKES[optimizer])


@lru_cache(maxsize=1)
def _frontier(name: str, dtype: str) -> ModelFrontier:
    return find_frontier(_case(name, dtype, "sgd").model, resolve("v100-1x4"), 4)


def check(name: str, strategy: str, dtype: str = "float64", optimizer: str = "sgd") -> None:
    case = _case(name, dtype, optimizer)
    if strategy in PLANS:
        frontier = _frontier(name, dtype)
        plan = frontier.fastest() if strategy == "fastest" else frontier.smallest()
        view = StrategyView(case.graph, plan.strategy, case.model.backward.gradients)
        router = plan.router(PlainCosts())
    else:
        seed = int(strategy)
        view = random_strategy(case, Mesh.of(2, 3) if seed % 3 == 2 else Mesh.of(2, 2), seed)
        router = random_router(seed)
    with floats(dtype):
        found = by_strategy(case, view, router)
        off = differences(case, found, TOLERANCES[dtype], without_gradient(case) if optimizer == "adam" else ())
    assert not off, f"{len(off)} tensors differ:\n" + "\n".join(off[:20])


@pytest.mark.parametrize(("name", "strategy"), FAST.items())
def test_as_one_device(name: str, strategy: str) -> None:
    check(name, strategy)


@pytest.mark.parametrize(("name", "strategy"), sorted(SINGLE))
def test_in_single_precision(name: str, strategy: str) -> None:
    check(name, strategy, dtype="float32")


@pytest.mark.parametrize(("name", "strategy"), sorted(ADAM))
def test_by_adam(name: str, strategy: str) -> None:
    check(name, strategy, optimizer="adam")


@pytest.mark.parametrize(("name", "strategy"), ALL)
def test_every_model_at_full_depth(name: str, strategy: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--all-models"):
        pytest.skip("held by pytest tests/models --all-models")
    check(name, strategy)
