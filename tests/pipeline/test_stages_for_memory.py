"""Stages where no plan without them fits a memory limit: taken where one fits, told, and not looked for where none can."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import keras
import numpy as np
import pytest
from helpers import zoo
from helpers.searches import fastest_that_fits, least_bytes_in_micro_batches, least_in_stages
from pipeline.staged import check_losses, layers, tanh_layers

import tensoropt
from tensoropt.common.errors import InputError
from tensoropt.common.memory_units import memory_text
from tensoropt.costs.held_bytes import least_held_bytes, least_summed_bytes
from tensoropt.ft import Budget
from tensoropt.plan.frontier import Frontier
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import named
from tensoropt.runtime.ranks import Processes
from tensoropt.search import infeasible
from tensoropt.search.candidates import by_bound
from tensoropt.search.candidates.by_bound import Fit
from tensoropt.search.candidates.candidate import Candidate
from tensoropt.search.candidates.search_candidates import CandidateSearch
from tensoropt.search.options import find_answer, mini_time, profiling
from tensoropt.search.request import Request
from tensoropt.tools.cli.main import main
from tensoropt.tuning import profile_guided
from tensoropt.tuning.profile_guided import find_measured

HARDWARE = named("v100-1x4")
UNSPLIT = {"Variable": {"d0": 1, "d1": 1}}
"""Without stages each device then has all parameters."""


@cache
def recorded() -> zoo.Recorded:
    return zoo.record(layers, "adam")


def request(limit: int | None = None, **changed: object) -> Request:
    asked = Request(recorded().model, HARDWARE, limit, UNSPLIT, budget=Budget(seconds=0), may_take_stages=True)
    return replace(asked, **changed)  # type: ignore[arg-type]


@cache
def least_without() -> int:
    """The least that a device needs without stages."""
    held = least_bytes_in_micro_batches(recorded().model, 4)
    tried = fastest_that_fits(request(1), 4)[1] + fastest_that_fits(request(held), 4)[1]
    return min(each.peak_bytes(each.least_point()) for each in tried)


@cache
def probe(count: int, *sizes: int) -> Frontier:
    """Return what a probe finds for the least memory in ``count`` stages of a model of layers of these sizes."""
    return least_in_stages(request(model=zoo.record(partial(layers, *sizes) if sizes else layers, "adam").model), 4, count)


def least_in(count: int) -> int:
    """The least that a device needs in so many stages, by the probe."""
    return probe(count).points_of[0].peak_bytes


class _Said:
    """A progress callback that keeps the names of all phases."""

    def __init__(self) -> None:
        self.phases: set[str] = set()

    def __call__(self, phase: str, done: int, total: int) -> None:
        self.phases.add(phase)


@pytest.fixture(autouse=True)
def _time_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the search for the least memory all the time that it takes, and leave other suggestions out of errors."""
    monkeypatch.setattr(infeasible, "LEAST_S", 600.0)
    monkeypatch.setattr(infeasible._Ways, "found", lambda self: [])


def test_the_fewest_stages_that_fit_are_taken_and_say_why(tmp_path: Path, everything: bool) -> None:
    assert least_in(4) < least_in(2) < least_without()
    others = [(least_without() - 1, 2), (least_in(2) - 1, 4), (least_in(2), 2)] if everything else []
    for limit, count in (*others, (least_in(4), 4)):
        said = _Said()
        plan = mini_time(request(limit, progress=said), 4)
        assert len(plan.stages) == count and plan.peak_bytes <= limit
        why = f"no plan without stages fits {memory_text(limit)}"
        assert f"no plan without stages fits; in {count} stages, costs" in said.phases
        assert why in plan.frontier.summary()
        assert all(why in text for text in (plan.brief(), plan.table(), plan.explain(), plan.explained()))
        assert plan.to_json()["why_stages"] == why
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json").to_json() == plan._with_peak().to_json()
        plan.frontier.save(tmp_path / "frontier.json")
        assert why in tensoropt.load_frontier(tmp_path / "frontier.json").summary()
    check_losses(plan, recorded())


