"""The brute-force validator of rules: an operator split by a config against the whole operator.

Every config of a case is emitted into one graph on all ranks of a mesh. Operands start in random layouts, partial ones
included, and are resharded as the config shardings; results are resharded in whole. A random W is the gradient with which
each floating-point result starts, as if the loss were ``sum(op(x...) * W)``. Held against TensorFlow's own operator on whole
operands are

- each result's pieces: their shapes are the predicted ones, replicas are equal to the bit, and put together they are the
  result;
- each result as every rank gets it in whole;
- each operand's gradient, on every rank the piece that belongs to the operand's first layout.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from unittest import mock

import numpy as np
import tensorflow as tf
from oracles.layouts import all_layouts
from oracles.shards import gather, scatter

from tensoropt.ir.graph import Operator, Tensor
from tensoropt.lowering import operators
from tensoropt.lowering.localise import uniform_shape
from tensoropt.lowering.operators import Job, Values, emit
from tensoropt.lowering.pull_back import Created, Emitted, Inner, Pullback
from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.lowering.resharding.reshard import Resharder
from tensoropt.reschedule.layout import Axes, Layout
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Config, Interface, OperandSharding, Rule, interface_of
from tensoropt.sharding.local_shapes import shard_slices
from tensoropt.sharding.resharding import PathFinder, ReshardingPaths, inner_reshardings, resharding_of

from .case import Case

ChooseInterface = Callable[[Rule, Config], Interface]


class _Costs:
    def time_ns(self, kind: str, mesh: Mesh, axes: Axes, n_bytes: int) -> int:
        return 1000 + n_bytes if kind != "local" else 1 + n_bytes // 100


PATH_FINDER = PathFinder(_Costs())


@dataclass(frozen=True)
class Truth:
    """The whole operator on one device: results, weights of the loss, and gradients (None where none comes back)."""

    results: list[np.ndarray]
    weights: list[np.ndarray | None]
    gradients: list[np.ndarray | None]


@dataclass
class _Emitted:
    """The tensors of one config in the graph."""

    config: Config
    layouts: list[Layout]
    fed: list[Values]
    interface: Interface
    operator: Emitted | None = None
    results: list[Values] = field(default_factory=list)
    whole: list[Values] = field(default_factory=list)
    gradients: list[Values | None] = field(default_factory=list)
    to_operands: list[ReshardingPaths] = field(default_factory=list)
    from_results: list[ReshardingPaths] = field(default_factory=list)


@contextmanager
def channels_first() -> Iterator[None]:
    """TensorFlow has kernels for channels first on GPUs only: here they stand between transpositions."""
    whole = operators.raw_operator

    def transposing(op: Operator, inputs: Sequence[object]) -> list[tf.Tensor]:
        if op.attrs.get("data_format") != "NCHW" or op.type not in _CHANNELS_LAST_ONLY:
            return whole(op, inputs)
        attrs = dict(op.attrs, data_format="NHWC")
        for name in ("strides", "dilations", "ksize"):
            if name in attrs:
                attrs[name] = [attrs[name][i] for i in (0, 2, 3, 1)]
        image, *others = op.inputs
        assert image is not None
        # By its shape the lowering tells a convolution in groups, which it has XLA compile.
        last_image = replace(image, shape=tuple(image.shape[i] for i in (0, 2, 3, 1)))
        last = replace(op, inputs=(last_image, *others), attrs=attrs)
        (result,) = whole(last, [tf.transpose(inputs[0], [0, 2, 3, 1]), *inputs[1:]])
        return [tf.transpose(result, [0, 3, 1, 2])]

    with mock.patch.object(operators, "raw_operator", transposing):
        yield


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Looking for garbage among a growing graph takes a sixth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_CHANNELS_LAST_ONLY = ("Conv2D", "DepthwiseConv2dNative", "MaxPool", "AvgPool")


def session() -> tf.compat.v1.Session:
    """Runs the graph as it was built: each graph runs once, optimizing it would take longer."""
    settings = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    settings.graph_options.rewrite_options.disable_meta_optimizer = True
    settings.graph_options.optimizer_options.opt_level = -1
    return tf.compat.v1.Session(config=settings)


@lru_cache(maxsize=1)
def truth_of(case: Case) -> Truth:
    """Run TensorFlow's own operator on the whole operands."""
    op, rng = case.op, np.random.default_rng(case.seed + 1)
    with tf.Graph().as_default(), channels_first():
        operands = [tf.compat.v1.placeholder(value.dtype, value.shape) for value in case.values]
        remaining = iter(operands)
        inputs = [op.statics[i] if tensor is None else next(remaining) for i, tensor in enumerate(op.inputs)]
        results = operators.raw_operator(op, inputs)
        weights = [_weight(tensor, rng) for tensor in op.outputs]
        ends = [(result, weight) for result, weight in zip(results, weights, strict=True) if weight is not None]
        gradients: Sequence[tf.Tensor | None] = [None] * len(operands)
        if ends and case.differentiable:
            gradients = tf.gradients([result for result, _ in ends], operands, [weight for _, weight in ends])
        gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        with session() as running:
            fetched = running.run(
                (results, [g for g in gradients if g is not None]), dict(zip(operands, case.values, strict=True))
            )
    values, found = fetched[0], iter(fetched[1])
    return Truth(list(values), weights, [None if g is None else next(found) for g in gradients])


