"""Split a training step into micro-batches: parts of its batch, computed one after the other, with accumulated gradients.

To the layout algebra the micro-batches are one more mesh axis, of *time*. Tensors computed from the
batch are split over it; a mean over the batch is a partial sum over the global count; the gradient of a parameter, which is
replicated over it, is partial, and its completion is a local accumulation. So the numbers are one device's by the same
rules. Communication over this axis is impossible: a micro-batch can't wait for a later one. Only two things cross the axis:
the sum that is the loss, and gradients of tensors that are computed without the batch.

So there is nothing to search. Whether an operator is split over the axis, and along which factor, follows from its operands;
:func:`of_micro_batches` finds it in program order. The result is the graph of one micro-batch, at its shapes; devices,
configs and reshardings are then those of this graph.

- An operator with a split operand has the one config in which nothing would have to be resharded over the axis.
- A tensor that is computed without the batch isn't split, and is computed once a step. If it is used where a partial sum is
  asked for (a penalty on parameters that is added to the loss), the first micro-batch alone uses it.
- An operator that uses the batch and isn't needed for the loss, such as metrics and their updates, may come after all
  micro-batches: it then uses their results put together.
- Constants of the batch's length, and random numbers drawn for the batch, are split where a split tensor meets them.

Statistics over the batch (batch normalisation in training) would have to be completed over the axis, and are refused.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ..common.errors import InputError, short
from ..ir.body import BODY, COMPOSITES, LOOP, Body
from ..ir.graph import CONSTANT, GATHERED, LOADED, PLACEHOLDER, SOURCES, VARIABLE, Graph, MicroBatching, Operator, Tensor
from ..ir.micro_batching import are_shares_divided
from ..reschedule.layout import Layout
from ..reschedule.mesh import Mesh
from ..rules.composition import Composition
from ..rules.random import RANDOM
from ..rules.reduction import reduced_dimensions
from ..rules.registry import rule_of
from ..rules.rule import Config, Interface, Rule, known_interface_of, why_invalid
from .local_shapes import static_values

SUM = -1
"""The form of a tensor that is a partial sum over micro-batches, in place of the dimension that is split."""
N_MICRO_BATCHES = "_micro_batches"
"""The attribute of a mean over the whole batch: the number of micro-batches."""
Forms = ChainMap[str, int]
"""The dimension that micro-batches split, or SUM, by tensor name; a tensor not named is the same for all micro-batches."""
Configs = ChainMap[str, Config]
"""Each operator's config over the axis of time, by operator name."""


def of_micro_batches(graph: Graph, n: int, n_devices: int = 1) -> Graph:
    """Return the graph of one of ``n`` micro-batches; what isn't computed from the batch is unchanged.

    Where each rank loads its share of the batch, the batch is gathered if the shares of ``n_devices`` devices can't be
    split into so many micro-batches.

    Raises:
        InputError: the training step can't be taken in so many micro-batches.
    """
    result = graph if n == 1 else _divided(graph, n, n_devices)
    if isinstance(result, str):
        raise InputError(result)
    return result


