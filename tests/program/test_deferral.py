"""What of a backward pass an earlier stage waits for runs first, and all else once, in the order that it had."""

from __future__ import annotations

from tensoropt.ir.graph import Operator
from tensoropt.program.deferral import divided, has_separate_gradients
from tensoropt.program.tasks import (
    AGAIN,
    BACKWARD,
    COMPUTE,
    GRADIENT,
    OPERAND,
    OPERATOR,
    REMATERIALIZED,
    RESHARD,
    RESULT,
    Site,
    Task,
    Value,
)

OPERATORS = {name: Operator(name, type_, (), ()) for name, type_ in (("last", "MatMul"), ("loop", "Loop"), ("table", "Mul"))}


def gradient(kind: str, name: str, position: int = -1) -> Value:
    return Value(Site(kind, name, position), GRADIENT)


def gradient_of(name: str, writes: tuple[int, ...], *reads: Value) -> Task:
    """The gradient of an operator, with respect to some of its operands."""
    made = tuple(gradient(OPERAND, name, position) for position in writes)
    return Task(COMPUTE, BACKWARD, Site(OPERATOR, name), reads, made, ((0, gradient(RESULT, name)),))


def test_a_product_is_divided_and_a_loop_is_not() -> None:
    again = Value(Site(RESULT, "loop"), AGAIN)
    made_again = Task(COMPUTE, REMATERIALIZED, Site(OPERATOR, "loop"), (), (again,), after=(gradient(RESULT, "last"),))
    last = gradient_of("last", (0, 1), again)
    sent_on = Task(RESHARD, BACKWARD, Site(OPERAND, "last", 0), (gradient(OPERAND, "last", 0),), (gradient(RESULT, "loop"),))
    weights, of_weights = Site(OPERAND, "last", 1), (gradient(OPERAND, "last", 1),)
    summed = Task(RESHARD, BACKWARD, weights, of_weights, (gradient(RESULT, "weights"),))
    loop, table = gradient_of("loop", (0, 1)), gradient_of("table", (0,))
    tasks = [made_again, last, sent_on, summed, loop, table]
    ahead, deferred = divided(tasks, {gradient(OPERAND, "loop", 0)}, {}, OPERATORS)
    assert ahead == [made_again, gradient_of("last", (0,), again), sent_on, loop]
    assert deferred == [gradient_of("last", (1,), again), summed, table]
    assert divided(tasks, (), {}, OPERATORS) == ([], tasks)


def test_what_is_read_by_another_name_is_needed() -> None:
    again, operand = Value(Site(RESULT, "loop"), AGAIN), Value(Site(OPERAND, "last", 0), AGAIN)
    made_again = Task(COMPUTE, REMATERIALIZED, Site(OPERATOR, "loop"), (), (again,))
    last = gradient_of("last", (1,), operand)
    assert divided([made_again, last], last.writes, {operand: again}, OPERATORS) == ([made_again, last], [])
    assert divided([made_again, last], last.writes, {}, OPERATORS) == ([last], [made_again])


def test_gradients_that_one_operator_computes_are_not_separate() -> None:
    assert [has_separate_gradients(op) for op in OPERATORS.values()] == [True, False, True]
    assert not has_separate_gradients(Operator("norm", "FusedBatchNormV3", (), ()))
