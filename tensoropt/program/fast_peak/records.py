"""Write what is done at a site as records of numbers: what :mod:`..backward` and :mod:`..residuals` do with objects.

A *value* is a number: twice its place, and one more if it was made again in the backward pass. A *gradient* is a number, in
the order in which gradients are made. A record has seven numbers: what is done, where, what it reads and makes, and which
part of a divided backward pass it is. The rows have the answers of :meth:`...sharding.strategy.StrategyView.residual`.

In all kernels ``o`` is the outline and ``m`` the arena (:mod:`.array_layout`), ``t`` the table of rows
and ``r`` a site's row.
"""

from __future__ import annotations

from typing import Any

from ...common.compiled import inner as compiled
from ...sharding.resharding import BUCKET_BYTES
from ...sharding.strategy import ONCE, is_made_again
from . import array_layout as ix
from . import columns as c
from . import written as w
from .columns import WIDTH
from .written import add_value, append_record, arrive, is_wanted, made_by, note_read, push

_is_made_again = compiled(is_made_again)


@compiled
def reshard(o: Any, t: Any, r: Any, m: Any, operand: int) -> None:
    """Write the resharding to an operand, by way of the shared copy if there is one."""
    n_tensors, root, tensor = o[ix.N_TENSORS], m[ix.ROOT], o[o[ix.TENSOR] + operand]
    shared, site, source = n_tensors + tensor, 2 * n_tensors + operand, m[root + tensor]
    if t[r[shared], c.EXISTS]:
        if o[o[ix.OF_OPERAND] + operand] & c.FIRST_USE:
            m[root + shared] = source
            if t[r[shared], c.HAS_STEPS]:
                m[root + shared] = shared
                append_record(m, w.RESHARD, shared, 2 * source, 0, 0, 0)
        source = m[root + shared]
    m[root + site] = source
    if t[r[site], c.HAS_STEPS]:
        m[root + site] = site
        append_record(m, w.RESHARD, site, 2 * source, 0, 0, 0)


@compiled
def _read_again(o: Any, t: Any, r: Any, m: Any, site: int, after: int) -> None:
    """Note how the backward pass reads an operand, given how it reads the result that it is made of."""
    n_tensors, again, root = o[ix.N_TENSORS], m[ix.AGAIN], m[ix.ROOT]
    tensor = o[o[ix.TENSOR] + site - 2 * n_tensors]
    shared, source = n_tensors + tensor, m[again + tensor]
    if t[r[shared], c.EXISTS]:
        if m[again + shared] < 0 and _is_made_again(t[r[site], c.OF_SHARED], source & 1):
            m[again + shared] = source
            if t[r[shared], c.HAS_STEPS]:
                append_record(m, w.RESHARD_AGAIN, shared, source, after, m[ix.FIRST_AFTER], m[ix.N_AFTER])
                note_read(o, m, source)
                m[again + shared] = 2 * shared + 1
        source = m[again + shared] if m[again + shared] >= 0 else 2 * m[root + shared]
    if not _is_made_again(t[r[site], c.COPY], source & 1):
        m[again + site] = 2 * m[root + site]
    elif t[r[site], c.HAS_STEPS]:
        append_record(m, w.RESHARD_AGAIN, site, source, after, m[ix.FIRST_AFTER], m[ix.N_AFTER])
        note_read(o, m, source)
        m[again + site] = 2 * site + 1
    else:
        m[again + site] = source


@compiled
def _compute_again(o: Any, m: Any, operator: int) -> None:
    """Write an operator's rematerialization, from operands as the backward pass reads them."""
    again, first = m[ix.AGAIN], 2 * o[ix.N_TENSORS]
    append_record(m, w.COMPUTE_AGAIN, operator, m[ix.N_VALUES], 0, m[ix.FIRST_AFTER], m[ix.N_AFTER])
    for operand in range(o[o[ix.OPERANDS] + operator], o[o[ix.OPERANDS] + operator + 1]):
        value = m[again + first + operand]
        add_value(m, first + operand, value)
        note_read(o, m, value)
    for tensor in range(o[o[ix.OUTPUTS] + operator], o[o[ix.OUTPUTS] + operator + 1]):
        m[again + tensor] = 2 * tensor + 1


