"""Two ranks with a collective of each chain under way, until each comes to another chain's than the other rank."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hurrying import hurry

from tensoropt.common.process.watchdog import CRITICAL, OVERLAPPABLE
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.collectives.mpi import MpiCommunicator
from tensoropt.runtime.ranks import current_processes, install_error_handling

N_ROUNDS = 20


def main() -> None:
    processes = current_processes()
    install_error_handling(processes)
    hurry(2)
    mesh = Mesh.of(2)
    chains = [
        MpiCommunicator(processes.comm, mesh, processes.begin_collective, naps=True),
        MpiCommunicator(processes.comm, mesh, lambda: processes.begin_collective(OVERLAPPABLE), gives_way=True),
    ]
    for communicator in chains:
        communicator.prepare([mesh.axes])

    def add_up(chain: int, n_times: int, what: str) -> None:
        for _ in range(n_times):
            processes.waiting[chain].begin(what)
            assert chains[chain].all_reduce(mesh.axes, np.ones(3)).tolist() == [2, 2, 2]
            processes.waiting[chain].end()

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(add_up, chain, N_ROUNDS, f"sum of {chain}") for chain in (CRITICAL, OVERLAPPABLE)]:
            done.result()
    add_up(
        OVERLAPPABLE if processes.rank else CRITICAL, 1, "the gradients' sum" if processes.rank else "the activations' sum"
    )
    print("done")


main()
