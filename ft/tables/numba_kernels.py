"""The inner loops of the search, compiled by Numba.

Each target's frontier is built arc by arc. An arc is the product of two runs of points. It is done a row at a time, a row
being one point of the shorter run plus the complete longer one. A row is sorted by memory, as the frontier is, so it is
merged into the frontier in one pass. A segment of a row (SEGMENT points) that is dominated is recognised by a binary search,
and never built.

Complexity: O(log F) for a dominated segment, O(F + R) to merge what is left of a row of R points into a frontier of F.

It compiles where there is no compiled code on disk yet (some seconds, once).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.compiled import compiled

SEGMENT = 16
"""Points of a row that are looked at together."""


@compiled
def _last_within(frontier_mem: Any, n: int, mem: int) -> Any:
    """Return the index of the last of n ascending values that is at most ``mem``; -1 if there is none."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if frontier_mem[middle] <= mem:
            low = middle + 1
        else:
            high = middle
    return low - 1


@compiled
def _shift(points: Any, begin: int, end: int, places: int) -> None:
    """Move the points from ``begin`` to ``end`` by so many places."""
    order = range(end - 1, begin - 1, -1) if places > 0 else range(begin, end if places else begin)
    for part in range(4):
        for k in order:
            points[part, k + places] = points[part, k]


@compiled
def _merge_row(points: Any, n: int, spare: Any, run_mem: Any, run_time: Any, begin: int, end: int, point: Any) -> Any:
    """Merge ``n`` points, in place, with a run shifted by ``point``; return the number of points of their frontier.

    Both ``points``, which has the n, and ``spare`` are int64[4, capacity]: memory, time, origin, index into the run. The run
    goes from ``begin`` to ``end``. ``point`` is (memory, time, origin). Of equal points the one that was there first stays.
    """
    mem, time, origin = point
    first = _last_within(points[0], n, run_mem[begin] + mem - 1) + 1  # those before have less memory than all of the run
    least = points[1, first - 1] if first else np.int64(1) << 62
    i, j, n_new = first, begin, 0
    while j < end:
        row_mem, row_time = run_mem[j] + mem, run_time[j] + time
        if i < n and (points[0, i] < row_mem or (points[0, i] == row_mem and points[1, i] <= row_time)):
            if points[1, i] < least:
                least = points[1, i]
                for part in range(4):
                    spare[part, n_new] = points[part, i]
                n_new += 1
            i += 1
        else:
            if row_time < least:
                least = row_time
                spare[0, n_new], spare[1, n_new], spare[2, n_new], spare[3, n_new] = row_mem, least, origin, j
                n_new += 1
            j += 1
    while i < n and points[1, i] >= least:
        i += 1
    _shift(points, i, n, first + n_new - i)
    for part in range(4):
        for k in range(n_new):
            points[part, first + k] = spare[part, k]
    return n + first + n_new - i


@compiled
def _trimmed(frontier: Any, n: int, mem: Any, time: Any, begin: int, end: int, shift: Any, limit: int) -> Any:
    """Return where a part of a row begins and ends without what is dominated or not within the limit at either end."""
    i = _last_within(frontier[0], n, mem[begin] + shift[0]) if begin < end else 0
    while begin < end:
        while i + 1 < n and frontier[0, i + 1] <= mem[begin] + shift[0]:
            i += 1
        if time[begin] + shift[1] < limit and (i < 0 or frontier[1, i] > time[begin] + shift[1]):
            break
        begin += 1
    i = _last_within(frontier[0], n, mem[end - 1] + shift[0]) if begin < end else 0
    while begin < end:
        while i >= 0 and frontier[0, i] > mem[end - 1] + shift[0]:
            i -= 1
        if mem[end - 1] + shift[0] < limit and (i < 0 or frontier[1, i] > time[end - 1] + shift[1]):
            break
        end -= 1
    return begin, end