@compiled
def _ask(o: Any, t: Any, r: Any, m: Any, root: int, after: int) -> None:
    """Note how the backward pass reads an operand or a result, and write what is made again for that.

    A stack stands for the recursion: of an operand to the result that it is made of, of that to its operator's operands.
    """
    again, first = m[ix.AGAIN], 2 * o[ix.N_TENSORS]
    depth = push(m, 0, root)
    while depth:
        at = m[ix.STACK] + 2 * (depth - 1)
        site, stage = m[at], m[at + 1]
        if stage == 0 and m[again + site] >= 0:
            depth -= 1
        elif site >= first and t[r[site], c.COPY] == ONCE:
            m[again + site] = 2 * m[m[ix.ROOT] + site]
            depth -= 1
        elif site >= first:
            if stage == 0:
                m[at + 1] = 1
                depth = push(m, depth, o[o[ix.TENSOR] + site - first])
            else:
                _read_again(o, t, r, m, site, after)
                depth -= 1
        elif stage == 0:
            m[again + site] = 2 * m[m[ix.ROOT] + site]
            viewed = o[o[ix.VIEWED] + site]
            if t[r[o[ix.FIRST_OPERATOR] + o[o[ix.PRODUCER] + site]], c.REMATERIALIZED]:
                m[at + 1] = 2
            elif viewed >= 0:
                m[at + 1] = 1
                depth = push(m, depth, first + viewed)
            else:
                depth -= 1
        elif stage == 1:
            # A view of what is made again is made again.
            if m[again + first + o[o[ix.VIEWED] + site]] & 1:
                m[at + 1] = 2
            else:
                depth -= 1
        elif stage == 2:
            m[at + 1] = 3
            operator = o[o[ix.PRODUCER] + site]
            for operand in range(o[o[ix.OPERANDS] + operator + 1] - 1, o[o[ix.OPERANDS] + operator] - 1, -1):
                depth = push(m, depth, first + operand)
        else:
            _compute_again(o, m, o[o[ix.PRODUCER] + site])
            depth -= 1


@compiled
def _produced_at(o: Any, t: Any, r: Any, tensor: int) -> int:
    """Return the site to which gradients go from a tensor's consumers."""
    shared = o[ix.N_TENSORS] + tensor
    return shared if t[r[shared], c.EXISTS] and not t[r[shared], c.IS_FREE] else tensor


@compiled
def arrive_through(o: Any, t: Any, r: Any, m: Any, operand: int, gradient: int) -> None:
    """Let an operand's gradient arrive at its resharding or, if that is free, at the site after it."""
    site = 2 * o[ix.N_TENSORS] + operand
    arrive(m, _produced_at(o, t, r, o[o[ix.TENSOR] + operand]) if t[r[site], c.IS_FREE] else site, gradient)


@compiled
def _arrive_back(o: Any, t: Any, r: Any, m: Any, site: int, gradient: int) -> None:
    """Let the gradient arrive that comes back from the resharding at a site."""
    first = 2 * o[ix.N_TENSORS]
    if site < first:
        arrive(m, site - o[ix.N_TENSORS], gradient)
    else:
        arrive(m, _produced_at(o, t, r, o[o[ix.TENSOR] + site - first]), gradient)


@compiled
def _return(o: Any, t: Any, r: Any, m: Any, site: int) -> None:
    """Write the way back of the gradient at a site through its resharding, or put it into a bucket."""
    gradient, key = m[m[ix.ARRIVED] + site], t[r[site], c.BUCKET]
    if gradient < 0:
        return
    m[m[ix.ARRIVED] + site] = -1
    if not t[r[site], c.HAS_BACK]:
        return
    if key < 0:
        number = append_record(m, w.RETURN, site, gradient, m[ix.N_GRADIENTS], 0, 0)
        _arrive_back(o, t, r, m, site, made_by(m, number))
        return
    bucket, waiting = m[ix.BUCKETS] + 3 * key, m[ix.BUCKETED] + 3 * m[ix.N_BUCKETED]
    if m[bucket] == 0:
        m[bucket + 2] = m[ix.N_OPENED]
        m[ix.N_OPENED] += 1
    m[waiting], m[waiting + 1], m[waiting + 2] = site, gradient, key
    m[ix.N_BUCKETED] += 1
    m[bucket] += 1
    m[bucket + 1] += t[r[site], c.GRADIENT_BYTES]
    if m[bucket + 1] >= BUCKET_BYTES:
        send(o, t, r, m, key)


