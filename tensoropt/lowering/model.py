"""Emit the model on this process's ranks: operators in program order, reshardings between them, losses and gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import tensorflow as tf

from ..ir.graph import CONSTANT, SOURCES, Operator, Tensor
from ..ir.micro_batching import MicroBatch
from ..program.tasks import OPERAND, OPERATOR, RESULT, SHARED, Site
from ..reschedule.layout import Layout
from ..rules.rule import OperandSharding
from ..sharding.consumers import LOSS
from ..sharding.resharding import PathFinder, Resharding, differentiated_operands, inner_reshardings
from ..sharding.strategy import StrategyView
from .backward import BackwardEmission, ForwardRecord
from .operators import Job, Values, emit
from .pull_back import Created, Emitted, Inner, Pullback, key_of
from .resharding.reshard import Resharder


class Arriving(NamedTuple):
    """The tensors that other stages send to a stage for one of its passes, and how they are received.

    Attributes:
        tensors: the names of the tensors.
        receive: emits their reception, behind some values that have been computed; returns their local values by name.
    """

    tensors: frozenset[str]
    receive: Callable[[Values], Mapping[str, Values]]


@dataclass
class LocalModel:
    """The model on this process's ranks: it emits what is asked for and what that depends on, each operator once.

    Attributes:
        view: the strategy on its graph.
        path_finder: finds the path of each resharding.
        resharder: emits the reshardings.
        sources: local values that are given, by tensor name: those of fed tensors and of variables.
        update: emits, on local operands, an operator that updates a variable or reads it after an update.
        training: whether gradients are taken of what is emitted.
        micro_batch: which micro-batch is emitted, where the step has several.
        elsewhere: returns a tensor that another model emits, resharded for an operator's operand sharding
            (OperandSharding); None for a tensor that this model emits itself.
        once: returns an operand (a Site) that is resharded once for all micro-batches, else None.
    """

    view: StrategyView
    path_finder: PathFinder
    resharder: Resharder
    sources: Mapping[str, Values]
    update: Callable[[Operator, list[Values]], list[Values]]
    training: bool
    micro_batch: MicroBatch | None = None
    elsewhere: Callable[[Tensor, OperandSharding, str], Values | None] | None = None
    once: Callable[[Tensor, Site], Values | None] | None = None
    _values: dict[str, Values] = field(default_factory=dict)
    _resharded: dict[tuple[str, OperandSharding], Values] = field(default_factory=dict)
    _shared: dict[str, Values] = field(default_factory=dict)
    _replicated: dict[str, Values] = field(default_factory=dict)
    _indices: dict[str, Values] = field(default_factory=dict)
    _losses: dict[str, Site] = field(default_factory=dict)
    _forward: ForwardRecord = field(default_factory=ForwardRecord)

    @cached_property
    def backward(self) -> BackwardEmission:
        """The emission of the backward passes of what this model emits."""
        return BackwardEmission(
            self.view, self.path_finder, self.resharder, self._forward, self.value, self._emit_again, self.micro_batch
        )

    def emit(self, names: set[str], arriving: Arriving | None = None) -> None:
        """Emit the operators with these names, in program order; what they depend on must be named too, or given.

        Args:
            arriving: what is received before the first operator that reads any of it, behind all that was emitted before.
        """
        for op in self.view.graph.operators.values():
            is_given = op.outputs and all(tensor.name in self.sources for tensor in op.outputs)
            if op.name in names and not is_given:
                if arriving is not None and any(tensor.name in arriving.tensors for _, tensor in op.operands):
                    self._receive(arriving)
                    arriving = None
                self._emit_operator(op)
        if arriving is not None:
            self._receive(arriving)

    def _receive(self, arriving: Arriving) -> None:
        """Have what arrives among the sources, behind the results of the operators emitted so far."""
        emitted = [op for op in self.view.graph.operators.values() if op.outputs and op.outputs[0].name in self._values]
        read = {tensor.name for op in emitted for _, tensor in op.operands}
        last = [values for name, values in self._values.items() if name not in read and values[0].dtype.is_floating]
        self.sources = {**self.sources, **arriving.receive([value for values in last for value in values])}

    def value(self, tensor: Tensor) -> Values:
        """Return a tensor's local values in its produced layout."""
        return self.sources[tensor.name] if tensor.name in self.sources else self._values[tensor.name]

    def resharded(self, tensor: Tensor, sharding: OperandSharding, operator: str) -> Values:
        """Return a tensor in an operand sharding, resharded from the copy that its consumers share if there is one.

        Args:
            operator: the consumer, or what the tensor is used for; names the collectives in the log.
        """
        if not self.training:
            sharding = OperandSharding(sharding.layout, None)
        key = (tensor.name, sharding)
        if key in self._resharded:
            return self._resharded[key]
        if self.elsewhere is not None and (given := self.elsewhere(tensor, sharding, operator)) is not None:
            return given
        values = self._reshard(self.view.resharding(tensor, sharding), self._taken(tensor, operator), operator, tensor)
        if not self.training:
            self._resharded[key] = values
        return values

    def _taken(self, tensor: Tensor, operator: str) -> Values:
        """Return the values that consumers reshard a tensor from: the produced ones, or the shared copy.

        The first consumer has the shared copy emitted.
        """
        shared = self.view.strategy.shared.get(tensor.name)
        if shared is None:
            return self.value(tensor)
        if tensor.name not in self._shared:
            sharding = shared if self.training else OperandSharding(shared.layout, None)
            resharding = self.view.shared_resharding(tensor, sharding)
            values = self._shared[tensor.name] = self._reshard(resharding, self.value(tensor), operator, tensor)
            site = Site(SHARED, tensor.name)
            self._forward.add(site, values)
            self._forward.consumers[site] = operator
        return self._shared[tensor.name]

    def _reshard(self, resharding: Resharding, values: Values, operator: str, tensor: Tensor) -> Values:
        """Emit a resharding of a tensor: to an operand sharding, or inside of the operator that produces it."""
        return self.resharder.reshard(resharding, self.path_finder.paths(resharding), values, operator)

    def replicated(self, tensor: Tensor, operator: str, with_gradient: bool = False) -> Values:
        """Return a tensor's global value on every rank; it is resharded once, however often it is asked for."""
        if tensor.name not in self._replicated:
            replicated = Layout.replicated(self.view.strategy.mesh, len(tensor.shape))
            sharding = OperandSharding(replicated, () if with_gradient else None)
            self._replicated[tensor.name] = self.resharded(tensor, sharding, operator)
        if with_gradient and tensor.name not in self._losses:
            self._losses[tensor.name] = Site(OPERAND, operator, LOSS)
            self._forward.add(self._losses[tensor.name], self._replicated[tensor.name])
        return self._replicated[tensor.name]

    def looked_up(self, lookup: str) -> tuple[Values, Values]:
        """Return the rows that a lookup found in a table that is updated by rows, and the local indices that it used."""
        return self.value(self.view.graph.operators[lookup].result), self._indices[lookup]

    def without_sums(self, tensor: Tensor, operator: str) -> Values:
        """Return a tensor's shards split as produced, with partial sums completed."""
        return self.resharded(tensor, OperandSharding(self.view.layout(tensor).with_partial(()), None), operator)

    def _emit_operator(self, op: Operator) -> None:
        """Emit an operator on every rank of this process, with its operands resharded, and note its results."""
        if op.updates is not None:
            self._emit_update(op, op.updates)
            return
        operands = [self._operand(op, position, tensor) for position, tensor in op.operands]
        if self.training and op.name in self.view.graph.lookup_operators:
            self._indices[op.name] = operands[1]
        assert op.type not in SOURCES or op.type == CONSTANT, f"{op.where()} was not given"
        emitted = self._emit_again(op, operands)
        self._values.update((tensor.name, values) for tensor, values in zip(op.outputs, emitted.results, strict=True))
        if self.training:
            self._forward.sites.append(Site(OPERATOR, op.name))
            self._forward.operators[op.name] = emitted

    def _emit_again(self, op: Operator, operands: Sequence[Values]) -> Emitted:
        """Emit an operator on these operands, the first time or once more; return what was emitted."""
        rule, config = self.view.rules[op.name], self.view.strategy.configs[op.name]
        # Whether the reshardings inside of the operator carry gradients follows from which operands get one.
        differentiated = differentiated_operands(op, self.view.gradients) if self.training else frozenset()
        inner = inner_reshardings(op, rule, config, differentiated)
        graph = tf.compat.v1.get_default_graph()
        emitted = Emitted({position: values for (position, _), values in zip(op.operands, operands, strict=True)})
        start = graph.version

        def complete(k: int, values: Values) -> Values:
            """Emit the k-th resharding inside of the operator."""
            nonlocal start
            emitted.parts.append(Created(start, graph.version))
            results = self._reshard(inner[k], values, op.name, op.result)
            path = self.path_finder.paths(inner[k]).backward
            is_overlappable = op.result.name in self.view.graph.made_of_variables

            def back(gradients: Values) -> Values:
                assert path is not None
                return self.resharder.send_back(path, gradients, op.name, is_overlappable)

            emitted.parts.append(Inner(values, results, None if path is None else back))
            start = graph.version
            return results

        @contextmanager
        def rematerialized_with(position: int) -> Iterator[None]:
            n_before = graph.version
            yield
            emitted.cheap.append(Created(n_before, graph.version))

        job = Job(
            op, rule, config, self.view.interfaces[op.name], self.resharder.backend.ranks, complete,
            differentiated=differentiated, micro_batch=self.micro_batch, rematerialized_with=rematerialized_with,
            reads_table=self._reads_table(op),
        )  # fmt: skip
        emitted.results = emit(job, operands)
        emitted.parts.append(Created(start, graph.version))
        return emitted

    def _reads_table(self, op: Operator) -> bool:
        """Return whether a lookup may read its variable directly: nothing assigns that, and no gradient passes its value."""
        table = op.inputs[0] if op.inputs else None
        if table is None or (self.training and op.name not in self.view.graph.lookup_operators):
            return False
        if self.training and op.name in self.view.rematerialized:  # in the backward pass it would find the variable updated
            return False
        return self.view.graph.producers[table.name].name not in self._assigned

    @cached_property
    def _assigned(self) -> frozenset[str]:
        """The names of the variables that operators of the graph update."""
        return frozenset(op.updates for op in self.view.graph.operators.values() if op.updates is not None)

    def _emit_update(self, op: Operator, variable: str) -> None:
        """Emit an operator that updates a variable, on operands split as the variable."""
        layout = self.view.layout(self.view.graph.operators[variable].result)
        operands = [self.resharded(tensor, OperandSharding(layout, None), op.name) for _, tensor in op.operands]
        for tensor, values in zip(op.outputs, self.update(op, operands), strict=True):
            self._values[tensor.name] = values

    def _operand(self, op: Operator, position: int, tensor: Tensor) -> Values:
        """Return an operator's operand, resharded; zeros if another micro-batch counts the operand."""
        site = Site(OPERAND, op.name, position)
        values = self.once(tensor, site) if self.once is not None else None
        if values is None:
            values = self.resharded(tensor, self.view.sharding(op, position), op.name)
        if not self.training:
            return values
        if self.micro_batch is not None and not self.micro_batch.takes(op.name, position):
            values = [tf.zeros_like(value) for value in values]
        elif any(values[0] is self._forward.values[each][0] for each in self._sites_before(op, position)):
            # An operand that is the same tensor as another one, and has a gradient of its own.
            values = [tf.identity(value) for value in values]
        self._forward.add(site, values)
        return values

    def _sites_before(self, op: Operator, position: int) -> Iterator[Site]:
        """Return the sites of an operator's operands before one."""
        return (Site(OPERAND, op.name, earlier) for earlier, _ in op.operands if earlier < position)

    # Gradients

    def gradients(self, loss: Tensor, losses: Values, at: Sequence[Values]) -> list[Values | None]:
        """Return the gradients of a loss with respect to variables and to what lookups found.

        The gradient of the loss is 1 on every rank; the backward paths of the reshardings do the rest, no scaling is needed
        anywhere.

        Args:
            loss: the loss as the model has it.
            losses: the local losses that are differentiated: its replicated values, or what follows from them.
            at: for each variable or lookup its local values.

        Returns:
            For each of them the gradients of its local values, or None where the losses don't depend on it.
        """
        names = self.names_of(at)
        found = self._back_from_loss(loss, losses, set(names))
        return [found.get(Site(RESULT, name)) for name in names]

    def names_of(self, at: Sequence[Values]) -> list[str]:
        """Return the names of the tensors that have these local values."""
        known = {key_of(values[0]): name for name, values in (*self.sources.items(), *self._values.items())}
        return [known[key_of(values[0])] for values in at]

    def gradients_of_copies(
        self,
        loss: Tensor | None,
        losses: Values,
        lookups: Iterable[str],
        given: Mapping[str, Values] = MappingProxyType({}),
        received: Collection[str] = (),
        defers: bool = False,
    ) -> dict[Site, Values]:
        """Return a micro-batch's gradients: at the copies that all of them use, at lookups' results and at ``received``.

        Args:
            loss: the loss that is differentiated; None where another stage computes it.
            given: the gradients of tensors that other stages use, by name.
            received: names of tensors that another stage computes.
            defers: whether only the gradients at ``received`` are needed; the others then come of the backward pass's
                :meth:`.BackwardEmission.run_deferred`.
        """
        graph = self.view.graph
        found = {graph.operators[name].result.name for name in lookups}
        starts = found | {name for name in graph.tensors if graph.accumulates(name)} | set(received)
        ends = [Site(RESULT, name) for name in received] if defers else None
        return self.gradients_of(starts, loss, losses, given, ends)

    def gradients_of(
        self,
        starts: set[str],
        loss: Tensor | None,
        losses: Values,
        given: Mapping[str, Values],
        ends: Collection[Site] | None = None,
    ) -> dict[Site, Values]:
        """Return the gradients that arrive at some tensors, by their place, and at copies that accumulate them.

        Args:
            starts: the names of the tensors.
            loss, losses: what is differentiated, see :meth:`gradients`; None, and nothing, where another stage computes it.
            given: the gradients of tensors that other stages use, by name.
            ends: see :meth:`.BackwardEmission.run`.
        """
        sites = {Site(RESULT, name): values for name, values in given.items()}
        if loss is not None:
            return self._back_from_loss(loss, losses, starts, sites, ends)
        return self.backward.run(starts, sites, {}, [value.op for values in given.values() for value in values], ends)

    def gradients_from_copies(self, copies: Mapping[Site, Values], at: Sequence[Values]) -> list[Values | None]:
        """Return gradients with respect to variables, given those of copies that this model resharded for micro-batches."""
        names = self.names_of(at)
        found = self.backward.run(set(names), copies, {}, [])
        return [found.get(Site(RESULT, name)) for name in names]

    def _back_from_loss(
        self,
        loss: Tensor,
        losses: Values,
        starts: set[str],
        given: Mapping[Site, Values] = MappingProxyType({}),
        ends: Collection[Site] | None = None,
    ) -> dict[Site, Values]:
        """Emit a backward pass from a loss, and from given gradients; return the gradients that have arrived at its ends."""
        own, site = self.replicated(loss, loss.name, with_gradient=True), self._losses[loss.name]
        seeds = [tf.ones_like(each) for each in losses]
        if any(each is not other for each, other in zip(losses, own, strict=True)):
            graph = tf.compat.v1.get_default_graph()
            scaled = Emitted({0: own}, [losses], [Created(0, graph.version)])
            (gradients,) = Pullback(scaled, graph.get_operations(), {}).run([(0, seeds)], [0])
            if gradients is None:
                return {}
            seeds = gradients
        gates = [value.op for value in self.value(loss)]
        return self.backward.run(starts, {site: seeds, **given}, {site.name: loss}, gates, ends)

    def resharded_for(self, tensor: Tensor, site: Site) -> Values:
        """Return a tensor resharded to an operand of a micro-batch's operator: once, for all micro-batches."""
        if site not in self._forward.values:
            operator = self.view.graph.operators[site.name]
            sharding = self.view.sharding(operator, site.position)
            self._forward.add(site, self.resharded(tensor, sharding, operator.name))
        return self._forward.values[site]
