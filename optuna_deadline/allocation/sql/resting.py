"""A study without a live worker rests: it pays for nothing, and the end of its money is open.

Its next planner sizes the pool anew, with what was not spent meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from optuna_deadline.allocation.sql.database.schema import study, worker
from optuna_deadline.allocation.sql.database.transaction import Transaction
from optuna_deadline.allocation.sql.roster import living


def rest(tx: Transaction, study_ids: Iterable[int]) -> None:
    """Let those of the studies rest that pay for slots and have no live worker.

    The event says since when: no lease of their workers ended later.
    """
    for study_id in sorted(set(study_ids)):
        paying = sa.select(study.c.study_id).where(
            study.c.study_id == study_id,
            study.c.settled.is_(None),
            study.c.funds_end.is_not(None),
        )
        if tx.execute(paying).first() is None:
            continue  # nearly always: who may not write the row locks it neither
        # Locked before the workers are looked at: the last two may leave at once.
        if tx.execute(paying.with_for_update(key_share=True)).first() is None:
            continue
        theirs = worker.c.study_id == study_id
        if living(tx, theirs):
            continue
        last = tx.execute(sa.select(sa.func.max(worker.c.lease)).where(theirs)).scalar()
        tx.execute(
            sa.update(study)
            .where(study.c.study_id == study_id)
            .values(pool_slots=0, funds_end=None)
        )
        since = tx.now if last is None else min(tx.now, last)
        tx.event("rest", study_id=study_id, since=since)
