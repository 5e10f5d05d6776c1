"""Compute the costs of operators: the part of Equations (1) and (2) of the TensorOpt paper that is charged to nodes.

    m(o, s) = mp + mt    :attr:`ConfigCosts.mem_bytes`     parameters, gradients, slots; tensors saved for backward
    t(o, s) = tc + ts    :attr:`ConfigCosts.times_ns`      tc: compute forward and backward
                         :attr:`ConfigCosts.within_ns`     collectives inside of the operator
                         :attr:`ConfigCosts.updating_ns`   collectives that only updates of variables wait for

*ts*, the synchronisation of a parameter's gradient, is the backward resharding between the parameter and its consumer here:
:mod:`.resharding_costs`. Costs are integers: bytes and nanoseconds, of the device that has the largest shards. They are
computed for many configs together, in arrays, and for one in arrays of one (:func:`costs_of_config`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from ..ir.body import ALIASES, BODY, COMPOSITES, FORM, LOOP, VALUE_SHAPED
from ..ir.graph import CONSTANT, PLACEHOLDER, VARIABLE, Operator, Tensor
from ..profiling.work import WorkItem
from ..reschedule.orders import Ints, Mask
from ..rules.config_arrays import ConfigArrays, Interfaces
from ..rules.rule import Config, Rule
from ..rules.shardings import first_seen
from ..sharding.resharding import Resharding, inner_reshardings, statistics_of
from .operator_costs import OperatorCosting
from .resharding_costs import shard_bytes
from .work_items import key_of

READS_PART = frozenset("GatherNd GatherV2 Slice StridedSlice".split())
"""Types of operators that read only the part of their first operand that they return."""


def costs_of_config(costing: OperatorCosting, op: Operator, rule: Rule, config: Config) -> ConfigCosts:
    """Return the costs of an operator in one config, which are found once for operators that are alike."""
    key = costing.kind(op, rule), config
    if key not in costing.of_configs:
        costing.of_configs[key] = ConfigCosts(costing, op, ConfigArrays.of(rule, (config,)))
    costs: ConfigCosts = costing.of_configs[key]
    return costs


@dataclass(frozen=True, eq=False)
class ConfigCosts:
    """The costs of an operator in K configs, int64[K] each; each is computed when it is first asked for."""

    costing: OperatorCosting
    op: Operator
    arrays: ConfigArrays

    @cached_property
    def interfaces(self) -> Interfaces:
        return Interfaces(self.arrays, self.costing.reshardings.numbers)

    @cached_property
    def mem_bytes(self) -> Ints:
        """Bytes of an operator's parameters with gradients and slots, and of what it saves for the backward pass.

        Where windows overlap blocks, it reads all that a block's windows cover: a copy that is saved as well.
        """
        costing, op = self.costing, self.op
        total = self._zeros + costing.looked_up_bytes(op)
        for tensor, shards in zip(op.outputs, self._results, strict=True):
            if op.type in (CONSTANT, VARIABLE) or tensor.name in costing.charged:
                # The full batch is held all the time, and not one micro-batch of it.
                total += shards * (costing.graph.n_runs(tensor.name) if op.type == PLACEHOLDER else 1)
        if op.type == VARIABLE:
            total += self._of_updates[0]
        return total + self.saved_inside_bytes + self._windows_bytes

    @cached_property
    def saved_result_bytes(self) -> Ints:
        """The part of the memory that is the operator's results, which aren't saved where it is rematerialized."""
        charged = (i for i, tensor in enumerate(self.op.outputs) if tensor.name in self.costing.charged)
        return sum((self._results[i] for i in charged), self._zeros)

    @cached_property
    def saved_inside_bytes(self) -> Ints:
        """Bytes that a loop saves of its trips for its backward pass, and of its constants.

        Tensors that no trip changes are saved outside of the loop, and a custom gradient saves nothing but its operands.
        """
        op, constants, each_trip = self.op, self._zeros, self._zeros
        if op.type == VALUE_SHAPED and self._passes:
            return constants + int(op.attrs[BODY].inside_bytes)
        if op.type != LOOP:
            return constants
        (composition, parts), form = self.costing.body(op), op.attrs[FORM]
        for part in self._parts:
            if part.op.type == CONSTANT:
                constants = constants + part.mem_bytes
            else:
                each_trip = each_trip + part.mem_bytes
        for tensor in composition.body.inputs[: form.first_invariant]:
            if tensor.name in parts.saved:
                layouts = [composition.input_layout(tensor, config) for config in self.arrays.configs]
                each_trip = each_trip + np.array([shard_bytes(tensor, layout) for layout in layouts])
        return constants + int(form.trips) * each_trip

    @cached_property
    def times_ns(self) -> Ints:
        """The compute time of all passes over all micro-batches, and the part that is backward passes, int64[2, K].

        For a variable they are the time of the optimizer's update, and 0.
        """
        all_ns, backward_ns = self._own_ns[frozenset().union(*self._passes)]
        returning_ns = sum((self.by_pass_ns[positions] for positions in self._passes), self._zeros)
        forward_ns = all_ns - backward_ns if self._passes else all_ns
        return np.stack([self.costing.n_runs(self.op) * forward_ns + returning_ns, returning_ns])

    @cached_property
    def by_pass_ns(self) -> dict[frozenset[int], Ints]:
        """The compute time of a backward pass over all micro-batches, by the positions that get a gradient in it."""
        n_runs = self.costing.n_runs(self.op)
        return {each: n_runs * self._own_ns[each][1] + self._adding_ns(each) for each in dict.fromkeys(self._passes)}

    @property
    def compute_ns(self) -> Ints:
        """The compute time of all passes."""
        return self.times_ns[0]

    @property
    def backward_ns(self) -> Ints:
        """The compute time of the backward passes."""
        return self.times_ns[1]

    @property
    def adding_ns(self) -> Ints:
        """The part of backward passes that adds the gradients of all micro-batches but the first to their sums."""
        return sum(map(self._adding_ns, self._passes), self._zeros)

    def _adding_ns(self, positions: Container[int]) -> Ints:
        """Return the part of a backward pass that adds the gradients of the operands at these positions to their sums."""
        total, costing = self._zeros, self.costing
        if costing.graph.micro_batching is None:
            return total
        for (position, tensor), shards in zip(self.op.operands, self._operands, strict=True):
            if position in positions and costing.accumulates(self.op, position):
                sizes, kind = np.unique(shards, return_inverse=True)
                works = [WorkItem("AddV2", tensor.dtype, size // tensor.item_bytes, 3 * size) for size in sizes.tolist()]
                total = total + np.array([costing.compute.time_ns(work) for work in works], np.int64)[kind]
        return (costing.graph.n_micro_batches - 1) * total

    def work(self, i: int = 0, has_key: bool = True, differentiated: Collection[int] | None = None) -> WorkItem | None:
        """Return the operator's work in a config, forward and backward, or that of a variable's update; None if it has none.

        A composite operator has no work of its own either: the operators of its body have. The gradients are at the
        positions ``differentiated``, by default at those of all backward passes.
        """
        op, costing = self.op, self.costing
        if op.type in (PLACEHOLDER, CONSTANT, *COMPOSITES) or op.updates is not None:
            return None
        flops, n_bytes, n_bytes_back = (int(amount[i]) for amount in self._amounts)
        if op.type == VARIABLE:
            return WorkItem(op.type, op.result.dtype, 0, n_bytes) if n_bytes else None
        positions, key = sorted(frozenset().union(*self._passes) if differentiated is None else differentiated), ""
        if has_key:
            points = int(self.arrays.local_points()[i])
            key = key_of(op, self.arrays.rule, self.arrays.configs[i], self.interfaces[i], points, positions)
            key += " by rows" if key and op.name in costing.graph.lookup_operators else ""
        dtype = op.result.dtype if op.outputs else "float32"
        n_back = min(1, len(positions)) if op.type == VALUE_SHAPED else len(positions)
        return WorkItem(op.type, dtype, flops, n_bytes, len(positions), key, n_back * n_bytes_back)

    @cached_property
    def within_ns(self) -> Ints:
        """The time of the collectives inside of the operator."""
        reshardings, kind = self._reshardings_inside
        return self._group_ns(reshardings)[kind]

    @cached_property
    def updating_ns(self) -> Ints:
        """The time of the collectives of the updates of a variable, or of a table that is looked up; nothing else waits."""
        costing, op = self.costing, self.op
        updates = costing.graph.updates.get(op.name, ())
        if op.name not in costing.graph.lookup_operators and not any(update.sums or update.is_global for update in updates):
            return self._zeros
        return self._group_ns([tuple(costing.updating(op, self.arrays.rule, config)) for config in self.arrays.configs])

    @cached_property
    def communicates_inside(self) -> Mask:
        """Whether the operator exchanges halos or statistics while it computes (:func:`.inner_reshardings`), bool[K]."""
        rule, mask = self.arrays.rule, self.arrays.are_exchanged()
        return mask | self.arrays.splits_any(rule.inner) if rule.inner and statistics_of(self.op, rule) else mask

    @cached_property
    def _passes(self) -> tuple[frozenset[int], ...]:
        """See :meth:`.Backward.positions`."""
        return self.costing.backward.positions(self.op)

    @property
    def _zeros(self) -> Ints:
        return np.zeros(len(self.arrays), np.int64)

    def _shards(self, tensor: Tensor, layouts: Ints) -> Ints:
        """Return the bytes of the largest shard of a tensor in each layout."""
        return self.interfaces.numbers.largest_elements(layouts, tensor.shape) * tensor.item_bytes

    @cached_property
    def _results(self) -> list[Ints]:
        """The bytes of the largest shard of each result."""
        return [self._shards(*pair) for pair in zip(self.op.outputs, self.interfaces.results, strict=True)]

    @cached_property
    def _operands(self) -> list[Ints]:
        """The bytes of the largest shard of each operand."""
        return [self._shards(tensor, sharding.layouts) for _, tensor, sharding in self.interfaces.of_operands(self.op)]

    @cached_property
    def _of_updates(self) -> Ints:
        """See :meth:`.OperatorCosting.update_bytes`, int64[2, K]: once for equal shards, replicated or not."""
        (shards,), interfaces = self._results, self.interfaces
        first, kind = first_seen(2 * shards + (interfaces.numbers.used_axes(interfaces.results[0]) != 0))
        n_bytes = [self.costing.update_bytes(self.op, interfaces[i].results[0], int(shards[i])) for i in first.tolist()]
        return np.array(n_bytes, np.int64)[kind].T

    @cached_property
    def _amounts(self) -> tuple[Ints, Ints, Ints]:
        """Flops of the forward pass, the bytes that it reads plus writes, and those of one gradient; of an update its bytes.

        What reads a part moves its result twice, and not all that it reads from. Its gradient has zeros in all other places,
        except where a table is updated by rows.
        """
        op, costing, zeros = self.op, self.costing, self._zeros
        if op.type == VARIABLE:
            return zeros, self._of_updates[1], zeros
        flops = np.rint(self.arrays.rule.flops_per_point * self.arrays.local_points()).astype(np.int64)
        if op.type in ALIASES:
            return flops, zeros, zeros
        results = sum(self._results, zeros)
        n_bytes = sum(self._operands, results)
        if op.type in READS_PART and op.inputs and op.inputs[0] is not None:
            table = self._operands[0]
            part = n_bytes - table + results
            back = part if op.name in costing.graph.lookup_operators else part + table
            return flops, part, back
        if op.type == VALUE_SHAPED:
            inside, n_bytes = op.attrs[BODY], n_bytes + 2 * int(op.attrs[BODY].made_bytes)
            return zeros + int(inside.made_flops), n_bytes, 2 * n_bytes
        return flops, n_bytes, n_bytes

    @cached_property
    def _own_ns(self) -> dict[frozenset[int], Ints]:
        """The times of both ways, and of the way back, of one run, int64[2, K], by the positions with gradients."""
        options = dict.fromkeys([*self._passes, frozenset().union(*self._passes)])
        if self.op.type in COMPOSITES:
            return dict.fromkeys(options, self._body_ns)
        if self.work(has_key=False) is None:
            return dict.fromkeys(options, np.zeros((2, len(self.arrays)), np.int64))
        return {positions: self._work_ns(positions) for positions in options}

    def _work_ns(self, positions: frozenset[int]) -> Ints:
        """Return the times of works with gradients at these positions: once for each different amount of work."""
        (first, kind), compute = self._distinct_works, self.costing.compute
        works = [self.work(i, compute.needs_keys, positions) for i in first.tolist()]
        times = [(0, 0) if work is None else (compute.time_ns(work), compute.backward_ns(work)) for work in works]
        return np.array(times, np.int64)[kind].T

    @cached_property
    def _distinct_works(self) -> tuple[Ints, Ints]:
        """The first config of each different amount of work, and the number of each config's amount."""
        arrays, compute = self.arrays, self.costing.compute
        columns = [*self._amounts]
        if compute.needs_keys:
            # A key tells the operands' largest shards, whether windows are exchanged, and which factors inside are split.
            columns += [arrays.are_exchanged().astype(np.int64), *map(arrays.degree, arrays.rule.inner)]
            for _, tensor, sharding in self.interfaces.of_operands(self.op):
                columns += [*self.interfaces.numbers.blocks(sharding.layouts, tensor.shape).T]
        _, first, kind = np.unique(np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True)
        return first, kind.reshape(-1)

    @cached_property
    def _parts(self) -> list[ConfigCosts]:
        """The costs of the operators in the body of a composite operator, in its configs."""
        (composition, parts), result = self.costing.body(self.op), []
        for op in composition.body.operators:
            inner = [composition.inner(op, config)[0] for config in self.arrays.configs]
            result.append(ConfigCosts(parts, op, ConfigArrays.of(composition.rules[op.name], inner)))
        return result

    @cached_property
    def _body_ns(self) -> Ints:
        """The times of a composite operator's body, int64[2, K]; a custom gradient's is all backward."""
        op, total = self.op, np.zeros((2, len(self.arrays)), np.int64)
        if op.type != LOOP and not self._passes:
            return total
        total = sum((part.times_ns for part in self._parts), total)
        return int(op.attrs[FORM].trips) * total if op.type == LOOP else total[[0, 0]]

    @cached_property
    def _reshardings_inside(self) -> tuple[list[tuple[Resharding, ...]], Ints]:
        """The reshardings inside of the operator for each kind of configs, and the kind of each config.

        They are the same for configs that split the factors of what is reduced, or of the first operand's windows, equally.
        """
        op, arrays = self.op, self.arrays
        if not self.communicates_inside.any():
            return [()], self._zeros
        first, kind = arrays.distinct_in(_names_inside(op, arrays))
        return [inner_reshardings(op, arrays.rule, arrays.configs[i], self._passes) for i in first], kind

    @property
    def _windows_bytes(self) -> Ints:
        """The bytes of exchanged windows that are saved."""
        if (self.op.name, 0) not in self.costing.backward.residual_operands or not self.arrays.are_exchanged().any():
            return self._zeros
        reshardings, kind = self._reshardings_inside
        halos = [[(r.halo.largest_local_shape(r.shape), r.item_bytes) for r in of_kind if r.halo] for of_kind in reshardings]
        return np.array([sum(math.prod(shape) * item_bytes for shape, item_bytes in of_kind) for of_kind in halos])[kind]

    def _group_ns(self, groups: Sequence[Sequence[Resharding]]) -> Ints:
        """Return the time of each group of reshardings, over all micro-batches."""
        costs = self.costing.reshardings
        for resharding in chain.from_iterable(groups):
            costs.expect_resharding(resharding)
        return self.costing.n_runs(self.op) * np.array([sum(map(costs.time_ns, group)) for group in groups], np.int64)


def _names_inside(op: Operator, arrays: ConfigArrays) -> set[str]:
    """Return the factors and linear groups on which the reshardings inside of an operator depend."""
    rule, names = arrays.rule, set(arrays.rule.inner)
    if rule.halos:
        names.update(name for dim in rule.operands[0] or () for name in dim)
        names.update(f"+{group}" for group, positions in enumerate(rule.linear) if 0 in positions)
    if rule.inner:
        names.update(name for statistic in statistics_of(op, rule) for name in statistic.kept if name is not None)
    return names
