"""The database's time, and the limits that each statement has.

A client that freezes inside a transaction must not block others for long, and a statement must not
wait for long and hold back those behind it. The limits are sent with the statement that reads the
time, in each transaction. Start-up options would work on a direct connection, but pgbouncer
refuses them, and a ``SET`` at connect time would stay with whichever server connection pgbouncer
used.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from optuna_deadline.allocation.database.text import translated

#: A frozen client's session ends after this long; clients that wait for its rows continue then.
FROZEN_SECONDS = 0.8  # seconds
#: Longer than ``FROZEN_SECONDS``: waiting for a client that has just frozen is not an error.
_LOCK = 2.0
_STATEMENT = 5.0
#: For a client that is slow and not frozen.
_TRANSACTION = 10.0
_QUEUE = 60.0
_SINCE_17 = (17,)


class database_now(FunctionElement[float]):
    """Seconds since the epoch by the database's clock, read again in each statement."""

    type = sa.Double()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _sqlite_now(element: database_now, compiler: SQLCompiler, **kwargs: object) -> str:
    return translated("NOW", postgresql=False, given=False)


@compiles(database_now, "postgresql")
def _postgres_now(element: database_now, compiler: SQLCompiler, **kwargs: object) -> str:
    return translated("NOW", postgresql=True, given=False)


def of_statement() -> str:
    """The limits of a statement that is its own transaction, as columns of a SELECT."""
    return _columns({"lock_timeout": _LOCK, "statement_timeout": _STATEMENT})


def of_transaction(dialect: sa.Dialect, statement: float = _STATEMENT, idle: float = 0.0) -> str:
    """The limits of a transaction on PostgreSQL, as columns of a SELECT.

    Args:
        dialect: Of the database.
        statement: Seconds for each statement; creating the tables may take more.
        idle: Seconds between two statements; 0 for ``FROZEN_SECONDS``.
    """
    limits = {
        "lock_timeout": _LOCK,
        "statement_timeout": statement,
        "idle_in_transaction_session_timeout": idle or FROZEN_SECONDS,
    }
    if _limits_transactions(dialect):
        limits["transaction_timeout"] = max(_TRANSACTION, 2 * statement)
    return _columns(limits)


def of_queue(dialect: sa.Dialect) -> str:
    """Limits for a long queue, in which a frozen client is waited for ``FROZEN_SECONDS`` only."""
    names = ["lock_timeout", "statement_timeout"]
    names += ["transaction_timeout"] if _limits_transactions(dialect) else []
    return _columns(dict.fromkeys(names, _QUEUE))


def _limits_transactions(dialect: sa.Dialect) -> bool:
    version = dialect.server_version_info
    return bool(version and version >= _SINCE_17)


def _columns(limits: dict[str, float]) -> str:
    return ", ".join(
        [
            f"set_config('{name}', '{seconds * 1000:.0f}ms', true)"
            for name, seconds in limits.items()
        ]
    )


def begin_bounded(
    connection: sa.Connection, *, statement: float = _STATEMENT, idle: float = 0.0
) -> float:
    """Set the limits of the transaction that begins, and read the database's time.

    Args:
        connection: In a transaction without any statement so far.
        statement: As in :func:`of_transaction`.
        idle: Likewise.
    """
    if connection.dialect.name != "postgresql":
        return float(connection.execute(sa.select(database_now())).scalar_one())
    limits: sa.ColumnElement[str] = sa.literal_column(
        of_transaction(connection.dialect, statement, idle)
    )
    return float(connection.execute(sa.select(database_now(), limits)).one()[0])
