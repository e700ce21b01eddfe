"""The errors of an unreachable database, and their description."""

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

_REFUSALS = ("42501", "25006")  # no privilege, a transaction that only reads

#: Seconds until the next attempt to reach the database.
RETRY_SECONDS = 0.2


def describe_database_error(error: BaseException) -> str:
    """One line of the database's message, without statements or passwords."""
    original = driver_error(error)
    lines = str(original).strip().splitlines()
    return lines[0] if lines else type(original).__name__


def is_outage(error: BaseException) -> bool:
    """Whether the database does not answer, rather than refuses a value that it was given."""
    return not isinstance(_cause(error), (sa.exc.DataError, sa.exc.ProgrammingError))


def error_code(error: BaseException) -> str | None:
    """PostgreSQL's code of an error, from either driver."""
    cause = driver_error(error)
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)


def is_refusal(error: BaseException) -> bool:
    """Whether the account lacks a right, so that the same statement fails again."""
    return error_code(error) in _REFUSALS


def driver_error(error: BaseException) -> BaseException:
    """The exception of the database's driver, if there is one."""
    cause = _cause(error)
    return getattr(cause, "orig", None) or cause


def _cause(error: BaseException) -> BaseException:
    """The error of SQLAlchemy that Optuna has wrapped in its own."""
    while isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    return error
