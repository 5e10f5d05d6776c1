"""A rank of the tests of the public API under mpirun: does what its first argument says."""

import os
import sys
import time

from session.models import begin, losses, network

import tensoropt

HARDWARE = f"v100-1x{os.environ['OMPI_COMM_WORLD_SIZE']}"


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
    begin(HARDWARE)
    model = network()
    plan = tensoropt.find_strategy(force={"MatMul": {"n": 2}, "MatMul_1": {"k": 2}})
    assert (plan.frontier is not None) == (rank == 0)
    say("frontier", plan.frontier_table().count("\n"), plan.frontier_table().count("chosen"))
    tensoropt.build_execution_graph(plan=plan)
    searched = losses(model)
    if rank == 0:
        plan.save(f"{folder}/plan.json")
    session.processes.barrier()
    begin(HARDWARE)
    model = network()
    tensoropt.build_execution_graph(plan=f"{folder}/plan.json")
    say("same losses", losses(model) == searched, "parameters", *tensoropt.current_session().engine.local_parameter_bytes)


def agreements(folder):
    """Refusals on all ranks alike, without hanging; the last one isn't caught."""
    begin(HARDWARE)
    network(hidden=10 + rank)
    say("models:", refusal(tensoropt.find_strategy))
    begin(HARDWARE)
    model = network()
    say("memory:", refusal(lambda: tensoropt.find_strategy(memory=10)))
    say("curve:", len(tensoropt.find_strategy("profiling").points))
    plan = tensoropt.find_strategy()
    say("emulated:", refusal(lambda: tensoropt.build_execution_graph(plan=plan, collectives="emulated")))
    other = tensoropt.find_strategy(cluster="v100-1x4")
    say("ranks:", refusal(lambda: tensoropt.build_execution_graph(plan=other)))
    say("file:", refusal(lambda: tensoropt.build_execution_graph(plan=f"{folder}/none.json")))
    tensoropt.build_execution_graph(plan=plan)
    say("fetches:", refusal(lambda: tensoropt.run(model.loss if rank else model.step, model.feeds)))
    say("trains:", len(losses(model)))
    tensoropt.run(model.step, {})


def leftover(folder):
    """The fewest devices that fit are fewer than there are."""
    session = begin(HARDWARE)
    model = network()
    plan = tensoropt.find_strategy("mini_parallelism", parallelism=[2, 3])
    cpu, started = time.process_time(), time.monotonic()
    try:
        tensoropt.build_execution_graph(plan=plan)
    except SystemExit:
        say(f"waited {time.monotonic() - started:.1f} cpu {time.process_time() - cpu:.2f}")
        raise
    losses(model)
    time.sleep(4)
    say("trained on", sum(session.processes.gather(1)))


session = begin(HARDWARE)
rank = session.processes.rank
globals()[sys.argv[1]](sys.argv[2])
