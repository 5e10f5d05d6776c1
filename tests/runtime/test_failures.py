"""However a rank ends, all ranks end, within 30 seconds, with the right exit codes and a sentence said once."""

import re
import signal
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from helpers.large import first
from helpers.mpirun import child_environment, run_command, run_ranks

from tensoropt.runtime.failures import error_handling as failures
from tensoropt.runtime.failures.watching import ThreadProgress

pytestmark = pytest.mark.deadlines  # which rank is missed first depends on what computes beside

WORKER = Path(__file__).with_name("worker.py")
LATE = Path(__file__).with_name("late_rank.py")
LATE_CHAINS = Path(__file__).with_name("late_chains.py")
LATE_CALLS = Path(__file__).with_name("late_calls.py")
LIVE = Path(__file__).parents[1] / "trainer" / "live_worker.py"
RECORDED = Path(__file__).with_name("recorded.py")
LIMIT_S = 30.0
BY_TENSORFLOW = {"TENSOROPT_COLLECTIVES": "tensorflow"}


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
    result = run_ranks(n_ranks, RECORDED, folder, WORKER, *args, timeout=LIMIT_S, fresh=True)
    return result, codes_of_ranks(folder, n_ranks)


def test_all_end_normally_whatever_ends_their_child_processes(tmp_path):
    result, codes = run_recorded(tmp_path, 3, "slow", "children")
    assert result.returncode == 0, result.stderr
    assert codes == [0] * 3 and result.stdout.count("the children ended alone") == 2
    assert result.stdout.count("done") == 3 and "tensoropt" not in result.stderr


def test_an_error_of_all_is_said_once_by_rank_0(tmp_path):
    result, codes = run_recorded(tmp_path, 3, "input", "all")
    assert result.returncode == 2
    # mpirun may kill those that are a moment behind the first: never with 0.
    assert 0 not in codes and 2 in codes
    assert len(re.findall(r"tensoropt: the batch must divide: got 7 \(at worker.py:\d+\)\.", result.stderr)) == 1
    assert "Traceback" not in result.stderr


def test_what_a_rank_says_comes_before_what_a_busy_mpirun_says():
    result = run_ranks(2, WORKER, "busy-mpirun", "1", timeout=LIMIT_S, fresh=True)
    assert result.returncode == 2
    assert result.stderr.startswith("tensoropt: rank 1: the batch must divide"), result.stderr
    assert "MPI_ABORT was invoked" in result.stderr


def test_errors_that_differ_are_each_said_with_their_rank(tmp_path):
    result, codes = run_recorded(tmp_path, 2, "numbered", "all")
    assert result.returncode == 2 and 0 not in codes
    for rank in range(2):
        said = rf"tensoropt: rank {rank}: rank-dependent: got {rank} \(at worker.py:\d+\)\."
        assert len(re.findall(said, result.stderr)) == 1


def test_a_traceback_that_all_share_is_printed_once():
    result = run_ranks(3, WORKER, "value", "all", timeout=LIMIT_S)
    assert result.returncode == 1 and result.stderr.count("ValueError: boom") == 1
    assert result.stderr.count("Traceback") == 1


def test_debug_shows_the_trace():
    result = run_ranks(2, WORKER, "input", "all", timeout=LIMIT_S, env={"TENSOROPT_DEBUG": "1"})
    assert result.returncode == 2 and result.stderr.count("Traceback") == 1


