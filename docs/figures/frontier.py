"""Draw ``frontier.png``: the frontier of a small VGG on eight modelled V100s, and its profiling curve.

    python docs/figures/frontier.py

Needs no MPI and no GPU: the hardware is described, not measured.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import tensoropt

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
from models import SMALL_VGG  # noqa: E402

BATCH = 256


def main():
    tensoropt.init(hardware="v100-1x8", seed=1)
    images = tensoropt.placeholder(tensoropt.float32, [BATCH, *SMALL_VGG.image])
    labels = tensoropt.placeholder(tensoropt.int64, [BATCH])
    loss = SMALL_VGG.build(tensoropt, lambda name, shape: tensoropt.get_variable(name, shape), images, labels)
    tensoropt.MomentumOptimizer().minimize(loss)
    plan = tensoropt.find_strategy("mini_time")
    curve = tensoropt.find_strategy("profiling", parallelism=[1, 2, 4, 8])
    _, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    plan.frontier.plot(axes=left, chosen=plan.point)
    curve.plot(right)
    plt.tight_layout()
    plt.savefig(Path(__file__).with_name("frontier.png"), dpi=110)
    print(plan.frontier.summary())
    print(curve)


if __name__ == "__main__":
    main()