def test_more_micro_batches_are_taken_where_those_searched_by_default_do_not_fit() -> None:
    model = zoo.record(partial(layers, 64, 8), "adam").model
    asked, default = request(model=model, limit_bytes=1), probe(2, 64, 8).points_of[0]
    least = {n: least_in_stages(asked, 4, 2, n).points_of[0].peak_bytes for n in (16, 32)}
    assert default.micro_batches == 8 and default.peak_bytes > least[16] > least[32]
    for limit, n in ((least[16], 16), (least[16] - 1, 32)):
        found = CandidateSearch(replace(asked, limit_bytes=limit), 4).search_all().frontier()
        point = found.points_of[found.fastest_within(limit)]
        assert (point.n_stages, point.micro_batches) == (2, n)


@pytest.mark.parametrize("count", [2, 4])
def test_all_stages_together_hold_what_is_held_anyway(count: int) -> None:
    in_two = recorded().model.in_micro_batches(2)
    held = least_held_bytes(recorded().graph, 1, of=("Variable",)) + least_summed_bytes(in_two, 1)
    assert held == 4 * 4 * 16 * 16 * 8
    for point in probe(count).points_of:
        devices = [each.mesh.n_devices for each in point.frontiers]
        assert sum(n * n_bytes for n, n_bytes in zip(devices, point.stage_bytes, strict=True)) >= held


def test_micro_batches_that_cannot_help_are_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(model=zoo.record(partial(layers, 64, 8), "adam").model)
    searched = list(probe(2, 64, 8).searched)
    held = min(by_bound._hoped_for_bytes(each, 32) for each in searched)
    for limit, expected in ((held - 1, True), (held, False)):
        fit = Fit(CandidateSearch(replace(asked, limit_bytes=limit), 4))
        fit.probed[2, 8] = searched
        assert fit.is_beaten(Candidate(2, 32)) == expected


def test_where_stages_fit_neither_the_least_of_both_is_told() -> None:
    with pytest.raises(InputError) as error:
        mini_time(request(least_in(4) - 1), 4)
    told = f"the least on 4 devices is {least_without():,} bytes"
    assert told in str(error.value) and f"; in 4 stages and 8 micro-batches it is {least_in(4):,} bytes" in str(error.value)
    assert str(error.value).endswith(f"memory={least_in(4)} or more")