@compiled
def _is_open(frontier: Any, n: int, mem: Any, time: Any, begin: int, end: int, shift: Any, limit: int) -> Any:
    """Return whether a part of a row may have a point that is within the limit and not dominated."""
    corner_mem, corner_time = mem[begin] + shift[0], time[end - 1] + shift[1]
    before = _last_within(frontier[0], n, corner_mem)
    return corner_mem < limit and corner_time < limit and (before < 0 or frontier[1, before] > corner_time)


@compiled
def _open_part(frontier: Any, n: int, mem: Any, time: Any, start: int, count: int, begin: int, end: int, shift: Any,
               limit: int) -> Any:  # fmt: skip
    """Return from where to where the segments of a row lie that are not dominated; the end is not above if there are none.

    The row is the run of ``count`` points from ``start`` on, shifted by (memory, time), of which it looks at the segments
    between ``begin`` and ``end``.
    """
    first = count
    for segment in range(begin, end, SEGMENT):
        if _is_open(frontier, n, mem, time, start + segment, start + min(segment + SEGMENT, count), shift, limit):
            first = segment
            break
    for segment in range(end - 1 - (end - 1 - begin) % SEGMENT, first - 1, -SEGMENT):
        if _is_open(frontier, n, mem, time, start + segment, start + min(segment + SEGMENT, count), shift, limit):
            return first, min(segment + SEGMENT, count)
    return count, 0


@compiled
def _larger(points: Any, n: int, n_needed: int) -> Any:
    """Return the points, with their first ``n`` copied into twice the room if there is none for ``n_needed``."""
    if n_needed <= points.shape[1]:
        return points
    larger = np.empty((4, 2 * n_needed), np.int64)
    larger[:, :n] = points[:, :n]
    return larger


@compiled
def _merge_product(points: Any, spare: Any, n: int, outer_mem: Any, outer_time: Any, outer_start: int, outer_end: int,
                   mem: Any, time: Any, start: int, count: int, outer_is_a: bool, limit: int) -> Any:  # fmt: skip
    """Merge ``n`` points with the product of two runs, a row for each point of the outer one.

    Returns:
        The frontier, a spare array of its size, and its number of points.
    """
    open_until = outer_start
    band_begin = band_end = 0
    for outer in range(outer_start, outer_end):
        if outer >= open_until:
            # Look at a band of rows at once: in most bands all segments are dominated.
            open_until = min(outer + SEGMENT, outer_end)
            best = outer_mem[outer], outer_time[open_until - 1]
            band_begin, band_end = _open_part(points, n, mem, time, start, count, 0, count, best, limit)
        if band_begin >= band_end:
            continue
        shift = outer_mem[outer], outer_time[outer]
        begin, end = _open_part(points, n, mem, time, start, count, band_begin, band_end, shift, limit)
        begin, end = _trimmed(points, n, mem, time, start + begin, start + end, shift, limit)
        if begin >= end:
            continue
        if n + end - begin > points.shape[1]:
            points = _larger(points, n, n + end - begin)
            spare = np.empty_like(points)
        n = _merge_row(points, n, spare, mem, time, begin, end, (shift[0], shift[1], outer if outer_is_a else -outer - 1))
    return points, spare, n


@compiled
def merge_runs(bounds: Any, arcs: Any, a_mem: Any, a_time: Any, b_mem: Any, b_time: Any, limit: int) -> Any:
    """Compute the frontiers of all targets.

    Args:
        bounds: int64[T + 1], target t has arcs ``bounds[t]`` to ``bounds[t + 1]``.
        arcs: int64[4, A], where the runs of a and b begin and how long they are: a's start and count, b's start and count.
        limit: points at or above it in either cost are left out.

    Returns:
        How many points each target has, int64[T], and all points, int64[4, P]: memory, time, index into a, index into b.
    """
    n_targets = len(bounds) - 1
    counts = np.zeros(n_targets, np.int64)
    points = np.empty((4, 4096), np.int64)
    n_points = 0
    old, new = np.empty((4, 256), np.int64), np.empty((4, 256), np.int64)
    for target in range(n_targets):
        n = 0
        for arc in range(bounds[target], bounds[target + 1]):
            a_start, a_count, b_start, b_count = arcs[0, arc], arcs[1, arc], arcs[2, arc], arcs[3, arc]
            if a_count <= b_count:
                old, new, n = _merge_product(old, new, n, a_mem, a_time, a_start, a_start + a_count, b_mem, b_time,
                                             b_start, b_count, True, limit)  # fmt: skip
            else:
                old, new, n = _merge_product(old, new, n, b_mem, b_time, b_start, b_start + b_count, a_mem, a_time,
                                             a_start, a_count, False, limit)  # fmt: skip
        points = _larger(points, n_points, n_points + n)
        for k in range(n):
            origin, position = old[2, k], old[3, k]
            points[0, n_points + k], points[1, n_points + k] = old[0, k], old[1, k]
            points[2, n_points + k] = origin if origin >= 0 else position
            points[3, n_points + k] = position if origin >= 0 else -origin - 1
        n_points += n
        counts[target] = n
    return counts, points[:, :n_points].copy()


