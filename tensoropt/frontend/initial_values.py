"""Compute the initial values of variables from their recorded initializers, the same on every rank.

Values are computed variable by variable, so that a model that is larger than one machine can start. Only variables whose
initial values come from the same random numbers are computed together: each run draws new numbers.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..common.reach import reached
from ..common.source_lines import source_line


class FirstValues:
    """The initial values of variables: each is given once, by the variable's name.

    A second object gives the same values again.
    """

    def __init__(self, recorded: tf.Graph) -> None:
        self._session = tf.compat.v1.Session(graph=recorded)
        self._initial: dict[str, tf.Tensor] = {}
        for variable in recorded.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES):
            if isinstance(variable, tf.Variable) and hasattr(variable, "handle"):
                self._initial[variable.handle.op.name] = variable.initializer.inputs[1]
        self._random = {name: _random_sources(value) for name, value in self._initial.items()}
        self._computed: dict[str, np.ndarray] = {}

    def __call__(self, variable: str) -> np.ndarray:
        """Return a variable's initial value, as a global array; raise InputError if none is known before the model runs."""
        if variable not in self._initial:
            raise InputError(f"variable '{variable}' has no initial value; make it with tensoropt.get_variable")
        if variable not in self._computed:
            random = self._random[variable]
            together = [name for name in self._initial if name == variable or not random.isdisjoint(self._random[name])]
            try:
                values = self._session.run([self._initial[name] for name in together])
            except tf.errors.OpError as error:
                where = source_line(self._initial[variable].op)
                raise InputError(
                    f"the initial value of variable '{variable}' ({where}) can't be computed before the model runs: it may "
                    "read a variable or a placeholder; expected constants, random numbers, or other variables' initial_value"
                ) from error
            self._computed.update(zip(together, map(np.asarray, values), strict=True))
        return self._computed.pop(variable)


def _random_sources(value: tf.Tensor) -> set[str]:
    """Return the names of the operators behind a value that give another result each time they run."""
    behind = reached([value.op], lambda op: [tensor.op for tensor in op.inputs])
    return {op.name for op in behind if op.op_def.is_stateful}
