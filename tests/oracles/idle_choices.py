"""Drop what a strategy says is made again though no task of the backward pass reads it.

A random strategy, or a plan that was written by hand, may say of a copy that it is regathered, or of an operator that it is
rematerialized, where nothing in the backward pass asks for what that makes. The step doesn't do it, but the additive costs
charge for it, and an operator that would be rematerialized has its operands saved or regathered. Without these choices a
strategy trains the same, takes no longer and needs no more memory, and its costs are the sums of its program's tasks.
"""

from __future__ import annotations

from dataclasses import replace

from tensoropt.program.step import step_program
from tensoropt.program.tasks import COMPUTE, REMATERIALIZED, RESHARD, SHARED
from tensoropt.sharding.resharding import PathFinder
from tensoropt.sharding.strategy import Copy, StrategyView


def without_idle_choices(view: StrategyView, path_finder: PathFinder) -> StrategyView:
    """Return the view of the same strategy without idle choices.

    What is dropped may have been the only reader of something else that is made again, so that goes as well.
    """
    while True:
        strategy, used = view.strategy, _made_again(view, path_finder)
        kept = replace(strategy, regathered=strategy.regathered & used[0], rematerialized=strategy.rematerialized & used[1])
        if kept.regathered == strategy.regathered and kept.rematerialized == strategy.rematerialized:
            return view
        view = replace(view, strategy=kept)


def _made_again(view: StrategyView, path_finder: PathFinder) -> tuple[frozenset[Copy], frozenset[str]]:
    """Return the copies that a step regathers, and the names of the operators that it rematerializes."""
    tasks = [task for task in step_program(view, path_finder).tasks if task.direction == REMATERIALIZED]
    copies = set()
    for site in (task.site for task in tasks if task.work == RESHARD):
        if site.kind == SHARED:
            copies.add(Copy(site.name))
        else:
            tensor = view.graph.operators[site.name].inputs[site.position]
            assert tensor is not None, "an operand that is resharded is a tensor"
            copies.add(Copy(tensor.name, site.name))
    return frozenset(copies), frozenset(task.site.name for task in tasks if task.work == COMPUTE)
