"""Any Keras optimizer as the optimizer of a training step, as a value."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from ..common.errors import InputError, short
from ..ir.optimizer import ParameterUpdate
from .copies import KerasBase, Parameter, as_text, inner_of, slots_of
from .elementwise_updates import MULTI_OPTIMIZERS, fault_of, is_taken_over, mixing_of, starts_from_values

if TYPE_CHECKING:
    from ..ir.graph import Tensor

logger = logging.getLogger("tensoropt")
_ELEMENTWISE_CONSTRAINTS = (keras.constraints.NonNeg,)
# Muon fails on gradients of rows, and MultiOptimizer hands parameters to other optimizers.
_DENSE = (keras.optimizers.Muon, *MULTI_OPTIMIZERS)


@dataclass(frozen=True, eq=False)
class KerasOptimizer:
    """A Keras optimizer of a training step.

    Attributes:
        source: the user's optimizer, which is never built or changed here.
        parameters: the trained variables, in the training step's order.
        slots_of_part: for each parameter, the number of its slots, where the step trains other parameters too, in other
            stages; else None.
        condition: whether the optimizer is applied: a recorded truth value; None if it always is.
    """

    source: KerasBase
    parameters: tuple[Parameter, ...]
    slots_of_part: tuple[int, ...] | None = None
    condition: Any = None

    @classmethod
    def of(cls, optimizer: KerasBase, variables: Sequence[Any]) -> KerasOptimizer:
        """Return an optimizer for the user's trained variables, which are Keras's or TensorFlow's.

        Raises:
            InputError: ``optimizer`` is no Keras optimizer, or makes random updates, or can't be made from its config, or
                needs replicated parameters although its variables start from the parameters' values; or a variable is
                trained by being overwritten, as the scales of float8 are.
        """
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise InputError(f"expected a Keras optimizer such as keras.optimizers.Adam(1e-3), got {short(optimizer)}")
        for variable in variables:
            if getattr(variable, "overwrite_with_gradient", False):
                raise InputError(
                    f"variable '{variable.path}' is overwritten by its gradient, as a layer of the policy "
                    "'float8_from_mixed_bfloat16' does with its scales, which isn't done on ranks; make the layer of the "
                    "policy 'mixed_bfloat16'"
                )
        inner = inner_of(optimizer)
        new = cls(optimizer, tuple(_parameter(inner, variable) for variable in variables))
        if any(new.is_global) and starts_from_values(optimizer):
            raise InputError(
                f"optimizer {type(inner).__name__} must see whole parameters ({new.fault or 'for their constraints'}), but "
                "its variables start from the parameters' values, of which no device has all; expected variables that start "
                "from constants"
            )
        if new.fault:
            logger.info("optimizer %s updates whole parameters on every device: %s", type(inner).__name__, new.fault)
        return new

    @property
    def inner(self) -> KerasBase:
        """Return the optimizer that updates: the inner one of a ``LossScaleOptimizer``, else the user's."""
        return inner_of(self.source)

    @property
    def scales_dynamically(self) -> bool:
        """Return whether the optimizer is a ``LossScaleOptimizer``, which adapts the loss's scale."""
        return self.inner is not self.source

    @cached_property
    def is_lamb(self) -> bool:
        """Return whether the optimizer is Keras's LAMB, which has an implementation on shards (:mod:`.global_norms`)."""
        return type(self.inner) is keras.optimizers.Lamb

    @cached_property
    def fault(self) -> str:
        """Return why the optimizer needs replicated parameters; empty if shards do."""
        return "" if self.is_lamb else fault_of(self.inner)

    @cached_property
    def is_global(self) -> tuple[bool, ...]:
        """Return, for each parameter, whether every device updates all of it.

        That may be needed by the optimizer, or by the parameter's constraint.
        """
        return tuple(
            bool(self.fault) or not (p.constraint is None or isinstance(p.constraint, _ELEMENTWISE_CONSTRAINTS))
            for p in self.parameters
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the recorded scalars that the update reads: the condition, if there is one."""
        return () if self.condition is None else (self.condition,)

    @property
    def takes_rows(self) -> bool:
        """Return whether the optimizer can take gradients of rows.

        Keras's own optimizers can, except for those whose updates fail on rows.
        """
        is_keras = type(self.inner).__module__.startswith("keras.")
        return is_keras and not isinstance(self.inner, _DENSE) and self.inner.loss_scale_factor is None

    @cached_property
    def structure(self) -> str:
        """Return, as text, all that a plan depends on: the class, its variables and its communication, not the numbers."""
        properties = f"{self._slots} {self.is_global} {self.sum_lengths} {self.takes_rows}{' if' * len(self.tensors)}"
        return f"{type(self.source).__qualname__} {properties}"

    @cached_property
    def kept(self) -> tuple[Any, ...]:
        """Return what can't change while a plan runs: variables, layouts, and in a model in stages what they sum."""
        return self._slots, self.is_global, self.takes_rows, self.sum_lengths if self.is_part else ()

    @property
    def numbers(self) -> str:
        """Return the config as JSON, with the class's name (:func:`keras_name`) for the optimizer's own."""
        both = (self.source, self.inner)
        configs = [{**each.get_config(), "name": keras_name(each), "inner_optimizer": None} for each in both]
        return json.dumps(configs, sort_keys=True, default=as_text)

    @cached_property
    def _slots(self) -> tuple[int, ...]:
        """Return, for each parameter, the number of variables of its shape that the optimizer keeps."""
        if self.slots_of_part is not None:
            return self.slots_of_part
        with tf.init_scope():
            return slots_of(self.source, self.parameters)

    def updates(self, tensors: Sequence[Tensor]) -> tuple[ParameterUpdate, ...]:
        """Return what the optimizer does with each parameter, as far as costs can see."""
        item_bytes = 8 if any(tensor.dtype == "float64" for tensor in tensors) else 4
        sums = tuple((length, item_bytes) for length in self.sum_lengths)
        return tuple(
            ParameterUpdate(slots, is_global, sums if index == 0 else (), _leaves_rows(self.source, parameter))
            for index, (slots, is_global, parameter) in enumerate(
                zip(self._slots, self.is_global, self.parameters, strict=True)
            )
        )

    @cached_property
    def sum_lengths(self) -> tuple[int, ...]:
        """Return the lengths of the vectors that are summed over all devices in each step, in order."""
        if all(self.is_global) and not self.is_part:
            return ()
        first = self.n_clipping + self.scales_dynamically
        return ((first,) if first else ()) + ((2 * len(self.parameters),) if self.is_lamb else ())

    @property
    def n_clipping(self) -> int:
        """Return the number of sums of squares that clipping needs."""
        if not is_taken_over(self.inner):
            return 0
        return len(self.parameters) if self.inner.clipnorm else 1 if self.inner.global_clipnorm else 0

    @property
    def is_part(self) -> bool:
        """Return whether the step trains other parameters too, in other stages."""
        return self.slots_of_part is not None

    @property
    def n_over_stages(self) -> int:
        """Return how many sums, the last ones of the first vector, are over the parameters of all stages.

        They are the square of the global norm and the number of elements that aren't finite.
        """
        has_global_norm = bool(self.n_clipping) and not self.inner.clipnorm
        return has_global_norm + self.scales_dynamically if self.is_part else 0

    def part(self, indices: Sequence[int]) -> KerasOptimizer:
        """Return the optimizer of some of the parameters; see :meth:`..ir.optimizer.Optimizer.part`."""
        fault = "it is applied under a condition" if self.condition is not None else mixing_of(self.inner)
        if fault:
            raise InputError(
                f"optimizer {type(self.inner).__name__} can't update the parameters of each stage by themselves: {fault}; "
                "use stages=1, or another optimizer"
            )
        if not indices:
            raise InputError(
                f"optimizer {type(self.inner).__name__} can't update the parameters of each stage, as one has none of them; "
                "use fewer stages"
            )
        slots = self._slots
        return KerasOptimizer(
            self.source, tuple(self.parameters[index] for index in indices), tuple(slots[index] for index in indices)
        )

    def imported(self, convert: Callable[[tf.Tensor], Tensor]) -> KerasOptimizer:
        return self if self.condition is None else replace(self, condition=convert(self.condition))

    def __str__(self) -> str:
        return keras_name(self.source)


def keras_name(optimizer: KerasBase) -> str:
    """Return the name that Keras gives an optimizer of this class, without the number that Keras appends.

    The number counts the optimizers of the class that the process has made.
    """
    return type(optimizer).__name__.lower()


def _parameter(optimizer: KerasBase, variable: Any) -> Parameter:
    """Return what an optimizer that is about to be copied needs to know of one of the user's variables."""
    is_keras = isinstance(variable, keras.Variable)
    if hasattr(optimizer, "_is_excluded_from_weight_decay"):
        # From Keras 3.16 on what is decayed is settled by names while an optimizer is built.
        decays = not optimizer._is_excluded_from_weight_decay(variable)
    else:
        decays = bool(optimizer._use_weight_decay(variable.value if is_keras else variable))
    path = variable.path if is_keras else variable.name.split(":")[0]
    return Parameter(path, tuple(variable.shape), decays, variable.constraint if is_keras else None)


def _leaves_rows(optimizer: KerasBase, parameter: Parameter) -> bool:
    """Return whether an update by a gradient of rows changes these rows alone, and makes nothing of the parameter's shape.

    Weight decay, averages, constraints and accumulation go through all rows.
    """
    is_by_rows = type(optimizer) is keras.optimizers.Adagrad or (
        type(optimizer) is keras.optimizers.SGD and not optimizer.momentum
    )
    decays = optimizer.weight_decay is not None and parameter.decays
    goes_through_all = decays or optimizer.use_ema or optimizer.gradient_accumulation_steps or parameter.constraint
    return is_by_rows and not goes_through_all
