"""One rank of a measurement under mpirun: measures, and rank 0 saves the hardware; all check that they agree.

Usage: measuring_rank.py MACHINES BUDGET_S FILE
"""

import sys

from mpi4py import MPI

from tensoropt.profiling.collective_tables import device_partitions
from tensoropt.profiling.measure import measure
from tensoropt.profiling.measuring_ranks import MeasuringProcess
from tensoropt.reschedule.mesh import Level, Mesh
from tensoropt.runtime.collectives.mpi import MpiCommunicator


def main() -> None:
    machines, budget_s, path = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    comm = MPI.COMM_WORLD
    levels = (Level("machine", machines), Level("device", comm.size // machines))
    mesh = Mesh(levels)
    communicator = MpiCommunicator(comm, mesh)
    communicator.prepare(device_partitions(mesh))
    place = MeasuringProcess(communicator, comm.rank, local_ranks=comm.size, broadcast=comm.bcast)
    start = MPI.Wtime()
    hardware = measure(levels, place, budget_s=budget_s)
    if comm.rank == 0:
        print(f"measured in {MPI.Wtime() - start:.2f} s")
        hardware.save(path)
    if any(other != hardware for other in comm.allgather(hardware)):
        raise AssertionError("the ranks have different descriptions")


if __name__ == "__main__":
    main()