ENDED_BY_MPIRUN = "mpirun ends all ranks: it was interrupted (Ctrl-C) or told to end, or a rank was killed or has crashed"


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [("input", 2, r"tensoropt: rank 1: the batch must divide: got 7 \(at worker.py:\d+\)\."),
     ("value", 1, r"tensoropt: rank 1: ValueError: boom \(at worker.py:\d+\)"),
     ("own-error", 1, r"tensoropt: rank 1: MyError: not today \(at worker.py:\d+\)"),
     ("leave", 3, r"tensoropt: rank 1: os._exit\(3\) at worker.py:\d+ ends this process at once, and with it all ranks"),
     ("terminate", 143, r"rank 1: ended by SIGTERM, from another process, while it was in the user's code at worker.py"),
     ("exit", 3, "rank 1 ended with exit code 3 before the others"),
     ("raise-exit", 1, "waits in a collective for rank 1, which has ended"),
     ("stop", 1, "waits in a collective for rank 1, which has ended: rank 0 is in "),
     ("kill", 137, "Exit code:    137"),
     ("interrupt", 130, r"tensoropt: rank 1: KeyboardInterrupt \(at worker.py:\d+\)")],
)  # fmt: skip
def test_one_rank_ends_while_the_others_wait_in_a_collective(tmp_path, kind, code, said):
    result, codes = run_recorded(tmp_path, 3, kind, "1")
    assert result.returncode == code, result.stderr
    assert 0 not in codes, codes
    assert len(re.findall(said, result.stderr.replace("\0", ""))) == 1, result.stderr
    # mpirun's own lines apart, nobody else says anything.
    own_lines = re.findall("tensoropt: (.*)", result.stderr)
    if kind == "kill":  # as far as mpirun leaves the others the time
        assert own_lines in ([], [ENDED_BY_MPIRUN])
    else:
        assert len(own_lines) == 1, result.stderr


@pytest.mark.parametrize("env", [{}, BY_TENSORFLOW], ids=["mpi", "tensorflow"])
@pytest.mark.parametrize(
    ("does", "said"),
    [("sleep", r"rank 1 hasn't come to it and has been in the user's code at late_rank.py:\d+ for \d+ s"),
     ("stop", r"rank 1 hasn't answered for \d+ s; it was last known in run at late_rank.py:\d+")],
)  # fmt: skip
def test_a_collective_that_waits_too_long_says_who_is_missing(does, said, env):
    # The rank that sleeps would do so for longer.
    result = run_ranks(3, LATE, does, "0", timeout=2 * LIMIT_S, env=env)
    assert result.returncode == 1
    assert "done" not in result.stdout and "Traceback" not in result.stderr
    collective = r"\w+\(a\) of float32\[[\d, ]+\] for \w+"
    waits_in = rf"a run with \d+ collectives, the first {collective}" if env else collective
    begins = rf"tensoropt: rank 0 has waited for \d+ s in {waits_in}, in run at late_rank.py:\d+"
    [sentence] = re.findall(begins + ": (.*)", result.stderr)
    # Rank 2 has no work: it isn't waited for.
    assert re.match(f"{said}. All", sentence) and "TENSOROPT_TIMEOUT=SECONDS" in sentence and "rank 2" not in sentence


def test_one_fetch_more_is_named_with_both_lines():
    """Each rank has begun as many collectives; whichever is the first to speak names both."""
    result = run_ranks(3, LATE, "fetch", "0", timeout=2 * LIMIT_S)
    assert result.returncode == 1
    step = r"\w+\(a\) of float32\[[\d, ]+\] for \w+, in run at late_rank.py:\d+"
    fetch = r"the comparison of what is about to run, in run at late_rank.py:\d+"
    by_rank_0 = rf"rank 0 has waited for \d+ s in {step}: rank 1 is in {fetch}\. All"
    by_rank_1 = rf"rank 1 has waited for \d+ s in {fetch}: rank 0 is in {step}\. All"
    assert len(re.findall(f"tensoropt: (?:{by_rank_0}|{by_rank_1})", result.stderr)) == 1, result.stderr


def test_of_two_chains_the_one_is_named_that_waits():
    """Each rank has begun as many collectives as the other, but not of the same chain."""
    result = run_ranks(2, LATE_CHAINS, timeout=2 * LIMIT_S)
    assert result.returncode == 1
    assert "done" not in result.stdout and "Traceback" not in result.stderr
    [(rank, sentence)] = re.findall(r"tensoropt: rank (\d) has waited for \d+ s in (.*)\. All", result.stderr)
    own, others = ("activations", "gradients")[:: -1 if rank == "1" else 1]
    missing = f"rank {1 - int(rank)} hasn't come to it and has been in the {others}' sum, in "
    assert re.match(f"the {own}' sum, in all_reduce at late_chains.py:\\d+: {missing}", sentence), sentence


