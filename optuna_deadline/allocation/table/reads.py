"""The reads of planners, workers and views; none of them locks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.clock import uptime
from optuna_deadline.allocation.database.columns import Records
from optuna_deadline.allocation.database.text import listed
from optuna_deadline.allocation.database.transaction import Scope, Transaction
from optuna_deadline.allocation.records import (
    CheckpointOrigin,
    Event,
    Orders,
    PlannedTrial,
    ReportRow,
    Roster,
    SegmentRow,
    Slot,
    StudyClaim,
    Tenant,
    Worker,
)
from optuna_deadline.allocation.rules import began_at
from optuna_deadline.allocation.table.base import IS_ALIVE, Base
from optuna_deadline.allocation.tail import PAGE
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import parse_location
from optuna_deadline.errors import StudyGone

TRIALS = Records(
    PlannedTrial, schema.trial, "t", mode="desired_mode", worker="desired_worker",
    slots="desired_slots", since="desired_since", end_reported="told", others="desired_others",
)  # fmt: skip
WORKERS = Records(Worker, schema.worker, "w")
SLOTS = Records(lambda *row: Slot(*[*row[:10], (), row[10]]), schema.slot, "s", fields=Slot)
_SEGMENTS = Records(
    lambda *row: SegmentRow(*[*row[:11], row[11] or 1, *row[12:]]),
    schema.segment,
    "g",
    fields=SegmentRow,
)
_REPORTS = Records(
    lambda *row: ReportRow(*[*row[:3], math.nan if row[3] is None else row[3], *row[4:]]),
    schema.report, "r", fields=ReportRow, cached=False,
)  # fmt: skip
_CHECKPOINTS = Records(
    lambda *row: Checkpoint(*row)._replace(path=parse_location(row[4])),
    schema.checkpoint, "c", fields=Checkpoint,
)  # fmt: skip
_EVENTS = Records(Event, schema.event, "e", cached=False)
_IN_ORDER = attrgetter("granted", "number", "fence")
_FACTS = 10  # columns of the orders before those of their trials
#: A worker whose lease has not expired. A lease that ends too late is from before the clock was
#: set back, and its worker is dead.
_LIVES = "w.state = 'live' AND w.lease > NOW AND w.lease <= NOW + p.ttl + :tolerance"


class Reads(Base):
    """The reads of the table."""

    def _living(self, tx: Transaction, where: str, **params: Any) -> list[Worker]:
        """Live workers of any pool, chosen by a condition."""
        return WORKERS.all(tx.rows(
            f"SELECT {WORKERS.names} FROM @worker w JOIN @pool p ON p.name = w.pool "
            f"WHERE {_LIVES} AND ({where}) ORDER BY w.registered, w.id",
            tolerance=self.database.tolerance, **params,
        ))  # fmt: skip

    def workers(self) -> list[Worker]:
        """The pool's live workers, whose lease has not expired."""
        with self._alone() as tx:
            return self._living(tx, "w.pool = :pool")

    def on_host(self, host: str) -> list[Worker]:
        """Workers of any pool on a host that are live or hold slots, dead ones included."""
        with self._alone() as tx:
            return WORKERS.all(tx.rows(
                f"SELECT {WORKERS.names} FROM @worker w WHERE w.host = :host AND "
                "(w.state = 'live' OR EXISTS (SELECT 1 FROM @slot s WHERE s.holder = w.id)) "
                "ORDER BY w.registered, w.id",
                host=host,
            ))  # fmt: skip

    def follow_study(self) -> None:
        """Read the pool that a worker of the study joined last from now on.

        If a worker of the study is in this pool, nothing changes. For readers, which may start
        before the first worker.
        """
        with self._alone() as tx:
            if not self._living(tx, "w.pool = :pool AND w.study_id = :study"):
                last = tx.value(
                    "SELECT n.pool FROM @tenant n WHERE n.study_id = :study ORDER BY coalesce("
                    "(SELECT max(w.registered) FROM @worker w WHERE w.pool = n.pool AND "
                    "w.study_id = n.study_id), n.joined) DESC LIMIT 1"
                )
                self._scope.pool = last or self.pool

    def slots(self) -> list[Slot]:
        """All slots of the pool; a drained worker offers none."""
        with self._alone() as tx:
            return self._slots(tx)

    def _slots(self, tx: Transaction, ids: Collection[int] | None = None) -> list[Slot]:
        some, these = ("true", "[]") if ids is None else ("s.id IN each(:ids)", listed(ids))
        here = (
            "w.pool = :pool"
            if ids is None
            else ("w.id IN (SELECT worker FROM @offer WHERE slot_id IN each(:ids))")
        )
        live = {row.id for row in self._living(tx, here, ids=these) if row.drained is None}
        names: dict[int, list[str]] = {}
        for slot_id, name in tx.rows(
            "SELECT o.slot_id, o.worker FROM @offer o JOIN @worker w ON w.id = o.worker "
            f"JOIN @slot s ON s.id = o.slot_id WHERE w.pool = :pool AND {some} "
            "ORDER BY w.registered, w.id",
            ids=these,
        ):
            if name in live:
                names.setdefault(slot_id, []).append(name)
        rows = tx.rows(
            f"SELECT {SLOTS.names} FROM @slot s WHERE s.pool = :pool AND {some} ORDER BY s.id",
            ids=these,
        )
        return [_offered(row, names.get(row.id, ())) for row in SLOTS.all(rows)]

    def _offerers(self, tx: Transaction, slot_ids: Iterable[int]) -> dict[int, list[str]]:
        """The workers that offer slots, dead ones included."""
        found: dict[int, list[str]] = {slot_id: [] for slot_id in slot_ids}
        for slot_id, name in tx.rows(
            "SELECT slot_id, worker FROM @offer WHERE slot_id IN each(:ids)", ids=listed(found)
        ):
            found[slot_id].append(name)
        return found

    def _namesakes(self, tx: Transaction, host: str, uuids: Mapping[str, str]) -> list[Slot]:
        """Slots of any pool with the name or the UUID of one of these GPUs."""
        if not uuids:
            return []
        rows = SLOTS.all(tx.rows(
            f"SELECT {SLOTS.names} FROM @slot s WHERE (s.host = :host AND "
            "s.device IN names(:names)) OR s.uuid IN names(:uuids)",
            host=host, names=listed(uuids), uuids=listed(uuids.values()),
        ))  # fmt: skip
        offers = self._offerers(tx, [row.id for row in rows])
        return [_offered(row, offers[row.id]) for row in rows]

    def roster(self) -> Roster:
        """The study's live workers and their slots; the cost does not grow with other studies."""
        with self._alone() as tx:
            rows = tx.rows(
                f"SELECT {WORKERS.names}, p.ttl, s.lent_to = :study, s.lease, count(s.id), "
                f"{tx.clock} FROM @worker w JOIN @pool p ON p.name = w.pool LEFT JOIN @offer o ON "
                "o.worker = w.id LEFT JOIN @slot s ON s.id = o.slot_id WHERE w.study_id = :study "
                # Not all workers that there ever were.
                "AND (w.state = 'live' OR s.id IS NOT NULL) GROUP BY w.id, p.ttl, "
                "s.lent_to = :study, s.lease ORDER BY w.registered, w.id"
            )
            now = tx.time_of(rows[0][-1]) if rows else 0.0
        offered: Counter[str] = Counter()
        lent: Counter[str] = Counter()
        live: dict[str, Worker] = {}
        for row in rows:
            worker = WORKERS.of(row[: WORKERS.size])
            ttl, mine, lease, count, _ = row[WORKERS.size :]
            if worker.pool != self.pool or worker.state != "live":
                continue
            if not now < worker.lease <= now + ttl + self.database.tolerance:
                continue
            live[worker.id] = worker
            if worker.drained is None and count:
                offered[worker.id] += count
                if mine and (lease is None or lease > now):
                    lent[worker.id] += count
        leases = [row[-3] for row in rows if row[-3] is not None]
        return Roster(list(live.values()), dict(offered), dict(lent), min(leases, default=None))

    def free_slots(self, worker_id: str) -> list[int]:
        """Free slots that this worker offers and that are lent to its study.

        Empty if it is drained.
        """
        with self._alone() as tx:
            return [slot_id for (slot_id,) in tx.rows(
                "SELECT s.id FROM @slot s JOIN @offer o ON o.slot_id = s.id JOIN @worker w ON "
                "w.id = o.worker WHERE w.id = :me AND w.drained IS NULL AND "
                "s.lent_to = :study AND s.holder IS NULL ORDER BY s.id",
                me=worker_id,
            )]  # fmt: skip

    def tenants(self) -> list[Tenant]:
        """The pool's unsettled studies by id, with or without live workers."""
        with self._alone() as tx:
            rows = tx.rows(
                "SELECT n.study_id, s.name, n.weight, n.joined, s.deadline, n.served, n.entitled, "
                "n.spent, n.counted, s.direction, n.live, n.most, n.done, n.remaining, n.work, "
                "n.span, n.restart FROM @tenant n JOIN @study s ON s.study_id = n.study_id WHERE "
                "n.pool = :pool AND s.settled IS NULL ORDER BY n.study_id"
            )
        claims = [None if row[11] is None else StudyClaim(*row[10:]) for row in rows]
        return [
            Tenant(*[*row[:5], claim, *row[5:10]]) for row, claim in zip(rows, claims, strict=True)
        ]

    def divider(self) -> str | None:
        """The name of the divider of the pool's last leader; None if it is not known."""
        with self._alone() as tx:
            found = tx.value("SELECT divider FROM @leader WHERE pool = :pool")
        return None if found is None else str(found)

    def orders(self, worker_id: str) -> Orders:
        """The orders of one worker: the live trials that it owns or is to own.

        One statement, because every worker reads each second. If the database's clock was set
        since this process has read the deadline, the ends are as far away as before.

        Raises:
            StudyGone: The study was deleted.
        """
        with self._alone() as tx:
            sent = uptime()
            rows = tx.rows(
                f"SELECT {tx.clock}, s.deadline, s.settled, s.pool_slots, s.funds_end, "
                "s.gate_closed, p.epoch, (SELECT drained FROM @worker WHERE id = :me), "
                f"EXISTS (SELECT 1 FROM @part WHERE worker = :me), s.started, {TRIALS.names} "
                "FROM @study s LEFT JOIN @pool p ON p.name = :pool LEFT JOIN @trial t ON "
                f"t.study_id = s.study_id AND t.{IS_ALIVE} AND "
                "(t.owner = :me OR t.desired_worker = :me) "
                "WHERE s.study_id = :study ORDER BY t.number",
                me=worker_id,
            )
            received, now = uptime(), tx.time_of(rows[0][0]) if rows else 0.0
        if not rows:
            raise StudyGone("The study was deleted while the worker ran.")
        if self._scope.given is None:
            self.database.clock.record_reading(now, sent, received)
        deadline, settled, paid, funds_end, closed, epoch, drained, called, started = rows[0][
            1:_FACTS
        ]
        step = self._steady.step(deadline)
        return Orders(
            now=now,
            started=began_at(started + step, deadline + step, now),
            deadline=deadline + step,
            settled=settled is not None,
            epoch=int(epoch or 0),
            trials=tuple([TRIALS.of(row[_FACTS:]) for row in rows if row[_FACTS] is not None]),
            pool_slots=paid,
            funds_end=None if funds_end is None else funds_end + step,
            clock_step=step,
            drained=drained is not None,
            in_gangs=bool(called),
            gate_open=closed is None,
        )

    def trials(self, numbers: Sequence[int] | None = None) -> list[PlannedTrial]:
        """The study's trials with some numbers, or all, by number."""
        if numbers is None:
            return self._trials("true")
        return self._trials("t.number IN each(:numbers)", numbers=listed(numbers))

    def unreported_trials(self, newest: int | None = None) -> list[PlannedTrial]:
        """Trials that live, or whose end Optuna does not know yet, by number.

        Args:
            newest: All trials with a higher number are read as well.
        """
        return self._trials(f"(NOT t.told OR t.{IS_ALIVE} OR t.number > :newest)", newest=newest)

    def _trials(self, where: str, **params: Any) -> list[PlannedTrial]:
        with self._alone() as tx:
            return TRIALS.all(tx.rows(
                f"SELECT {TRIALS.names} FROM @trial t WHERE t.study_id = :study AND {where} "
                "ORDER BY t.number", **params,
            ))  # fmt: skip

    def segments(self, since: float = 0.0) -> list[SegmentRow]:
        """Segments that run, or ended at or after ``since``."""
        mine = f"SELECT {_SEGMENTS.names} FROM @segment g WHERE g.study_id = :study AND"
        with self._alone() as tx:  # two queries: for OR, SQLite reads every segment of the study
            rows = tx.rows(
                f"{mine} g.ended IS NULL UNION ALL {mine} g.ended >= :since", since=since
            )
        return sorted(_SEGMENTS.all(rows), key=_IN_ORDER)

    def reports(self, after: int = 0, number: int | None = None) -> list[ReportRow]:
        """Reports of one trial or of all with a row id above ``after``, by id."""
        # Ordered by id, SQLite would read the reports of all trials.
        which = "r.id > :after ORDER BY r.id" if number is None else "r.number = :number"
        with self._alone() as tx:
            rows = tx.rows(
                f"SELECT {_REPORTS.names} FROM @report r WHERE r.study_id = :study AND {which}",
                after=after, number=number,
            )  # fmt: skip
        return _REPORTS.all(rows if number is None else sorted([r for r in rows if r[0] > after]))

    def checkpoints(self, number: int | None = None) -> list[Checkpoint]:
        """Committed checkpoints of one trial or of all, newest first."""
        which = "true" if number is None else "c.number = :number"
        with self._alone() as tx:
            return _CHECKPOINTS.all(tx.rows(
                f"SELECT {_CHECKPOINTS.names} FROM @checkpoint c WHERE c.study_id = :study AND "
                f"{which} ORDER BY c.id DESC",
                number=number,
            ))  # fmt: skip

    def checkpoints_to_start(self, trial: PlannedTrial) -> list[Checkpoint]:
        """The checkpoints that a trial goes on from, newest first: its own, else its parent's."""
        own = self.checkpoints(trial.number)
        return own if own or trial.parent is None else self.checkpoints(trial.parent)

    def checkpoint_origins(
        self, after: int = 0, number: int | None = None
    ) -> list[CheckpointOrigin]:
        """Where checkpoints with a row id above ``after`` were written, by id."""
        which = "true" if number is None else "c.number = :number"
        with self._alone() as tx:
            rows = tx.rows(
                "SELECT c.id, c.number, c.path, w.host, w.store, w.state, c.at FROM @checkpoint c "
                "LEFT JOIN @segment g ON g.study_id = c.study_id AND g.number = c.number AND "
                "g.fence = c.fence LEFT JOIN @worker w ON w.id = g.worker WHERE "
                f"c.study_id = :study AND c.id > :after AND {which} ORDER BY c.id",
                after=after, number=number,
            )  # fmt: skip
        return [CheckpointOrigin(*row)._replace(path=parse_location(row[2])) for row in rows]

    def trained_before(self, number: int, fence: int) -> float:
        """Seconds of training in the trial's segments before ``fence``."""
        with self._alone() as tx:
            total = tx.value(
                "SELECT sum(trained) FROM @segment WHERE study_id = :study AND number = :number "
                "AND fence < :fence",
                number=number, fence=fence,
            )  # fmt: skip
        return float(total or 0.0)

    def events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
        """The study's events in all pools from a row id on, at most 10,000."""
        return self._events("e.study_id = :study", after, kinds)

    def pool_events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
        """The events of all studies of the pool from a row id on, at most 10,000."""
        return self._events("e.pool = :pool", after, kinds)

    def _events(self, where: str, after: int, kinds: Sequence[str] | None) -> list[Event]:
        some = "true" if kinds is None else "e.kind IN names(:kinds)"
        with self._alone() as tx:
            return _EVENTS.all(tx.rows(
                f"SELECT {_EVENTS.names} FROM @event e WHERE {where} AND e.id > :after AND {some} "
                f"ORDER BY e.id LIMIT {PAGE}",
                after=after, kinds=listed(kinds or ()),
            ))  # fmt: skip

    def event_before(self, count: int, *, of_pool: bool = False) -> int:
        """The row id before the newest ``count`` events of the study, or of its pool; or 0."""
        where = "pool = :pool" if of_pool else "study_id = :study"
        with self._alone() as tx:
            return int(tx.value(
                f"SELECT id FROM @event WHERE {where} ORDER BY id DESC LIMIT 1 OFFSET :count",
                count=count,
            ) or 0)  # fmt: skip


def pools(database: Database) -> list[str]:
    """The names of all pools."""
    with database.each_alone(Scope("", 0)) as tx:
        return [name for (name,) in tx.rows("SELECT name FROM @pool ORDER BY name")]


def _offered(row: Slot, names: Sequence[str]) -> Slot:
    """The slot with its offers; as ``dataclasses.replace`` in a tenth of its time."""
    if not names:
        return row
    new = object.__new__(Slot)
    new.__dict__.update(row.__dict__, offered_by=tuple(names))
    return new