def _weight(tensor: Tensor, rng: np.random.Generator) -> np.ndarray | None:
    if not tensor.is_float:
        return None
    weight = rng.normal(size=tensor.shape)
    if tensor.dtype.startswith("complex"):
        weight = weight + 1j * rng.normal(size=tensor.shape)
    return np.asarray(weight).astype(tensor.dtype)


def validate(
    case: Case,
    mesh: Mesh,
    configs: Sequence[Config],
    rule: Rule | None = None,
    choose_interface: ChooseInterface = interface_of,
) -> list[str]:
    """All that is wrong with these configs of a case, one line each; empty if nothing is."""
    rule = rule or rule_of(case.op)
    truth = truth_of(case)
    with tf.Graph().as_default(), channels_first(), _without_collecting():
        building = _Building(case, mesh, rule, truth)
        emitted = [building.emit(config, choose_interface(rule, config)) for config in configs]
        building.differentiate(emitted)
        with session() as running:
            flat = [tensor for item in emitted for tensor in _flat(item)]
            values = iter(running.run(flat, building.feed) if flat else [])
    lines = []
    for item in emitted:
        lines += [f"{case} on {mesh}, config {item.config}: {what}" for what in _wrong(case, truth, item, values)]
    return lines


class _Building:
    """Puts configs into one graph; all that a single one of them doesn't know."""

    def __init__(self, case: Case, mesh: Mesh, rule: Rule, truth: Truth) -> None:
        self.case, self.mesh, self.rule, self.truth = case, mesh, rule, truth
        self.resharder = Resharder(EmulatedBackend(mesh))
        self.random = random.Random(f"{case.seed} {mesh}")
        self.rng = np.random.default_rng(case.seed + 2)
        self.feed: dict[tf.Tensor, np.ndarray] = {}
        self.weights = [None if weight is None else tf.constant(weight) for weight in truth.weights]
        self.tensors = [tensor for _, tensor in case.op.operands]
        self.positions = [position for position, _ in case.op.operands]
        self.source_layouts = [all_layouts(mesh, tensor.shape, partial=tensor.is_float) for tensor in self.tensors]

    def _source_layout(self, i: int, interface: Interface) -> Layout:
        """Any layout. Where the config asks for summands the operand comes in summands: if they were only made on the way,
        all but one would be zeros, and an operator that is zero at zero would pass for a linear one."""
        sharding = interface.operands[self.positions[i]]
        assert sharding is not None
        summed = set(sharding.layout.partial)
        return self.random.choice([layout for layout in self.source_layouts[i] if summed <= set(layout.partial)])

    def emit(self, config: Config, interface: Interface) -> _Emitted:
        case, op = self.case, self.case.op
        layouts = [self._source_layout(i, interface) for i in range(len(self.tensors))]
        fed = [self._fed(*pair) for pair in zip(self.tensors, layouts, case.values, strict=True)]
        item = _Emitted(config, layouts, fed, interface)
        operands = [self._operand(i, item) for i in range(len(fed))]
        with_gradient = zip(self.positions, self.truth.gradients, strict=True)
        differentiated = {position for position, gradient in with_gradient if gradient is not None}
        inner = inner_reshardings(op, self.rule, config, [differentiated])

        graph = tf.compat.v1.get_default_graph()
        item.operator = Emitted(dict(zip(self.positions, operands, strict=True)))
        parts, start = item.operator.parts, graph.version

        def complete(k: int, values: Values) -> Values:
            nonlocal start
            paths = PATH_FINDER.paths(inner[k])
            parts.append(Created(start, graph.version))
            results = self.resharder.reshard(inner[k], paths, values, op.name)
            parts.append(Inner(values, results, None if paths.backward is None else partial(self._send_back, paths)))
            start = graph.version
            return results

        job = Job(op, self.rule, config, interface, self.resharder.backend.ranks, complete)
        item.results = item.operator.results = emit(job, operands)
        parts.append(Created(start, graph.version))
        results = zip(op.outputs, interface.results, item.results, self.truth.weights, strict=True)
        for tensor, layout, values, weight in results:
            whole = Layout.replicated(self.mesh, len(tensor.shape))
            sharding = OperandSharding(whole, None if weight is None else ())
            item.whole.append(self._reshard(tensor, layout, sharding, values, item.from_results))
        return item

    def _fed(self, tensor: Tensor, layout: Layout, value: np.ndarray) -> Values:
        made = []
        for shard in _shards(value, layout, self.rng):
            made.append(tf.compat.v1.placeholder(tensor.dtype, uniform_shape(layout, tensor.shape)))
            self.feed[made[-1]] = shard
        return made

    def _operand(self, i: int, item: _Emitted) -> Values:
        sharding = item.interface.operands[self.positions[i]]
        assert sharding is not None
        if self.truth.gradients[i] is None:
            sharding = OperandSharding(sharding.layout, None)
        return self._reshard(self.tensors[i], item.layouts[i], sharding, item.fed[i], item.to_operands)

    def _reshard(
        self, tensor: Tensor, layout: Layout, sharding: OperandSharding, values: Values, found: list[ReshardingPaths]
    ) -> Values:
        resharding = resharding_of(tensor, layout, sharding)
        found.append(PATH_FINDER.paths(resharding))
        return self.resharder.reshard(resharding, found[-1], values, self.case.label)

    def _send_back(self, paths: ReshardingPaths, gradients: Values) -> Values:
        assert paths.backward is not None
        return self.resharder.run(paths.backward, gradients, self.case.label)

    def differentiate(self, emitted: list[_Emitted]) -> None:
        """Emit the gradients of all configs' operands, as a step's backward pass does."""
        wanted = [i for i, gradient in enumerate(self.truth.gradients) if gradient is not None]
        operators = tf.compat.v1.get_default_graph().get_operations()
        for item in emitted:
            item.gradients = [None] * len(item.fed)
            assert item.operator is not None
            given = [
                (k, self._send_back(paths, [weight for _ in values]))
                for k, (paths, values, weight) in enumerate(zip(item.from_results, item.whole, self.weights, strict=True))
                if weight is not None and paths.backward is not None
            ]
            if not wanted or not given:
                continue
            found = Pullback(item.operator, operators, {}).run(given, [self.positions[i] for i in wanted])
            for i, gradients in zip(wanted, found, strict=True):
                if gradients is not None and item.to_operands[i].backward is not None:
                    item.gradients[i] = self._send_back(item.to_operands[i], gradients)


