"""What a training step consists of, and what waits for what: the nodes of its task graph, which depend on no config.

A node is one thing that happens to an operator or a tensor: its forward pass, the resharding of a tensor to one consumer,
its gradient's way back. What a node takes is a chain of actions (:mod:`.actions`), none where nothing has to be done, and
follows from the strategy. So a change of one operator's config changes the chains of a few nodes and nothing else.

    forward, backward, update     an operator; a variable's update
    share, reshard                to the shared copy of a tensor; from there, or as produced, to a consumer
    share back, reshard back      the gradients' way: from each consumer, then together from the shared copy
    recompute, reshare, regather  in the backward pass: a rematerialized operator, regathered copies
    rows                          of a lookup whose table is updated by rows: its indices and gradients to every device
    join                          waits for others and takes nothing

With micro-batches the nodes of what is computed from the batch come once for each, one micro-batch after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ...common.errors import InputError
from ...ir.graph import GRADIENT, Operator, Tensor
from ...sharding.consumers import LOSS, Consumer, consumers_of
from ...sharding.strategy import StrategyView

FORWARD, BACKWARD, UPDATE, ROWS, JOIN = "forward", "backward", "update", "rows", "join"
SHARE, RESHARD, SHARE_BACK, RESHARD_BACK = "share", "reshard", "share back", "reshard back"
RECOMPUTE, RESHARE, REGATHER = "recompute", "reshare", "regather"
OF_OPERATORS = (FORWARD, BACKWARD, UPDATE, ROWS, RECOMPUTE)
OF_TENSORS = (SHARE, RESHARD, SHARE_BACK, RESHARD_BACK, RESHARE, REGATHER)


class Node(NamedTuple):
    """One thing that happens in a step.

    Attributes:
        kind: one of the kinds of the module docstring.
        name: the operator's name, or the tensor's.
        consumer: of ``reshard``, ``reshard back`` and ``regather``.
        run: the number of the micro-batch.
    """

    kind: str
    name: str
    consumer: Consumer | None = None
    run: int = 0

    def __str__(self) -> str:
        to = f" for {self.consumer.name}" if self.consumer else ""
        return f"{self.kind} {self.name}{to}" + (f", micro-batch {self.run + 1}" if self.run else "")


@dataclass(frozen=True, eq=False)
class StepGraph:
    """The nodes of a step, in an order in which each comes after those that it waits for.

    Attributes:
        waits_for: the numbers of the nodes that each waits for.
        by_name: the numbers of an operator's, or of a tensor's, nodes; joins aren't there.
    """

    nodes: tuple[Node, ...]
    waits_for: tuple[tuple[int, ...], ...]
    by_name: dict[tuple[bool, str], tuple[int, ...]]

    @cached_property
    def leads_to(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the nodes that wait for each."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for number, those in enumerate(self.waits_for):
            for before in those:
                found[before].append(number)
        return tuple(map(tuple, found))

    def touched(self, operators: Iterable[Operator], tensors: Iterable[str] = ()) -> list[int]:
        """Return the numbers of the nodes whose actions may differ if these operators' configs, or tensors' copies, do."""
        names = {(False, tensor): None for tensor in tensors}
        for op in operators:
            names[True, op.name] = None
            names.update({(False, tensor.name): None for tensor in (*op.outputs, *(each for _, each in op.operands))})
        return [number for name in names for number in self.by_name.get(name, ())]


def step_graph(view: StrategyView) -> StepGraph:
    """Return the nodes of the training steps of a model.

    They depend on the strategy in this alone: what is rematerialized or regathered has nodes, and a tensor with one consumer
    has a node for its shared copy if the strategy shares it.

    Raises:
        InputError: a loss needs gradients or updated values, so that there are several passes, one after the other.
    """
    if view.graph.is_sequential:
        raise InputError(
            "the model's steps run one after the other within a step: a loss needs gradients, or values that were updated; "
            "only steps with one forward and one backward pass can be simulated"
        )
    return _Building(view).build()


class _Building:
    """The nodes under construction."""

    def __init__(self, view: StrategyView) -> None:
        self.view, self.graph = view, view.graph
        self.consumers = consumers_of(view.graph)
        self.waits: dict[Node, dict[Node, None]] = {}
        self.operators = [op for op in view.graph.step_operators if op.updates is None]
        self.place = {op.name: number for number, op in enumerate(view.graph.step_operators)}
        self.back = {
            op.name: frozenset(position for position, _ in op.operands if (op.name, position) in view.gradients)
            for op in self.operators
        }

    def build(self) -> StepGraph:
        for op in self.operators:
            for tensor in op.outputs:
                for run in range(self.graph.n_runs(tensor.name)):
                    self._tensor(op, tensor, run)
            for run in range(self._n_runs(op)):
                self._operator(op, run)
        for op in self.operators:
            if op.name in self.graph.updates:
                self._update(op)
        for op in self.operators:
            for run in range(self._n_runs(op)):
                self._again(op, run)
        return self._sorted()

    def add(self, node: Node, waits_for: Iterable[Node] = ()) -> Node:
        """Add a node, or what it waits for to one that is there already."""
        self.waits.setdefault(node, {}).update(dict.fromkeys(waits_for))
        return node

    def _n_runs(self, op: Operator) -> int:
        return self.graph.n_runs(op.result.name) if op.outputs else 1

    def _runs(self, n_here: int, n_there: int, run: int) -> range:
        """Return the micro-batches of another node that the one of this run goes with."""
        if n_there <= n_here:
            return range(min(run, n_there - 1), min(run, n_there - 1) + 1)
        return range(n_there)

    # Forward

    def _operator(self, op: Operator, run: int) -> None:
        n_runs = self._n_runs(op)
        forward = self.add(Node(FORWARD, op.name, None, run))
        is_fed = False
        for position, tensor in op.operands:
            producer, n_there = self.graph.producers[tensor.name], self.graph.n_runs(tensor.name)
            is_fed |= n_there == n_runs > 1
            consumer = Consumer(op.name, position)
            for other in self._runs(n_runs, n_there, run):
                if producer.updates is None:
                    self.add(forward, [Node(RESHARD, tensor.name, consumer, other)])
                elif producer.type == GRADIENT:
                    self.add(forward, self._arriving(self.graph.operators[producer.updates].result, 0))
                else:
                    self.add(forward, [self._written(producer.updates)])
        if run and not is_fed:
            self.add(forward, [Node(JOIN, "micro-batch", None, run - 1)])
        if self.back[op.name]:
            arriving = [node for tensor in op.outputs for node in self._arriving(tensor, run)]
            backward = self.add(Node(BACKWARD, op.name, None, run), [forward, *arriving])
            if n_runs > 1:
                self.add(Node(JOIN, "micro-batch", None, run), [backward])
        elif n_runs > 1:
            self.add(Node(JOIN, "micro-batch", None, run), [forward])
        if op.name in self.graph.lookup_operators:
            arriving = [node for tensor in op.outputs for node in self._arriving(tensor, run)]
            self.add(Node(ROWS, op.name, None, run), [forward, *arriving])

    def _written(self, variable: str) -> Node:
        """Return the node after which a variable has its new value."""
        return Node(UPDATE if variable in self.graph.updates else FORWARD, variable)

    def _tensor(self, op: Operator, tensor: Tensor, run: int) -> None:
        consumers = self.consumers.get(tensor.name, [])
        source = Node(FORWARD, op.name, None, run)
        if self._is_shared(tensor):
            source = self.add(Node(SHARE, tensor.name, None, run), [source])
        for consumer in consumers:
            there = self.add(Node(RESHARD, tensor.name, consumer, run), [source])
            if not self._has_gradient(consumer):
                continue
            back = self.add(Node(RESHARD_BACK, tensor.name, consumer, run))
            if consumer.is_step:
                self.add(back, [there])
            else:
                n_there = self._n_runs(self.graph.operators[consumer.name])
                runs = self._runs(self.graph.n_runs(tensor.name), n_there, run)
                self.add(back, [Node(BACKWARD, consumer.name, None, other) for other in runs])
            if self._is_shared(tensor):
                self.add(Node(SHARE_BACK, tensor.name, None, run), [back])

    def _is_shared(self, tensor: Tensor) -> bool:
        consumers = self.consumers.get(tensor.name, [])
        return len(consumers) > 1 or (bool(consumers) and tensor.name in self.view.strategy.shared)

    def _has_gradient(self, consumer: Consumer) -> bool:
        if consumer.is_step:
            return consumer.position == LOSS
        return not consumer.is_update and consumer.position in self.back[consumer.name]

    # Backward

    def _arriving(self, tensor: Tensor, run: int) -> list[Node]:
        """Return the nodes after which a tensor's gradient is there; none if it has none."""
        back = [each for each in self.consumers.get(tensor.name, []) if self._has_gradient(each)]
        if back and self._is_shared(tensor):
            return [Node(SHARE_BACK, tensor.name, None, run)]
        return [Node(RESHARD_BACK, tensor.name, consumer, run) for consumer in back]

    def _update(self, op: Operator) -> None:
        """Add the update of a variable: after its gradient, or after all gradients where it needs a sum over them."""
        rows = (
            Node(ROWS, name, None, run)
            for name in self.graph.lookups.get(op.name, ())
            for run in range(self._n_runs(self.graph.operators[name]))
        )
        given = (
            Node(RESHARD, tensor, consumer, run)
            for tensor, consumers in self.consumers.items()
            if self.graph.producers[tensor].updates is None
            for consumer in consumers
            if consumer.is_update and consumer.name == op.name
            for run in range(self.graph.n_runs(tensor))
        )
        ready = [Node(FORWARD, op.name), *self._arriving(op.result, 0), *rows, *given]
        if any(update.sums for update in self.graph.updates[op.name]):
            ready = [self.add(Node(JOIN, "all gradients"), ready)]
        self.add(Node(UPDATE, op.name), ready)

    def _again(self, op: Operator, run: int) -> None:
        """Add what the backward pass makes again of an operator's results: itself, and regathered copies of them."""
        view, again = self.view, Node(RECOMPUTE, op.name, None, run)
        is_rematerialized = op.name in view.rematerialized
        readers = [(tensor, each) for tensor in op.outputs for each in self._readers(tensor)]
        if is_rematerialized:
            self.add(again, [Node(FORWARD, op.name, None, run), *self._reached(self.needed_at[op.name], run)])
            for name in dict.fromkeys([op.name, *(reader.name for _, reader in readers)]):
                self._before_reading(name, run, again)
        for tensor in op.outputs:
            n_here = self.graph.n_runs(tensor.name)
            shared = [each for each in self._readers(tensor) if view.reads_regathered(*self._operand(each))]
            source = [again] if is_rematerialized else [Node(FORWARD, op.name, None, run)]
            if shared:
                first = max((self.needed_at[each.name] for each in shared), key=self.place.__getitem__)
                source = [self.add(Node(RESHARE, tensor.name, None, run), [*source, *self._reached(first, run)])]
            for consumer in self._readers(tensor):
                if view.is_regathered(*self._operand(consumer)):
                    node = Node(REGATHER, tensor.name, consumer, run)
                    self.add(node, [*source, *self._reached(self.needed_at[consumer.name], run)])
                elif consumer in shared:
                    node = source[0]
                else:
                    continue
                for other in self._runs(n_here, self._n_runs(self.graph.operators[consumer.name]), run):
                    self._before_reading(consumer.name, other, node)

    @cached_property
    def needed_at(self) -> dict[str, str]:
        """The operator at which the backward pass needs what an operator reads.

        That is the operator itself. What a rematerialized one reads is needed where the first that reads its results needs
        them, which is the last of these in the forward pass.
        """
        found: dict[str, str] = {}
        for op in reversed(self.operators):
            readers = (each.name for tensor in op.outputs for each in self._readers(tensor))
            if op.name in self.view.rematerialized:
                found[op.name] = max((found[name] for name in readers), key=self.place.__getitem__, default=op.name)
            else:
                found[op.name] = op.name
        return found

    def _readers(self, tensor: Tensor) -> list[Consumer]:
        """Return the operators whose gradients, or rematerializations, may read a copy of a tensor."""
        consumers = self.consumers.get(tensor.name, [])
        return [each for each in consumers if not each.is_step and not each.is_update and self.back[each.name]]

    def _operand(self, consumer: Consumer) -> tuple[Operator, int]:
        return self.graph.operators[consumer.name], consumer.position

    def _reached(self, name: str, run: int) -> list[Node]:
        """Return the nodes after which the backward pass comes to an operator."""
        op = self.graph.operators[name]
        run = min(run, self._n_runs(op) - 1)
        return [node for tensor in op.outputs for node in self._arriving(tensor, run)]

    def _before_reading(self, name: str, run: int, node: Node) -> None:
        """Let an operator's backward pass, and its rematerialization, wait for a node."""
        for kind in (BACKWARD, RECOMPUTE):
            reader = Node(kind, name, None, run)
            if reader != node and (kind == BACKWARD or name in self.view.rematerialized):
                self.add(reader, [node])

    def _sorted(self) -> StepGraph:
        """Return the nodes in topological order; of several that could come next the one that was added first."""
        unknown = {node for waits in self.waits.values() for node in waits if node not in self.waits}
        assert not unknown, f"nodes wait for {sorted(map(str, unknown))[:3]}, which aren't there"
        added = list(self.waits)
        number = {node: i for i, node in enumerate(added)}
        leads_to: list[list[int]] = [[] for _ in added]
        missing = [len(self.waits[node]) for node in added]
        for i, node in enumerate(added):
            for before in self.waits[node]:
                leads_to[number[before]].append(i)
        heap = [i for i, n in enumerate(missing) if not n]
        heapify(heap)
        order: list[int] = []
        while heap:
            order.append(heappop(heap))
            for after in leads_to[order[-1]]:
                missing[after] -= 1
                if not missing[after]:
                    heappush(heap, after)
        stuck = [str(node) for i, node in enumerate(added) if missing[i] > 0]
        assert not stuck, f"{len(stuck)} nodes wait for each other, such as {', '.join(stuck[:3])}"
        place = {i: at for at, i in enumerate(order)}
        nodes = tuple(added[i] for i in order)
        waits_for = tuple(tuple(sorted(place[number[before]] for before in self.waits[node])) for node in nodes)
        return StepGraph(nodes, waits_for, _by_name(nodes))


def _by_name(nodes: Iterable[Node]) -> dict[tuple[bool, str], tuple[int, ...]]:
    found: dict[tuple[bool, str], list[int]] = {}
    for key, number in _named(nodes):
        found.setdefault(key, []).append(number)
    return {key: tuple(numbers) for key, numbers in found.items()}


def _named(nodes: Iterable[Node]) -> Iterator[tuple[tuple[bool, str], int]]:
    for number, node in enumerate(nodes):
        if node.kind != JOIN:
            yield (node.kind in OF_OPERATORS, node.name), number
