"""FlexFlow's Algorithm 1 on task graphs worked out by hand."""

from __future__ import annotations

import random

import pytest

from tensoropt.program.simulator.full import SimulatedTask, TaskKey, TaskTimes, simulate_tasks


def task(number: int, exe_ns: int, device: int | None, *waits_for: int) -> SimulatedTask:
    return SimulatedTask(TaskKey(number, 0, 0, 0), exe_ns, device, waits_for)


def test_a_recurrent_network_of_three_layers_on_three_devices():
    """FlexFlow's Figure 4: embedding, recurrent and linear layer on a device each, unrolled twice, with links between.

    Devices 0, 1, 2 compute; 3 is the link from 0 to 1, 4 the link from 1 to 2.
    """
    tasks = [
        task(0, 2, 0),  # embedding, step 1: 0 to 2
        task(1, 2, 0),  # embedding, step 2: 2 to 4, after the one before on its device
        task(2, 1, 3, 0),  # to the recurrent layer: 2 to 3
        task(3, 1, 3, 1),  # 4 to 5
        task(4, 3, 1, 2),  # recurrent, step 1: 3 to 6
        task(5, 3, 1, 3, 4),  # recurrent, step 2: ready at 6, since it needs the state of step 1: 6 to 9
        task(6, 1, 4, 4),  # to the linear layer: 6 to 7
        task(7, 1, 4, 5),  # 9 to 10
        task(8, 1, 2, 6),  # linear, step 1: 7 to 8
        task(9, 1, 2, 7),  # linear, step 2: 10 to 11
    ]
    times = simulate_tasks(tasks)
    assert [each.start_ns for each in times] == [0, 2, 2, 4, 3, 6, 6, 9, 7, 10]
    assert times[9] == TaskTimes(10, 10, 11)
    # As in Figure 4d, one layer on another device: the linear layer's second step goes to the recurrent layer's device.
    moved = [*tasks[:7], task(7, 0, None, 5), tasks[8], task(9, 1, 1, 7)]
    assert [each.start_ns for each in simulate_tasks(moved)] == [0, 2, 2, 4, 3, 6, 6, 9, 7, 9]


def test_a_circle_is_an_error():
    with pytest.raises(AssertionError, match="2 tasks wait for each other"):
        simulate_tasks([task(0, 1, 0, 1), task(1, 1, 0, 0)])


def test_each_device_works_in_the_order_of_ready_times_without_idling():
    rng = random.Random(1)
    for _ in range(200):
        n = rng.randint(1, 12)
        tasks = [
            task(i, rng.randint(0, 5), rng.choice([None, 0, 1, 2]), *rng.sample(range(i), min(i, rng.randint(0, 2))))
            for i in range(n)
        ]
        times = simulate_tasks(tasks)
        for each, at in zip(tasks, times, strict=True):
            assert at.ready_ns == max((times[i].end_ns for i in each.waits_for), default=0)
            assert at.end_ns == at.start_ns + each.exe_ns
            assert each.device is not None or at.start_ns == at.ready_ns
        for device in range(3):
            those = [i for i in range(n) if tasks[i].device == device]
            those.sort(key=lambda i: (times[i].ready_ns, i))
            free = 0
            for i in those:
                assert times[i].start_ns == max(times[i].ready_ns, free)
                free = times[i].end_ns
