"""NOTIFY: says that there is something to read, never what. PostgreSQL only, and only for speed.

Sent where somebody else may act on it: a plan, a release, a reap, the end of the study. Never by a
renewal or a report: each notifying commit takes a lock on the whole server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import sqlalchemy as sa

from optuna_deadline.allocation.sql.database.transaction import Transaction

_MOST = 8  #: workers that are named one by one; with more of them everybody looks


def channel(pool_name: str, worker: str | None = None) -> str:
    """Where a worker hears what concerns it, or, without one, what concerns everybody in a pool.

    A channel each, so that a notice needs no words and wakes nobody else. Any name makes a valid
    one.
    """
    named = pool_name if worker is None else f"{pool_name}\0{worker}"
    return f"optuna_deadline_{hashlib.blake2s(named.encode(), digest_size=12).hexdigest()}"


def notify(tx: Transaction, workers: Iterable[str | None] | None = None) -> None:
    """Wake listeners of the pool when this transaction commits.

    Args:
        tx: The transaction.
        workers: Those that it concerns, none of which may be left; without them, all of the pool.
    """
    if tx.connection.dialect.name != "postgresql":
        return
    named = sorted({worker for worker in workers or () if worker is not None})
    if workers is not None and not named:
        return
    everybody = not 0 < len(named) <= _MOST
    channels = [channel(tx.pool, worker) for worker in ([None] if everybody else named)]
    tx.execute(sa.select(*[sa.func.pg_notify(name, "") for name in channels]))
