"""Frees the slots of dead workers: by clocks, or once a process has verified their end.

To reap is the only transition that compares clocks, on the late side.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from optuna_deadline.allocation.database.access import REGISTRATION
from optuna_deadline.allocation.database.text import listed
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.records import Slot
from optuna_deadline.allocation.table.gangs import PAIRS, Gangs
from optuna_deadline.allocation.table.leases import FREE
from optuna_deadline.allocation.table.reads import SLOTS

#: Of the owner of a trial.
_HOLDS_NOTHING = (
    "NOT EXISTS (SELECT 1 FROM @slot s WHERE s.holder = {0}.owner AND s.study_id = {0}.study_id "
    "AND s.number = {0}.number)"
)


class Reaping(Gangs):
    """Transitions on the rows of dead workers."""

    def reap(self) -> int:
        """Free every slot of the pool whose lease ended more than the pool's grace ago.

        This covers the pool, and this study in the pools where it was before. A trial whose owner
        holds none of its slots any more is paused, in every study of the pool, because no worker
        of the other study may be left to reap. The seconds are the pool's, not this process's. A
        lease that ends later than any new one could is from before the clock was set back.

        Rows that another client has locked are skipped: a client that is frozen inside its
        transaction must not block the reaper, and a worker that renews just now locks its row
        first and its slots next, which this transaction may hold.

        Returns:
            The number of freed slots. None while the database's clock may have been stepped: see
            :class:`~optuna_deadline.allocation.database.clock.ClockMonitor`.
        """
        with self._tx("reap") as tx:
            if self._scope.given is None and not self.database.clock.is_reliable(
                self.ttl + self.grace, self.grace / 2, self.ttl / 2
            ):
                return 0
            expired = SLOTS.all(tx.rows(
                f"SELECT {SLOTS.names} FROM @slot s JOIN @pool p ON p.name = s.pool WHERE "
                "(s.pool = :pool OR s.study_id = :study) AND s.holder IS NOT NULL AND "
                "(s.lease + p.grace < :now OR s.lease > NOW + p.ttl + :tolerance) "
                "ORDER BY s.id FOR UPDATE OF s SKIP LOCKED",
                tolerance=self.database.tolerance,
            ))  # fmt: skip
            self._free_dead(tx, expired)
            self._release_orphans(
                tx, "t.study_id IN (SELECT study_id FROM @worker WHERE pool = :pool)"
            )
            silent = tx.rows(
                "SELECT w.id, w.study_id FROM @worker w JOIN @pool p ON p.name = w.pool WHERE "
                "(w.pool = :pool OR w.study_id = :study) AND w.state = 'live' AND "
                "w.lease + p.grace < :now FOR UPDATE OF w SKIP LOCKED"
            )
            self._mark_lost(tx, silent)
            if expired:
                tx.notify()
            return len(expired)

    def reap_ended(self, names: Collection[str]) -> int:
        """Free at once, in any pool, the slots of workers that are known to have ended.

        The caller has verified that their processes and ranks are gone. They become lost, their
        trials are paused, and their elected roles end.

        Returns:
            The number of freed slots.
        """
        if not names:
            return 0
        these = {"names": listed(names)}
        with self._tx(queue=REGISTRATION) as tx:
            held = SLOTS.all(tx.rows(
                f"SELECT {SLOTS.names} FROM @slot s WHERE s.holder IN names(:names) ORDER BY s.id "
                "FOR UPDATE",
                **these,
            ))  # fmt: skip
            self._free_dead(tx, held)
            self._release_orphans(tx, "t.owner IN names(:names)", **these)
            gone = tx.rows(
                "SELECT id, study_id FROM @worker WHERE id IN names(:names) AND state = 'live'",
                **these,
            )
            self._mark_lost(tx, gone)
            self._end_roles(tx, names)
            tx.notify()
            return len(held)

    def _free_dead(self, tx: Transaction, rows: Sequence[Slot]) -> None:
        """Free slots, and delete their parts and the offers of workers that have left.

        The workers of the parts are dead, or will find out.
        """
        if not rows:
            return
        ids = listed([row.id for row in rows])
        tx.run(f"UPDATE @slot SET {FREE} WHERE id IN each(:ids)", ids=ids)
        for row in rows:
            tx.event(
                "reap", number=row.number, slot=row.id, fence=row.fence + 1, worker=row.holder,
                study_id=row.study_id, pool=row.pool,
            )  # fmt: skip
        pairs = {(row.id, row.fence) for row in rows}
        for study, number, fence, name, slots in tx.rows(
            "SELECT study_id, number, fence, worker, slots FROM @part WHERE "
            "worker IN names(:holders)",
            holders=listed({row.holder for row in rows}),
        ):
            if not pairs.isdisjoint(PAIRS(slots)):
                tx.run(
                    "DELETE FROM @part WHERE study_id = :id AND number = :number AND "
                    "fence = :fence AND worker = :name",
                    id=study, number=number, fence=fence, name=name,
                )  # fmt: skip
        tx.run(
            "DELETE FROM @offer WHERE slot_id IN each(:ids) AND worker IN "
            "(SELECT id FROM @worker WHERE state = 'left')",
            ids=ids,
        )

    def _release_orphans(self, tx: Transaction, among: str, **params: Any) -> None:
        """Pause trials whose owner holds no slot for them; they resume from a checkpoint.

        The slots are read again once the trials are locked: a trial that was granted after the
        first read has its slots by then.
        """
        found = tx.rows(
            "SELECT t.study_id, t.number, t.fence, t.owner, w.pool FROM @trial t LEFT JOIN "
            f"@worker w ON w.id = t.owner WHERE {among} AND t.state = 'running' AND "
            f"t.owner IS NOT NULL AND {_HOLDS_NOTHING.format('t')} "
            "FOR UPDATE OF t SKIP LOCKED",
            **params,
        )
        if not found:
            return
        paused = set(tx.rows(
            "UPDATE @trial SET owner = NULL, state = 'paused' FROM (SELECT "
            "CAST(value ->> 0 AS INTEGER) AS id, CAST(value ->> 1 AS INTEGER) AS trial FROM "
            "rows(:rows)) v WHERE @trial.study_id = v.id AND @trial.number = v.trial AND "
            f"{_HOLDS_NOTHING.format('@trial')} RETURNING @trial.study_id, @trial.number",
            rows=listed([row[:2] for row in found]),
        ))  # fmt: skip
        for study, number, fence, owner, pool in found:
            if (study, number) in paused:
                self._end_segment(tx, study, number, fence, "lost", None)
                tx.event(
                    "lost", number=number, fence=fence, worker=owner, study_id=study, pool=pool
                )

    def _mark_lost(self, tx: Transaction, workers: Sequence[tuple[str, int]]) -> None:
        if workers:
            names = listed([name for name, _ in workers])
            tx.run("UPDATE @worker SET state = 'lost' WHERE id IN names(:names)", names=names)
            self._stop_idle_payments(tx, [study for _, study in workers])
