"""Cut a model into the stages of a pipeline: consecutive parts of its operators, each on devices of its own.

A stage is a model itself. What an earlier stage computes is fed to it: a placeholder stands for the tensor. A stage that
doesn't compute the loss is given one to be planned by, the sum of all elements that it sends: its gradients lie where those
that a later stage sends back will be. (They aren't those; running a stage needs no such loss.)

- An operator's stage follows from its place in program order, so tensors go from earlier to later stages; but lookups may
  run where their table is, ahead of the stages that use the rows (:mod:`.lookups_ahead`).
- A placeholder, a constant, and what follows from constants alone is there in every stage that uses it; so is what an
  optimizer takes, such as the learning rate of a schedule.
- A training step has a part in each stage, with a loss and variables or without. A tensor's gradient crosses once for each
  step whose loss it leads to and whose variables it depends on.
- A variable belongs to the first stage that uses it. Later ones are sent its value once a step, and send its gradient back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np

from ..common.errors import InputError
from ..common.reach import reached
from ..ir.gradient_info import Backward, Operand
from ..ir.graph import ARGUMENTS, PLACEHOLDER, SOURCES, VARIABLE, Graph, MicroBatching, Operator, Tensor, TrainStep
from .branches import early_first, runs_early
from .cut_invariants import constant, first_uses, following, places, producers, taken_by_optimizer
from .lookups_ahead import LookupsAhead, lookups_ahead
from .micro_batches import SUM
from .model import Model


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that one stage sends to another.

    Attributes:
        target: a stage that uses it; a later one, unless it is ahead.
        steps: the training steps of whose losses the gradients are sent back.
        is_ahead: whether it is sent for all micro-batches when a step begins, and its gradient is taken when it ends.
    """

    tensor: str
    source: int
    target: int
    steps: tuple[str, ...] = ()
    is_ahead: bool = False

    @property
    def has_gradient(self) -> bool:
        """Whether the stage that uses the tensor sends its gradient back to the stage that computes it."""
        return bool(self.steps)


@dataclass(frozen=True)
class StageModel(Model):
    """One stage as a model that is searched and planned."""

    stages: Stages
    index: int

    def in_micro_batches(self, n: int, n_devices: int = 1) -> Model:
        """Return the stage's model of one of ``n`` micro-batches, which take consecutive samples."""
        if n == 1:
            return self
        return replace(self, graph=self.stages.graph_of(self.index, self.stages.whole.in_micro_batches(n).graph))


