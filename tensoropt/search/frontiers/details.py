"""Collect what a report needs beside a plan: its step, its decisions, and the user's operators."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Graph
from .decisions import decisions, user_source
from .model_frontier import ModelFrontier
from .step_views import step_view


def details_of_stage(frontier: ModelFrontier, point: int) -> dict[str, Any]:
    """Return the details of a stage with a point of its frontier, for a report of that alone."""
    return {"views": {"0": view_of(frontier, point)}, **of_operators(frontier.model.graph.full_batch)}


def view_of(frontier: ModelFrontier, point: int) -> dict[str, Any]:
    """Return the step of a point and its decisions."""
    return {**step_view(frontier, point), "decisions": decisions(frontier, point)}


def of_operators(graph: Graph) -> dict[str, Any]:
    """Return the user's lines, and the shapes of results, by operator."""
    ops = [op for op in graph.operators.values() if op.updates is None]
    return {
        "sources": {op.name: user_source(op) for op in ops if user_source(op)},
        "shapes": {op.name: list(op.result.shape) for op in ops if op.outputs},
    }
