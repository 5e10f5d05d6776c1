"""Draw ``frontier.png``: the frontier of VGG-16 on eight modelled V100s, and its profiling curve.

    python docs/figures/frontier.py

Needs no MPI and no GPU: the hardware is described, not measured.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import tensoropt


def main():
    tensoropt.init(hardware="v100-1x8", seed=1)
    tensoropt.MomentumOptimizer().minimize(tensoropt.zoo.vgg16(batch=256))
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