@dataclass(frozen=True, eq=False)
class Stages:
    """A model that is cut into stages.

    Attributes:
        cuts: names of operators, in program order; one stage ends with each.
    """

    whole: Model
    cuts: tuple[str, ...]

    @property
    def n(self) -> int:
        return len(self.cuts) + 1

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """The stages as models; one that isn't cut is itself.

        Raises:
            InputError: a stage would train no variable, a variable is updated where it isn't used, or the optimizer mixes
                parameters.
        """
        if not self.cuts:
            return (self.whole,)
        steps = self.whole.graph.train_steps.values()
        trained = {name for step in steps for name in step.variables}
        for index, members in enumerate(self.members):
            if steps and not members & trained:
                raise InputError(
                    f"stage {index} of {self.n} would have no parameters: none is used {self.between(index)}; ask for "
                    "fewer stages"
                )
        graphs = [self.graph_of(index, self.whole.graph) for index in range(self.n)]
        return tuple(StageModel(graph, self._backward(graph), self, index) for index, graph in enumerate(graphs))

    def check_optimizers(self) -> None:
        """Raise InputError if one of several training steps has an optimizer that needs a parameter of it in each stage."""
        steps = self.whole.graph.train_steps
        for step in steps.values() if self.cuts and len(steps) > 1 else ():
            for members in self.members:
                step.optimizer.part([number for number, name in enumerate(step.variables) if name in members])

    def between(self, index: int) -> str:
        """Return in words from where to where in the model a stage goes."""
        operators = self.whole.graph.operators
        start = f"after {operators[self.cuts[index - 1]].where()}" if index else ""
        end = f"up to {operators[self.cuts[index]].where()}" if index < len(self.cuts) else ""
        return f"{start} {end}".strip()

    @cached_property
    def crossings(self) -> tuple[Crossing, ...]:
        """All tensors that stages send, in program order."""
        graph = self.whole.graph
        result = {}
        for target, members in enumerate(self.members):
            for tensor in self._received_tensors(members):
                source = self._home(tensor)
                users = [op for op in graph.consumers[tensor.name] if op.name in members]
                uses = {(op.name, i) for op in users for i, operand in op.operands if operand.name == tensor.name}
                steps = tuple(step for step, operands in self._passes.items() if not operands.isdisjoint(uses))
                is_ahead = graph.producers[tensor.name].name in self.ahead.lookups
                result[tensor.name, target] = Crossing(tensor.name, source, target, steps, is_ahead)
        order = {name: number for number, name in enumerate(graph.tensors)}
        return tuple(sorted(result.values(), key=lambda crossing: (order[crossing.tensor], crossing.target)))

    @cached_property
    def awaited(self) -> tuple[Crossing, ...]:
        """The crossings of tensors that their target waits for in each pass: all that aren't sent before its first one."""
        constants = self.whole.graph.made_of_variables
        return tuple(crossing for crossing in self.crossings if not crossing.is_ahead and crossing.tensor not in constants)

    @cached_property
    def early(self) -> tuple[frozenset[str], ...]:
        """For each stage the names of the operators that it runs before it waits: see :mod:`.branches`."""
        awaited = [{crossing.tensor for crossing in self.awaited if crossing.target == index} for index in range(self.n)]
        of_stages = zip(self.members, awaited, strict=True)
        ahead = self.ahead.lookups.keys()
        return tuple(runs_early(self.whole.graph, members, tensors, ahead) for members, tensors in of_stages)

    def graph_of(self, index: int, graph: Graph) -> Graph:
        """Return a stage's part of the model's graph, or of that of one of its micro-batches.

        Its operators are in program order, but what it runs before it waits comes first.
        """
        if not self.cuts:
            return graph
        members, early = self.members[index], self.early[index]
        received = {tensor.name for tensor in self._received_tensors(members)}
        operators: dict[str, Operator] = {}
        for op in early_first(graph, early):
            if op.name not in members:
                continue
            for _, tensor in op.operands:
                if tensor.name in received:
                    received.discard(tensor.name)
                    placeholder = self._placeholder_of(tensor)
                    operators[placeholder.name] = placeholder
            operators[op.name] = op
        if not graph.train_steps:
            return replace(graph, operators=operators, differentiated=None)
        parts = [self._part_of_step(index, graph, step) for step in graph.train_steps.values()]
        if not any(step.loss for step, _ in parts):
            raise InputError("a stage would send nothing that is trained; ask for fewer stages")
        sums = [op for _, of_step in parts for op in of_step]
        operators.update((op.name, op) for op in sums)
        micro_batching = graph.micro_batching
        if micro_batching is not None:
            whole = self.graph_of(index, micro_batching.full_batch)
            names = {tensor.name for op in operators.values() for tensor in op.outputs}
            forms = {name: form for name, form in micro_batching.forms.items() if name in names}
            forms.update((op.result.name, SUM) for op in sums)
            micro_batching = MicroBatching(
                micro_batching.n, whole, micro_batching.batch, forms,
                frozenset(pair for pair in micro_batching.once if pair[0] in operators),
                micro_batching.after & operators.keys(),
            )  # fmt: skip
        steps = {step.name: step for step, _ in parts}
        return replace(graph, operators=operators, train_steps=steps, micro_batching=micro_batching, differentiated=None)

    def _part_of_step(self, index: int, graph: Graph, step: TrainStep) -> tuple[TrainStep, list[Operator]]:
        """Return what a stage has of a training step, and the operators of a loss that stands in; none if it has nothing."""
        members, loss, sums = self.members[index], step.loss, list[Operator]()
        assert loss is not None
        sent = (each.tensor for each in self.crossings if each.source == index and step.name in each.steps)
        own = [loss] if graph.producers[loss.name].name in members else []
        summands = own + [graph.tensors[name] for name in dict.fromkeys(sent)]
        numbers = [number for number, name in enumerate(step.variables) if name in members]
        if summands != own:
            sums = _sum_of_all(f"{step.name}/stage_{index}", summands)
        part = replace(
            step,
            loss=sums[-1].result if sums else next(iter(own), None),
            variables=tuple(step.variables[number] for number in numbers),
            controls=tuple(name for name in step.controls if name in members),
            optimizer=step.optimizer.part(numbers),
        )
        return part, sums

    def _placeholder_of(self, tensor: Tensor) -> Operator:
        producer = self.whole.graph.producers[tensor.name]
        name = f"{producer.name}/received_{[output.name for output in producer.outputs].index(tensor.name)}"
        return Operator(name, PLACEHOLDER, (), (tensor,), source=producer.source)

    @cached_property
    def _passes(self) -> Mapping[str, frozenset[Operand]]:
        """The operands of the model to which a gradient comes back in each backward pass.

        A table whose lookups are in several stages isn't updated by rows: its lookups have a gradient for all of it.
        """
        graph, passes = self.whole.graph, dict(self.whole.backward.passes)
        for variable, lookups in graph.lookups.items():
            if len({self._stage_of[name] for name in lookups}) > 1:
                table = graph.operators[variable].result
                (step,) = (step.name for step in graph.train_steps.values() if variable in step.variables)
                arriving = {graph.operators[name].operand(position).name for name, position in passes[step]}
                trained = [graph.operators[name] for name in lookups if graph.operators[name].result.name in arriving]
                passes[step] |= {(op.name, i) for op in trained for i, t in op.operands if t == table}
        return passes

    def _backward(self, graph: Graph) -> Backward:
        """Return what the backward pass of a stage reads and gives gradients to."""
        of_whole, operators = self.whole.backward, graph.operators
        passes = {name: frozenset(each for each in of if each[0] in operators) for name, of in self._passes.items()}
        for op in operators.values():
            if op.operands and op.name not in self.whole.graph.operators:  # of a loss that the stage is planned by
                passes[op.name.rsplit("/", 2)[0]] |= {(op.name, i) for i, _ in op.operands}
        return Backward(
            passes,
            frozenset(operand for operand in of_whole.residual_operands if operand[0] in operators),
            frozenset(name for name in of_whole.residual_results if name in graph.tensors),
            {name: body for name, body in of_whole.bodies.items() if name in operators},
        )

    def home(self, tensor: Tensor) -> int:
        """Return the stage that a tensor is fetched from: the one that computes it, or the first that has it."""
        if not self.cuts:
            return 0
        producer = self.whole.graph.producers[tensor.name]
        if producer.type == VARIABLE or producer.name not in self._shared:
            return self._home(tensor)
        return next(index for index, members in enumerate(self.members) if producer.name in members)

    # Which operators a stage has

    @cached_property
    def _in_order(self) -> dict[str, int]:
        """The stage of each operator that isn't a source, by its place in program order."""
        graph, ends = self.whole.graph, self._ends
        stages = np.searchsorted(ends, np.arange(len(graph.operators))).tolist()
        return {op.name: stage for op, stage in zip(graph.operators.values(), stages, strict=True) if op.type not in SOURCES}

    @cached_property
    def _ends(self) -> list[int]:
        """The places of the operators that stages but the last one end with."""
        return [places(self.whole.graph)[name] for name in self.cuts]

    @cached_property
    def _stage_of(self) -> dict[str, int]:
        """The stage of each operator that isn't a source; other stages may have it as well.

        What follows from variables alone, such as a penalty on them, is computed where these are.
        """
        graph, result, followers = self.whole.graph, dict(self._in_order), following(self.whole.graph)
        for name in graph.operators:
            if name in result and name in followers:
                homes = (self._homes.get(producer, result.get(producer, 0)) for producer in producers(graph)[name])
                result[name] = max(homes, default=0)
        return result | dict(self.ahead.lookups)

    @cached_property
    def ahead(self) -> LookupsAhead:
        """The lookups that run in the stage of their table, ahead of those that use the rows; none of a single stage."""
        if not self.cuts:
            return LookupsAhead()
        return lookups_ahead(self.whole.graph, self._in_order)

    @cached_property
    def _common_operators(self) -> frozenset[str]:
        """The names of the operators that every stage has: what the optimizer takes, and the counter of steps."""
        return taken_by_optimizer(self.whole.graph)

    @cached_property
    def _homes(self) -> dict[str, int]:
        """The stage that each variable belongs to: the first that uses it for more than what follows from variables."""
        graph, first = self.whole.graph, first_uses(self.whole.graph)
        updated_in: dict[str, set[int]] = {}
        for op in graph.operators.values():
            if op.updates is not None:
                updated_in.setdefault(op.updates, set()).add(self._in_order[op.name])
        homes = {}
        for variable in graph.variables:
            stages = updated_in.get(variable.name, set())
            place = first.get(variable.result.name)
            first_use = min(stages, default=self.n - 1) if place is None else bisect_left(self._ends, place)
            homes[variable.name] = self.ahead.tables.get(variable.name, first_use)
            if stages - {homes[variable.name]}:
                raise InputError(
                    f"{variable.where()} is used in stage {homes[variable.name]} and updated in a later one; use stages=1"
                )
        return homes

    def _home(self, tensor: Tensor) -> int:
        """Return the stage that sends a tensor."""
        producer = self.whole.graph.producers[tensor.name]
        return self._homes[producer.name] if producer.type == VARIABLE else self._stage_of[producer.name]

    @cached_property
    def _shared(self) -> frozenset[str]:
        """The names of the operators that each stage has that uses them."""
        placeholders = (op.name for op in self.whole.graph.operators.values() if op.type == PLACEHOLDER)
        return constant(self.whole.graph) | self.ahead.indices | frozenset(placeholders)

    @cached_property
    def members(self) -> tuple[frozenset[str], ...]:
        """The names of each stage's operators."""
        graph = self.whole.graph
        if not self.cuts:
            return (frozenset(graph.operators),)
        constants, producers_of = constant(graph), producers(graph)
        result: list[set[str]] = [set(self._common_operators) for _ in range(self.n)]
        for name, stage in self._homes.items():
            if name not in self._common_operators:
                result[stage].add(name)
        for name, stage in self._stage_of.items():
            if name not in constants and name not in self._common_operators:
                result[stage].add(name)
        for members in result:
            names = self._shared.intersection(chain.from_iterable(map(producers_of.__getitem__, members)))
            members.update(reached(names, producers_of.__getitem__))
        # What nobody uses is fetched from the last stage.
        unused = (name for name in self._shared if not any(name in members for members in result))
        result[-1].update(unused)
        return tuple(map(frozenset, result))

    def _received_tensors(self, members: Iterable[str]) -> list[Tensor]:
        """Return the tensors that operators use and that other stages compute, in no order that means anything."""
        graph, own = self.whole.graph, frozenset(members)
        needing = (graph.operators[name] for name in own if not producers(graph)[name].keys() <= own)
        tensors = {tensor.name: tensor for op in needing for _, tensor in op.operands}
        return [tensor for tensor in tensors.values() if graph.producers[tensor.name].name not in own]


