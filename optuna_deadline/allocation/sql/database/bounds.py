"""How long a transaction may last: a client frozen inside one must block nobody for long.

The limits travel as ``SET LOCAL`` with the statement that reads the time, in each transaction.
Start-up options would do on a direct connection, but pgbouncer refuses them; a ``SET`` at connect
time would stick to whichever server connection pgbouncer happened to use.
"""

from __future__ import annotations

import sqlalchemy as sa

from optuna_deadline.allocation.sql.database.clock import database_now

#: A frozen client's session ends after this long; whoever waits for its rows goes on then.
FROZEN = 0.8  # seconds
#: Longer than ``FROZEN``: waiting for a client that has just frozen is no error.
_LOCK = 2.0
_STATEMENT = 5.0
#: For a client that is slow rather than frozen.
_TRANSACTION = 10.0
_QUEUE = 60.0
_SINCE_17 = (17,)


def begin_bounded(
    connection: sa.Connection, *, statement: float = _STATEMENT, idle: float | None = None
) -> float:
    """Set the limits of the transaction that begins, and read the database's time.

    Args:
        connection: In a transaction that has done nothing yet.
        statement: Seconds for each statement; migrations need more.
        idle: Seconds between two statements, likewise; None for ``FROZEN``.
    """
    if connection.dialect.name != "postgresql":
        return float(connection.execute(sa.select(database_now())).scalar_one())
    limits = {
        "lock_timeout": _LOCK,
        "statement_timeout": statement,
        "idle_in_transaction_session_timeout": FROZEN if idle is None else idle,
    }
    version = connection.dialect.server_version_info
    if version and version >= _SINCE_17:
        limits["transaction_timeout"] = max(_TRANSACTION, 2 * statement)
    query = sa.select(database_now(), *(_limit(name, value) for name, value in limits.items()))
    return float(connection.execute(query).one()[0])


def wait_in_line(connection: sa.Connection) -> None:
    """Let this transaction wait for a long queue; a frozen client still ends after ``FROZEN``."""
    names = ["lock_timeout", "statement_timeout"]
    version = connection.dialect.server_version_info
    if version and version >= _SINCE_17:
        names.append("transaction_timeout")
    connection.execute(sa.select(*(_limit(name, _QUEUE) for name in names)))


def _limit(name: str, seconds: float) -> sa.ColumnElement[str]:
    return sa.func.set_config(name, f"{seconds * 1000:.0f}ms", True)
