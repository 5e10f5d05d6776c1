"""A rank whose driver and TensorFlow show GPUs that aren't there; it says what it has.

Arguments, one for each rank: HOST:GPUS[:NAME:MODE], the machine, how many GPUs it has, and their name and compute mode
"""

import os
import sys

import tensorflow as tf
from helpers.nvml import a_driver
from mpi4py import MPI


def main(host: str, n_gpus: str, name: str = "NVIDIA H100", mode: str = "0") -> None:
    MPI.Get_processor_name = lambda: host
    sys.modules["pynvml"] = a_driver(int(n_gpus), name, int(mode))
    tf.config.list_physical_devices = lambda kind=None: os.environ["CUDA_VISIBLE_DEVICES"].split(",")

    import tensoropt  # noqa: F401
    from tensoropt.runtime.collectives.tensorflow_server import is_by_nccl, is_running
    from tensoropt.runtime.execute import checked_collectives
    from tensoropt.runtime.ranks import current_processes

    processes = current_processes()
    own = os.environ["CUDA_VISIBLE_DEVICES"], len(processes.gpus)
    assert processes.gpus[processes.rank].visible_as == own[0]
    of_start = os.environ["TF_FORCE_GPU_ALLOW_GROWTH"], os.environ["CUDA_DEVICE_ORDER"]
    print(processes.rank, host, *own, *of_start, checked_collectives(None), is_running(), is_by_nccl())


main(*sys.argv[1 + MPI.COMM_WORLD.rank].split(":"))