def with_batch(graph: Graph, batch: int) -> Graph:
    """Return the graph of a step on a batch that divides its own: at a micro-batch's shapes, and all of the step.

    Raises:
        InputError: the batch doesn't divide it, or something in the step isn't made of parts of the batch.
    """
    own = graph.batch or 0
    result = of_micro_batches(graph, own // batch) if own and own % batch == 0 else None
    if result is None or (result.micro_batching is not None and result.micro_batching.after):
        reason = f"records {own} samples per step" if result is None else "has metrics or updates over the whole batch"
        raise InputError(
            f"the model {reason}, so a batch of {batch} can't be had of it; record it with {batch} samples per step"
        )
    return replace(result, micro_batching=None)


@lru_cache(maxsize=16)
def _divided(graph: Graph, n: int, n_devices: int) -> Graph | str:
    """Return what :func:`of_micro_batches` does, or why it can't be: for many models that takes as long to find."""
    extents = (extent for op in graph.operators.values() if LOADED in op.attrs for extent in op.result.shape[:1])
    if n_devices > 1 and all(are_shares_divided(extent, n, n_devices) for extent in extents):
        return _divided(graph, n, 1)
    try:
        return _of_several(graph, n, n_devices)
    except InputError as error:
        return str(error)


def _of_several(graph: Graph, n: int, n_devices: int) -> Graph:
    """Return the graph of one of several micro-batches; see :func:`of_micro_batches`."""
    if not graph.train_steps:
        raise _refused(n, "the model has no training step")
    batch = _batch(graph, n)
    if graph.late or graph.given_gradients:
        reason = "it computes with its gradients, or reads what it has updated"
        raise _refused(n, reason, "use micro_batches=1, without stages")
    forms, configs, after = _Propagation(graph, n, batch).run()
    for loss in graph.losses.values():
        if forms.get(loss.name) != SUM:
            where = graph.producers[loss.name].where()
            raise _refused(n, f"its loss, {where}, isn't a sum or a mean over the batch")
    for tensor in (tensor for step in graph.train_steps.values() for tensor in step.optimizer.tensors):
        if tensor.name in forms or graph.producers[tensor.name].name in after:
            raise _refused(n, f"{graph.producers[tensor.name].where()}, which its optimizer takes, is made of the batch")
    once: set[tuple[str, int]] = set()
    operators: dict[str, Operator] = {}
    for op in graph.operators.values():
        config = configs.get(op.name)
        if config is None:
            operators[op.name] = op
            continue
        interface = known_interface_of(rule_of(op), config)
        once.update(
            (op.name, i)
            for i, tensor in op.operands
            if _form(interface.operand(i).layout) == SUM and tensor.name not in forms
        )
        operators[op.name] = _per_micro_batch(op, config, interface, forms, n)
        if LOADED in op.attrs and not are_shares_divided(batch, n, n_devices):
            operators[op.name] = replace(operators[op.name], attrs={**op.attrs, LOADED: GATHERED})
    micro_batching = MicroBatching(n, graph, batch, forms, frozenset(once), frozenset(after))
    return replace(graph, operators=operators, micro_batching=micro_batching)


def checked_count(value: object) -> int:
    """Return the number of micro-batches that a user gave.

    Raises:
        InputError: it isn't a whole number from 1 up.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InputError(f"micro_batches takes a whole number from 1 up, got {short(value)}; give a divisor of the batch")
    return int(value)


def _refused(n: int, reason: str, advice: str = "use micro_batches=1") -> InputError:
    return InputError(f"a step of this model can't be taken in {n} micro-batches: {reason}; {advice}")


def _batch(graph: Graph, n: int) -> int:
    """Return the number of samples of the batch: the first dimension of what is fed to the training step."""
    feeds = [op for op in graph.step_operators if op.type == PLACEHOLDER and op.result.shape]
    if not feeds:
        raise _refused(n, "it isn't fed a batch")
    batch = feeds[0].result.shape[0]
    if batch % n:
        divisors = [k for k in range(1, batch + 1) if batch % k == 0]
        near = {max((k for k in divisors if k < n), default=1), min((k for k in divisors if k > n), default=batch)}
        raise InputError(
            f"a step of this model can't be taken in {n} micro-batches: its batch, {feeds[0].where()}, has {batch} samples, "
            f"which {n} doesn't divide; give a divisor of {batch}, such as {' or '.join(map(str, sorted(near)))}"
        )
    return batch


@dataclass(frozen=True, eq=False)
class _Propagation:
    """The propagation of the micro-batch split through a graph: which factor of each operator is split."""

    graph: Graph
    n: int
    batch: int

    @property
    def mesh(self) -> Mesh:
        return Mesh.of(self.n)

    def run(self) -> tuple[dict[str, int], dict[str, Config], set[str]]:
        """Return tensors' forms, operators' configs over the axis of time, and the operators to run after all micro-batches.

        Raises:
            InputError: an operator that the loss needs can't be split.
        """
        forms: Forms = ChainMap()
        configs: Configs = ChainMap()
        after: set[str] = set()
        variables: set[str] = set()  # those that are updated after all micro-batches
        ancestors = self.graph.ancestors(list(self.graph.losses.values()))
        operators = self.graph.operators.values()
        for op in operators:
            is_after = any(self.graph.producers[tensor.name].name in after for _, tensor in op.operands)
            reason = f"{op.where()} reads what is computed after the micro-batches"
            if not is_after and op.updates not in variables:
                reason = self._decide(op, forms, configs)
            if reason and op.name in ancestors:
                raise _refused(self.n, reason)
            if reason:
                after.add(op.name)
                variables.update([op.updates] if op.updates else [])
        for op in operators:
            # A constant that was split for one consumer may have another that uses it unsplit.
            if op.name not in after and not self._agrees(op, forms, configs):
                raise _refused(self.n, f"{op.where()} reads the full batch of a tensor that others read in micro-batches")
        return dict(forms), dict(configs), after

    def _decide(self, op: Operator, forms: Forms, configs: Configs) -> str:
        """Give an operator its config; return an empty text, or the reason why it has none."""
        if op.type == PLACEHOLDER and op.result.shape[:1] == (self.batch,):
            return self._assign(op, Config(self.mesh, ("d0",) * len(self.mesh.sizes)), forms, configs)
        if op.type in SOURCES or not any(tensor.name in forms for _, tensor in op.operands):
            return ""
        if op.updates is not None:
            return f"{op.where()} updates a variable by what is made of the batch"
        best: tuple[int, Config, Forms, Configs] | None = None
        for config in self._configs(op):
            new_forms, new_configs = forms.new_child(), configs.new_child()
            n_pulled = self._count_pulled(op, config, new_forms, new_configs)
            if n_pulled is not None and (best is None or n_pulled < best[0]):
                best = n_pulled, config, new_forms, new_configs
        if best is None:
            return f"{op.where()} needs the whole batch at once, as batch normalisation and lookups in the batch do"
        forms.update(best[2].maps[0])
        configs.update(best[3].maps[0])
        return self._assign(op, best[1], forms, configs)

    def _configs(self, op: Operator) -> Sequence[Config]:
        candidates = _configs_of(rule_of(op), self.mesh)
        return [config for config in candidates if _fits_body(op, config)] if op.type in COMPOSITES else candidates

    def _count_pulled(self, op: Operator, config: Config, forms: Forms, configs: Configs) -> int | None:
        """Return how many more operands must be split for a config; None where the config is impossible."""
        interface, n_pulled = known_interface_of(rule_of(op), config), 0
        for position, tensor in op.operands:
            target, form = _form(interface.operand(position).layout), forms.get(tensor.name)
            if target == form:
                continue
            if form is not None or target is None:
                return None
            if target == SUM:
                if not tensor.is_float:
                    return None
            elif self._pull(tensor, target, forms, configs):
                n_pulled += 1
            else:
                return None
        return n_pulled

    def _pull(self, tensor: Tensor, dimension: int, forms: Forms, configs: Configs) -> bool:
        """Split a tensor that is computed from constants and random numbers along a dimension; return whether it can be."""
        op = self.graph.producers[tensor.name]
        if tensor.name in forms:
            return forms[tensor.name] == dimension
        if op.type in (VARIABLE, PLACEHOLDER) or op.updates is not None or op.type in COMPOSITES:
            return False
        if len(tensor.shape) <= dimension or tensor.shape[dimension] % self.n:
            return False
        for config in self._configs(op):
            result = known_interface_of(rule_of(op), config).results[op.outputs.index(tensor)]
            if _form(result) != dimension:
                continue
            new_forms, new_configs = forms.new_child(), configs.new_child()
            if all(
                form is None or (form != SUM and self._pull(operand, form, new_forms, new_configs))
                for operand, form in self._operand_forms(op, config)
            ):
                forms.update(new_forms.maps[0])
                configs.update(new_configs.maps[0])
                self._assign(op, config, forms, configs)
                return True
        return False

    def _operand_forms(self, op: Operator, config: Config) -> list[tuple[Tensor, int | None]]:
        interface = known_interface_of(rule_of(op), config)
        return [(tensor, _form(interface.operand(position).layout)) for position, tensor in op.operands]

    def _assign(self, op: Operator, config: Config, forms: Forms, configs: Configs) -> str:
        configs[op.name] = config
        for tensor, layout in zip(op.outputs, known_interface_of(rule_of(op), config).results, strict=True):
            form = _form(layout)
            if form is None:
                return f"{op.where()} has results of which only some are made of the batch"
            forms[tensor.name] = form
        return ""

    def _agrees(self, op: Operator, forms: Forms, configs: Configs) -> bool:
        """Return whether an operator's operands have the forms that its config asks for."""
        config = configs.get(op.name)
        if config is None:
            return not any(tensor.name in forms for _, tensor in op.operands)
        return all(
            forms.get(tensor.name) == form or (form == SUM and tensor.name not in forms)
            for tensor, form in self._operand_forms(op, config)
        )


@lru_cache(maxsize=4096)
def _configs_of(rule: Rule, mesh: Mesh) -> tuple[Config, ...]:
    """Return a rule's configs in which all of a mesh's axes split one factor, or one group of operands."""
    exclusions, n = {*rule.inner, *rule.positional, *rule.halos}, mesh.n_devices
    names = [name for name in rule.splittable if name not in exclusions and rule.extents[name] % n == 0]
    names += [f"+{i}" for i in range(len(rule.linear))]
    configs = (Config(mesh, (name,) * len(mesh.sizes)) for name in names)
    return tuple(config for config in configs if not why_invalid(replace(rule, spread=""), config))


def _fits_body(op: Operator, config: Config) -> bool:
    """Return whether a composite operator can be split over micro-batches in this config.

    All micro-batches must run the same body, differing in nothing but their operands. Unless the operator is a loop, each
    must give its own share of the gradients.
    """
    composition = Composition(op)
    for inner in composition.body.operators:
        own, interface = composition.inner(inner, config)
        if any(own.degree(name) > 1 for name in composition.rules[inner.name].positional):
            return False
        varies = inner.type == CONSTANT or inner.type in RANDOM
        if varies and any(_form(layout) is not None for layout in interface.results):
            return False
    return op.type == LOOP or not any(composition.alike(k, config) for k in range(len(composition.body.outputs)))


def _body_per_micro_batch(op: Operator, config: Config, n: int) -> Body:
    """Return the body of a composite operator at the shapes of a micro-batch."""
    composition = Composition(op)
    body = composition.body
    layouts = {tensor.name: composition.input_layout(tensor, config) for tensor in body.inputs}
    inner = {part.name: composition.inner(part, config) for part in body.operators}
    for part in body.operators:
        layouts.update(zip((tensor.name for tensor in part.outputs), inner[part.name][1].results, strict=True))
    forms = {name: form for name, layout in layouts.items() if (form := _form(layout)) is not None}
    sources = {body.graph.producers[tensor.name].name for tensor in body.inputs}
    operators = {}
    for part in body.graph.operators.values():
        if part.name in inner:
            operators[part.name] = _per_micro_batch(part, *inner[part.name], forms, n)
        elif part.name in sources:
            operators[part.name] = replace(part, outputs=tuple(_cut(tensor, forms, n) for tensor in part.outputs))
    inputs, outputs = (tuple(_cut(tensor, forms, n) for tensor in tensors) for tensors in (body.inputs, body.outputs))
    return Body(replace(body.graph, operators=operators), inputs, outputs)


def _cut(tensor: Tensor, forms: Mapping[str, int], n: int) -> Tensor:
    """Return a tensor at its shape in a micro-batch."""
    dimension = forms.get(tensor.name, SUM)
    if dimension == SUM:
        return tensor
    shape = [extent // n if i == dimension else extent for i, extent in enumerate(tensor.shape)]
    return replace(tensor, shape=tuple(shape))


def _form(layout: Layout) -> int | None:
    if layout.partial:
        return SUM
    return next((dimension for dimension, axes in enumerate(layout.splits) if axes), None)


def _per_micro_batch(op: Operator, config: Config, interface: Interface, forms: Mapping[str, int], n: int) -> Operator:
    """Return an operator at the shapes of a micro-batch; a split constant's value is that of its first elements."""
    statics = static_values(op, interface, 0)
    attrs = dict(op.attrs)
    if op.type == CONSTANT and op.result.name in forms:
        dimension = forms[op.result.name]
        statics[0] = np.take(op.statics[0], np.arange(op.result.shape[dimension] // n), dimension)
    elif op.type in RANDOM and op.result.name in forms:
        statics[0] = np.asarray(_cut(op.result, forms, n).shape, np.asarray(op.statics[0]).dtype)
    elif op.type == "Mean" and any(config.degree(f"d{dimension}") > 1 for dimension in reduced_dimensions(op)):
        attrs[N_MICRO_BATCHES] = n
    elif op.type in COMPOSITES:
        attrs[BODY] = _body_per_micro_batch(op, config, n)
    inputs = tuple(tensor and _cut(tensor, forms, n) for tensor in op.inputs)
    outputs = tuple(_cut(tensor, forms, n) for tensor in op.outputs)
    return replace(op, inputs=inputs, outputs=outputs, statics=statics, attrs=attrs)
