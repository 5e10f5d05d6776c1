"""Orders of passes: nobody waits in a circle, as many micro-batches are in flight as asked, and how long it takes."""

from __future__ import annotations

import heapq
import random
from functools import cache
from itertools import chain, pairwise

import numpy as np
import pytest
from helpers.large import first
from pipeline.orders import OF_OWN_SUBMESHES, interleaved, makespan, order_of, random_step_order

from tensoropt.common.errors import InputError
from tensoropt.program.memory.pass_memory import Messages
from tensoropt.program.orders.passes import BACKWARD, FORWARD, PARAMETERS, Orders, Pass, merged, needs
from tensoropt.program.orders.schedule import least_in_flight, tried_deferred, tried_in_flight, tried_orders


def in_flight(order: tuple[Pass, ...]) -> int:
    alive = most = 0
    for each in order:
        alive += {FORWARD: 1, BACKWARD: -1, PARAMETERS: 0}[each.work]
        most = max(most, alive)
    return most


def deferred(order: tuple[Pass, ...]) -> int:
    """Return of how many micro-batches the pass of parameters is still to run, at most, while another one has a pass."""
    alive = most = 0
    for each in order:
        if each.work != PARAMETERS:
            most = max(most, alive)
        alive += {FORWARD: 0, BACKWARD: 1, PARAMETERS: -1}[each.work]
    return most if alive == 0 else 0


