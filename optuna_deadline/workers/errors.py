"""Telling a database that is away from everything else that can go wrong."""

from __future__ import annotations

import sqlalchemy as sa
from optuna.exceptions import StorageInternalError

#: Raised by SQLAlchemy, and by Optuna around it, when the database does not answer.
DATABASE_AWAY = (
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    sa.exc.InternalError,
    sa.exc.TimeoutError,
    StorageInternalError,
)


def explain(error: BaseException) -> str:
    """One line of what the database said, without statements or passwords."""
    cause: BaseException = error
    while isinstance(cause, StorageInternalError) and cause.__cause__ is not None:
        cause = cause.__cause__
    original = getattr(cause, "orig", None) or cause
    return str(original).strip().splitlines()[0] if str(original).strip() else type(cause).__name__