@pytest.mark.parametrize(
    "changed",
    [
        {"may_take_stages": False},
        {"without": frozenset(["stages"])},
        {"limit_bytes": 4 * 4 * 16 * 16 * 8 // 4 - 1},  # parameters, two slots and the sums of gradients
    ],
)
def test_what_rules_stages_out_leaves_the_error_as_it_was(
    changed: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left out by the caller, by the user, or by the share of the parameters that a device has at least."""
    monkeypatch.setattr(by_bound, "search_cut", lambda *given: pytest.fail("stages were searched"))
    with pytest.raises(InputError, match=f"no plan fits .* memory={least_without()} or more"):
        mini_time(replace(request(least_without() - 1), **changed), 4)  # type: ignore[arg-type]


def test_measured_searches_whose_micro_batches_are_not_searched_take_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_guided, "_refuse_unmeasurable", lambda *given: None)
    monkeypatch.setattr(by_bound, "search_cut", lambda *given: pytest.fail("stages were searched"))
    with pytest.raises(InputError, match="no plan fits"):
        find_measured("mini_time", request(least_in(2)), 4, "1s", Processes(0, 1, ("here",)))


def test_a_limit_that_a_plan_without_stages_keeps_has_none_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_bound, "search_cut", lambda *given: pytest.fail("stages were searched"))
    assert len(mini_time(request(least_without()), 4).stages) == 1


def test_a_model_that_cannot_be_cut_has_no_frontier_in_stages() -> None:
    def one() -> zoo.Built:
        import tensorflow as tf

        x = tf.compat.v1.placeholder(tf.float64, [8, 16], name="x")
        w = tf.compat.v1.get_variable("w", [16, 16], tf.float64)
        return zoo.Built(tf.reduce_mean(tf.square(x @ w)), {x: zoo._reals(12, 8, 16)}, ())

    asked = request(10_000, model=zoo.record(one, "adam").model)
    assert CandidateSearch(asked, 4).search_all().frontier() is None


@pytest.mark.large
def test_the_fewest_devices_and_a_curve_count_stages() -> None:
    limit = least_in(4)
    fewest = find_answer("mini_parallelism", request(limit), [2, 4])
    assert fewest.parallelism == 4 and fewest.option == "mini_parallelism"
    alone, staged = profiling([(request(limit), count) for count in (1, 4)]).points
    assert (alone.fits, alone.stages) == (False, 1) and (staged.fits, staged.stages) == (True, 4)
    assert alone.peak_bytes > limit >= staged.peak_bytes
    neither = profiling([(request(limit - 1), 4)]).points[0]
    assert (neither.fits, neither.stages, neither.peak_bytes) == (False, 4, limit)


def test_a_script_takes_them_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    tensoropt.init(hardware="v100-1x4", seed=3)
    x, hidden = tanh_layers(4)
    loss = tensoropt.reduce_mean(tensoropt.square(hidden - 1.0))
    train = tensoropt.AdamOptimizer(0.1).minimize(loss)
    asked = {"memory": least_in(2), "force": UNSPLIT, "verbose": 0}
    for excluded in ({"stages": 1}, {"without": ["stages"]}):
        with pytest.raises(InputError, match="no plan fits"):
            tensoropt.find_strategy(**asked, **excluded)
    with monkeypatch.context() as horovod, pytest.raises(InputError, match="no plan fits"):
        horovod.setenv("TENSOROPT_COLLECTIVES", "horovod")
        tensoropt.find_strategy(**asked)
    plan = tensoropt.find_strategy(**asked)
    assert "no plan without stages fits" in plan.brief()
    tensoropt.build_execution_graph(plan=plan, collectives="emulated")
    feeds = {x: np.random.default_rng(1).normal(size=(8, 16))}
    losses = [float(tensoropt.run([loss, train], feeds)[0]) for _ in range(3)]
    assert losses[0] > losses[-1]


@pytest.mark.large
def test_a_trainer_takes_them_by_itself() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((16,)), *(keras.layers.Dense(16, use_bias=False) for _ in range(4))])
    options = {"batch_size": 8, "cluster": "v100-1x4", "collectives": "emulated", "force": UNSPLIT, "verbose": 0}
    trainer = tensoropt.parallelize(model, "sgd", "mse", memory=6_000, **options)
    trainer.fit(np.ones((8, 16)), np.ones((8, 16)), verbose=0)


def test_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "layers.py"
    script.write_text(
        "import tensoropt\n\n\ndef loss():\n    value = tensoropt.placeholder(tensoropt.float64, [8, 16])\n"
        "    for layer in range(4):\n        w = tensoropt.get_variable(f'w{layer}', [16, 16], tensoropt.float64)\n"
        "        value = tensoropt.tanh(tensoropt.matmul(value, w))\n    return tensoropt.reduce_mean(value)\n"
    )
    search = ["search", f"{script}:loss", "--devices", "4", "--without", "zero,reuse,remat,accumulate"]
    assert main([*search, "--json", str(tmp_path / "all.json")]) == 0
    least = min(point["peak_bytes"] for point in json.loads((tmp_path / "all.json").read_text())["points"])
    capsys.readouterr()
    found = tmp_path / "found.json"
    assert main([*search, "--memory", f"{least - 1}B", "--json", str(found), "--frontier", str(tmp_path / "f.json")]) == 0
    why = f"no plan without stages fits {memory_text(least - 1)}"
    assert why in capsys.readouterr().out and json.loads(found.read_text())["why_stages"] == why
    assert main(["plans", str(tmp_path / "f.json")]) == 0
    assert why in capsys.readouterr().out


@pytest.mark.parametrize("micro_batches", [None, 3])
def test_a_batch_that_two_do_not_divide_is_taken_in_three(micro_batches: int | None) -> None:
    model = zoo.record(partial(layers, 9, 8), "adam").model
    plan = mini_time(request(6000, model=model, micro_batches=micro_batches), 4)
    assert plan.micro_batches == 3


def test_more_micro_batches_are_those_in_which_the_model_can_be_trained() -> None:
    """In 16 no samples are apart that a reshaping joins; in 32 they would be."""
    model = zoo.record(partial(layers, 64, 32, 4), "adam").model
    (least, *_) = least_in_stages(request(1, model=model), 4, 2).points_of
    assert least.micro_batches == 8
    plan = mini_time(request(least.peak_bytes - 1, model=model), 4)
    assert plan.micro_batches == 16
