"""A training step as a program of buffers, and the most memory that is alive at once on the device with the largest pieces.

Equation (1) of the TensorOpt paper adds up what operators keep, so that a search can add, too. What is alive at once is less
(a gradient goes when it has been used; what was kept goes while the backward pass runs) and more (gradients on their way,
results that nobody keeps, what collectives receive). Here the step is replayed as a rank runs it that computes one
operator at a time: forward in program order, reshardings where the lowering makes them, backward in the order in which
TensorFlow comes to operators and reshardings (:mod:`tensoropt.program.backward_order`), updates as soon as they can be
(:mod:`tensoropt.lowering.schedule`). A batch that is taken in slices is replayed slice by slice: what is made without it is
resharded once, gradients are added up where it was resharded, and go back from there after the last slice. The slices
between the first and the last are alike, so that one of them is replayed.
"""

from __future__ import annotations

from ...costs.operator_costs import OperatorCosting
from ...ir.gradient_info import Backward
from ...ir.graph import CONSTANT, PLACEHOLDER, SOURCES
from ...sharding.resharding import Router
from ...sharding.strategy import StrategyView
from ..liveness import Instruction, Peak, peak_of_program
from .backward import Gradients
from .forward import Forward
from .gradient_flow import Places
from .program import GRADIENTS, INPUTS, STATE, StepProgram

MOST_SLICES = 3
"""The first slice, one that stands for those between, which are alike, and the last."""

__all__ = ["GRADIENTS", "INPUTS", "STATE", "peak_of", "program_of"]


def peak_of(view: StrategyView, backward: Backward, costing: OperatorCosting, router: Router) -> Peak:
    """The peak of one step of all training steps.

    Args:
        view: a strategy on its graph; operators that it has no config for aren't run.
        costing: knows what composite operators keep inside.
        router: finds the path of each resharding.
    """
    return peak_of_program(program_of(view, backward, costing, router))


def program_of(view: StrategyView, backward: Backward, costing: OperatorCosting, router: Router) -> list[Instruction]:
    """The step of which :func:`peak_of` is the peak."""
    graph = view.graph
    program, places = StepProgram(view, costing, router), Places(view, router)
    forward = Forward(program, places)
    gradients = Gradients(program, places, forward, backward)
    operators = [op for op in graph.step_operators if (op.updates or op.name) in view.interfaces]
    if graph.slicing is not None:
        # What comes after all slices, metrics and their updates, finds their memory free.
        operators = [op for op in operators if op.name not in graph.slicing.after]
    for op in operators:
        if op.type in SOURCES:
            forward.source(op)
        elif op.updates is not None:
            forward.write(op, graph.operators[op.updates].result)
        elif graph.n_runs(op.result.name) == 1:
            forward.run(op)
    if graph.n_slices == 1:
        gradients.run()
    else:
        in_slices = [op for op in operators if op.updates is None and graph.n_runs(op.result.name) > 1]
        for index in range(min(graph.n_slices, MOST_SLICES)):
            forward.begin_slice(in_slices)
            if index == 1:
                gradients.stand_for(graph.n_slices - MOST_SLICES)
            for op in in_slices:
                if op.type == PLACEHOLDER:
                    forward.slice_of_source(op)
                elif op.type != CONSTANT:
                    forward.run(op)
            gradients.run()
        gradients.after_slices()
    gradients.finish()
    return program.finished()
