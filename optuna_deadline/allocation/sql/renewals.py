"""Renew: a worker keeps its own lease and those of its slots, by holder and fence alone.

All workers do it all the time, so on PostgreSQL it is one statement, which is a transaction of its
own: nobody can freeze inside it, and it waits only for transactions that are bounded themselves.
SQLite writes two, having no ``WITH`` for writes; there a round trip costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.records import Renewal
from optuna_deadline.allocation.sql.database.clock import database_now
from optuna_deadline.allocation.sql.database.schema import offer, slot, worker
from optuna_deadline.allocation.sql.database.transaction import Transaction

Held = Collection[tuple[int, int]]

_ME = sa.bindparam("me", type_=sa.String())
_LEASE: sa.BindParameter[float] = sa.bindparam("lease", type_=sa.Double())
_HELD: sa.BindParameter[Any] = sa.bindparam("held", expanding=True)


def _worker(lease: sa.ColumnElement[float]) -> Any:
    offers = sa.select(sa.func.count()).where(offer.c.worker == _ME).scalar_subquery()
    return (
        sa.update(worker)
        .where(worker.c.id == _ME)
        .values(lease=lease, state="live")
        .returning(offers.label("offers"))
    )


def _slots(lease: sa.ColumnElement[float]) -> Any:
    return (
        sa.update(slot)
        .where(slot.c.holder == _ME, sa.tuple_(slot.c.id, slot.c.fence).in_(_HELD))
        .values(lease=lease)
        .returning(slot.c.id, slot.c.fence)
    )


def _at_once(now: sa.ColumnElement[float]) -> Any:
    lease = now + sa.bindparam("ttl", type_=sa.Double())
    start = sa.select(now.label("now")).subquery("start")
    mine, kept = _worker(lease).cte("mine"), _slots(lease).cte("kept")
    joined = start.outerjoin(mine, sa.true()).outerjoin(kept, sa.true())
    return sa.select(start.c.now, mine.c.offers, kept.c.id, kept.c.fence).select_from(joined)


#: Built once: to build them anew would take longer than the server needs.
_TWO = _worker(_LEASE), _slots(_LEASE)
_BY_DATABASE = _at_once(database_now())
_BY_TEST = _at_once(sa.bindparam("now", type_=sa.Double()))


def renew(tx: Transaction, me: str, held: Held, ttl: float) -> Renewal:
    """Renew in a transaction."""
    own, slots = _TWO
    given = {"me": me, "lease": tx.now + ttl}
    found = tx.connection.execute(own, given).first()
    kept = tx.connection.execute(slots, {**given, "held": list(held)}) if held else ()
    return Renewal(
        now=tx.now,
        kept=frozenset((row.id, row.fence) for row in kept),
        offers=found.offers if found else None,
    )


def renew_at_once(
    connection: sa.Connection, me: str, held: Held, ttl: float, now: float | None = None
) -> Renewal:
    """Renew by a single statement.

    Args:
        connection: In AUTOCOMMIT, to a database that writes in ``WITH``.
        me: The worker.
        held: Its slots, each with its fence.
        ttl: Seconds that the leases are to live.
        now: The time, where a test drives it.
    """
    given = {"me": me, "ttl": ttl, "held": list(held)}
    if now is None:
        rows = connection.execute(_BY_DATABASE, given).all()
    else:
        rows = connection.execute(_BY_TEST, {**given, "now": now}).all()
    return Renewal(
        now=rows[0].now,
        kept=frozenset((row.id, row.fence) for row in rows if row.id is not None),
        offers=rows[0].offers,
    )
