"""The reads of the table in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter, itemgetter

from optuna_deadline.allocation.memory.state import (
    MemoryPool,
    MemoryState,
    MemoryStudy,
    MemoryTenant,
    changed,
)
from optuna_deadline.allocation.records import (
    CheckpointOrigin,
    Event,
    GangMembership,
    Orders,
    PlannedTrial,
    ReportRow,
    Roster,
    SegmentRow,
    Slot,
    Tenant,
    Worker,
)
from optuna_deadline.allocation.tail import PAGE
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.errors import StudyGone

_IN_ORDER = attrgetter("granted", "number", "fence")


class MemoryReads:
    """Reads of planner, workers and views in one pool and study.

    Args:
        state: The rows.
        pool: The pool's name.
        study_id: The study.
        ttl: Seconds that a lease lasts.
        grace: Seconds after a lease's end before it may be reaped.
        now: The time in seconds.
    """

    def __init__(
        self,
        state: MemoryState,
        pool: str,
        study_id: int,
        ttl: float,
        grace: float,
        now: Callable[[], float],
    ) -> None:
        self.state = state
        self.pool = pool
        self.study_id = study_id
        self.ttl = ttl
        self.grace = grace
        self.now = now
        self._lock = state.lock

    @property
    def _study(self) -> MemoryStudy | None:
        return self.state.studies.get(self.study_id)

    @property
    def _pool(self) -> MemoryPool | None:
        return self.state.pools.get(self.pool)

    @property
    def _tenant(self) -> MemoryTenant | None:
        return self.state.tenants.get((self.pool, self.study_id))

    def workers(self) -> list[Worker]:
        """The live workers."""
        with self._lock:
            now = self.now()
            return [row for row in self._live(now) if row.pool == self.pool]

    def on_host(self, host: str) -> list[Worker]:
        """Workers of any pool on a host that are live or hold slots."""
        with self._lock:
            holders = {row.holder for row in self.state.slots.values()}
            rows = [row for row in self.state.workers.values() if row.host == host]
            return [row for row in rows if row.state == "live" or row.id in holders]

    def _live(self, now: float) -> list[Worker]:
        rows = self.state.workers.values()
        return [row for row in rows if row.state == "live" and row.lease > now]

    def slots(self) -> list[Slot]:
        """All slots of the pool."""
        with self._lock:
            return self._slots(self.state.slots)

    def _slots(self, ids: Collection[int]) -> list[Slot]:
        live = {row.id for row in self._live(self.now()) if row.drained is None}
        found, every = [], self.state.slots
        for row in [row for row in map(every.__getitem__, ids) if row.pool == self.pool]:
            offers = tuple([w for w in self.state.offers[row.id] if w in live])
            if row.offered_by != offers:  # cached with the row, because it rarely changes
                row = every[row.id] = changed(row, offered_by=offers)
            found.append(row)
        return found

    def free_slots(self, worker_id: str) -> list[int]:
        """Slots that the worker may acquire now."""
        with self._lock:
            rows = [
                self.state.slots[slot_id]
                for slot_id in sorted(self.state.offered_slots(worker_id))
            ]
            return [
                row.id for row in rows if row.holder is None and self._may_take(worker_id, row)
            ]

    def roster(self) -> Roster:
        """The study's live workers and their slots."""
        with self._lock:
            now, state = self.now(), self.state
            everyone = [row for row in state.workers.values() if row.study_id == self.study_id]
            offered: dict[str, int] = {}
            lent: dict[str, int] = {}
            leases: list[float] = []
            live = []
            for worker in everyone:
                slots = [state.slots[slot_id] for slot_id in state.offered_slots(worker.id)]
                leases += [row.lease for row in slots if row.lease is not None]
                if worker.pool != self.pool or worker.state != "live" or worker.lease <= now:
                    continue
                live.append(worker)
                if slots and worker.drained is None:
                    offered[worker.id] = len(slots)
                    mine = sum(
                        [
                            row.lent_to == self.study_id and (row.lease is None or row.lease > now)
                            for row in slots
                        ]
                    )
                    if mine:
                        lent[worker.id] = mine
            return Roster(live, offered, lent, min(leases, default=None))

    def _may_take(self, worker_id: str, row: Slot) -> bool:
        mine = worker_id in self.state.offers[row.id] and row.lent_to == self.study_id
        return mine and row.holder is None and not self._is_drained(worker_id)

    def _is_drained(self, worker_id: str) -> bool:
        worker = self.state.workers.get(worker_id)
        return worker is not None and worker.drained is not None

    def tenants(self) -> list[Tenant]:
        """The pool's unsettled studies."""
        with self._lock:
            found = []
            for (pool, study_id), place in sorted(self.state.tenants.items()):
                study = self.state.studies[study_id]
                if pool == self.pool and study.settled is None:
                    row = Tenant(
                        study_id, study.name, place.weight, place.joined, study.deadline,
                        place.claim, place.served, place.entitled,
                    )  # fmt: skip
                    found.append(row)
            return found

    def orders(self, worker_id: str) -> Orders:
        """The orders of one worker."""
        with self._lock:
            study, pool = self._study, self._pool
            if study is None:
                raise StudyGone("The study was deleted while the worker ran.")
            epoch = 0 if pool is None else pool.epoch
            return Orders(
                now=self.now(),
                deadline=study.deadline,
                settled=study.settled is not None,
                epoch=epoch,
                trials=study.orders(worker_id),
                pool_slots=study.pool_slots,
                funds_end=study.known_end,
                drained=self._is_drained(worker_id),
                in_gangs=any(key[2] == worker_id for key in study.memberships),
                gate_open=study.gate_closed is None,
            )

    def memberships(self, worker_id: str) -> list[GangMembership]:
        """The parts that a worker gives, and those of the gangs that it was granted."""
        with self._lock:
            study = self._study
            found = [] if study is None else list(study.memberships.values())
            planned_rows = {} if study is None else study.trials
        mine = [hand for hand in found if worker_id in (hand.part.worker, hand.leader)]
        mine.sort(key=lambda hand: (hand.number, hand.fence, hand.part.first_rank))
        stands = [
            (planned_rows[hand.number].owner, planned_rows[hand.number].fence)
            == (hand.leader, hand.fence)
            for hand in mine
        ]
        return [changed(hand, active=stand) for hand, stand in zip(mine, stands, strict=True)]

    def trials(self) -> list[PlannedTrial]:
        """Every trial in the table."""
        with self._lock:
            study = self._study
            return [] if study is None else list(study.trials.values())

    def unreported_trials(self) -> list[PlannedTrial]:
        """Trials that live, or whose end Optuna does not know yet."""
        with self._lock:
            study = self._study
            return [] if study is None else list(study.unreported.values())

    def segments(self, since: float = 0.0) -> list[SegmentRow]:
        """Segments that run, or ended at or after ``since``."""
        with self._lock:
            study = self._study
            if study is None:
                return []
            found = list(study.running.values())
            for row in reversed(study.ended):
                if row.ended is not None and row.ended < since:
                    break
                found.append(row)
        return sorted(found, key=_IN_ORDER)

    def reports(self, after: int = 0, number: int | None = None) -> list[ReportRow]:
        """Reports with a row id above ``after``, of one trial or of all."""
        with self._lock:
            study = self._study
            rows = [] if study is None else study.reports[max(0, after) :]
        return rows if number is None else [row for row in rows if row.number == number]

    def checkpoints(self, number: int | None = None) -> list[Checkpoint]:
        """Committed checkpoints, newest first."""
        with self._lock:
            study = self._study
            if study is None:
                return []
            if number is not None:
                return [row for _, row in study.checkpoints.get(number, ())]
            rows = [pair for pairs in study.checkpoints.values() for pair in pairs]
        return [row for _, row in sorted(rows, key=itemgetter(0), reverse=True)]

    def checkpoint_origins(
        self, after: int = 0, number: int | None = None
    ) -> list[CheckpointOrigin]:
        """Where checkpoints were written, of one trial or of all."""
        with self._lock:
            study = self._study
            if study is None:
                return []
            found = []
            numbers = study.checkpoints if number is None else [number]
            for trial in numbers:
                for row_id, row in study.checkpoints.get(trial, ()):
                    if row_id > after:
                        worker = self.state.workers.get(study.written_by.get(row_id, ""))
                        at = (
                            (None, None, None)
                            if worker is None
                            else (worker.host, worker.store, worker.state)
                        )
                        found.append(CheckpointOrigin(row_id, trial, row.path, *at))
        return sorted(found, key=itemgetter(0))

    def trained_before(self, number: int, fence: int) -> float:
        """Seconds of training in the trial's earlier segments."""
        with self._lock:
            study = self._study
            if study is None:
                return 0.0
            rows = [*study.ended_by.get(number, ())]
            rows += [row for key, row in study.running.items() if key[0] == number]
        return float(sum([row.trained or 0.0 for row in rows if row.fence < fence]))

    def events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
        """The study's events from a row id on, of some kinds or of all."""
        return self._read_events(None, self.study_id, after, kinds)

    def follow_study(self) -> None:
        """Do nothing: this table is that of the study's pool."""

    def pool_events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
        """The events of all studies of the pool from a row id on, of some kinds or of all."""
        return self._read_events(self.pool, None, after, kinds)

    def _read_events(
        self, of_pool: str | None, of_study: int | None, after: int, kinds: Sequence[str] | None
    ) -> list[Event]:
        with self._lock:
            found: list[Event] = []
            said = self.state.events
            for place in range(max(0, after), len(said)):
                if (row := said[place]) is None:
                    continue
                pool, study, at, kind, number, slot, fence, term, worker, items = row
                mine = of_pool in (None, pool) and of_study in (None, study)
                if mine and (kinds is None or kind in kinds):
                    found.append(
                        Event(
                            place + 1, at, kind, number, slot, fence, term, worker, dict(items),
                            study,
                        )
                    )  # fmt: skip
                    if len(found) == PAGE:
                        break
            return found

    def _put(self, planned: PlannedTrial, **changes: object) -> PlannedTrial:
        """Write a trial's row with some columns changed."""
        study = self._study
        assert study is not None
        planned = changed(planned, **changes)
        study.put(planned)
        return planned
