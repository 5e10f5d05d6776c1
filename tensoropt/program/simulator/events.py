"""The inner loop of the delta simulation, on flat arrays of integers, compiled by Numba.

It does what :mod:`.full` does, without a task graph: a node's chain of actions is walked along. A *slot* is a node for one
class of devices. An event is the beginning of a slot's action, or of nothing where its node's chain is empty. The order of
events is that of their ready times, then of their slots.

A state is when each resource is free, int64[resources], and what is known of each slot, int64[5, slots]:

    MISSING     how many nodes it still waits for
    READY       when it is ready, as far as that is known
    AT          the number of its action
    CAME, LATE  whether it has come to its action and waits for other classes there, and since when
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from ...common.compiled import compiled

MISSING, READY, AT, CAME, LATE = range(5)


@compiled
def _reach(heap: Any, tables: Any, slots: Any, slot: int, time: int, n_classes: int) -> None:
    """Let a slot come to its current action at a time; push the event that begins it, if no other class is missing."""
    chain_of, chain_start, chain, work_of, first_of, size_of, member_start, members = tables[2:10]
    node = slot // n_classes
    of_node = chain_of[node]
    position = chain_start[of_node] + slots[AT, slot]
    if position == chain_start[of_node + 1]:
        heappush(heap, (time, slot))
        return
    work = work_of[chain[position] * n_classes + slot - node * n_classes]
    if size_of[work] == 1:
        heappush(heap, (time, slot))
        return
    slots[CAME, slot], slots[LATE, slot] = 1, time
    first = node * n_classes
    for i in range(member_start[work], member_start[work + 1]):
        # A class that isn't there yet may be at an earlier action, and wait for others at that.
        other = first + members[i]
        if slots[CAME, other] == 0 or slots[AT, other] != slots[AT, slot]:
            return
        time = max(time, slots[LATE, other])
    for i in range(member_start[work], member_start[work + 1]):
        slots[CAME, first + members[i]] = 0
    heappush(heap, (time, first + first_of[work]))


@compiled
def run(
    tables: Any, free: Any, slots: Any, log: Any, arrived: Any, saved: Any, into: Any, n_events: int, stride: int,
    n_classes: int,
) -> int:  # fmt: skip
    """Process all events of a step from some event on, and return how many there are from its beginning.

    Args:
        free, slots: the state of the beginning; it is overwritten.
        log: of each event its slot, action, ready time and end; those from ``n_events`` on are written.
        arrived: of each slot, the number of the event after which it waited for nothing more; -1 from the beginning.
        saved: of every ``stride``-th event the state before it, all of it one after the other, then the number of events in
            the queue, and their times and slots.
        into: what is saved from now on, in the same form; may be ``saved``.
        n_events: how many events were processed before, a multiple of ``stride``.
    """
    lead_start, lead_to, chain_of, chain_start, chain, work_of = tables[:6]
    size_of, member_start, members, use_start, uses, use_ns, latency = tables[7:14]
    log_slot, log_action, log_ready, log_end = log
    n_resources, n_slots = len(free), slots.shape[1]
    n_state, width = n_resources + 5 * n_slots, n_resources + 7 * n_slots + 1
    of_slots = slots.reshape(-1)
    heap = [(free[0], free[0])]
    heap.pop()
    if n_events == 0:
        for slot in range(n_slots):
            if slots[MISSING, slot] == 0:
                _reach(heap, tables, slots, slot, free[0], n_classes)
    else:
        base = (n_events // stride) * width
        free[:] = saved[base : base + n_resources]
        of_slots[:] = saved[base + n_resources : base + n_state]
        base += n_state
        for i in range(saved[base]):
            heap.append((saved[base + 1 + 2 * i], saved[base + 2 + 2 * i]))
        heapify(heap)
    while len(heap) > 0:
        if n_events % stride == 0:
            base = (n_events // stride) * width
            into[base : base + n_resources] = free
            into[base + n_resources : base + n_state] = of_slots
            base += n_state
            into[base] = len(heap)
            for i in range(len(heap)):
                into[base + 1 + 2 * i] = heap[i][0]
                into[base + 2 + 2 * i] = heap[i][1]
        time, slot = heappop(heap)
        node = slot // n_classes
        of_node = chain_of[node]
        position = chain_start[of_node] + slots[AT, slot]
        end = time
        work = -1
        log_action[n_events] = slots[AT, slot]
        if position < chain_start[of_node + 1]:
            work = work_of[chain[position] * n_classes + slot - node * n_classes]
            for use in range(use_start[work], use_start[work + 1]):
                done = max(time, free[uses[use]]) + use_ns[use]
                free[uses[use]] = done
                end = max(end, done)
            end += latency[work]
        log_slot[n_events] = slot
        log_ready[n_events] = time
        log_end[n_events] = end
        n_members = 1 if work < 0 else size_of[work]
        for i in range(n_members):
            own = slot if work < 0 else node * n_classes + members[member_start[work] + i]
            if work >= 0:
                slots[AT, own] += 1
                if position + 1 < chain_start[of_node + 1]:
                    _reach(heap, tables, slots, own, end, n_classes)
                    continue
            for lead in range(lead_start[node], lead_start[node + 1]):
                after = lead_to[lead] * n_classes + own - node * n_classes
                slots[READY, after] = max(slots[READY, after], end)
                slots[MISSING, after] -= 1
                if slots[MISSING, after] == 0:
                    arrived[after] = n_events
                    _reach(heap, tables, slots, after, slots[READY, after], n_classes)
        n_events += 1
    return n_events
