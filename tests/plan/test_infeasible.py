"""A memory limit below the least: what the message names, and each way out held against a search for what it advises."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.large import first
from helpers.searches import fastest_that_fits, least_bytes_in_micro_batches

import tensoropt
from tensoropt.common.errors import InputError
from tensoropt.common.memory_units import memory_text
from tensoropt.costs.held_bytes import least_held_bytes
from tensoropt.profiling.hardware import named
from tensoropt.search import infeasible as suggestions
from tensoropt.search.batch_size import batch_that_fits
from tensoropt.search.candidates import by_bound
from tensoropt.search.frontiers.find_frontier import searched as search
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.search.infeasible import frontiers
from tensoropt.search.options import find_answer, mini_time, profiling
from tensoropt.search.request import OF_CURVE, ONCE, Request
from tensoropt.sharding.model import Model
from tensoropt.tools.offline import record

HARDWARE = named("v100-1x4")


def perceptron(batch: int = 64, hidden: int = 64) -> Model:
    def layers() -> object:
        value = tensoropt.placeholder(tensoropt.float32, [batch, 32], name="x")
        for i in range(3):
            weights = tensoropt.get_variable(f"w{i}", [value.shape[1], hidden])
            value = tensoropt.nn.relu(tensoropt.matmul(value, weights))
        return tensoropt.reduce_mean(tensoropt.square(value))

    return record(layers, "perceptron").model


FOUND: dict[tuple[object, ...], tuple[Model, ModelFrontier]] = {}


def searched(asked: Request, parallelism: int, *_: object) -> ModelFrontier:
    """Return the frontier of a request, searched once: it depends on neither the limit nor how busy the machine is."""
    if asked.progress is not None or not asked.wants_frontier:
        return search(asked, parallelism)
    choices = asked.algorithm, asked.space, asked.budget, asked.without, asked.micro_batches, repr(asked.force)
    key = (id(asked.model), asked.hardware.name, parallelism, *choices)
    if key not in FOUND:
        FOUND[key] = asked.model, search(asked, parallelism)  # a model that is kept keeps its id
    return FOUND[key][1]


def least(frontier: ModelFrontier) -> int:
    return min(frontier.peak(point).n_bytes for point in range(len(frontier)))


def request(model: Model, **asked: object) -> Request:
    """A request without micro-batches by default, so that what fits is on one frontier."""
    return Request(**{"model": model, "hardware": HARDWARE, "limit_bytes": None, "micro_batches": 1, **asked})


@pytest.fixture(autouse=True)
def _time_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message doesn't depend on how busy the machine is; what is searched again is taken from before."""
    monkeypatch.setattr(suggestions, "LEAST_S", 600.0)
    monkeypatch.setattr(suggestions, "searched", searched)


def said(asked: Request, parallelism: int, limit: int) -> str:
    with pytest.raises(InputError) as error:
        mini_time(Request(**{**vars(asked), "limit_bytes": limit}), parallelism)
    return str(error.value)


@pytest.fixture(scope="module")
def model() -> Model:
    return perceptron()


def test_the_least_is_named_and_is_enough(model: Model) -> None:
    needed = least(searched(request(model), 2))
    text = said(request(model), 2, needed - 1)
    assert text.startswith(f"no plan fits {needed - 1:,} bytes ({memory_text(needed - 1)}) per device: the least on 2 ")
    assert f"devices is {needed:,} bytes" in text and text.endswith(f"memory={needed} or more")
    assert searched(request(model), 2).fastest_within(needed) is not None


def test_the_operator_that_most_is_for_is_named_with_its_line() -> None:
    def large(batch: int, wide: bool) -> Model:
        def made() -> object:
            x = tensoropt.placeholder(tensoropt.float32, [batch, 8], name="x")
            table = tensoropt.get_variable("table", [8, 4096 if wide else 8])  # the variable
            result = tensoropt.nn.relu(tensoropt.matmul(x, table))
            return tensoropt.reduce_mean(result)

        return record(made, "large").model

    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.endswith("# the variable"))
    text = said(request(large(4, True)), 1, 1000)
    group = r"[\d.]+ kB of it for gradients and, whatever the use, [\d.]+ kB for"
    assert re.search(rf"{group} Variable 'table' \(.*test_infeasible.py:{line}\)", text), text
    text = said(request(large(4096, False)), 1, 1000)
    of_samples = rf"kB for (MatMul|Relu|Placeholder) '\w+' \(.*test_infeasible.py:({line - 1}|{line + 1})\)"
    assert re.search(of_samples, text), text