@compiled
def mark_cover(is_kept: Any, starts: Any, ends: Any, mem: Any, time: Any, tol_mem: int, tol_time: int) -> None:
    """Mark the points of each frontier that cover all of it within tolerances, in place. See :mod:`.thinning`."""
    for run in range(len(starts)):
        point, end = starts[run], ends[run]
        while point < end:
            last = point
            while last + 1 < end and mem[last + 1] <= mem[point] + tol_mem:
                last += 1
            is_kept[last] = True
            point = last + 1
            while point < end and time[point] >= time[last] - tol_time:
                point += 1


@compiled
def _find_extremes(rows: Any, bounds: Any, state: int, limit: int, extremes: Any, least: Any) -> None:
    """Set where a state's allowed costs on each edge are least and most, int64[edges, 4], and the least: int64[2, edges, K].

    The four are of the least and the most memory, and of time. They are -1 where nothing is allowed.
    """
    for edge in range(len(bounds) - 1):
        for cost in range(2):
            low = high = -1
            for y in range(bounds[edge], bounds[edge + 1]):
                if rows[0, state, y] < limit:
                    if low < 0 or rows[cost, state, y] < rows[cost, state, low]:
                        low = y
                    if high < 0 or rows[cost, state, y] > rows[cost, state, high]:
                        high = y
            extremes[edge, 2 * cost], extremes[edge, 2 * cost + 1] = low, high
            least[cost, edge, state] = rows[cost, state, low] if low >= 0 else 0


@compiled
def _may_replace(own: Any, rows: Any, state: int, other: int, limit: int, never: int, extremes: Any, least: Any,
                 worst: Any) -> Any:  # fmt: skip
    """Return whether ``other`` may replace anything of a state; False is certain, and known without looking at all columns.

    An edge's largest difference is at least that of the columns where the state's costs are extreme. The difference at any
    column is at least the least cost of ``other`` less the most of ``state``. Where even these add up to more than 0 for
    each edge, the edges' true differences do.
    """
    mem, time = own[0, other] - own[0, state], own[1, other] - own[1, state]
    forbidden = -1
    for edge in range(len(extremes)):
        most_mem, most_time = -never, -never
        for y in extremes[edge]:
            if y >= 0 and rows[0, other, y] < limit:
                most_mem = max(most_mem, rows[0, other, y] - rows[0, state, y])
                most_time = max(most_time, rows[1, other, y] - rows[1, state, y])
            elif y >= 0 and forbidden not in (-1, edge):
                return False
            elif y >= 0:
                forbidden = edge
        worst[0, edge], worst[1, edge] = most_mem, most_time
        mem += most_mem
        time += most_time
    for edge in range(len(extremes)):
        if forbidden not in (-1, edge):
            continue
        if extremes[edge, 0] < 0:
            return True
        rest_mem = mem - worst[0, edge] + least[0, edge, other] - rows[0, state, extremes[edge, 1]]
        rest_time = time - worst[1, edge] + least[1, edge, other] - rows[1, state, extremes[edge, 3]]
        if rest_mem <= 0 and rest_time <= 0:
            return True
    return False


