"""Define what each resharding saves for the backward pass: its :data:`.Table`, by the residual policies of both ends."""

from __future__ import annotations

from ...costs.resharding_costs import Keeping
from .edge_costs import Table

_NOTHING = Keeping.NOTHING


def direct(keeping: Keeping) -> Table:
    """Return the Table of a single consumer's copy of a produced tensor; rows LEFT, REMATERIALIZED, PAID."""
    return (
        (_NOTHING, keeping, keeping, keeping, keeping),
        (_NOTHING, Keeping.FROM_AGAIN, Keeping.VIEW_OF_AGAIN, Keeping.FROM_AGAIN, Keeping.FROM_AGAIN),
        (_NOTHING, Keeping.COPY_OF_KEPT, Keeping.COPY_OF_KEPT, Keeping.COPY_OF_KEPT, Keeping.COPY_OF_KEPT),
    )


def direct_again(keeping: Keeping) -> Table:
    """Return the Table of a single consumer's copy that is regathered; where it can't be (FIXED), it is saved."""
    kept = direct(keeping)
    ways = Keeping.AGAIN if keeping == Keeping.COPY else Keeping.AGAIN_OF_KEPT, Keeping.AGAIN_OF_KEPT, Keeping.AGAIN_OF_KEPT
    return tuple(
        (unread, again, fixed, again, again) for (unread, _, fixed, *_), again in zip(kept, ways, strict=True)
    )


def to_shared(of_copy: Keeping, keeping: Keeping, may_be_remade: bool) -> Table:
    """Return the Table of a shared copy of a produced tensor.

    Rows are the tensor's policies LEFT and REMATERIALIZED; columns the shared copy's policies LEFT, REMATERIALIZED, PAID
    (unread) and REGATHERED.
    """
    again = Keeping.AGAIN if keeping == Keeping.COPY else Keeping.AGAIN_OF_KEPT
    return (
        (of_copy, Keeping.FORBIDDEN, _NOTHING, again),
        (
            _NOTHING if of_copy == _NOTHING else Keeping.KEPT_OF_AGAIN,
            Keeping.AGAIN_OF_KEPT if may_be_remade else Keeping.LOCAL_OF_AGAIN,
            _NOTHING if of_copy == _NOTHING else Keeping.UNREAD_OF_AGAIN,
            Keeping.FORBIDDEN,
        ),
    )


def of_shared(of_consumer: Keeping) -> Table:
    """Return the Table of a consumer's copy of a shared copy; rows are the shared copy's policies, in the same order."""
    of_again = (_NOTHING, Keeping.FROM_AGAIN, Keeping.VIEW_OF_AGAIN, Keeping.FROM_AGAIN, Keeping.FROM_AGAIN)
    return (
        (_NOTHING, *(of_consumer,) * 4),
        of_again,
        (_NOTHING, *(Keeping.FROM_SHARED_UNREAD,) * 4),
        of_again,
    )
