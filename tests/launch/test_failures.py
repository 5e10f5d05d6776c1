"""However a rank ends, all ranks end, within 30 seconds, with the right exit codes and a sentence said once."""

import re
import signal
import sys
import time
from pathlib import Path

import pytest
from mpirun import child_environment, run_command, run_ranks

from tensoropt.waiting import TRAILING, URGENT, Answer, missing_ranks, too_long

WORKER = Path(__file__).with_name("worker.py")
LATE = Path(__file__).with_name("late_rank.py")
LATE_CHAINS = Path(__file__).with_name("late_chains.py")
RECORDED = Path(__file__).with_name("recorded.py")
LIMIT_S = 30.0


def codes_of_ranks(folder: Path, n_ranks: int) -> list[int]:
    """The exit codes; that of a rank which was killed together with its recorder is -SIGKILL."""
    codes = []
    for rank in range(n_ranks):
        record = (folder / str(rank)).read_text()
        if record.startswith("pid "):
            deadline = time.monotonic() + 5
            while Path("/proc", record[4:]).exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not Path("/proc", record[4:]).exists(), f"rank {rank} outlived mpirun"
            codes.append(-signal.SIGKILL)
        else:
            codes.append(int(record))
    return codes


def run_recorded(folder: Path, n_ranks: int, *args: str):
    result = run_ranks(n_ranks, RECORDED, folder, WORKER, *args, timeout=LIMIT_S)
    return result, codes_of_ranks(folder, n_ranks)


def test_all_end_normally(tmp_path):
    result, codes = run_recorded(tmp_path, 3, "slow", "all")
    assert result.returncode == 0, result.stderr
    assert codes == [0] * 3
    assert result.stdout.count("done") == 3


def test_an_error_of_all_is_said_once_by_rank_0(tmp_path):
    result, codes = run_recorded(tmp_path, 3, "input", "all")
    assert result.returncode == 2
    # mpirun may kill those that are a moment behind the first: never with 0.
    assert 0 not in codes and 2 in codes
    assert result.stderr.count("tensoropt: the batch must divide: got 7.") == 1
    assert "Traceback" not in result.stderr


def test_errors_that_differ_are_each_said_with_their_rank(tmp_path):
    result, codes = run_recorded(tmp_path, 2, "numbered", "all")
    assert result.returncode == 2
    assert 0 not in codes
    for rank in range(2):
        assert result.stderr.count(f"tensoropt: rank {rank}: rank-dependent: got {rank}.") == 1


def test_a_traceback_that_all_share_is_printed_once():
    result = run_ranks(3, WORKER, "value", "all", timeout=LIMIT_S)
    assert result.returncode == 1
    assert result.stderr.count("ValueError: boom") == 1
    assert result.stderr.count("Traceback") == 1


def test_debug_shows_the_trace():
    result = run_ranks(2, WORKER, "input", "all", timeout=LIMIT_S, env={"TENSOROPT_DEBUG": "1"})
    assert result.returncode == 2
    assert result.stderr.count("Traceback") == 1


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("input", 2, "tensoropt: rank 1: the batch must divide: got 7."),
        ("value", 1, "ValueError: boom"),
        ("exit", 3, "rank 1 ended with exit code 3 before the others"),
        ("raise-exit", 1, "waits in a collective for rank 1, which has ended"),
        ("stop", 1, "waits in a collective for rank 1, which has ended"),
        ("kill", 137, "Exit code:    137"),
        ("interrupt", 130, "MPI_ABORT was invoked on rank 1"),
    ],
)
def test_one_rank_ends_while_the_others_wait_in_a_collective(tmp_path, kind, code, said):
    result, codes = run_recorded(tmp_path, 3, kind, "1")
    assert result.returncode == code, result.stderr
    assert 0 not in codes, codes
    assert result.stderr.replace("\0", "").count(said) == 1, result.stderr


def test_a_rank_that_mpirun_sees_killed_ends_the_others():
    result = run_ranks(3, WORKER, "kill", "1", timeout=LIMIT_S)
    assert result.returncode == 137
    assert "signal 9 (Killed)" in result.stderr


@pytest.mark.parametrize(
    ("does", "said"), [("sleep", "rank 1 hasn't come to it and is in no collective"), ("stop", "rank 1 doesn't answer")]
)
def test_a_collective_that_waits_too_long_says_who_is_missing(does, said):
    # The rank that sleeps would do so for longer.
    result = run_ranks(3, LATE, does, "0", timeout=2 * LIMIT_S, env={"TENSOROPT_TIMEOUT": "2"})
    assert result.returncode == 1
    assert "done" not in result.stdout and "Traceback" not in result.stderr
    begins = r"tensoropt: rank 0 has waited for \d+ s in \w+\(a\) of float32\[[\d, ]+\] for \w+"
    [sentence] = re.findall(begins + ": (.*)", result.stderr)
    # Rank 2 has no work: it isn't waited for.
    assert f"{said}. All" in sentence and "TENSOROPT_TIMEOUT=SECONDS" in sentence and "rank 2" not in sentence


def test_of_two_chains_the_one_is_named_that_waits():
    """Each rank has begun as many collectives as the other, but not of the same chain."""
    result = run_ranks(2, LATE_CHAINS, timeout=2 * LIMIT_S, env={"TENSOROPT_TIMEOUT": "2"})
    assert result.returncode == 1
    assert "done" not in result.stdout and "Traceback" not in result.stderr
    said = re.findall(r"tensoropt: rank 0 has waited for \d+ s in (.*)\. All", result.stderr)
    assert said == ["the activations' sum: rank 1 hasn't come to it and is in the gradients' sum"]


