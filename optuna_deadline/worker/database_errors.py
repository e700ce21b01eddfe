"""The errors that mean that the database cannot be reached, and how to describe them."""

from __future__ import annotations

import sqlalchemy as sa
from optuna.exceptions import StorageInternalError

#: Raised by SQLAlchemy, and by Optuna around it, when the database does not answer.
DATABASE_ERRORS = (
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    sa.exc.InternalError,
    sa.exc.TimeoutError,
    StorageInternalError,
)

#: Seconds until a database that could not be reached is tried again.
RETRY_SECONDS = 0.2


def describe_database_error(error: BaseException) -> str:
    """One line of what the database said, without statements or passwords."""
    original = driver_error(error)
    lines = str(original).strip().splitlines()
    return lines[0] if lines else type(original).__name__


def driver_error(error: BaseException) -> BaseException:
    """What the database's driver raised, where there is such a thing."""
    while isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    return getattr(error, "orig", None) or error
