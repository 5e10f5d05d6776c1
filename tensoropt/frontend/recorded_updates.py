"""Find out of recorded gradients and updates which updates minimise a loss, with nothing in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import tensorflow as tf

from .recorded_graph import RecordedGradients, RecordedStep
from .tracing.loops import behind_identities


def minimised(step: RecordedStep, all_gradients: Sequence[RecordedGradients]) -> RecordedStep:
    """Return a step with what it updates by: a loss, if it takes that one's gradients as they are, or tensors.

    Args:
        step: the step, whose assignments say what it updates by.
        all_gradients: those of the graph.
    """
    tensors = tuple(behind_identities(op.inputs[1]) for op in step.assigns)
    assigns = {op.name for op in step.assigns}
    for gradients in all_gradients:
        names = {tensor.name for tensor in gradients.results}
        users = {op.name for tensor in gradients.results for op in _users(tensor)}
        if all(tensor.name in names for tensor in tensors) and users == assigns:
            return replace(step, loss=gradients.loss)
    return replace(step, gradients=tensors)


def computed_with(gradients: Sequence[RecordedGradients], steps: Sequence[RecordedStep]) -> tuple[RecordedGradients, ...]:
    """Return the gradients that the graph computes with, or that a step was given among others."""
    used = {tensor.name for step in steps for tensor in step.gradients}
    assigns = {op.name for step in steps for op in step.assigns}
    return tuple(
        of_loss
        for of_loss in gradients
        if any(tensor.name in used or any(op.name not in assigns for op in _users(tensor)) for tensor in of_loss.results)
    )


def _users(tensor: tf.Tensor) -> Iterator[tf.Operation]:
    """Return the operators that use a tensor, also behind identities."""
    for op in tensor.consumers():
        if op.type == "Identity":
            yield from _users(op.outputs[0])
        else:
            yield op
