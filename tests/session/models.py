"""Sessions for hardware that isn't there, and small models, for tests of the public API."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

import tensoropt
from tensoropt.session.session import Session

BATCH, INPUTS, HIDDEN, CLASSES = 8, 6, 10, 5
IMAGES = np.random.default_rng(0).random((BATCH, INPUTS), dtype=np.float32)
LABELS = np.arange(BATCH) % CLASSES


def begin(hardware: str = "v100-1x4") -> Session:
    """A session that measures nothing."""
    return tensoropt.init(hardware=hardware, seed=1)


def network(trained: bool = True, hidden: int = HIDDEN, batch: int | None = BATCH) -> SimpleNamespace:
    """Two layers; the attributes are its tensors, its variables and its training step."""
    x = tensoropt.placeholder(tensoropt.float32, [batch, INPUTS], name="x")
    y = tensoropt.placeholder(tensoropt.int64, [batch], name="y")
    w = tensoropt.get_variable("w", [INPUTS, hidden])
    v = tensoropt.get_variable("v", [hidden, CLASSES])
    b = tensoropt.get_variable("b", [CLASSES], initializer=tensoropt.zeros_initializer())
    logits = tensoropt.matmul(tensoropt.nn.relu(tensoropt.matmul(x, w)), v) + b
    loss = tensoropt.softmax_cross_entropy(y, logits)
    step = tensoropt.GradientDescentOptimizer(0.1).minimize(loss) if trained else None
    return SimpleNamespace(x=x, y=y, w=w, v=v, b=b, logits=logits, loss=loss, step=step, feeds={x: IMAGES, y: LABELS})


def built(**options: Any) -> SimpleNamespace:
    """The network, built for all its devices in this process."""
    begin()
    model = network()
    model.plan = tensoropt.find_strategy(**options)
    tensoropt.build_execution_graph(plan=model.plan, collectives="emulated")
    return model


def losses(model: SimpleNamespace, n_steps: int = 4) -> list[float]:
    return [float(tensoropt.run([model.step, model.loss], model.feeds)[1]) for _ in range(n_steps)]