def _sum_of_all(name: str, tensors: Sequence[Tensor]) -> list[Operator]:
    """Return operators that sum all elements of tensors; the last one's result is the sum, a stage's loss to be planned by.

    Raises:
        InputError: they are of several types.
    """
    types = sorted({tensor.dtype for tensor in tensors})
    if len(types) > 1:
        raise InputError(f"a stage would send gradients of the types {' and '.join(types)}; use stages=1")
    operators: list[Operator] = []
    for number, tensor in enumerate(tensors):
        total = Tensor(f"{name}/sum_{number}:0", (), tensor.dtype)
        axes = {1: np.arange(len(tensor.shape), dtype=np.int32)}
        attributes = {"keep_dims": False, ARGUMENTS: (("input", None), ("reduction_indices", None))}
        operators.append(Operator(f"{name}/sum_{number}", "Sum", (tensor, None), (total,), axes, attributes))
    for number, op in enumerate(operators[1:]):
        sums = operators[-1].result if number else operators[0].result
        result = Tensor(f"{name}/add_{number}:0", (), tensor.dtype)
        attributes = {ARGUMENTS: (("x", None), ("y", None))}
        operators.append(Operator(f"{name}/add_{number}", "AddV2", (sums, op.result), (result,), {}, attributes))
    return operators