@compiled
def _exchange(own: Any, rows: Any, bounds: Any, state: int, other: int, limit: int, never: int, worst: Any) -> Any:
    """Compare a state with another in its place: how much more that costs at most, each edge for itself.

    Returns:
        Memory and time; the one edge that forbids to ``other`` what it allows to ``state``, or -1; and whether ``other``
        replaces nothing of ``state``, as with two such edges. ``worst`` gets the edges' parts, int64[2, edges].
    """
    mem, time = own[0, other] - own[0, state], own[1, other] - own[1, state]
    forbidden = -1
    for edge in range(len(bounds) - 1):
        most_mem, most_time, is_forbidden, has_pair = -never, -never, False, False
        for y in range(bounds[edge], bounds[edge + 1]):
            if rows[0, state, y] < limit:
                if rows[0, other, y] < limit:
                    has_pair = True
                    most_mem = max(most_mem, rows[0, other, y] - rows[0, state, y])
                    most_time = max(most_time, rows[1, other, y] - rows[1, state, y])
                else:
                    is_forbidden = True
                    if forbidden >= 0:
                        break
        if is_forbidden:
            if forbidden >= 0 or not has_pair:
                return mem, time, edge, True
            forbidden = edge
        worst[0, edge], worst[1, edge] = most_mem, most_time
        mem += most_mem
        time += most_time
    return mem, time, forbidden, False


@compiled
def _forbid_pairs(rows: Any, begin: int, end: int, state: int, other: int, rest_mem: int, rest_time: int, limit: int) -> Any:
    """Forbid pairs of a state on one edge that cost no less than the other state's, the rest included; return how many."""
    n_gone = 0
    for y in range(begin, end):
        if rows[0, state, y] >= limit or rows[0, other, y] >= limit:
            continue
        if rest_mem + rows[0, other, y] - rows[0, state, y] <= 0 and rest_time + rows[1, other, y] - rows[1, state, y] <= 0:
            rows[:, state, y] = limit
            n_gone += 1
    return n_gone


@compiled
def forbid_replaceable(own: Any, rows: Any, bounds: Any, limit: int, never: int) -> Any:
    """Forbid, in place, states and pairs of one node that another state replaces; return how many there were.

    See :mod:`..presolve.dead_end_elimination`. Each is forbidden as soon as it is found: what replaces it is allowed at that
    moment, so no two can replace each other.

    Args:
        own: int64[2, K].
        rows: int64[2, K, Y], the rows of all edges side by side; edge e has columns ``bounds[e]`` to ``bounds[e + 1]``.
        limit: costs that are not allowed are exactly this.
        never: a number above any difference.
    """
    n_states, n_edges = own.shape[1], len(bounds) - 1
    worst, extremes = np.empty((2, n_edges), np.int64), np.empty((n_edges, 4), np.int64)
    least = np.empty((2, n_edges, n_states), np.int64)
    for state in range(n_states):
        _find_extremes(rows, bounds, state, limit, extremes, least)
    n_gone = 0
    for state in range(n_states):
        n_before = -1  # what was gone when the extremes were found
        for other in range(n_states):
            if own[0, state] >= limit:
                break
            if other == state or own[0, other] >= limit:
                continue
            if n_before != n_gone:
                _find_extremes(rows, bounds, state, limit, extremes, least)
                n_before = n_gone
            if not _may_replace(own, rows, state, other, limit, never, extremes, least, worst):
                continue
            mem, time, forbidden, hopeless = _exchange(own, rows, bounds, state, other, limit, never, worst)
            if hopeless:
                continue
            if forbidden < 0 and mem <= 0 and time <= 0:
                own[:, state] = limit
                rows[:, state] = limit
                n_gone += 1
                break
            for edge in range(n_edges):
                if forbidden < 0 or forbidden == edge:
                    rest_mem, rest_time = mem - worst[0, edge], time - worst[1, edge]
                    begin, end = bounds[edge], bounds[edge + 1]
                    n_gone += _forbid_pairs(rows, begin, end, state, other, rest_mem, rest_time, limit)
    return n_gone
