"""Define what each resharding saves for the backward pass: its :data:`.Table`, by the residual policies of both ends."""

from __future__ import annotations

from ...costs.resharding_costs import ResidualCharge
from .edge_costs import Table

_NOTHING = ResidualCharge.NOTHING
_OF_REMATERIALIZED = (
    _NOTHING,
    ResidualCharge.FROM_REMATERIALIZED,
    ResidualCharge.VIEW_OF_REMATERIALIZED,
    ResidualCharge.FROM_REMATERIALIZED,
    ResidualCharge.FROM_REMATERIALIZED,
)


def direct(charge: ResidualCharge) -> Table:
    """Return the Table of a single consumer's copy of a produced tensor; rows SAVED, REMATERIALIZED, UNCHARGED."""
    return (_NOTHING, *(charge,) * 4), _OF_REMATERIALIZED, (_NOTHING, *(ResidualCharge.COPY_OF_SAVED,) * 4)


def direct_regathered(charge: ResidualCharge) -> Table:
    """Return the Table of a single consumer's copy that is regathered; where it can't be (FIXED), it is saved."""
    of_saved = ResidualCharge.REGATHERED_OF_SAVED
    policies = ResidualCharge.REGATHERED if charge == ResidualCharge.COPY else of_saved, of_saved, of_saved
    return tuple(
        (unread, regathered, fixed_charge, regathered, regathered)
        for (unread, _, fixed_charge, *_), regathered in zip(direct(charge), policies, strict=True)
    )


def to_shared(copy_charge: ResidualCharge, charge: ResidualCharge, can_be_regathered: bool) -> Table:
    """Return the Table of a shared copy of a produced tensor.

    Rows are the tensor's policies SAVED and REMATERIALIZED; columns the shared copy's policies SAVED, REMATERIALIZED,
    UNCHARGED (unread) and REGATHERED.
    """
    regathered = ResidualCharge.REGATHERED if charge == ResidualCharge.COPY else ResidualCharge.REGATHERED_OF_SAVED
    return (
        (copy_charge, ResidualCharge.FORBIDDEN, _NOTHING, regathered),
        (
            _NOTHING if copy_charge == _NOTHING else ResidualCharge.COPY_OF_REMATERIALIZED,
            ResidualCharge.REGATHERED_OF_SAVED if can_be_regathered else ResidualCharge.LOCAL_OF_REMATERIALIZED,
            _NOTHING if copy_charge == _NOTHING else ResidualCharge.UNREAD_OF_REMATERIALIZED,
            ResidualCharge.FORBIDDEN,
        ),
    )


def of_shared(consumer_charge: ResidualCharge) -> Table:
    """Return the Table of a consumer's copy of a shared copy; rows are the shared copy's policies, in the same order."""
    unread_row = _NOTHING, *(ResidualCharge.FROM_SHARED_UNREAD,) * 4
    return (_NOTHING, *(consumer_charge,) * 4), _OF_REMATERIALIZED, unread_row, _OF_REMATERIALIZED