def _shards(value: np.ndarray, layout: Layout, rng: np.random.Generator) -> list[np.ndarray]:
    if np.isfinite(value).all() or not layout.partial:
        return scatter(value, layout, rng)
    # What isn't finite has no summands: whole at coordinate 0, zeros elsewhere.
    kept = [layout.mesh.index_along(layout.partial, rank) == 0 for rank in range(layout.mesh.n_devices)]
    shards = scatter(value, layout.with_partial(()), rng)
    return [shard if keeps else np.zeros_like(shard) for shard, keeps in zip(shards, kept, strict=True)]


def _flat(item: _Emitted) -> list[tf.Tensor]:
    groups = [*item.results, *item.whole, *(group for group in item.gradients if group is not None)]
    return [tensor for group in groups for tensor in group]


def _wrong(case: Case, truth: Truth, item: _Emitted, values: Iterator[np.ndarray]) -> Iterator[str]:
    """Yield the faults of one config; takes its values off the front of ``values``."""
    n_ranks, outputs = item.config.mesh.n_devices, case.op.outputs

    def taken() -> list[np.ndarray]:
        return [np.asarray(next(values)) for _ in range(n_ranks)]

    local, whole = [taken() for _ in outputs], [taken() for _ in outputs]
    gradients = [None if group is None else taken() for group in item.gradients]
    for k, (tensor, layout) in enumerate(zip(outputs, item.interface.results, strict=True)):
        try:
            together = gather(local[k], layout, tensor.shape)
        except ValueError as error:
            yield f"result {k}: {error}"
        else:
            yield from _differs(f"result {k} in {layout}", together, truth.results[k], case.tolerance)
        for rank, value in enumerate(whole[k]):
            yield from _differs(f"result {k} in whole on rank {rank}", value, truth.results[k], case.tolerance)
    for i, (layout, expected) in enumerate(zip(item.layouts, truth.gradients, strict=True)):
        if expected is None:
            continue
        found = gradients[i]
        if found is None:
            yield f"operand {i} from {layout}: no gradient comes back, one device has one"
            continue
        for rank, value in enumerate(found):
            shard = expected[shard_slices(layout, expected.shape, rank)]
            what = f"gradient of operand {i} from {layout} on rank {rank}"
            yield from _differs(what, value, shard, case.tolerance, _size(expected))


def _size(array: np.ndarray) -> float:
    finite = np.abs(array[np.isfinite(array)]) if array.size else array
    return max(1.0, float(finite.max())) if finite.size else 1.0


def _differs(
    what: str, value: np.ndarray, expected: np.ndarray, tolerance: float, size: float | None = None
) -> Iterator[str]:
    if value.shape != expected.shape or value.dtype != expected.dtype:
        yield f"{what}: {value.dtype}{list(value.shape)}, expected {expected.dtype}{list(expected.shape)}"
    elif not np.issubdtype(value.dtype, np.inexact):
        if not np.array_equal(value, expected):
            yield f"{what}: {value.tolist()}, expected {expected.tolist()}"
    elif not np.allclose(value, expected, rtol=0, atol=tolerance * (size or _size(expected)), equal_nan=True):
        yield f"{what}: {np.array2string(value, precision=6)}, expected {np.array2string(expected, precision=6)}"
