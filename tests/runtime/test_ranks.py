"""The ranks there are, and their machines."""

import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from helpers.mpirun import run_ranks
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.common.errors import InputError, describe
from tensoropt.runtime import ranks as processes
from tensoropt.runtime.launch.hosts import machine_shape
from tensoropt.runtime.launch.separate_starts import refuse_separate_processes
from tensoropt.runtime.mpi_start import SOCKET_BYTES, send_at_once
from tensoropt.runtime.ranks import launched_as

WORKER = Path(__file__).with_name("worker.py")


@given(st.integers(1, 5), st.integers(1, 9))
def test_equal_machines_are_a_shape(machines, devices):
    hosts = [f"host{machine}" for machine in range(machines) for _ in range(devices)]
    assert machine_shape(hosts) == (machines, devices)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5).filter(lambda counts: len(set(counts)) > 1))
def test_unequal_machines_are_refused_with_neighbours_that_work(counts):
    hosts = [f"host{machine}" for machine, count in enumerate(counts) for _ in range(count)]
    with pytest.raises(InputError) as raised:
        machine_shape(hosts)
    message = str(raised.value)
    below = int(message.split("Start ")[1].split()[0])
    possible = [m * d for d in range(1, 10) for m in range(1, sum(c >= d for c in counts) + 1)]
    assert below == max(possible)
    assert all(f"{count} on host{machine}" in message for machine, count in enumerate(counts))


def test_the_neighbours_are_named_in_words():
    with pytest.raises(InputError, match=r"8 on a, 3 on b.*Start 8 \(one machine of 8\) or 12 \(2 machines of 6\)\.$"):
        machine_shape(["a"] * 8 + ["b"] * 3)
    with pytest.raises(InputError, match=r"Start 3 \(one machine of 3\) or place 4 as 2 machines of 2\.$"):
        machine_shape(["a"] * 3 + ["b"])


def test_ranks_must_be_ordered_by_host():
    with pytest.raises(InputError, match="ordered by host: got the hosts a, b, a, b"):
        machine_shape(["a", "b", "a", "b"])


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, None),
     ({"SLURM_NPROCS": "4"}, None),
     ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, (1, 4)),
     ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
     ({"PMIX_RANK": "3"}, (3, None))],
)  # fmt: skip
def test_a_launcher_is_seen_in_the_environment(environ, expected):
    assert launched_as(environ) == expected


@pytest.mark.parametrize(
    ("environ", "n_seen", "parent", "is_refused"),
    [
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, 1, "bash", False),  # plain python in a batch script
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, 1, "slurmstepd", False),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}, 1, "slurmstepd", True),  # srun python
        ({"SLURM_STEP_NUM_TASKS": "4", "PMIX_RANK": "2"}, 1, "slurmstepd", True),  # a PMIx that MPI doesn't speak
        ({"SLURM_STEP_NUM_TASKS": "4", "PMIX_RANK": "2"}, 4, "slurmstepd", False),
        ({"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "0"}, 1, "hydra_pmi_proxy", True),
        ({"SLURM_STEP_NUM_TASKS": "4", "OMPI_COMM_WORLD_SIZE": "2"}, 2, "prterun", True),  # srun mpirun
        ({"SLURM_STEP_NUM_TASKS": "4", "OMPI_COMM_WORLD_SIZE": "2"}, 2, "prted", False),  # mpirun's own daemons
    ],
)
def test_more_processes_than_mpi_sees_are_refused(environ, n_seen, parent, is_refused, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(InputError, match="more processes than see each other") if is_refused else nullcontext():
        refuse_separate_processes(n_seen, environ, parent)


@pytest.mark.parametrize(("n_ranks", "bare"), [(1, False), (2, True), (5, False)])
def test_every_rank_knows_the_others(n_ranks, bare):
    result = run_ranks(n_ranks, WORKER, "collectives", "all", bare=bare, timeout=60)
    assert result.returncode == 0, result.stderr
    everyone = list(range(n_ranks))
    assert sorted(result.stdout.splitlines()) == [
        f"rank {rank} of {n_ranks}: 5 {everyone} {(n_ranks - 1) / 2} 1x{n_ranks}" for rank in everyone
    ]


def test_describe_puts_its_parts_in_order():
    assert describe("a") == "a."
    assert (
        describe("the axis is unknown", got=3, expected="0 to 2", where="model.py:7", advice="name one.")
        == "the axis is unknown: got 3, expected 0 to 2, at model.py:7. Name one."
    )


@pytest.mark.parametrize(
    ("launched", "cores", "expected"),
    [({}, 1, {}),
     ({"OMPI_COMM_WORLD_SIZE": "2"}, 1, {}),
     ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 1, {"TF_NUM_INTRAOP_THREADS": "1"}),
     ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, 1, {"TF_NUM_INTEROP_THREADS": "3"}),
     ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, 4, {}),
     ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "TF_NUM_INTEROP_THREADS": "2"},
      1,
      {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"})],
)  # fmt: skip
def test_threads_of_a_rank(monkeypatch, launched, cores, expected):
    """A rank has its share of the cores; over a link three operators at once, of which two may wait."""
    monkeypatch.setattr(processes, "cores_of_a_rank", lambda local_size: cores)
    environ = launched | ({"OMPI_COMM_WORLD_RANK": "0"} if launched else {})
    processes.limit_threads(environ)
    assert {name: value for name, value in environ.items() if name.startswith("TF_")} == expected


