"""Check a batch against the plan, before a step takes it."""

from __future__ import annotations

import keras

from ...common.errors import InputError
from ...common.source_lines import running_line
from ..batch import Batch
from ..capture.objective import that_takes_labels
from ..capture.signature import Signature
from .fit_progress import FitProgress


def check_size(batch: Batch, progress: FitProgress, batch_size: int) -> None:
    """Check the size of a batch of ``fit`` against the plan's.

    Only the last batch of an epoch may be smaller, so at most one of an epoch's first two batches.

    Raises:
        InputError: the batch is larger than planned, or both of the epoch's first two batches are smaller.
    """
    n = batch.n_samples
    n_before, progress.before = progress.before, n
    is_second_small = progress.step == 1 and n_before is not None and max(n_before, n) < batch_size
    if n > batch_size or is_second_small:
        raise InputError(
            f"the data ({running_line()}) has batches of {n} samples, expected {batch_size}, for which the plan was made; "
            f"batch it by {batch_size}, over all ranks, or parallelize with batch_size={n}"
        )


def check_labels(batch: Batch, signature: Signature, model: keras.Model) -> None:
    """Check that a batch to train on or to evaluate has labels if the plan was made with some, and none otherwise.

    Labels without use are left out, but what a step of the model's own makes of them isn't known.

    Raises:
        InputError: it has none, or some that the model's own step would be given.
    """
    if signature.labels is not None and not batch.labels:
        raise InputError(f"batches ({running_line()}) have no y, for which the plan was made; give (x, y)")
    hook = that_takes_labels(model, None)
    if batch.drops_labels and hook:
        raise InputError(
            f"batches ({running_line()}) have y, without which the plan was made, and {hook} of model '{model.name}' may "
            "use it; give x alone, or show such a batch by data=(x, y) of parallelize"
        )
