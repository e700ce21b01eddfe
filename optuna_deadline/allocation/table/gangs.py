"""Gangs over several workers: their parts, their rendezvous, and the release of their slots.

Each slot is held by the worker that offers it. Only that worker renews and releases it, because
only there the exit of the last rank is known.
"""

from __future__ import annotations

from typing import Any

from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.columns import content
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.records import GangMembership, GangPart, Grant, Rendezvous
from optuna_deadline.allocation.table.base import OF_SEGMENT, OWNED
from optuna_deadline.allocation.table.leases import Leases

#: The slots of a part with their fences, and its devices.
PAIRS, _TEXTS = content(schema.part.c.slots), content(schema.part.c.devices)


class Gangs(Leases):
    """The parts of members, and grants that are lost or released in parts."""

    def memberships(self, worker_id: str) -> list[GangMembership]:
        """The parts that a worker gives to gangs, and those of the gangs that it was granted.

        A part exists until it is released or one of its slots is reaped. No rank may be forked for
        it before the rendezvous is known and its worker has renewed its slots.
        """
        with self._alone() as tx:
            rows = tx.rows(
                "SELECT a.number, t.trial_id, a.fence, a.leader, a.size, a.worker, a.first, "
                "a.slots, a.devices, t.owner = a.leader AND t.fence = a.fence, m.address, m.port, "
                "m.link, m.key, m.resume FROM @part a JOIN @trial t ON t.study_id = a.study_id "
                "AND t.number = a.number LEFT JOIN @meeting m ON m.study_id = a.study_id AND "
                "m.number = a.number AND m.fence = a.fence WHERE a.study_id = :study AND "
                "(a.worker = :me OR a.leader = :me) ORDER BY a.number, a.fence, a.first",
                me=worker_id,
            )
        return [
            GangMembership(*[
                *row[:5],
                GangPart(row[5], row[6], PAIRS(row[7]), _TEXTS(row[8])),
                bool(row[9]),
                None if row[10] is None else Rendezvous(*row[10:]),
            ])
            for row in rows
        ]  # fmt: skip

    def cancel_grant(self, worker_id: str, number: int, fence: int) -> bool:
        """Release a grant whose answer was lost.

        The caller must run no rank under that fence. The trial is paused; its failures stay. Slots
        of members are freed too, unless the rendezvous was published: before that, no rank is
        forked.

        Returns:
            False if the worker does not own the trial under this fence; then nothing changes.
        """
        mine: dict[str, Any] = {"me": worker_id, "number": number, "fence": fence}
        with self._tx() as tx:
            owned = tx.row(
                f"SELECT trial_id, value, failures FROM @trial WHERE {OWNED} FOR UPDATE", **mine
            )
            if owned is None:
                return False
            held = tx.rows(
                "SELECT id, fence, device FROM @slot WHERE holder = :me AND study_id = :study AND "
                "number = :number ORDER BY id",
                **mine,
            )
            if tx.row(f"SELECT 1 FROM @meeting WHERE {OF_SEGMENT}", **mine) is None:
                for (name,) in tx.rows(f"SELECT worker FROM @part WHERE {OF_SEGMENT}", **mine):
                    self._release_part(tx, name, number, fence)
            trial_id, value, failures = owned
            slots = tuple((row[0], row[1]) for row in held)
            grant = Grant(number, trial_id, fence, slots, tuple(row[2] for row in held))
            return self._release(tx, worker_id, grant, "paused", "disowned", value, None, failures)

    def publish_rendezvous(self, worker_id: str, grant: Grant, rendezvous: Rendezvous) -> None:
        """Publish where the ranks of a gang meet; repeating it changes nothing.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """
        with self._tx("meet") as tx:
            self._guard(tx, worker_id, grant)
            if tx.run(
                "INSERT INTO @meeting (study_id, number, fence, address, port, link, key, resume) "
                "VALUES (:study, :number, :fence, :address, :port, :link_port, :key, "
                ":resume_location) ON CONFLICT DO NOTHING",
                number=grant.number, fence=grant.fence, **vars(rendezvous),
            ):  # fmt: skip
                tx.notify([part.worker for part in grant.others])

    def release_part(self, worker_id: str, number: int, fence: int) -> bool:
        """Free the slots of a part after its last rank has exited.

        Returns:
            False if this worker gives no part to that segment, and so for a repeated call.
        """
        with self._tx("give_back") as tx:
            freed = self._release_part(tx, worker_id, number, fence)
            if freed is not None:
                self._wake_successors(tx, number, freed)
            return freed is not None

    def _release_part(self, tx: Transaction, me: str, number: int, fence: int) -> list[int] | None:
        """Free a part's slots; returns those that were not reaped before. None without a part."""
        mine = {"me": me, "number": number, "fence": fence}
        part = f"@part WHERE {OF_SEGMENT} AND worker = :me"
        slots = tx.value(f"SELECT slots FROM {part}", **mine)
        if slots is None:
            return None
        freed = self._free(tx, me, number, PAIRS(slots))
        tx.run(f"DELETE FROM {part}", **mine)  # after the slots, as the reaper does
        return freed