def test_what_isn_t_spent_in_collectives_doesn_t_count(tmp_path):
    # Each rank is outside of collectives for longer than it may be inside of one.
    result = run_ranks(2, LATE, "nothing", "2.5", timeout=2 * LIMIT_S, env={"TENSOROPT_TIMEOUT": "2"})
    assert result.returncode == 0 and result.stdout.count("done") == 2, result.stderr


def test_a_timeout_that_is_no_time_is_refused():
    for given in ("soon", "0", "nan"):
        result = run_ranks(2, WORKER, "slow", "all", timeout=LIMIT_S, env={"TENSOROPT_TIMEOUT": given})
        assert result.returncode == 2
        assert result.stderr.count("TENSOROPT_TIMEOUT is how many seconds a rank waits in a collective") == 1


def test_all_ranks_that_have_come_are_none_that_is_missing():
    own = Answer((7, 3), ("all_reduce(a)", ""))
    said = too_long(2, 12.3, own.what[URGENT], missing_ranks(2, URGENT, own, {0: own, 1: Answer((8, 3), ("", ""))}, 3))
    assert said.startswith("rank 2 has waited for 12 s in all_reduce(a): all ranks have come to it")
    answers = {0: Answer((6, 3), ("slice(b)", ""))}
    said = too_long(2, 12.3, own.what[URGENT], missing_ranks(2, URGENT, own, answers, 3))
    assert "rank 0 hasn't come to it and is in slice(b); rank 1 doesn't answer. All" in said


def test_a_rank_without_work_is_none_that_is_missing():
    own = Answer((7, 3), ("all_reduce(a)", ""))
    answers = {1: Answer((6, 3), ("", "")), 2: Answer((2, 0), ("", ""), is_at_work=False)}
    said = too_long(0, 12.3, own.what[URGENT], missing_ranks(0, URGENT, own, answers, 3))
    assert ": rank 1 hasn't come to it and is in no collective. All" in said and "rank 2" not in said


def test_who_is_missing_is_told_by_chain():
    """A rank that has begun as many collectives, but others, hasn't come; it may be in two."""
    own = Answer((7, 3), ("all_reduce(a)", "all_reduce(b)"))
    answers = {1: Answer((6, 4), ("slice(c)", "all_reduce(d)"))}
    assert missing_ranks(0, TRAILING, own, answers, 2) == []
    assert missing_ranks(0, URGENT, own, answers, 2) == ["rank 1 hasn't come to it and is in slice(c) and in all_reduce(d)"]


def test_all_exit_with_a_code(tmp_path):
    result, codes = run_recorded(tmp_path, 2, "exit", "all")
    assert result.returncode == 3
    assert 0 not in codes and 3 in codes


def test_a_caught_exit_is_no_failure(tmp_path):
    result, codes = run_recorded(tmp_path, 2, "caught-exit", "all")
    assert result.returncode == 0, result.stderr
    assert codes == [0, 0]
    assert result.stdout.count("went on") == 2


def test_a_leftover_rank_waits_asleep_and_exits_0(tmp_path):
    result, codes = run_recorded(tmp_path, 3, "leftover", "all")
    assert codes == [0] * 3, result.stderr
    assert result.stdout.count("worked") == 2
    (cpu_s,) = re.findall(r"leftover cpu ([\d.]+)", result.stdout)
    assert float(cpu_s) < 0.4  # of 4 s waited


def test_a_leftover_rank_fails_with_those_at_work(tmp_path):
    result, codes = run_recorded(tmp_path, 3, "leftover-input", "all")
    assert result.returncode in (1, 2)
    assert 0 not in codes
    assert result.stderr.count("tensoropt: the batch must divide: got 7.") == 1


def test_alone_there_is_no_mpi():
    script = (
        "import sys\n"
        "from tensoropt.processes import current_processes, install_error_handling\n"
        "from tensoropt.errors import InputError\n"
        "p = current_processes(); install_error_handling(p)\n"
        "p.barrier(); p.wait_for_others()\n"
        "print(p.rank, p.size, p.alone, p.machines, p.broadcast('x'), p.gather_max(2.5), 'mpi4py' in sys.modules)\n"
        "raise InputError('wrong.')\n"
    )
    result = run_command([sys.executable, "-c", script], timeout=LIMIT_S, env=no_launcher())
    assert result.stdout.split() == ["0", "1", "True", "1", "x", "2.5", "False"]
    assert result.returncode == 2
    assert result.stderr.strip() == "tensoropt: wrong."


def test_the_mpirun_of_another_mpi_is_named():
    """Its processes each see an MPI job of their own, of one rank."""
    script = "from tensoropt.processes import current_processes; current_processes()"
    for rank in (0, 1):
        env = {"PMI_RANK": str(rank), "PMI_SIZE": "2"}
        result = run_command([sys.executable, "-c", script], timeout=LIMIT_S, env=env)
        assert result.returncode == 1
        assert ("mpirun belongs to another MPI" in result.stderr) == (rank == 0)
        assert "Traceback" not in result.stderr


def no_launcher() -> dict[str, str]:
    assert not any(name.endswith("COMM_WORLD_RANK") for name in child_environment())
    return {}
