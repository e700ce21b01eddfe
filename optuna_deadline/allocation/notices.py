"""NOTIFY: says that there is something to read, never what. PostgreSQL only, and only for speed.

Sent where somebody else may act on it: a plan, a release, a reap, the end of the study. Never by a
renewal or a report: each notifying commit takes a lock on the whole server.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from optuna_deadline.allocation.schema import pool
from optuna_deadline.allocation.transaction import Transaction

CHANNEL = "optuna_deadline"
_EVERYBODY = "*"
_MOST = 4  # workers named in a notice; with more of them everybody looks


def notify(tx: Transaction, workers: Iterable[str | None] = ()) -> None:
    """Wake listeners of the pool when this transaction commits: "POOL EPOCH WHOM".

    Args:
        tx: The transaction.
        workers: Those whom it concerns; everybody where none is named. With hundreds of workers
            it is the others' useless looks that make a hand-over slow.
    """
    if tx.connection.dialect.name != "postgresql":
        return
    named = sorted({_short(worker) for worker in workers if worker is not None})
    whom = ",".join(named) if 0 < len(named) <= _MOST else _EVERYBODY
    payload = pool.c.name + " " + sa.cast(pool.c.epoch, sa.String) + sa.literal(f" {whom}")
    tx.execute(sa.select(sa.func.pg_notify(CHANNEL, payload)).where(pool.c.name == tx.pool))


def concerns(payload: str, pool_name: str, worker: str) -> bool:
    """Whether a notice is for this worker of this pool."""
    rest, _, whom = payload.rpartition(" ")
    mine = whom == _EVERYBODY or _short(worker) in whom.split(",")
    return mine and rest.rpartition(" ")[0] == pool_name


def _short(worker: str) -> str:
    return worker.replace(",", "").replace(" ", "")[:13]
