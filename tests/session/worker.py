"""A rank of the tests of the public API under mpirun: does what its first argument says."""

import os
import signal
import sys
import time

import numpy as np

import tensoropt
from tensoropt.runtime.failures import error_handling as failures

BATCH = 8
IMAGES = np.random.default_rng(0).random((BATCH, 6), dtype=np.float32)
LABELS = np.arange(BATCH) % 5


def begin():
    return tensoropt.init(hardware=f"v100-1x{os.environ['OMPI_COMM_WORLD_SIZE']}", seed=1)


def network(hidden=10):
    x = tensoropt.placeholder(tensoropt.float32, [BATCH, 6], name="x")
    y = tensoropt.placeholder(tensoropt.int64, [BATCH], name="y")
    w = tensoropt.get_variable("w", [6, hidden])
    v = tensoropt.get_variable("v", [hidden, 5])
    loss = tensoropt.softmax_cross_entropy(y, tensoropt.matmul(tensoropt.nn.relu(tensoropt.matmul(x, w)), v))
    return {x: IMAGES, y: LABELS}, loss, tensoropt.GradientDescentOptimizer(0.1).minimize(loss)


def train(feeds, loss, step, n_steps=4):
    return [float(tensoropt.run([step, loss], feeds)[1]) for _ in range(n_steps)]


def say(*words):
    print(f"rank {rank}:", *words, flush=True)


def refusal(use):
    try:
        use()
    except tensoropt.InputError as error:
        return str(error)
    raise AssertionError("not refused")


def saved_plan(folder):
    """Search, train, save; load on all ranks, train again."""
    begin()
    model = network()
    plan = tensoropt.find_strategy(force={"MatMul": {"n": 2}, "MatMul_1": {"k": 2}})
    assert (plan.frontier is not None) == (rank == 0)
    say("frontier", plan.frontier_table().count("\n"), plan.frontier_table().count("chosen"))
    tensoropt.build_execution_graph(plan=plan)
    searched = train(*model)
    if rank == 0:
        plan.save(f"{folder}/plan.json")
    session.processes.barrier()
    begin()
    model = network()
    tensoropt.build_execution_graph(plan=f"{folder}/plan.json")
    say("same losses", train(*model) == searched, "parameters", *tensoropt.current_session().engine.local_parameter_bytes)


def agreements(folder):
    """Refusals on all ranks alike, without hanging; the last one isn't caught."""
    begin()
    network(hidden=10 + rank)
    say("models:", refusal(tensoropt.find_strategy))
    begin()
    model = network()
    say("memory:", refusal(lambda: tensoropt.find_strategy(memory=10)))
    say("curve:", len(tensoropt.find_strategy("profiling").points))
    plan = tensoropt.find_strategy()
    say("emulated:", refusal(lambda: tensoropt.build_execution_graph(plan=plan, collectives="emulated")))
    other = tensoropt.find_strategy(cluster="v100-1x4")
    say("ranks:", refusal(lambda: tensoropt.build_execution_graph(plan=other)))
    say("file:", refusal(lambda: tensoropt.build_execution_graph(plan=f"{folder}/none.json")))
    tensoropt.build_execution_graph(plan=plan)
    feeds, loss, step = model
    say("fetches:", refusal(lambda: tensoropt.run(loss if rank else step, feeds)))
    say("trains:", len(train(*model)))
    tensoropt.run(step, {})


def leftover(folder):
    """The fewest devices that fit are fewer than there are."""
    session = begin()
    model = network()
    plan = tensoropt.find_strategy("mini_parallelism", parallelism=[2, 3])
    cpu, started = time.process_time(), time.monotonic()
    try:
        tensoropt.build_execution_graph(plan=plan)
    except SystemExit:
        say(f"waited {time.monotonic() - started:.1f} cpu {time.process_time() - cpu:.2f}")
        raise
    train(*model)
    time.sleep(4)
    say("trained on", sum(session.processes.gather(1)))


def fails(folder):
    """Rank 1 fails in the middle of training, in the way that the environment says."""
    begin()
    model = network()
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy(force={"MatMul": {"m": 2}}))
    train(*model)
    if rank == 1:
        with open(f"{folder}/failed", "w") as file:
            print(time.time(), file=file)
        if os.environ["FAULT"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("the reader broke")
    train(*model, n_steps=10**6)


failures.AGREEMENT_S, failures.WATCH_INTERVAL_S = 3.0, 0.5
session = begin()
rank = session.processes.rank
globals()[sys.argv[1]](sys.argv[2])
