"""Models that are searched in a second, and what for."""

from __future__ import annotations

import zoo

from tensoropt import zoo as models
from tensoropt.profiling.hardware import named

HARDWARE = named("v100-1x4")
SMALL = {
    "vgg16": lambda: models.vgg16(batch=8, image=32),
    "mlp": lambda: zoo.mlp().loss,
    "attention": lambda: zoo.attention().loss,
    "cnn": lambda: zoo.cnn().loss,
}