def test_messages_to_other_machines_are_sent_at_once_unless_a_limit_is_set():
    limit, sizes = "OMPI_MCA_btl_tcp_eager_limit", ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    for environ, expected in [
        ({}, None),
        (dict.fromkeys(sizes, "2"), None),
        (dict(zip(sizes, ("2", "1"), strict=True)), "1048576"),
        ({**dict(zip(sizes, ("2", "1"), strict=True)), limit: "65536"}, "65536"),
    ]:
        send_at_once(environ, lambda: 0)
        assert environ.get(limit) == expected


def test_rank_0_says_that_mpi_was_started_before_the_limit_could_be_set(monkeypatch, capsys):
    between = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", sys)
    for more, says in [
        ({"OMPI_COMM_WORLD_RANK": "0"}, True),
        ({"OMPI_COMM_WORLD_RANK": "1"}, False),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_btl_tcp_eager_limit": "65536"}, False),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, False),
    ]:
        send_at_once({**between, **more}, lambda: 0)
        said = capsys.readouterr().err
        assert said.startswith("tensoropt: mpi4py.MPI was imported before tensoropt") == says == bool(said)


def test_sockets_to_other_machines_have_large_buffers_where_the_kernel_allows_it():
    between = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    name = "OMPI_MCA_btl_tcp_sndbuf"
    for environ, largest, expected in [
        (between, SOCKET_BYTES - 1, None), (between, SOCKET_BYTES, str(SOCKET_BYTES)),
        ({**between, name: "65536"}, SOCKET_BYTES, "65536"), (dict.fromkeys(between, "2"), SOCKET_BYTES, None),
    ]:  # fmt: skip
        environ = dict(environ)
        send_at_once(environ, lambda largest=largest: largest)
        assert environ.get(name) == expected
        assert ("OMPI_MCA_btl_tcp_rcvbuf" in environ) == (expected is not None)


@pytest.mark.parametrize(("hosts", "cores", "naps"), [(("a", "a"), 1, False), (("a", "b"), 1, True), (("a", "b"), 2, False)])
def test_ranks_nap_over_a_link_and_where_they_share_a_core(monkeypatch, hosts, cores, naps):
    monkeypatch.setattr(processes, "cores_of_a_rank", lambda local_size: cores)
    assert processes.Processes(0, 2, hosts).naps == naps
    assert processes.Processes(0, 2, hosts, ranks_per_core=2).naps


@pytest.mark.deadlines
def test_a_rank_that_waits_leaves_the_core_that_it_shares():
    result = run_ranks(2, Path(__file__).with_name("shared_core_rank.py"), fresh=True)
    assert result.returncode == 0, result.stdout + result.stderr
    waited_s, busy_s = map(float, re.findall(r"[\d.]+(?= s)", result.stdout))
    assert waited_s > 0.5 and busy_s < waited_s / 2
