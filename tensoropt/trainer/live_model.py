"""A Keras model with the variables, layers and attributes of the user's model, and what can't be done by way of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras

from ..common.errors import InputError
from ..common.source_lines import running_line
from ..runtime.ranks import current_processes
from .callbacks import DECISIONS
from .capture.objective import KerasObjective
from .deferred import Deferred

logger = logging.getLogger("tensoropt")
# The methods of keras.Model that would change what was captured, or run Keras's own steps, and what to call instead.
_INSTEAD = {
    "trainer.export_to(model), {name} on the model, and parallelize the model again": "compile quantize add_loss add_metric "
    "add_weight add_variable build_from_config compile_from_config stateless_call",
    "trainer.get_weights() or trainer.set_weights(values)": "load_own_variables save_own_variables get_state_tree "
    "set_state_tree",
    "trainer.train_on_batch, test_on_batch or predict_on_batch": "train_step test_step predict_step",
}
_REFUSED = {name: advice for advice, names in _INSTEAD.items() for name in names.split()}
# The attributes that say how Keras makes steps, which are captured already.
_FIXED = frozenset("trainable dtype_policy run_eagerly jit_compile steps_per_execution loss loss_weights".split())
# The attributes that Keras's loops and callbacks set on a model, beside those that a callback decides by.
_SET_BY_LOOPS = frozenset({"history", "train_function", "test_function", "predict_function", *DECISIONS})


class LiveModel(KerasObjective):
    """A Keras model with the variables and layers of the user's model.

    Attributes:
        is_live: whether the model is captured.
        deferred: the capture that waits for the first batch; None otherwise.
        trains_planned_size: whether batches have the plan's size unless told otherwise, instead of Keras's 32.
    """

    is_live = False
    deferred: Deferred | None = None
    trains_planned_size = True
    _trained_before: Sequence[int] = ()
    _told: tuple[str, ...] = ()

    def go_live(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Refuse changes to what was captured from now on."""
        self._optimizer = optimizer
        self._trained_before = tuple(id(variable) for variable in self.trained)
        self.is_live = True

    def call(self, *args: Any, **kwargs: Any) -> Any:
        self._check_readable()
        return super().call(*args, **kwargs)

    def shown_to(self, callback: keras.callbacks.Callback) -> keras.Model:
        return self

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the user's model that Keras's models don't have, as callbacks take it of ``self.model``."""
        model = self.__dict__.get("inner")
        if model is None or name.startswith("_"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        self._check_readable()
        return getattr(model, name)

    def _check_readable(self) -> None:
        if self.deferred is not None:
            self.deferred.check_readable()

    @property
    def _is_parallelized(self) -> bool:
        return self.is_live or self.deferred is not None

    @property
    def layers(self) -> list[keras.Layer]:
        self._check_readable()
        return list(self.inner.layers)

    # What was captured can't change

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if name in _REFUSED and self._is_parallelized:
            return partial(_refuse, self.inner.name, name)
        return attribute

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and self._is_parallelized and getattr(self, name, None) != value:
            raise _captured(self.inner.name, f"{name} of the trainer can't be set")
        if self._is_users(name):
            setattr(self.inner, name, value)
            if self.is_live and current_processes().rank == 0 and name not in self._told:
                self._told = (*self._told, name)
                logger.warning(
                    "%s of model '%s' is set at %s, after its training step was captured, which goes on with the value from "
                    "before; make it a variable, by add_weight or as a tf.Variable, and assign to that",
                    name,
                    self.inner.name,
                    running_line(),
                )
            return
        super().__setattr__(name, value)

    def _is_users(self, name: str) -> bool:
        """Return whether an attribute is one of the user's model that Keras's models and trainers don't have."""
        if name.startswith("_") or not self._is_parallelized or name in self.__dict__ or hasattr(type(self), name):
            return False
        return name not in _SET_BY_LOOPS and hasattr(self.inner, name)

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> Any:
        """Refuse TensorFlow's checkpoints and SavedModels, which would hold the values from before the training."""
        if self._is_parallelized:
            raise InputError(
                f"the trainer of model '{self.inner.name}' can't be used by tf.train.Checkpoint or tf.saved_model "
                f"({running_line()}): its values are sharded over the ranks; call trainer.save(path), trainer.load(path), "
                "in a callback self.model.save(path), or trainer.export_to(model) ahead of writing the model"
            )
        return super()._trackable_children(save_type, **options)

    @property
    def optimizer(self) -> Any:
        """The optimizer, with the learning rate and the number of updates as they are on the ranks."""
        return self.__dict__.get("_optimizer")

    @optimizer.setter
    def optimizer(self, value: Any) -> None:
        if self._is_parallelized:
            raise _captured(self.inner.name, "another optimizer can't be set", "; its learning rate can")
        self._optimizer = value

    def check_trained(self) -> None:
        """Check that the trainable variables are those that were captured; raise InputError if others are trainable now."""
        trained_ids = {id(variable) for variable in self.trained}
        if not self.is_live or trained_ids == set(self._trained_before):
            return
        for variable in self.inner.variables:
            is_trained, was_trained = id(variable) in trained_ids, id(variable) in self._trained_before
            if is_trained != was_trained:
                change = "isn't trainable any more" if was_trained else "is trainable now"
                raise _captured(self.inner.name, f"'{variable.path}' {change}, which doesn't change the plan that runs")
        raise _captured(self.inner.name, "the model has other trainable variables")


def _refuse(model: str, name: str, *arguments: Any, **keywords: Any) -> None:
    raise InputError(
        f"{name} can't be called on the trainer of model '{model}' ({running_line()}): what runs was captured, "
        f"and has its values on the ranks; call {_REFUSED[name].format(name=name)}"
    )


def _captured(name: str, subject: str, but: str = "") -> InputError:
    return InputError(
        f"{subject} ({running_line()}){but}: what runs was captured from model '{name}' by parallelize; call "
        "trainer.export_to(model), which gives the model the trained values, and tensoropt.parallelize for the new wish"
    )