@pytest.mark.parametrize(
    ("case", "said"),
    [
        # Its search lasted for twice the timeout before, which is no reason to end.
        ("save", r"rank 0 has waited for \d+ s in what .*, in save at F:52: rank 1 hasn't answered for \d+ s; it was last"),
        ("evaluate", "ranks 0 and 1 make different calls: rank 0 is in evaluate at F:55, rank 1 in fit at F:56; all ranks"),
        ("data",
         r"rank 1 has waited for \d+ s in a batch that rank 0 hands out, in fit at F:58: rank 0 hasn't come to it and "
         r"has been in the user's code at F:70, called by fit at F:58 for \d+ s"),
        # In a thread of TensorFlow's, for which the main thread waits, beside one of the user's that polls.
        ("spin", r"rank 0 has waited .*: rank 1 hasn't come .* in the user's code at F:81, called by fit at F:62 for \d+ s"),
    ],
)  # fmt: skip
def test_a_trainer_that_a_rank_keeps_waiting_names_it(tmp_path, case, said):
    result = run_ranks(2, LATE_CALLS, case, tmp_path / "ckpt", timeout=3 * LIMIT_S)
    assert result.returncode == (2 if case == "evaluate" else 1), result.stderr
    assert result.stdout.count("searched") == 2 and "done" not in result.stdout
    assert len(re.findall("tensoropt: " + said.replace("F:", "late_calls.py:"), result.stderr)) == 1, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("kind", "said"),
    [("stop-first", r"for all ranks to start MPI \(in current_processes at worker.py:\d+\): rank 1 hasn't come"),
     ("search", r"in a plan, in gather at worker.py:\d+: rank 1 hasn't answered for \d+ s; it was last known in search")],
)  # fmt: skip
def test_a_rank_that_is_stopped_before_any_step_is_named(kind, said):
    result = run_ranks(3, WORKER, kind, "all", timeout=LIMIT_S, env={"TENSOROPT_TIMEOUT": "3"})
    assert result.returncode == 1
    assert len(re.findall(r"tensoropt: rank [02] has waited for \d+ s " + said, result.stderr)) == 1, result.stderr


def test_what_isn_t_spent_in_collectives_doesn_t_count(tmp_path):
    # Each rank is outside of collectives for longer than it may be inside of one.
    result = run_ranks(2, LATE, "nothing", "2.5", timeout=2 * LIMIT_S)
    assert result.returncode == 0 and result.stdout.count("done") == 2, result.stderr


def test_a_timeout_that_is_no_time_is_refused():
    for given in ("soon", "0", "nan"):
        result = run_ranks(2, WORKER, "slow", "all", timeout=LIMIT_S, env={"TENSOROPT_TIMEOUT": given})
        assert result.returncode == 2
        assert result.stderr.count("TENSOROPT_TIMEOUT is how many seconds a rank waits for others") == 1


def test_progress_is_work_of_ours_that_moves_and_not_the_users_code():
    """A thread is in code of ours that computes, then in such that stands still, then in the user's.

    A thread of the user's computes all the while.
    """
    goes, done = threading.Event(), threading.Event()

    def compute() -> None:
        while not goes.wait(0):
            sum(range(10000))
        done.wait()

    def users() -> None:
        while not done.wait(0):
            sum(range(10000))

    code = compute.__code__.replace(co_filename=failures.__file__)
    ours = types.FunctionType(code, {}, "compute", None, compute.__closure__)
    polls = threading.Thread(target=users)  # a thread of the user's that computes all the time
    polls.start()
    for function, is_moving in ((ours, [True, False]), (users, [False])):
        thread = threading.Thread(target=function)
        thread.start()
        progress = ThreadProgress(thread)
        for moves in is_moving:
            progress.look((0,), None)
            before_s = progress.look((0,), None)
            time.sleep(0.3)
            assert (progress.look((0,), None) < 0.3 + before_s) == moves, (function, moves)
            goes.set()
            time.sleep(0.1)
        assert progress.look((1,), None) == 0  # a collective was begun
        assert thread.is_alive() and (polls.is_alive() or function is users)
        done.set()
        thread.join()
        polls.join()
        done.clear()


def test_all_exit_with_a_code(tmp_path):
    result, codes = run_recorded(tmp_path, 2, "exit", "all")
    assert result.returncode == 3 and 0 not in codes and 3 in codes


def test_a_caught_exit_is_no_failure(tmp_path):
    result, codes = run_recorded(tmp_path, 2, "caught-exit", "all")
    assert result.returncode == 0, result.stderr
    assert codes == [0, 0] and result.stdout.count("went on") == 2