def test_more_devices_are_the_fewest_on_which_it_fits(model: Model) -> None:
    needs = {count: least(searched(request(model), count)) for count in (2, 3, 4)}
    limit = min(needs[2], needs[3]) - 1
    fewest = min(count for count, needed in needs.items() if needed <= limit)
    assert f"{fewest} devices (at least {memory_text(needs[fewest])})" in said(request(model), 2, limit)
    beyond = min(needs.values()) - 1
    text = said(request(model), 2, beyond)
    (count, told) = re.search(r"(\d+) devices \(at least ([^)]*)\)", text).groups()
    larger = named(f"v100-1x{count}")
    needed = least(searched(request(model, hardware=larger), int(count)))
    assert int(count) > 4 and needed <= beyond and told == memory_text(needed)
    assert least(searched(request(model, hardware=named(f"v100-1x{int(count) // 2}")), int(count) // 2)) > beyond
    # More devices need NCCL's buffers, too.
    assert "devices (" not in said(request(model, hardware=replace(HARDWARE, run_by="nccl")), 2, beyond)


def test_devices_that_cannot_hold_their_share_of_the_parameters_are_not_searched(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(suggestions, "frontiers", lambda request, count: asked.append(count) or frontiers(request, count))
    said(request(model, space="compact"), 1, least_held_bytes(model.graph, 8))
    assert asked[0] == 8 and set(asked) <= {8, 16, 1}
    asked.clear()
    assert "use memory=" in said(request(model, space="compact"), 1, 10)
    assert not set(asked) - {1}


def test_micro_batches_that_were_left_out_are_advised(model: Model) -> None:
    open_ = request(model, micro_batches=None)
    without = request(model, micro_batches=None, without=frozenset(["accumulate"]))
    needed = least(searched(without, 1))
    plan = mini_time(Request(**{**vars(open_), "limit_bytes": needed - 1}), 1)
    assert plan.micro_batches > 1 and plan.peak_bytes is not None and plan.peak_bytes < needed
    assert "a search without leaving out 'accumulate' (at least " in said(without, 1, needed - 1)


@pytest.mark.parametrize(("batch", "hidden", "share"), first(1, [(512, 16, 0.7), (64, 64, 0.9), (512, 16, 0.4)]))
def test_a_batch_that_is_advised_fits_and_one_that_is_much_larger_does_not(batch: int, hidden: int, share: float) -> None:
    model = perceptron(batch, hidden)
    limit = int(least(searched(request(model), 2)) * share)
    text = said(request(model), 2, limit)
    advised = int(re.search(rf"a batch of about (\d+) instead of {batch} \(an estimate\)", text)[1])
    assert 1 <= advised < batch and advised % 2 == 0
    assert least(searched(request(perceptron(advised, hidden)), 2)) <= limit
    larger = min(batch, round(1.3 * advised) + 2)
    assert least(searched(request(perceptron(larger, hidden)), 2)) > limit


def test_the_batch_of_a_plan_is_the_largest_that_fits(model: Model) -> None:
    """A plan takes its peak with all samples; where a byte is missing one sample fewer fits, and so on."""
    frontier = searched(request(model), 2)
    peak = frontier.peak(0).n_bytes
    known = [batch_that_fits(frontier, 0, 64, limit) for limit in (peak - 1, peak * 3 // 4, peak // 2, 1)]
    assert known == sorted(known, reverse=True) and 56 <= known[0] < 64 and known[-1] == 0


def gathered() -> Model:
    """Layers whose parameters lie split and are gathered, where that is forced."""

    def layers() -> object:
        value = tensoropt.placeholder(tensoropt.float32, [8, 64], name="x")
        for i in range(4):
            value = tensoropt.tanh(tensoropt.matmul(value, tensoropt.get_variable(f"w{i}", [64, 64])))
        return tensoropt.reduce_sum(value)

    return record(layers, "gathered").model


def test_a_choice_that_was_switched_off_is_advised_with_its_least() -> None:
    forced = {"Variable": {"d0": 2}, "MatMul": {"m": 2}, "Tanh": {"d0": 2}, "Placeholder": {"d0": 2}}
    chosen = request(gathered(), force=forced)
    without = request(chosen.model, force=forced, without=frozenset(["reuse"]))
    needs = least(searched(chosen, 2)), least(searched(without, 2))
    assert needs[0] < needs[1]
    assert f"a search without leaving out 'reuse' (at least {memory_text(needs[0])})" in said(without, 2, needs[1] - 1)
    assert "leaving out" not in said(without, 2, needs[0] - 1)


def test_the_compact_space_is_advised_where_its_frontier_has_a_plan_that_fits() -> None:
    model = perceptron(512, 16)
    needs = {space: least(searched(request(model, space=space), 4)) for space in ("full", "compact")}
    assert needs["compact"] < needs["full"]
    told = f"tensoropt search --space compact (at least {memory_text(needs['compact'])})"
    assert told in said(request(model, space="full"), 4, needs["full"] - 1)
    assert "--space" not in said(request(model, space="full"), 4, needs["compact"] - 1)


def test_another_algorithm_is_advised_where_a_baseline_does_not_fit(model: Model) -> None:
    asked = request(model, algorithm="data-parallel")
    needed = least(searched(request(model), 4))
    text = said(asked, 4, least(searched(asked, 4)) - 1)
    assert f"algorithm 'ft-ldp' (at least {memory_text(needed)})" in text


def test_what_force_costs_is_told() -> None:
    model = perceptron(hidden=256)
    forced = request(model, force={"Variable": {"d0": 1, "d1": 1}})
    free, whole = least(searched(request(model), 4)), least(searched(forced, 4))
    assert free < whole
    assert f"a search without force= (at least {memory_text(free)})" in said(forced, 4, whole - 1)


def test_looking_for_suggestions_ends_in_time(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is searched without time: what might do is called that, and what takes no search is told as ever."""
    needed = least(searched(request(model), 4))
    monkeypatch.setattr(suggestions, "LEAST_S", -600.0)
    monkeypatch.setattr(suggestions, "OF_SEARCH", 0.0)
    searches: list[int] = []
    monkeypatch.setattr(suggestions, "frontiers", lambda request, count: searches.append(count) or frontiers(request, count))
    text = said(request(model, without=frozenset(["reuse"])), 4, 3 * needed // 4)
    assert not searches
    assert re.search(r"the least on 4 devices is .*; use a batch of about \d+ .*, perhaps a", text)
    assert re.search(
        r"perhaps a search without leaving out 'reuse' or .*8 devices \(there wasn't the time to look\), or memory=", text
    )


def open_request(model: Model, **asked: object) -> Request:
    return request(model, micro_batches=None, **asked)


def test_limits_below_the_held_memory_are_refused_without_a_search(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """No micro-batches are searched but for what the message says of them; no peak is asked for before."""
    held, asked = least_held_bytes(model.graph, 4), []
    whole = searched(request(model), 4)
    assert all(held <= whole.peak(point).n_bytes for point in range(len(whole)))
    for module in (suggestions, by_bound):
        monkeypatch.setattr(module, "searched", lambda *given: asked.append(given[0].micro_batches) or searched(*given))
    best, tried = fastest_that_fits(open_request(model, limit_bytes=held - 1), 4)
    assert best is None and len(tried) == 1 and asked == [None]
    asked.clear()
    text = said(open_request(model), 4, 1000)
    assert asked == [None, 16, 64]
    needs = {n: least(searched(request(model, micro_batches=n, budget=ONCE), 4)) for n in (16, 64)}
    n = min(needs, key=lambda each: needs[each])
    assert needs[n] < least(whole)
    told = f"{needs[n]:,} bytes ({memory_text(needs[n])}) per device in {n} micro-batches, "
    assert f"the least on 4 devices is {told}" in text
    assert f"; parameters, slots and the batch alone take {memory_text(held)} without micro-batches" in text


def test_where_nothing_fits_the_most_micro_batches_say_so(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two searches, whatever the batch; what they find to be the least is found again where it is asked for."""
    asked: list[int | None] = []
    for module in (suggestions, by_bound):
        monkeypatch.setattr(module, "searched", lambda *given: asked.append(given[0].micro_batches) or searched(*given))
    held = least_bytes_in_micro_batches(model, 4)
    best, tried = fastest_that_fits(open_request(model, limit_bytes=held - 1), 4)
    assert best is None and asked == [None] and held > least_held_bytes(model.graph, 4)
    asked.clear()
    best, tried = fastest_that_fits(open_request(model, limit_bytes=held), 4)
    assert best is None and asked == [None, 16, 64]
    assert all(held <= each.peak(point).n_bytes for each in tried[1:] for point in range(len(each)))
    needed = min(least(frontier) for frontier in tried)
    assert needed < least(tried[0])
    assert f"is {needed:,} bytes" in said(open_request(model), 4, needed - 1)
    plan = mini_time(open_request(model, limit_bytes=needed), 4)
    assert plan.peak_bytes is not None and plan.peak_bytes <= needed and plan.micro_batches > 1


def test_a_curve_has_the_least_where_nothing_fits(model: Model) -> None:
    (point,) = profiling([(open_request(model, limit_bytes=1000), 4)]).points
    text = said(open_request(model, budget=OF_CURVE), 4, 1000)
    assert not point.fits and f"is {point.peak_bytes:,} bytes" in text


def test_progress_says_what_is_looked_for(model: Model) -> None:
    told = []
    asked = request(model, progress=lambda stage, done, total: told.append(stage), without=frozenset(["reuse"]))
    said(asked, 4, least(searched(request(model), 4)) - 1)
    assert {"costs", "search", "peaks"} <= {stage.rpartition("; ")[2] for stage in told}
    assert any(stage.startswith("8 devices, ") for stage in told)


def test_mini_parallelism_names_the_least_of_all(model: Model) -> None:
    needs = {count: least(searched(request(model), count)) for count in (1, 2)}
    fewest, needed = min(needs.items(), key=lambda each: each[1])
    with pytest.raises(InputError, match=f"the least on {fewest} device.* is {needed:,} bytes"):
        find_answer("mini_parallelism", request(model, limit_bytes=needed - 1), [1, 2])


def test_where_sums_of_gradients_are_too_large_the_batch_at_once_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensoropt.search.first_look.LARGE", 0)
    model = perceptron(batch=8)
    limit = least_bytes_in_micro_batches(model, 4) - 1
    (point,) = profiling([(open_request(model, limit_bytes=limit), 4)]).points
    assert point.peak_bytes == least(searched(request(model), 4))
