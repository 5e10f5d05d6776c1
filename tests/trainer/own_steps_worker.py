"""One rank of the tests of steps that users wrote: models, scripts of TensorFlow's first version, a custom training loop.

mpirun -n 2 own_steps_worker.py FOLDER [all]    by "all" with two optimizers, as a script and as a loop, too
"""

from __future__ import annotations

import sys

from session import updates
from trainer import own_steps

WHERE = {"cluster": "v100-1x2"}


def main(folder: str, is_all: bool) -> None:
    own_steps.check("diffusion", **WHERE)
    if is_all:
        own_steps.check("gan", **WHERE)
        updates.check("clipped", hardware="v100-1x2")
        own_steps.check_loop(f"{folder}/loop", **WHERE)
    print("as on one device", flush=True)
    own_steps.loop_of("read", **WHERE)


if __name__ == "__main__":
    main(sys.argv[1], "all" in sys.argv[2:])
