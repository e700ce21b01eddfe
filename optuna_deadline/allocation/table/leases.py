"""Slots are acquired for a gang in one transaction, or none; they are renewed and released.

A gang may span workers: the owner of the trial acquires the slots of all members, so a gang is
complete or does not exist. A release never compares clocks: a worker without its lease changes
nothing.

Rows are locked trial first, then slots by their key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from optuna_deadline.allocation.database.text import listed
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.records import GangPart, Grant, PlannedTrial, Renewal
from optuna_deadline.allocation.rules import as_planned, placement_detail
from optuna_deadline.allocation.table.base import OF_TRIAL, OWNED
from optuna_deadline.allocation.table.pool import ElectedRoles
from optuna_deadline.allocation.table.reads import TRIALS
from optuna_deadline.errors import LeaseLost

#: A slot without a holder; its fence rises with each change.
FREE = "holder = NULL, lease = NULL, number = NULL, study_id = NULL, fence = fence + 1"


class Leases(ElectedRoles):
    """The leases of slots, and the gangs that hold them."""

    def acquire(
        self,
        worker_id: str,
        number: int,
        slot_ids: Sequence[int],
        others: Mapping[str, Sequence[int]] | None = None,
    ) -> Grant | None:
        """Acquire a gang's slots, all or none, for a trial that the plan assigns to this worker.

        A gang may span workers if the plan names them. Then all its slots are acquired at once:
        each is held by the worker that offers it, and this worker owns the trial. The others'
        leases must be valid. They find their parts in :meth:`memberships` and release them
        themselves.

        The fences of the trial and of each slot rise by one. No slot and no trial ever has two
        holders, whatever the callers do. After a lost answer, a repeated call returns None, and
        :meth:`cancel_grant` releases the lost grant.

        Args:
            worker_id: The worker.
            number: The trial.
            slot_ids: Slots that this worker offers.
            others: By member, the slots that it offers.

        Returns:
            The grant. None if the plan has changed, a slot or the trial is held, a slot is not
            offered by this worker or is lent to another study, the study is settled or past its
            deadline or the end of its money, its trials would hold more slots than it pays for,
            the trial cannot train on this number, a user holds it, or the worker is drained.
        """
        others = others or {}
        asked = {worker_id: slot_ids, **others}
        with self._tx("acquire") as tx:
            found = tx.row(
                f"SELECT {TRIALS.names} FROM @trial t WHERE {OF_TRIAL} FOR UPDATE", number=number
            )
            trial = None if found is None else TRIALS.of(found)
            if trial is None or not _is_wanted(trial, worker_id, slot_ids, others):
                return None
            if not self._may_grant(tx, trial.slots):
                return None
            rows = self._lock_free(tx, asked)
            if len(rows) != trial.slots or not self._leases_run(tx, others):
                return None
            holders = {slot_id: name for name, ids in asked.items() for slot_id in ids}
            parts = _parts(rows, holders, len(slot_ids), others)
            self._begin_segment(tx, worker_id, trial, rows, holders, parts)
            mine = [row for row in rows if holders[row[0]] == worker_id]
            return Grant(
                number, trial.trial_id, trial.fence + 1,
                tuple((row[0], row[1] + 1) for row in mine), tuple(row[2] for row in mine),
                tuple(parts),
            )  # fmt: skip

    @staticmethod
    def _may_grant(tx: Transaction, more: int) -> bool:
        """Whether the study is open and pays for ``more`` slots beyond those that its trials hold.

        Without this check, the next trial would start on unpaid free slots before the last one has
        left. Slots of dead workers are not billed. The study's row is locked if it has a budget,
        because two workers may acquire at once.
        """
        query = (
            "SELECT deadline, funds_end, settled, pool_slots FROM @study WHERE study_id = :study"
        )
        row = tx.row(query)
        if row is None or row[2] is not None:
            return False
        deadline, funds_end, _, paid = row
        if tx.now >= (deadline if funds_end is None else min(deadline, funds_end)):
            return False
        if paid is None:
            return True
        most = (tx.row(f"{query} FOR NO KEY UPDATE") or row)[3]
        held = tx.value(
            "SELECT count(*) FROM @slot WHERE study_id = :study AND holder IS NOT NULL AND "
            "lease > :now"
        )
        return most is None or int(held) + more <= most

    @staticmethod
    def _lock_free(
        tx: Transaction, asked: Mapping[str, Sequence[int]]
    ) -> list[tuple[int, int, str, str]]:
        """Lock the free ones of the requested slots: (id, fence, device, host), by id."""
        rows = tx.rows(
            "SELECT s.id, s.fence, s.device, s.host, o.worker FROM @slot s JOIN @offer o ON "
            "o.slot_id = s.id JOIN @worker w ON w.id = o.worker WHERE s.id IN each(:ids) AND "
            "s.lent_to = :study AND s.holder IS NULL AND w.id IN names(:names) AND "
            "w.drained IS NULL ORDER BY s.id FOR UPDATE OF s",
            ids=listed({slot_id for ids in asked.values() for slot_id in ids}),
            names=listed(asked),
        )
        return [row[:4] for row in rows if row[0] in asked[row[4]]]

    def _leases_run(self, tx: Transaction, names: Collection[str]) -> bool:
        """Whether these workers' leases are valid: a silent worker could start no rank."""
        if not names:
            return True
        return len(self._living(tx, "w.id IN names(:names)", names=listed(names))) == len(names)

    def _begin_segment(
        self,
        tx: Transaction,
        me: str,
        trial: PlannedTrial,
        rows: Sequence[tuple[int, int, str, str]],
        holders: Mapping[int, str],
        parts: Sequence[GangPart],
    ) -> None:
        """Take the slots, own the trial, and write the members' parts and the events."""
        number, fence = trial.number, trial.fence + 1
        lease = tx.now + self.ttl
        for name in dict.fromkeys(holders[row[0]] for row in rows):
            tx.run(
                "UPDATE @slot SET holder = :name, study_id = :study, number = :number, fence = "
                "fence + 1, lease = :lease WHERE id IN each(:ids)",
                name=name, number=number, lease=lease,
                ids=listed([row[0] for row in rows if holders[row[0]] == name]),
            )  # fmt: skip
        for slot_id, before, _, _ in rows:
            tx.event(
                "acquire", number=number, slot=slot_id, fence=before + 1, worker=holders[slot_id]
            )
        tx.run(
            f"UPDATE @trial SET owner = :me, state = 'running', fence = :fence WHERE {OF_TRIAL}",
            me=me, number=number, fence=fence,
        )  # fmt: skip
        tx.run(
            "INSERT INTO @segment (study_id, number, fence, worker, slots, granted, workers) "
            "VALUES (:study, :number, :fence, :me, :size, :now, :workers)",
            me=me, number=number, fence=fence, size=len(rows),
            workers=len(parts) + 1 if parts else None,
        )  # fmt: skip
        placement = placement_detail(
            [(part.worker, part.size) for part in parts], [row[3] for row in rows]
        )
        tx.event(
            "start" if trial.state == "ready" else "resume",
            number=number, fence=fence, worker=me, slots=len(rows), reason=trial.reason,
            **placement,
        )  # fmt: skip
        for part in parts:
            tx.run(
                "INSERT INTO @part (study_id, number, fence, worker, leader, size, first, slots, "
                "devices) VALUES (:study, :number, :fence, :name, :me, :size, :first, :slots, "
                ":devices)",
                me=me, number=number, fence=fence, name=part.worker, size=len(rows),
                first=part.first_rank, slots=listed(part.slots), devices=listed(part.devices),
            )  # fmt: skip
        tx.notify([part.worker for part in parts])

    def renew(self, worker_id: str, held: Collection[tuple[int, int]]) -> Renewal:
        """Renew the worker's lease and those of its slots until now + ttl.

        A slot is renewed if this worker holds it under this fence, even after the lease's end.
        Renewals are frequent, so on PostgreSQL each is one statement: no client can freeze inside
        it. SQLite changes rows by one statement each, and a round trip costs nothing there.
        """
        params = {"me": worker_id, "ttl": self.ttl, "held": listed(held)}
        if self.database.postgresql:
            with self._alone() as tx:
                rows = tx.rows(_RENEW, **params)
            kept = frozenset((row[2], row[3]) for row in rows if row[2] is not None)
            return Renewal(rows[0][0], kept, rows[0][1])
        with self._tx() as tx:
            offers = tx.value(_RENEW_WORKER, **params, lease=tx.now + self.ttl)
            slots = tx.rows(_RENEW_SLOTS, **params, lease=tx.now + self.ttl) if held else ()
            return Renewal(tx.now, frozenset(slots), offers)

    def release(
        self,
        worker_id: str,
        grant: Grant,
        outcome: str,
        *,
        ended: str,
        value: float | None = None,
        stop: float | None = None,
        failures: int = 0,
        stays: bool = False,
    ) -> bool:
        """Release the slots after the last rank has exited, and record how the segment ended.

        Slots of members stay with them until they release them.

        If the process ``stays`` warm and the plan still has the trial paused, the plan names
        this worker: orders contain the trial until it is wanted elsewhere or ends.

        Args:
            worker_id: The worker.
            grant: The result of :meth:`acquire`.
            outcome: The trial's next state: paused, retired, failed or complete.
            ended: Why the segment ended: pause, resize, deadline, shutdown, died, error, ...
            value: The value for Optuna of a complete trial.
            stop: Seconds from the directive to the last rank's exit.
            failures: How many times the trial has died so far.
            stays: Whether its process is warm with the worker, which should resume it.

        Returns:
            False if this worker no longer owns the trial under this fence; then nothing changes,
            so a repeated call returns False.
        """
        with self._tx("release") as tx:
            return self._release(
                tx, worker_id, grant, outcome, ended, value, stop, failures, stays
            )

    def _release(
        self,
        tx: Transaction,
        me: str,
        grant: Grant,
        outcome: str,
        ended: str,
        value: float | None,
        stop: float | None,
        failures: int,
        stays: bool = False,
    ) -> bool:
        number, fence = grant.number, grant.fence
        owned = tx.run(
            "UPDATE @trial SET owner = NULL, state = :outcome, value = :value, failures = "
            # The plan may want it elsewhere by now: then the process is of no use.
            ":failures, desired_worker = CASE WHEN :stays AND desired_mode = 'pause' THEN :me "
            f"ELSE desired_worker END WHERE {OWNED}",
            me=me, number=number, fence=fence, outcome=outcome, value=value, failures=failures,
            stays=stays,
        )  # fmt: skip
        if not owned:
            return False
        freed = self._free(tx, me, number, grant.slots)
        self._end_segment(tx, self.study_id, number, fence, ended, stop)
        tx.event(outcome, number=number, fence=fence, worker=me, reason=ended)
        self._wake_successors(tx, number, freed, [part.worker for part in grant.others])
        return True

    @staticmethod
    def _free(
        tx: Transaction, me: str, number: int, slots: Collection[tuple[int, int]]
    ) -> list[int]:
        """Free slots that the worker still holds under these fences; returns them."""
        freed = sorted(tx.rows(
            f"UPDATE @slot SET {FREE} WHERE holder = :me AND (id, fence) IN pairs(:slots) "
            "RETURNING id, fence",
            me=me, slots=listed(slots),
        )) if slots else []  # fmt: skip
        for slot_id, fence in freed:
            tx.event("release", number=number, slot=slot_id, fence=fence, worker=me)
        return [slot_id for slot_id, _ in freed]

    @staticmethod
    def _wake_successors(
        tx: Transaction, number: int, freed: list[int], called: Sequence[str] = ()
    ) -> None:
        """Wake the planner, the trial's next worker, and workers of studies that get the slots."""
        if tx.postgresql:
            next_ = tx.rows(
                "SELECT planner FROM @tenant WHERE pool = :pool AND study_id = :study UNION ALL "
                f"SELECT desired_worker FROM @trial WHERE {OF_TRIAL} UNION ALL SELECT w.id FROM "
                "@worker w JOIN @offer o ON o.worker = w.id JOIN @slot s ON s.id = o.slot_id "
                "WHERE s.id IN each(:freed) AND s.lent_to <> :study AND w.study_id = s.lent_to "
                "AND w.state = 'live'",
                number=number, freed=listed(freed),
            )  # fmt: skip
            tx.notify([*called, *[name for (name,) in next_]])

    @staticmethod
    def _end_segment(
        tx: Transaction, study: int, number: int, fence: int, outcome: str, stop: float | None
    ) -> None:
        """Close the segment's row, and delete its rendezvous."""
        of = {"id": study, "number": number, "fence": fence}
        mine = "study_id = :id AND number = :number AND fence = :fence"
        workers = tx.value(
            f"UPDATE @segment SET ended = :now, outcome = :outcome, stop = :stop WHERE {mine} AND "
            "ended IS NULL RETURNING workers",
            outcome=outcome, stop=stop, **of,
        )  # fmt: skip
        if workers is not None:
            tx.run(f"DELETE FROM @meeting WHERE {mine}", **of)

    @staticmethod
    def _guard(tx: Transaction, me: str, grant: Grant) -> None:
        """Lock the trial as its owner.

        Raises:
            LeaseLost: Another worker owns the trial, or it was reaped.
        """
        mine = {"me": me, "number": grant.number, "fence": grant.fence}
        if tx.row(f"SELECT 1 FROM @trial WHERE {OWNED} FOR UPDATE", **mine) is None:
            raise lease_lost(grant)


