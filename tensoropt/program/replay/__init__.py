"""Write the training step as a program on buffers and compute its peak memory on the device with the largest shards.

Equation (1) of the TensorOpt paper sums the memory of all residuals, because a search needs costs that add up. The bytes
that are alive at once are fewer (a gradient is freed once it has been used, and residuals are freed while the backward pass
runs) and also more (gradients under way, results that aren't residuals, the buffers that collectives receive into). This
package replays the step as a rank that computes one operator at a time runs it: the forward pass in program order,
reshardings where the lowering makes them, the backward pass in the order in which TensorFlow visits operators and
reshardings (:mod:`tensoropt.program.backward_order`), and updates as soon as they can run
(:mod:`tensoropt.lowering.schedule`).

A step with micro-batches is replayed one micro-batch after the other. Tensors that don't depend on the batch are resharded
once. Their gradients are accumulated at the resharded copy, and flow back from there after the last micro-batch. The
micro-batches between the first and the last are alike, so only one of them is replayed.
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
from .gradient_flow import GradientFlow
from .program import GRADIENTS, INPUTS, STATE, StepProgram

MOST_REPLAYED = 3
"""The most micro-batches that are replayed: the first, the last, and one that stands for all between, which are alike."""

__all__ = ["GRADIENTS", "INPUTS", "STATE", "peak_of", "program_of"]


def peak_of(view: StrategyView, backward: Backward, costing: OperatorCosting, router: Router) -> Peak:
    """Return the peak memory of one run of all training steps, or of the whole graph if it has none.

    Args:
        view: a strategy on its graph; operators without a config aren't run.
        backward: the operands that get a gradient, and the residuals.
        costing: says what composite operators save inside for the backward pass.
        router: finds the path of each resharding.
    """
    return peak_of_program(program_of(view, backward, costing, router))


def program_of(view: StrategyView, backward: Backward, costing: OperatorCosting, router: Router) -> list[Instruction]:
    """Return the program of one run of all training steps; its peak is :func:`peak_of`, with the same arguments."""
    graph = view.graph
    program, gradient_flow = StepProgram(view, costing, router), GradientFlow(view, router)
    forward = Forward(program, gradient_flow)
    gradients = Gradients(program, gradient_flow, forward, backward)
    needed = graph.step_operators if graph.train_steps else graph.operators.values()
    operators = [op for op in needed if (op.updates or op.name) in view.interfaces]
    if graph.micro_batching is not None:
        # Metrics and their updates run after all micro-batches, when the memory of these is free again.
        operators = [op for op in operators if op.name not in graph.micro_batching.after]
    for op in operators:
        if op.type in SOURCES:
            forward.source(op)
        elif op.updates is not None:
            forward.write(op, graph.operators[op.updates].result)
        elif graph.n_runs(op.result.name) == 1:
            forward.run(op)
    if graph.n_micro_batches == 1:
        gradients.run()
    else:
        in_micro_batches = [op for op in operators if op.updates is None and graph.n_runs(op.result.name) > 1]
        for index in range(min(graph.n_micro_batches, MOST_REPLAYED)):
            forward.begin_micro_batch(in_micro_batches)
            if index == 1:
                gradients.stand_for(graph.n_micro_batches - MOST_REPLAYED)
            for op in in_micro_batches:
                if op.type == PLACEHOLDER:
                    forward.micro_batch_of_source(op)
                elif op.type != CONSTANT:
                    forward.run(op)
            gradients.run()
        gradients.after_micro_batches()
    gradients.finish()
    return program.finished()
