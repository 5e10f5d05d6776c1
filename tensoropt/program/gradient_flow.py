"""Find what is resharded where in a step, and the way of gradients through operators, reshardings and shared copies."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from ..ir.graph import VARIABLE, Tensor
from ..reschedule.between_machines import sent_layout
from ..reschedule.layout import Layout
from ..reschedule.path import Path
from ..rules.rule import OperandSharding
from ..sharding.consumers import HYPERPARAMETER, LOSS, Consumer, consumers_of, step_sharding
from ..sharding.resharding import PathFinder, Resharding, resharding_of, row_reshardings
from ..sharding.strategy import StrategyView
from .tasks import COMMUNICATING, COMPUTING, FETCHED, LOCAL, OPERATOR, OVERLAPPABLE, RESULT, SENT, SHARED, Site


class GradientFlow:
    """The sites that values and their gradients come to, under a strategy.

    Args:
        is_whole: whether every resharding is a task, even if nothing has to be done, and every tensor with several
            consumers has a shared copy: what any strategy of the model may have.
        is_ahead: whether it is of what is computed once of the full batch, though micro-batches compute it.

    Attributes:
        losses: the loss of each training step, by the name that its operand has.
    """

    def __init__(
        self, view: StrategyView, path_finder: PathFinder, is_whole: bool = False, is_ahead: bool = False
    ) -> None:
        self.view, self.path_finder, self.is_whole, self._is_ahead = view, path_finder, is_whole, is_ahead
        self.losses: dict[str, Tensor] = dict(view.graph.losses)
        consumers = consumers_of(view.graph) if is_whole else {}
        self._with_copy = {name for name, readers in consumers.items() if len(readers) > 1}

    @cached_property
    def ahead(self) -> GradientFlow:
        """The same flow for what is computed once of the full batch, though micro-batches compute it."""
        micro_batching = self.view.graph.micro_batching
        if micro_batching is None:
            return self
        graph = replace(micro_batching.full_batch, micro_batching=replace(micro_batching, once=frozenset()))
        return GradientFlow(replace(self.view, graph=graph), self.path_finder, self.is_whole, is_ahead=True)

    def at(self, site: Site, micro_batch: int) -> GradientFlow:
        """Return the flow of a task at an operator, or of a resharding, in a micro-batch or once a step (-1)."""
        graph = self.view.graph
        if micro_batch >= 0 or graph.micro_batching is None:
            return self
        op = graph.operators.get(site.name)
        tensors = [] if op is None else list(op.outputs[:1])
        tensors += [] if site.kind == OPERATOR else [self.resharded_tensor(site)]
        return self.ahead if all(graph.n_runs(tensor.name) > 1 for tensor in tensors) else self

    def has_copy(self, tensor: Tensor) -> bool:
        """Return whether consumers use a shared copy of a tensor."""
        return tensor.name in self.view.strategy.shared or tensor.name in self._with_copy

    def passes_by(self, site: Site) -> bool:
        """Return whether gradients pass by a site, since its resharding is free in both directions."""
        return not self.is_whole and self.path_finder.paths(self.resharded(site)[1]).is_free

    def goes_to(self, site: Site) -> Site:
        """Return the site to which an operand's gradient goes: its resharding or, if that is free, the site after it."""
        return self.produced_at(self.resharded_tensor(site)) if self.passes_by(site) else site

    def produced_at(self, tensor: Tensor) -> Site:
        """Return the site to which gradients go from a tensor's consumers: its shared copy or, without one, the result."""
        site = Site(SHARED, tensor.name)
        return site if self.has_copy(tensor) and not self.passes_by(site) else Site(RESULT, tensor.name)

    def resharded(self, site: Site) -> tuple[Tensor, Resharding]:
        """Return the tensor that is resharded to an operand, a fetch or a shared copy, and the resharding.

        An operand is also the loss or a hyperparameter of a training step, and a gradient that a variable is given. For what
        a lookup found in a table that is updated by rows, it is the resharding of the gradient to every device.
        """
        tensor, derived = self.resharded_tensor(site), self.view.derived
        if site not in derived:
            derived[site] = self._derived(site, tensor)
        return tensor, derived[site]

    def _derived(self, site: Site, tensor: Tensor) -> Resharding:
        """Return how a tensor is resharded to a site."""
        view, graph = self.view, self.view.graph
        if site.kind == SHARED:
            return view.shared_resharding(tensor, view.strategy.shared[site.name])
        if site.kind == RESULT:
            op = graph.producers[site.name]
            return row_reshardings(op, view.rules[op.name], view.strategy.configs[op.name])[1]
        if site.kind in FETCHED:
            replicated = Layout.replicated(view.strategy.mesh, len(tensor.shape))
            layout = view.layout(tensor).with_partial(()) if site.kind == LOCAL else replicated
            if site.kind == SENT and not self._is_ahead:
                layout = sent_layout(view.layout(tensor), tensor.shape)
            return view.resharding(tensor, OperandSharding(layout, None))
        if site.position < 0:
            kind = LOSS if site.position == LOSS else HYPERPARAMETER
            return view.resharding(tensor, step_sharding(view.strategy.mesh, tensor, Consumer(site.name, kind)))
        op = graph.operators[site.name]
        variable = op.name if op.type == VARIABLE else op.updates
        if variable is None:
            sharding = view.sharding(op, site.position)
        else:
            sharding = OperandSharding(view.layout(graph.operators[variable].result), None)
        if graph.micro_batching is not None and op.name in graph.micro_batching.after and graph.n_runs(tensor.name) > 1:
            replicated = Layout.replicated(view.strategy.mesh, len(tensor.shape))  # joined from all micro-batches
            return resharding_of(tensor, replicated, sharding)
        return view.resharding(tensor, sharding)

    def resharded_tensor(self, site: Site) -> Tensor:
        """Return the tensor of :meth:`resharded`, whatever the strategy."""
        graph = self.view.graph
        if site.kind in (SHARED, RESULT, *FETCHED):
            return graph.tensors[site.name]
        if site.position == LOSS:
            return self.losses[site.name]
        if site.position <= HYPERPARAMETER:
            return graph.train_steps[site.name].optimizer.tensors[HYPERPARAMETER - site.position]
        op = graph.operators[site.name]
        if op.type == VARIABLE:
            return graph.given_gradients[op.name][site.position]
        return op.operand(site.position)

    def stream(self, path: Path | None, is_overlappable: bool = False) -> str:
        """Return the stream of a task that runs a path."""
        if path is None or not path.communicates:
            return COMPUTING
        return OVERLAPPABLE if is_overlappable else COMMUNICATING
