"""Whether a process has room for a plan is asked before anything is made; what the plan keeps is counted exactly."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import tensorflow as tf
from helpers.large import first
from helpers.mpirun import forked, run_command
from session.models import begin, network
from tensorflow.python.eager.context import eager_mode

import tensoropt
from tensoropt.common.errors import OutOfMemoryError
from tensoropt.ir.graph import Graph
from tensoropt.runtime.failures.error_handling import _out_of_memory
from tensoropt.runtime.failures.step_errors import RefusedValues
from tensoropt.runtime.memory_check import PlanMemory, check_available_memory, state_bytes

KNOWN = PlanMemory(10**9, 100.0, ((9 * 10**8, 101.0), (6 * 10**8, 150.0), (5 * 10**8, 160.0)))

LIMITED = """
import resource
from tensoropt.common.errors import OutOfMemoryError
from tensoropt.runtime.memory_check import PlanMemory, check_available_memory
KNOWN = PlanMemory(2 * 300 * 2**20, 5.0)
free = 300 * 2**20
taken = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmData"))) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (taken + free, taken + free))
check_available_memory(free // 2, 1, KNOWN)
try:
    check_available_memory(2 * free, 1, KNOWN)
except OutOfMemoryError as error:
    print(error)
"""


def test_a_limited_process_says_no_and_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("out of memory: the plan needs 629 MB of this process, which is more than it can get")


FREED = """
import ctypes, resource
from tensoropt.runtime.collectives.receive_buffers import keep_freed_memory
from tensoropt.runtime.failures.process_limit import bound_allocators
def taken():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmData"))) * 1024
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
resource.setrlimit(resource.RLIMIT_DATA, (taken() + (1 << 30), taken() + (1 << 30)))
bound_allocators()
keep_freed_memory()
library.free(library.malloc(30 << 20))
before = taken()
blocks = [library.malloc(n_bytes) for _ in range(10) for n_bytes in (10 << 20, 100_000)]
for large in blocks[::2]:
    library.free(large)
print(taken() - before)
"""


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_limited_process_gives_back_large_blocks_between_small_ones(is_kept: bool) -> None:
    environment = {**os.environ, **({"MALLOC_MMAP_THRESHOLD_": str(1 << 25)} if is_kept else {})}
    done = subprocess.run(
        [sys.executable, "-c", FREED], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert (int(done.stdout) > 50 << 20) == is_kept


EXHAUSTED = """
import resource, numpy, tensorflow as tf, tensoropt
tensoropt.init(hardware="v100-1x1")
x = tensoropt.placeholder("float32", [128, 2048])
product = tf.matmul(x, tf.Variable(numpy.ones([2048, 2048], "float32")))
tensoropt.GradientDescentOptimizer(0.0).minimize(tf.reduce_mean(product))
tensoropt.build_execution_graph(plan=tensoropt.find_strategy())
ones = numpy.ones([128, 2048], "float32")
assert (tensoropt.run(product, feed_dict={x: ones}) == 2048).all()
size = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (size + (1 << 20), size + (1 << 20)))
print(tensoropt.run(product, feed_dict={x: ones}))
"""


def test_a_step_without_memory_for_its_libraries_does_not_count() -> None:
    """oneDNN's multiplication may leave its result unwritten then, without an error."""
    done = run_command([sys.executable, *forked("-c", EXHAUSTED)], timeout=120)
    assert done.returncode == 1 and done.stdout == "", done.stdout + done.stderr
    assert done.stderr.count("tensoropt: out of memory: the limit of this process (ulimit) left a step less than") == 1


def test_more_than_the_machine_has_is_refused() -> None:
    check_available_memory(1000, 1, KNOWN)
    for n_bytes in (1 << 50, 1 << 61):
        with pytest.raises(OutOfMemoryError, match="the plan was predicted to need 1 GB per device; a plan") as error:
            check_available_memory(n_bytes, 1, KNOWN)
        assert error.value.exit_code == 1


@pytest.mark.parametrize(
    "optimizer",
    first(1, [tensoropt.AdamOptimizer(0.1), tensoropt.GradientDescentOptimizer(0.1), tensoropt.MomentumOptimizer(0.1, 0.9)]),
)
@pytest.mark.parametrize("force", [{}, {"Variable": {"d0": 2}}, {"Variable": {"d0": 1, "d1": 1}}])
def test_parameters_and_slots_are_those_of_the_rank_with_most(optimizer, force) -> None:
    """Counted at the variables that are made. Adam's powers of its decays, two numbers, are no slots."""
    begin()
    model = network(trained=False)
    optimizer.minimize(model.loss)
    plan = tensoropt.find_strategy(force=force)
    tensoropt.build_execution_graph(plan=plan, collectives="emulated")
    engine = tensoropt.session.session.current_session().engine
    by_rank = [0] * plan.parallelism
    for entry in engine.state():
        for rank, variable in enumerate(entry.variables):
            by_rank[rank] += variable.numpy().nbytes if entry.shape else 0
    assert state_bytes(engine.views[0].whole) == max(by_rank)


def test_a_plan_that_needs_more_than_there_is_isn_t_begun(monkeypatch) -> None:
    begin()
    network()
    plan = tensoropt.find_strategy()
    monkeypatch.setattr("tensoropt.runtime.memory_check.available_memory_bytes", lambda local_ranks: 100)
    with pytest.raises(OutOfMemoryError, match="out of memory: the plan needs"):
        tensoropt.build_execution_graph(plan=plan, collectives="emulated")


def test_a_step_that_gets_no_memory_names_a_plan_that_would_fit() -> None:
    """The error is TensorFlow's own: no machine has 16 TB. A plan within what a GPU has is named, else one of less."""
    begin()
    network()
    plan = tensoropt.find_strategy(cluster="v100-1x2")
    known = PlanMemory.of(plan)
    assert known.others and all(peak < plan.peak_bytes for peak, _ in known.others)
    refused = RefusedValues(Graph({}, {}, {}), KNOWN.sentence)
    with eager_mode(), pytest.raises(OutOfMemoryError) as raised, refused:
        tf.fill([1 << 42], 1.0)
    told = str(raised.value)
    assert told.startswith("out of memory: OOM when allocating tensor with shape[4398046511104]") and "\n" not in told
    assert told.endswith(
        "the plan was predicted to need 1 GB per device; a plan that needs 600 MB is predicted to take 1.50 times as long: "
        "ask for it by memory='603 MB'"
    )
    small = KNOWN.sentence("OOM", 3 * 10**8)
    assert ", of 300 MB that its GPU has; find a plan that needs at most" in small


def test_what_tensorflow_could_not_get_is_told_in_a_sentence() -> None:
    error = ValueError("Graph execution error:\n\nOOM when allocating tensor with shape[4,4]\n\t [[node]]\nmore")
    told = _out_of_memory(error)
    assert told.startswith("out of memory: OOM when allocating tensor with shape[4,4]; find a plan") and "\n" not in told
    assert _out_of_memory(MemoryError()).startswith("out of memory; find a plan")
