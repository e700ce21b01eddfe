"""The errors of an unreachable database, and their description."""

from __future__ import annotations

import logging
import re

import sqlalchemy as sa
from optuna.exceptions import StorageInternalError

#: Raised by SQLAlchemy, and by Optuna around it, when the database does not answer.
DATABASE_ERRORS = (
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    sa.exc.InternalError,
    sa.exc.TimeoutError,
    sa.exc.PendingRollbackError,
    StorageInternalError,
)

_NO_PRIVILEGE = "42501"

#: What a server or a pooler that answers may say, in lower case and without quoted names, and what
#: helps. By words, since a connection that was refused has no code.
_ADVICE = {
    r"too many (clients|connections)|connection slots|no more connections|query_wait_timeout": (
        "run fewer workers, or let the server take more connections (max_connections, the "
        "account's CONNECTION LIMIT, or the pooler's limits)"
    ),
    r"support ssl|ssl required|certificate|ssl error: (?!unexpected eof)|gss"
    r"|^(?!.*ssl encryption).*no encryption": (
        "let sslmode, sslrootcert, sslcert and sslkey in the URL fit the server, as in "
        "?sslmode=require"
    ),
    r"lock timeout": (
        "another client keeps it locked; find that client in pg_stat_activity, and end it with "
        "pg_terminate_backend"
    ),
    r"idle-in-transaction": (
        "this process, or its machine, stood still in the middle of a transaction; the work is "
        "done again, and less load helps"
    ),
    # A late time-out may name a user's request.
    r"(?<!idle-in-)(statement|transaction)[ _]timeout|canceling statement due to user request": (
        "a statement took longer than 5 s, or than the server allows this account; see to the "
        "load of the server"
    ),
    r"(idle|idle-session)[ _]timeout|query_timeout": (
        "a time-out of the server or the pooler ended it; raise it for this account, as in "
        "ALTER ROLE name SET idle_session_timeout = 0"
    ),
    r"password|authentication|role .* does not exist|pg_hba|not permitted|permission denied": (
        "check the user and the password in the URL or in PGPASSFILE, and that the server lets "
        "them in"
    ),
    r"database .*does not exist|no such database": (
        "create the database with createdb, or check its name in the URL"
    ),
    r"starting up|shutting down|recovery mode|not yet accepting": "wait for the server to start",
    r"disk is full|no space left|could not extend": "free space on the database's disk",
    r"the file .* was deleted": "put the file back",
    r"read-only transaction|readonly database": (
        "it takes no writes; connect to the primary, or let it write again "
        "(default_transaction_read_only)"
    ),
}

#: What a server or a pooler that is there says of a connection that the next one may not meet.
_PASSES = re.compile(
    r"too many (clients|connections)|connection slots|no more connections|query_wait_timeout"
    r"|starting up|shutting down|recovery mode|not yet accepting|terminating connection"
    r"|closed (the connection )?unexpectedly|connection reset|unexpected eof|lock timeout"
    r"|database is locked|read-only transaction|disk is full|no space left|could not extend"
)

#: Seconds until the next attempt to reach the database.
RETRY_SECONDS = 0.2


def leave_outages_to_workers() -> None:
    """Drop Optuna's warning of a lost connection, which has the whole statement in it."""
    logging.getLogger("optuna.storages._rdb.storage").addFilter(_is_no_outage)


def _is_no_outage(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Caught an error from sqlalchemy")


def describe_database_error(error: BaseException) -> str:
    """One line of the database's message, without statements or passwords."""
    original = driver_error(error)
    if isinstance(original, sa.exc.InvalidRequestError):  # of a session whose connection is gone
        return "the connection was ended in the middle of a transaction"
    lines = str(original).strip().splitlines()
    if not lines:
        return type(original).__name__
    table = _locked_table(lines) if "lock timeout" in lines[0] else None
    return lines[0] if table is None else f"{lines[0]} on {table}"


def _locked_table(lines: list[str]) -> str | None:
    """What a statement waited for: a row of a relation, or the table that a caret points to."""
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if found := re.search(r'relation "(\w+)"', line):
            return found[1]
        if line.startswith("LINE ") and below.strip() == "^":
            return next(iter(re.findall(r"\w+", line[below.index("^") :])), None)
    return None


def advice_for(error: BaseException) -> str | None:
    """What helps if the server or its pooler answers, but refuses or ends the connection."""
    message = re.sub(r'"[^"]*"', "", str(driver_error(error)).lower())
    found = (advice for words, advice in _ADVICE.items() if re.search(words, message, re.DOTALL))
    return next(found, None)


def may_pass(error: BaseException) -> bool:
    """Whether the database is there, and has only ended or refused this connection."""
    return _PASSES.search(str(driver_error(error)).lower()) is not None


def is_outage(error: BaseException) -> bool:
    """Whether the database does not answer, rather than refuses a value that it was given."""
    return not isinstance(_cause(error), (sa.exc.DataError, sa.exc.ProgrammingError))


def error_code(error: BaseException) -> str | None:
    """PostgreSQL's code of an error, from either driver."""
    cause = driver_error(error)
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)


def is_refusal(error: BaseException) -> bool:
    """Whether the account lacks a right, so that the same statement fails again."""
    return error_code(error) == _NO_PRIVILEGE


def driver_error(error: BaseException) -> BaseException:
    """The exception of the database's driver, if there is one."""
    cause = _cause(error)
    return getattr(cause, "orig", None) or cause


def _cause(error: BaseException) -> BaseException:
    """The error of SQLAlchemy that Optuna has wrapped in its own."""
    while isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    return error