def random_order(rng: random.Random) -> tuple[Orders, list[int], list[int]]:
    """Return the orders of random stages, how many micro-batches they have in flight, and how many they defer at most."""
    n_stages, n = rng.randint(1, 6), rng.randint(1, 9)
    if n_stages in (4, 6) and rng.random() < 0.4:
        order = interleaved(rng, n_stages, n, rng.randint(2, n_stages // 2))
        return order.orders, list(order.in_flight), [0] * n_stages
    schedule, asked = rng.choice(OF_OWN_SUBMESHES), [rng.randint(1, n) for _ in range(n_stages)]
    deferred = [rng.randint(0, n) if schedule == "zero-bubble" else 0 for _ in range(n_stages)]
    registers = [n if schedule == "gpipe" else min(asked[: stage + 1]) for stage in range(n_stages)]
    return order_of(schedule, n, asked, deferred).orders, registers, deferred


def passes_of(orders: Orders, stage: int) -> tuple[Pass, ...]:
    """Return the passes of a stage in the order in which they run."""
    return tuple(each for order in orders for each in order if each.stage == stage)


@pytest.mark.parametrize("seed", range(60))
def test_random_orders_run_each_pass_once_after_those_it_needs(seed: int) -> None:
    found, registers, most_deferred = random_order(random.Random(seed))
    n_stages = len(registers)
    n = sum(each.stage == 0 and each.work == FORWARD for each in found[0])
    done: set[Pass] = set()
    for each in merged(found):
        assert done.issuperset(needs(each, n_stages)) and each not in done
        done.add(each)
    assert done == set(chain(*found))
    for stage in range(n_stages):
        order = passes_of(found, stage)
        works = (FORWARD, BACKWARD, PARAMETERS) if most_deferred[stage] else (FORWARD, BACKWARD)
        assert set(order) == {Pass(stage, index, work) for index in range(n) for work in works}
        assert in_flight(order) == registers[stage]
        assert deferred(order) <= most_deferred[stage]


class _Machine:
    """Stages that run passes with random durations, and messages that leave after random times: nobody waits to send.

    Attributes:
        saved: for each stage the bytes that a micro-batch in flight saves.
        kept: for each stage those that one keeps whose parameters' gradients are deferred.
        sent: for each stage those of a message to the next one, and of its gradient.
        waiting: by the pass that sent it, the stage that has a message: the sender until it has left, then the receiver.
        most: for each stage the most bytes that it held at once.
    """

    def __init__(self, orders: Orders, rng: random.Random) -> None:
        self.orders, self.rng = orders, rng
        self.submeshes = [at for _, at in sorted({(each.stage, at) for at, order in enumerate(orders) for each in order})]
        n = self.n_stages = len(self.submeshes)
        self.saved, self.sent = [rng.randint(5, 9) for _ in range(n)], [rng.randint(1, 5) for _ in range(n)]
        self.kept = [rng.randint(1, 7) for _ in range(n)]
        self.defers = [any(each.work == PARAMETERS for each in passes_of(orders, stage)) for stage in range(n)]
        self.waiting: dict[Pass, int] = {}
        self.in_flight, self.deferred = [0] * n, [0] * n
        self.most = [0] * n
        # The passes that run, by submesh; and the messages of each stage, with which what waits must be within the bound.
        self.running: dict[int, Pass] = {}
        self.messages = [Messages()] * n
        self.is_within = True

    def run(self) -> int:
        """Run all passes; return how many ran."""
        at, running, n_run = [0] * len(self.orders), self.running, 0
        events: list[tuple[float, bool, Pass]] = []  # when a pass ends, or its message arrives
        clock = 0.0
        while True:
            for submesh, order in enumerate(self.orders):
                if submesh not in running and at[submesh] < len(order) and self._takes(order[at[submesh]]):
                    running[submesh] = order[at[submesh]]
                    heapq.heappush(events, (clock + self.rng.expovariate(1.0), False, order[at[submesh]]))
            if not events:
                return n_run
            clock, arrives, each = heapq.heappop(events)
            if arrives:
                self.waiting[each] = self._target(each)
            else:
                submesh = self.submeshes[each.stage]
                del running[submesh]
                at[submesh], n_run = at[submesh] + 1, n_run + 1
                self.in_flight[each.stage] -= each.work == BACKWARD
                if self.defers[each.stage]:
                    self.deferred[each.stage] += {FORWARD: 0, BACKWARD: 1, PARAMETERS: -1}[each.work]
                if each.work != PARAMETERS and 0 <= self._target(each) < self.n_stages:
                    self.waiting[each] = each.stage
                    heapq.heappush(events, (clock + self.rng.expovariate(0.5), True, each))
            self._note()

    def _target(self, each: Pass) -> int:
        return each.stage + (-1 if each.work == BACKWARD else 1)

    def _takes(self, each: Pass) -> bool:
        """Begin a pass if what it needs of other stages has arrived; then that doesn't wait any more."""
        needed = [need for need in needs(each, self.n_stages) if need.stage != each.stage]
        if any(self.waiting.get(need) != each.stage for need in needed):
            return False
        for need in needed:
            del self.waiting[need]
        self.in_flight[each.stage] += each.work == FORWARD
        self._note()
        return True

    def _note(self) -> None:
        held = [count * saved for count, saved in zip(self.in_flight, self.saved, strict=True)]
        held = [n_bytes + count * kept for n_bytes, count, kept in zip(held, self.deferred, self.kept, strict=True)]
        for each, stage in self.waiting.items():
            held[stage] += self.sent[min(each.stage, self._target(each))]
        self.most = list(map(max, self.most, held))
        for stage, (count, messages) in enumerate(zip(self.in_flight, self.messages, strict=True)):
            waits = sum(self.sent[min(each.stage, self._target(each))] for each, at in self.waiting.items() if at == stage)
            running = self.running.get(self.submeshes[stage])
            own = running is not None and running.stage == stage and running.work != PARAMETERS
            followers = (each for each in range(stage + 1, self.n_stages) if self.submeshes[each] == self.submeshes[stage])
            later = next((self.in_flight[each] for each in followers), 0)
            self.is_within &= waits <= messages.waiting_bytes(count, max(0, count - own - later))


@pytest.mark.parametrize("seed", first(60, range(1000)))
def test_random_durations_and_registers_never_stop_all_and_keep_the_quota(seed: int) -> None:
    rng = random.Random(seed)
    orders, registers, most_deferred = random_order(rng)
    n_stages, machine = len(registers), _Machine(orders, rng)
    machine.messages = [
        Messages(
            machine.sent[stage] if stage + 1 < n_stages else 0,
            ((machine.sent[stage - 1], registers[stage - 1]),) if stage else (),
        )
        for stage in range(n_stages)
    ]
    assert machine.run() == sum(map(len, orders)) and not machine.waiting
    for stage in range(n_stages):
        quota = registers[stage] * machine.saved[stage] + most_deferred[stage] * machine.kept[stage]
        if machine.defers[stage]:  # of the micro-batch whose backward pass has just ended
            quota += machine.kept[stage]
        if stage:
            quota += max(0, registers[stage - 1] - registers[stage]) * machine.sent[stage - 1]
        if stage + 1 < n_stages:
            quota += registers[stage] * machine.sent[stage]
        assert machine.most[stage] <= quota
    assert machine.is_within


def longest_path(orders: Orders, takes: dict[str, list[float]], transfer: list[float], early: list[float]) -> float:
    """When the last pass ends, by the longest path through all that each one waits for; only its early part needn't."""
    before = {each: pair[0] for order in orders for pair in pairwise(order) for each in pair[1:]}

    @cache
    def end(each: Pass) -> float:
        ahead = early[each.stage] if each.work == FORWARD else 0.0
        ways = [ahead + (end(before[each]) if each in before else 0.0)]
        for needed in needs(each, len(early)):
            crosses = needed.stage != each.stage
            ways.append(end(needed) + (transfer[min(needed.stage, each.stage)] if crosses else 0.0))
        return max(ways) + takes[each.work][each.stage] - ahead

    return max(end(order[-1]) for order in orders)


@pytest.mark.parametrize("seed", range(40))
def test_the_time_of_random_orders_is_that_of_their_longest_path(seed: int) -> None:
    rng = random.Random(seed)
    n_stages = rng.choice((1, 2, 3, 4, 4, 5, 6))
    order = random_step_order(rng, n_stages, rng.randint(1, 9))
    orders = order.orders
    others, inputs, parameters, transfer, early = ([float(rng.randint(0, 9)) for _ in range(n_stages)] for _ in range(5))
    forward = [a + b for a, b in zip(others, early, strict=True)]
    deferring = [any(each.work == PARAMETERS for each in passes_of(orders, stage)) for stage in range(n_stages)]
    whole = [a + b for a, b in zip(inputs, parameters, strict=True)]
    of_backward = [a if is_divided else b for a, b, is_divided in zip(inputs, whole, deferring, strict=True)]
    found = makespan(order, forward, whole, transfer[:-1], parameters=parameters, early=early)
    takes = {FORWARD: forward, BACKWARD: of_backward, PARAMETERS: parameters}
    assert found == longest_path(orders, takes, transfer, early)


@pytest.mark.parametrize(("n_stages", "n"), [(2, 2), (2, 8), (4, 8), (8, 16)])
def test_deferred_parameters_fill_two_thirds_of_the_waits_in_the_memory_of_1f1b(n_stages: int, n: int) -> None:
    """ZB-H1: of a bubble of (stages - 1) x (F + B + W) there is (stages - 1) x (F + B - W) left, a third where all are 1."""
    in_flight, most_deferred = least_in_flight(n_stages, n), tried_deferred(n_stages, n)[0]
    one, order = [1.0] * n_stages, order_of("zero-bubble", n, in_flight, most_deferred)
    time = makespan(order, one, [2.0] * n_stages, [0.0] * (n_stages - 1), parameters=one)
    assert time == 3.0 * n + n_stages - 1
    assert all(a + b <= n_stages for a, b in zip(in_flight, most_deferred, strict=True))


def test_zero_bubble_without_deferring_is_1f1b() -> None:
    assert order_of("zero-bubble", 6, [3, 2, 1], [0, 0, 0]).orders == order_of("1f1b", 6, [3, 2, 1]).orders


@pytest.mark.parametrize(("n_stages", "n"), [(1, 1), (2, 4), (3, 3), (4, 8), (4, 2)])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_equal_stages_wait_for_the_first_and_the_last_micro_batch_alone(schedule: str, n_stages: int, n: int) -> None:
    """The time of a pipeline of equal stages: (n + stages - 1) passes there and back."""
    order = order_of(schedule, n, least_in_flight(n_stages, n))
    time = makespan(order, [1.0] * n_stages, [2.0] * n_stages, [0.0] * (n_stages - 1))
    assert time == 3.0 * (n + n_stages - 1)


def test_times_of_many_plans_are_those_of_each() -> None:
    rng = np.random.default_rng(1)
    for n_stages, n in ((1, 3), (2, 4), (4, 8)):
        forward, backward = rng.random((n_stages, 5)), rng.random((n_stages, 5))
        found, rest = order_of("1f1b", n, least_in_flight(n_stages, n)), [[*rng.random(n_stages)] for _ in range(3)]
        at_once = makespan(found, list(forward), list(backward), *rest)
        assert at_once.tolist() == [makespan(found, list(forward[:, i]), list(backward[:, i]), *rest) for i in range(5)]


def test_more_in_flight_hides_a_slow_link() -> None:
    times = [makespan(order_of("1f1b", 8, ahead), [1.0, 1.0], [2.0, 2.0], [1.5]) for ahead in ((2, 1), (3, 1), (4, 1))]
    assert times[0] > times[1] >= times[2]


def test_what_is_sent_before_the_first_and_after_the_last_pass_is_counted() -> None:
    found = order_of("1f1b", 4, [2, 1])
    times = [1.0, 1.0], [2.0, 2.0], [0.0]
    alone = makespan(found, *times)
    assert makespan(found, *times, [0.0, 1.0], [0.0, 0.0]) == alone  # there when the first micro-batch is
    assert makespan(found, *times, [0.0, 4.0], [0.0, 0.0]) == alone + 3.0
    assert makespan(found, *times, [0.0, 0.0], [0.0, 1.0]) == alone  # stage 0 still runs its last pass
    assert makespan(found, *times, [0.0, 0.0], [0.0, 7.0]) == alone + 5.0


def test_what_a_stage_does_after_its_last_pass_is_counted() -> None:
    found = order_of("1f1b", 4, [2, 1])
    times = [1.0, 1.0], [2.0, 2.0], [0.0]
    alone = makespan(found, *times)  # stage 0 runs its last pass, of 2, when stage 1 has run all
    assert makespan(found, *times, after=[0.0, 2.0]) == alone
    assert makespan(found, *times, after=[0.0, 5.0]) == alone + 3.0
    assert makespan(found, *times, after=[1.0, 2.0]) == alone + 1.0
    # The update of what stage 0 sends back waits for it.
    assert makespan(found, *times, last=[4.0, 0.0], after=[1.0, 2.0]) == alone + 6.0


def test_an_earlier_stage_goes_on_when_a_later_one_has_sent_its_gradients() -> None:
    found = order_of("gpipe", 2, [2, 2])
    times = [1.0, 1.0], [2.0, 2.0], [0.5]
    # Stage 0 waits for the first gradient, and then for the second one.
    assert makespan(found, *times) == (1.0 + 0.5 + 2 * 1.0) + 2 * 2.0 + 0.5 + 2.0
    assert makespan(found, *times, late=[0.0, 1.0]) == (1.0 + 0.5 + 2 * 1.0) + 2 * 2.0 - 1.0 + 0.5 + 2.0
    # What stage 0 has still to do then delays nobody, and isn't saved either.
    assert makespan(found, *times, late=[1.0, 1.0]) == makespan(found, *times, late=[0.0, 1.0])


@pytest.mark.parametrize("schedule", OF_OWN_SUBMESHES)
def test_two_towers_at_once_take_as_long_as_the_longer_one_and_the_head(schedule: str) -> None:
    """Tower B and the head are stage 1; there and back, with what is sent on its way in between."""
    (order,) = tried_orders(schedule, 2, 1)
    tower_a, tower_b, head = 5.0, 3.0, 1.0

    def time(way: float) -> float:
        forward, backward = [tower_a, tower_b + head], [2 * tower_a, 2 * (head + tower_b)]
        return makespan(order, forward, backward, [way], late=[0.0, 2 * tower_b], early=[0.0, tower_b])

    assert time(0.0) == max(tower_a, tower_b) + head + 2 * head + 2 * max(tower_a, tower_b)
    assert time(0.5) == time(0.0) + 2 * 0.5
    tower_b = 8.0
    assert time(0.5) == max(tower_a + 0.5, tower_b) + head + 2 * head + max(2 * tower_a + 0.5, 2 * tower_b)


@pytest.mark.parametrize(("n_stages", "n"), [(1, 4), (2, 8), (4, 4), (3, 2)])
def test_more_in_flight_are_tried_up_to_all(n_stages: int, n: int) -> None:
    found = tried_in_flight(n_stages, n)
    assert found[0] == least_in_flight(n_stages, n) and len(set(found)) == len(found)
    assert all(max(each) <= n and each[-1] == 1 for each in found)
    assert all(low <= high for few, more in pairwise(found) for low, high in zip(few, more, strict=True))


def test_passes_that_wait_for_each_other_are_named() -> None:
    (first, second) = order_of("1f1b", 2, [2, 1]).orders
    with pytest.raises(ValueError, match=r"\[B0 of stage 0\](.*\n)+.*\[F1 of stage 1\]"):
        merged(((first[0], *first[2:], first[1]), (second[0], second[2], second[1], second[3])))


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown schedule 'zero'; expected '1f1b', 'gpipe', .* or 'interleaved'"):
        _ = order_of("zero", 2, [1, 1]).orders
