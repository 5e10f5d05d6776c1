"""Loaded batches in micro-batches that don't divide each rank's share: fewer samples than devices, or uneven ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from accumulate.uneven import batches, how, network
from helpers.large import first
from helpers.mpirun import run_ranks
from helpers.searches import find_frontier, plans_of
from helpers.strategies import assert_close
from oracles.shards import gather

from tensoropt.common.errors import InputError
from tensoropt.ft import InfeasibleError
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.program.fetch import Fetch
from tensoropt.runtime.execute import EMULATED
from tensoropt.runtime.execution import execute
from tensoropt.runtime.ranks import current_processes
from tensoropt.runtime.step.functions import Feed
from tensoropt.search.frontiers import find_frontier as finding
from tensoropt.search.frontiers.find_frontier import searched
from tensoropt.search.request import Request
from tensoropt.tools.offline_keras import record_keras
from tensoropt.tools.recorded import Recorded

CASES = [(4, 4, 2), (8, 4, 3), (12, 6, 3), (8, 4, 4), (8, 2, 3)]
"""(samples, micro-batches, devices)."""


def recorded(n_samples: int) -> Recorded:
    """A Keras model, of whose batch every rank loads its share."""
    model = network()
    model.compile(**how())
    return record_keras(lambda: model, "uneven", None, n_samples)


def trained(of: Recorded, plan: Plan, n_samples: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses of some steps and the state after them, all ranks in this process."""
    engine = execute(plan, of.model, of.first_values(), current_processes(), EMULATED).engine
    graph = of.model.graph
    (step,) = graph.train_steps.values()
    fed = [op.result for op in graph.step_operators if op.type == "Placeholder"]
    losses = []
    for batch in batches(n_samples):
        feeds = {Feed(tensor, False): batch[tensor.shape[-1]] for tensor in fed}
        (values,) = engine.run(Fetch(((step.loss, False),), (step.name,)), feeds)
        assert_close(np.asarray(values), np.full(len(values), values[0]), 1e-12, "the loss on other ranks")
        losses.append(float(values[0]))
    state = {
        entry.key: gather([variable.numpy() for variable in entry.variables], entry.layout, entry.shape)
        for entry in engine.state()
    }
    return losses, state


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("n_samples", "n_micro_batches", "n_devices"), first(1, CASES))
def test_plans_in_uneven_micro_batches_have_one_device_numbers(n_samples: int, n_micro_batches: int, n_devices: int) -> None:
    of = recorded(n_samples)
    losses, state = trained(of, plans_of(find_frontier(of.model, named("v100-1x1"), 1)).fastest(), n_samples)
    found = plans_of(find_frontier(of.model, named(f"v100-1x{n_devices}"), n_devices, micro_batches=n_micro_batches))
    plans = [found.plan(point) for point in {0, len(found) - 1}]
    assert max(plan.n_split_operators for plan in plans) > 0, "operators are split otherwise than by samples"
    for plan in plans:
        assert plan.micro_batches == n_micro_batches
        found_losses, found_state = trained(of, plan, n_samples)
        assert_close(np.asarray(found_losses), np.asarray(losses), 1e-10, "losses")
        for name, value in state.items():
            assert_close(found_state[name], value, 1e-10, name)


def test_a_plan_in_uneven_micro_batches_reads_back(tmp_path: Path) -> None:
    of = recorded(8)
    plans_of(find_frontier(of.model, named("v100-1x3"), 3, micro_batches=4)).plan(0).save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.n_split_operators, "each rank would load all of the batch of a plan that splits nothing"
    plan.check_for(of.model)
    with pytest.raises(InputError, match="every rank loads its share of factor 'd0'"):
        replace(plan, micro_batches=1).check_for(of.model)


def test_ranks_train_in_uneven_micro_batches_as_keras_does() -> None:
    """The ranks' loaded samples are gathered where a share can't be divided into micro-batches."""
    result = run_ranks(3, Path(__file__).with_name("uneven.py"), timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "8 samples in 4 micro-batches on 3 ranks are trained as Keras does" in result.stdout


def test_only_a_search_with_force_speaks_of_force(monkeypatch: pytest.MonkeyPatch) -> None:
    def infeasible(*_: object, **__: object) -> None:
        raise InfeasibleError("every state of node 'x' is infeasible")

    monkeypatch.setattr(finding, "find_frontier", infeasible)
    of, hardware = recorded(8), named("v100-1x2")
    with pytest.raises(InputError, match="no strategy on 2 devices does what force asks"):
        searched(Request(of.model, hardware, None, {"MatMul": {"m": 2}}), 2)
    with pytest.raises(InputError, match="no strategy on 2 devices in 4 micro-batches is possible") as error:
        searched(Request(of.model, hardware, None, micro_batches=4), 2)
    assert "force" not in str(error.value)
