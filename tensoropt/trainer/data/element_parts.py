"""Map the elements of a dataset to the tensors that programs take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from ...common.errors import InputError
from ...common.source_lines import running_line
from ..batch import Batch
from ..capture.signature import PARTS, Signature, Structure, check_dense, is_none
from ..runs import check_fits


def tensors_of(element: Structure) -> list[Any]:
    """Return an element's tensors, or its specs, in the order in which a dataset has them."""
    return [leaf for leaf in tf.nest.flatten(element) if not is_none(leaf)]


@dataclass(frozen=True, eq=False)
class ElementParts:
    """The mapping from a dataset's elements to the tensors that programs take (the taken tensors).

    Attributes:
        specs: the planned spec of each taken tensor.
        part_of: for each taken tensor, the index of its part in the element.
        places: for each taken tensor, its index among the element's tensors.
        weights: the sample weights' specs, in their structure; None without sample weights.
        n_labels: the number of taken tensors that are labels.
        drops_labels: whether elements have labels that aren't taken.
        converts: whether tensors are taken in other types, or known to be taken in other ranks, than elements have.
    """

    specs: tuple[tf.TensorSpec, ...]
    part_of: tuple[int, ...]
    places: tuple[int, ...]
    weights: Structure
    n_labels: int
    drops_labels: bool
    converts: bool

    @classmethod
    def of(cls, element: Structure, signature: Signature) -> ElementParts:
        """Match the specs of a dataset's elements with the planned ones; raise InputError if they have others."""
        parts = data_adapter_utils.unpack_x_y_sample_weight(element if isinstance(element, tuple) else (element,))
        weights = None if parts[2] is None else keras.tree.map_structure(planned_weight, parts[2])
        specs: list[tf.TensorSpec] = []
        part_of, places, converts, n_before = list[int](), list[int](), False, 0
        for index, (part, planned_part) in enumerate(zip(parts, (signature.inputs, signature.labels, weights), strict=True)):
            for leaf in tf.nest.flatten(part):
                check_dense(leaf, f"{PARTS[index]} of a batch")
            indices = [] if part is None or planned_part is None else matched(part, planned_part, PARTS[index])
            for spec, leaf in zip(tensors_of(planned_part), indices, strict=False):
                actual = tf.nest.flatten(part)[leaf]
                if actual.shape.rank is not None:
                    name = spec.name or PARTS[index]
                    check_fits(name, [None, *actual.shape[1:]], actual.dtype.name, [None, *spec.shape[1:]], spec.dtype.name)
                if PARTS[index] in signature.as_seen and actual.dtype.is_floating and not spec.dtype.is_floating:
                    raise InputError(
                        f"{PARTS[index]} of a batch ({running_line()}) has type {actual.dtype.name} where the first one had "
                        f"{spec.dtype.name}, to which it can't be converted without a loss; give all batches one type"
                    )
                specs.append(spec)
                part_of.append(index)
                places.append(n_before + len(tensors_of(tf.nest.flatten(part)[:leaf])))
                converts = converts or actual.dtype != spec.dtype or actual.shape.rank not in (None, spec.shape.rank)
            n_before += len(tensors_of(part))
        drops_labels = parts[1] is not None and signature.labels is None
        return cls(tuple(specs), tuple(part_of), tuple(places), weights, part_of.count(1), drops_labels, converts)

    @property
    def is_open(self) -> bool:
        """Return whether batches may differ in extents other than the batch, which every rank must see alike."""
        return any(None in spec.shape[1:] for spec in self.specs)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the taken tensors, in their order."""
        return tuple(spec.name or PARTS[part] for spec, part in zip(self.specs, self.part_of, strict=True))

    def converted(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return an element's taken tensors, with the planned types and, except for the batch dimension, ranks."""
        return [_converted(tensors[place], spec) for place, spec in zip(self.places, self.specs, strict=True)]

    def shapes(self, leaves: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the bytes of the tensors' shapes, as far as these are open."""
        shapes = tf.concat(list(map(tf.shape, leaves)), 0) if self.is_open else tf.zeros([2], tf.int32)
        return tf.reshape(tf.bitcast(shapes, tf.uint8), [1, -1])

    def packed(self, leaves: Sequence[tf.Tensor], n_samples: int, is_share: bool) -> Batch:
        """Return a batch of the taken tensors."""
        n_inputs = self.part_of.count(0)
        empty = Batch(n_samples, leaves[:n_inputs], leaves[n_inputs : n_inputs + self.n_labels], self.weights)
        return replace(empty.with_leaves(leaves, is_share), drops_labels=self.drops_labels)

    def batch(self, tensors: Sequence[tf.Tensor]) -> Batch:
        leaves = self.converted(tensors) if self.converts else [tensors[place] for place in self.places]
        return self.packed(leaves, int(leaves[0].shape[0]), is_share=False)


def planned_weight(spec: Any) -> tf.TensorSpec:
    """Return the spec of sample weights in the type that Keras weighs losses by."""
    return tf.TensorSpec(spec.shape, keras.backend.floatx())


def matched(actual: Structure, expected: Structure, part: str) -> list[int]:
    """Return, for each planned tensor, the index of the given one: by name if the given ones are named, else in order.

    Raises:
        InputError: a name is missing, or the number of tensors differs.
    """
    if isinstance(actual, Mapping) and all(not isinstance(value, (Mapping, list, tuple)) for value in actual.values()):
        names = [spec.name for spec in tensors_of(expected)]
        if isinstance(expected, Mapping):
            names = sorted(name for name in expected if expected[name] is not None)
        indices = {name: i for i, name in enumerate(sorted(actual))}
        missing = [name for name in names if name not in indices]
        if missing and not (len(names) == len(actual) == 1):
            got = ", ".join(map(repr, indices))
            raise InputError(f"{part} of a batch has {got}, but not {missing[0]!r}, for which the plan was made; name it so")
        return [indices.get(name, 0) for name in names]
    places = [index for index, leaf in enumerate(tf.nest.flatten(actual)) if not is_none(leaf)]
    n_planned = len(tensors_of(expected))
    if len(places) != n_planned:
        raise InputError(
            f"{part} of a batch has {len(places)} tensors, expected {n_planned}, for which the plan was made; give batches "
            "like those, or parallelize(..., data=dataset) for yours"
        )
    return places


def _converted(leaf: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    leaf = tf.cast(leaf, spec.dtype) if leaf.dtype != spec.dtype else leaf
    if leaf.shape.rank is not None:
        n_ones = spec.shape.rank - leaf.shape.rank
        for _ in range(n_ones):
            leaf = tf.expand_dims(leaf, -1)
        for _ in range(-n_ones):
            leaf = tf.squeeze(leaf, [-1])
    return leaf