def test_a_leftover_rank_fails_with_those_at_work(tmp_path):
    result, codes = run_recorded(tmp_path, 3, "leftover-input", "all")
    assert result.returncode in (1, 2) and 0 not in codes
    assert len(re.findall(r"tensoropt: the batch must divide: got 7 \(at worker.py:\d+\)\.", result.stderr)) == 1


def test_one_process_alone_needs_no_mpi():
    script = (
        "import sys\n"
        "from tensoropt.runtime.ranks import current_processes, install_error_handling\n"
        "from tensoropt.common.errors import InputError\n"
        "p = current_processes(); install_error_handling(p)\n"
        "p.barrier(); p.wait_for_others()\n"
        "print(p.rank, p.size, p.is_alone, p.machines, p.broadcast('x'), p.gather_max(2.5), 'mpi4py' in sys.modules)\n"
        "raise InputError('wrong.')\n"
    )
    result = run_command([sys.executable, "-c", script], timeout=LIMIT_S, env=no_launcher())
    assert result.stdout.split() == ["0", "1", "True", "1", "x", "2.5", "False"]
    assert result.returncode == 2 and result.stderr.strip() == "tensoropt: wrong (at <string>:7)."


@pytest.mark.parametrize(
    ("names", "code", "says"),
    [(("PMI_RANK", "PMI_SIZE"), 1, "mpirun belongs to another MPI"),
     (("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), 2, "got 2 processes (SLURM_STEP_NUM_TASKS), of which this one sees 1")],
)  # fmt: skip
def test_a_launcher_whose_processes_do_not_see_each_other_is_named_once(names, code, says):
    script = "from tensoropt.runtime.ranks import current_processes; current_processes()"
    for rank in ("0", "1"):
        env = dict(zip(names, (rank, "2"), strict=True))
        result = run_command([sys.executable, "-c", script], timeout=LIMIT_S, env=env)
        assert result.returncode == code
        assert (says in result.stderr) == bool(result.stderr) == (rank == "0")
        assert "Traceback" not in result.stderr


def no_launcher() -> dict[str, str]:
    assert not any(name.endswith("COMM_WORLD_RANK") for name in child_environment())
    return {}


def test_two_ranks_and_a_read_of_a_trainer_on_one_alone_which_ends_with_a_sentence():
    result = run_ranks(2, LIVE, timeout=300)
    assert result.stdout.count("done") == 2, result.stdout + result.stderr
    assert result.returncode != 0 and "read alone" not in result.stdout
    said = [line for line in result.stderr.splitlines() if line.startswith("tensoropt:")]
    assert len(said) == 1 and "rank 0" in said[0], result.stderr
    assert "rank 1, which has ended" in said[0]


@pytest.mark.parametrize("n_ranks", first(1, [3, 2, 4]))
@pytest.mark.parametrize(
    ("does", "code", "said"),
    first(3, [
        ("raise", 1, r"rank 1: ValueError: boom \(at late_rank.py:\d+\)"),
        ("kill", 137, "mpirun ends all ranks: .* a rank was killed or has crashed"),
        ("leave", 1, "rank 0 waits in a collective for rank 1, which has ended: rank 0 is in run at late_rank.py"),
        ("exit", 3, "rank 1 ended with exit code 3 before the others"),
        ("terminate", 143, "rank 1: ended by SIGTERM, from another process, while it was in the user's code at late"),
    ]),
)  # fmt: skip
def test_a_rank_that_ends_is_named_alone(does: str, code: int, said: str, n_ranks: int) -> None:
    """Others lose the connection to it within a collective, of which they say nothing."""
    result = run_ranks(n_ranks, LATE, does, "0", n_ranks, timeout=30, env=BY_TENSORFLOW)
    assert result.returncode == code, result.stderr
    assert "done" not in result.stdout
    own = [line for line in re.findall("tensoropt: (.*)", result.stderr) if not re.match("plan|time|memory|after", line)]
    if does != "kill" or own:  # as far as mpirun leaves the others the time
        assert len(own) == 1 and re.match(said, own[0]), result.stderr
    assert result.stderr.count("Traceback") == (does == "raise")
