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
    original = origin(error)
    lines = str(original).strip().splitlines()
    return lines[0] if lines else type(original).__name__


def origin(error: BaseException) -> BaseException:
    """What the database's driver raised, where there is such a thing."""
    while isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    return getattr(error, "orig", None) or error