def lease_lost(grant: Grant) -> LeaseLost:
    """The error of a worker that does not own the trial any more."""
    return LeaseLost(f"Trial {grant.number} no longer belongs to segment {grant.fence}.")


def _is_wanted(
    trial: PlannedTrial, me: str, slot_ids: Sequence[int], others: Mapping[str, Sequence[int]]
) -> bool:
    """Whether the plan assigns these slots to the trial, and no worker and no user holds it."""
    return (
        (trial.owner, trial.mode, trial.worker, trial.held) == (None, "run", me, None)
        and trial.state in ("ready", "paused")
        and trial.slots <= (trial.slot_limit or trial.slots)
        and as_planned(trial.slots, trial.others, slot_ids, others)
    )


def _parts(
    rows: Sequence[Any], holders: Mapping[int, str], first: int, others: Iterable[str]
) -> list[GangPart]:
    """Each member's part; its ranks follow those of the members before it."""
    parts = []
    for name in others:
        given = [row for row in rows if holders[row[0]] == name]
        slots = tuple((row[0], row[1] + 1) for row in given)
        parts.append(GangPart(name, first, slots, tuple(row[2] for row in given)))
        first += len(given)
    return parts


_LEASE = "(SELECT now FROM moment) + :ttl"
_RENEW_WORKER = (
    "UPDATE @worker SET lease = :lease, state = 'live' WHERE id = :me RETURNING "
    "(SELECT count(*) FROM @offer WHERE worker = :me)"
)
_RENEW_SLOTS = (
    "UPDATE @slot SET lease = :lease WHERE holder = :me AND (id, fence) IN pairs(:held) "
    "RETURNING id, fence"
)
_RENEW = (
    "WITH moment AS (SELECT CAST(NOW AS DOUBLE PRECISION) AS now), "
    f"mine AS ({_RENEW_WORKER.replace(':lease', _LEASE)} AS offers), "
    f"kept AS ({_RENEW_SLOTS.replace(':lease', _LEASE)}) "
    "SELECT moment.now, mine.offers, kept.id, kept.fence FROM moment LEFT JOIN mine ON true "
    "LEFT JOIN kept ON true"
)