@compiled
def send(o: Any, t: Any, r: Any, m: Any, key: int) -> None:
    """Write the sum over devices of all gradients in a bucket, in one task."""
    all_waiting, stack, n_kept, n_sent, first = m[ix.BUCKETED], m[ix.STACK], 0, 0, m[ix.N_GRADIENTS]
    for i in range(m[ix.N_BUCKETED]):
        waiting, free = all_waiting + 3 * i, all_waiting + 3 * n_kept
        if m[waiting + 2] == key:
            number = append_record(m, w.RETURN, m[waiting], m[waiting + 1], m[ix.N_GRADIENTS], 0, 0)
            made_by(m, number)
            m[stack + n_sent] = m[waiting]
            n_sent += 1
        else:
            m[free], m[free + 1], m[free + 2] = m[waiting], m[waiting + 1], m[waiting + 2]
            n_kept += 1
    m[ix.N_BUCKETED] = n_kept
    m[m[ix.BUCKETS] + 3 * key] = 0
    m[m[ix.BUCKETS] + 3 * key + 1] = 0
    last = m[ix.N_RECORDS] - 1
    for i in range(n_sent):
        m[m[ix.WRITER] + first + i] = last
    for i in range(n_sent):
        _arrive_back(o, t, r, m, m[stack + i], first + i)


@compiled
def through(o: Any, t: Any, r: Any, m: Any, operator: int, index: int) -> None:
    """Write the gradient of an operator, if one of its results has a gradient that leads on.

    Gradients of operands that are resharded once are added to those of the micro-batches before.
    """
    arrived, again, first = m[ix.ARRIVED], m[ix.AGAIN], 2 * o[ix.N_TENSORS]
    first_operand, end_operand = o[o[ix.OPERANDS] + operator], o[o[ix.OPERANDS] + operator + 1]
    first_tensor, end_tensor = o[o[ix.OUTPUTS] + operator], o[o[ix.OUTPUTS] + operator + 1]
    after, n_taken, n_wanted = -1, 0, 0
    m[ix.FIRST_AFTER] = m[ix.N_VALUES]
    for tensor in range(end_tensor - 1, first_tensor - 1, -1):
        if m[arrived + tensor] >= 0:
            after = m[arrived + tensor]
            n_taken += 1
            add_value(m, tensor, after)
    m[ix.N_AFTER] = n_taken
    if after < 0:
        return
    for operand in range(first_operand, end_operand):
        n_wanted += is_wanted(o, operand, index)
        if t[r[first + operand], c.IS_ASKED]:
            _ask(o, t, r, m, first + operand, after)
    for tensor in range(first_tensor, end_tensor):
        if o[o[ix.IS_RESIDUAL] + tensor]:
            _ask(o, t, r, m, tensor, after)
    first_value = m[ix.N_VALUES]
    for tensor in range(first_tensor, end_tensor):
        if m[arrived + tensor] >= 0:
            add_value(m, tensor, m[arrived + tensor])
            m[arrived + tensor] = -1
    if n_wanted == 0:
        return
    number = append_record(m, w.GRADIENT, operator, first_value, n_taken, 0, m[ix.N_GRADIENTS])
    for operand in range(first_operand, end_operand):
        if o[o[ix.OF_OPERAND] + operand] & c.RESIDUAL:
            value = m[again + first + operand]
            value = value if value >= 0 else 2 * m[m[ix.ROOT] + first + operand]
            add_value(m, first + operand, value)
            note_read(o, m, value)
    for tensor in range(first_tensor, end_tensor):
        if o[o[ix.IS_RESIDUAL] + tensor]:
            add_value(m, tensor, m[again + tensor])
            note_read(o, m, m[again + tensor])
    m[m[ix.RECORDS] + WIDTH * number + 4] = m[ix.N_VALUES] - first_value - n_taken
    gradient = m[ix.N_GRADIENTS]
    for _ in range(n_wanted):
        made_by(m, number)
    end_made = gradient + n_wanted
    for operand in range(end_operand - 1, first_operand - 1, -1):
        if is_wanted(o, operand, index):
            end_made -= 1
            if o[o[ix.OF_OPERAND] + operand] & c.ACCUMULATES:
                total = m[ix.TOTAL] + operand
                if m[total] >= 0:
                    number = append_record(m, w.ACCUMULATE, m[total], end_made, m[ix.N_GRADIENTS], 0, 0)
                    m[total] = made_by(m, number)
                else:
                    m[total] = end_made
    for operand in range(first_operand, end_operand):
        if is_wanted(o, operand, index):
            if not o[o[ix.OF_OPERAND] + operand] & c.ACCUMULATES:
                arrive_through(o, t, r, m, operand, gradient)
            gradient += 1


@compiled
def return_through(o: Any, t: Any, r: Any, m: Any, operand: int) -> None:
    """Write the way back from an operand and, where it is the first to use it, from the shared copy."""
    n_tensors = o[ix.N_TENSORS]
    shared = n_tensors + o[o[ix.TENSOR] + operand]
    _return(o, t, r, m, 2 * n_tensors + operand)
    if o[o[ix.OF_OPERAND] + operand] & c.FIRST_USE and t[r[shared], c.EXISTS]:
        _return(o, t, r, m, shared)
