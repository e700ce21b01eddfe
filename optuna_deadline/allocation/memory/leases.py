"""Acquires, renews, releases and reaps slots in memory, also for gangs over several workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter

from optuna_deadline.allocation.memory.plans import MemoryRequests
from optuna_deadline.allocation.memory.state import changed
from optuna_deadline.allocation.records import (
    GangMembership,
    GangPart,
    Grant,
    PlannedTrial,
    Rendezvous,
    Renewal,
    SegmentRow,
    Slot,
)
from optuna_deadline.allocation.rules import as_planned, placement_detail


class MemoryGangs(MemoryRequests):
    """Parts of gangs, their rendezvous, and the release of their slots."""

    def publish_rendezvous(self, worker_id: str, grant: Grant, rendezvous: Rendezvous) -> None:
        """Publish the rendezvous; the first one stays."""
        with self._lock:
            study = self._guard(worker_id, grant)
            for key, hand in study.memberships.items():
                if key[:2] == (grant.number, grant.fence) and hand.rendezvous is None:
                    study.memberships[key] = changed(hand, rendezvous=rendezvous)

    def release_part(self, worker_id: str, number: int, fence: int) -> bool:
        """Free the slots of a part."""
        with self._lock:
            study = self._study
            hand = (
                None if study is None else study.memberships.pop((number, fence, worker_id), None)
            )
            if hand is None:
                return False
            self._release_slots(worker_id, number, hand.part.slots)
            return True

    def _release_slots(
        self, worker_id: str, number: int, slots: Iterable[tuple[int, int]]
    ) -> None:
        for pair in slots:
            if self._holds(worker_id, pair):
                row = self._free(pair[0])
                self._event(
                    "release", number=number, slot=row.id, fence=row.fence, worker=worker_id
                )

    def _lease_runs(self, name: str, now: float) -> bool:
        return any(row.id == name for row in self._live(now))

    def _add_parts(
        self,
        worker_id: str,
        planned: PlannedTrial,
        size: int,
        first: int,
        theirs: Mapping[str, list[Slot]],
    ) -> tuple[GangPart, ...]:
        study = self._study
        assert study is not None
        parts = []
        for name, rows in theirs.items():
            slots = tuple((row.id, row.fence + 1) for row in rows)
            part = GangPart(name, first, slots, tuple(row.device for row in rows))
            hand = GangMembership(
                planned.number, planned.trial_id, planned.fence, worker_id, size, part, active=True
            )
            study.memberships[planned.number, planned.fence, name] = hand
            parts.append(part)
            first += len(rows)
        return tuple(parts)

    def _reclaim_parts(self, number: int, fence: int) -> None:
        """Free members' slots if no rank can have been forked for them."""
        study = self._study
        assert study is not None
        for key, hand in list(study.memberships.items()):
            if key[:2] == (number, fence) and hand.rendezvous is None:
                self.release_part(key[2], number, fence)

    def _delete_reaped_parts(self, reaped: Iterable[Slot]) -> None:
        pairs = {(row.id, row.fence) for row in reaped}
        for study in self.state.studies.values() if pairs else ():
            for key, hand in list(study.memberships.items()):
                if not pairs.isdisjoint(hand.part.slots):
                    del study.memberships[key]


_BY_ID = attrgetter("id")


class MemoryLeases(MemoryGangs):
    """The transitions that change or keep a slot's holder."""

    def acquire(
        self,
        worker_id: str,
        number: int,
        slot_ids: Sequence[int],
        others: Mapping[str, Sequence[int]] | None = None,
    ) -> Grant | None:
        """Acquire a gang's slots, all or none."""
        others = others or {}
        with self._lock:
            now, study = self.now(), self._study
            planned = None if study is None else study.trials.get(number)
            if study is None or planned is None:
                return None
            if planned.owner is not None or planned.state not in ("ready", "paused"):
                return None
            if (planned.mode, planned.worker) != ("run", worker_id):
                return None
            if not as_planned(planned.slots, planned.others, slot_ids, others):
                return None
            if planned.held is not None or planned.slots > (planned.slot_limit or planned.slots):
                return None
            if study.settled is not None or now >= min(study.deadline, study.funds_end):
                return None
            if study.pool_slots is not None and not self._within_budget(
                planned.slots, study.pool_slots
            ):
                return None
            rows, theirs = self._takeable(worker_id, slot_ids), {}
            for name, ids in others.items():
                theirs[name] = self._takeable(name, ids) if self._lease_runs(name, now) else []
            if len(rows) + sum(map(len, theirs.values())) != planned.slots:
                return None
            return self._grant(worker_id, number, rows, now, theirs)

    def _within_budget(self, more: int, most: int) -> bool:
        """Whether a study with a budget pays for so many more slots than its trials hold."""
        now, held = self.now(), 0
        for row in self.state.slots.values():
            mine = row.study_id == self.study_id
            held += mine and row.lease is not None and row.lease > now
        return held + more <= most

    def _takeable(self, name: str, slot_ids: Sequence[int]) -> list[Slot]:
        slots = self.state.slots
        rows = [slots[slot_id] for slot_id in sorted(set(slot_ids)) if slot_id in slots]
        return [row for row in rows if self._may_take(name, row)]

    def _grant(
        self,
        worker_id: str,
        number: int,
        rows: list[Slot],
        now: float,
        theirs: Mapping[str, list[Slot]] | None = None,
    ) -> Grant:
        """Assign the slots; all checks have passed."""
        study = self._study
        assert study is not None
        before = study.trials[number]
        theirs = theirs or {}
        holders = {row.id: name for name, of in theirs.items() for row in of}
        everything = sorted([*rows, *[row for of in theirs.values() for row in of]], key=_BY_ID)
        planned = self._put(before, owner=worker_id, state="running", fence=before.fence + 1)
        for row in everything:
            holder = holders.get(row.id, worker_id)
            held = changed(
                row,
                holder=holder,
                study_id=self.study_id,
                number=number,
                fence=row.fence + 1,
                lease=now + self.ttl,
            )
            self.state.slots[row.id] = held
            self._event("acquire", number=number, slot=row.id, fence=held.fence, worker=holder)
        size = len(everything)
        study.running[number, planned.fence] = SegmentRow(
            number, planned.fence, size, now, workers=1 + len(theirs)
        )
        kind = "start" if before.state == "ready" else "resume"
        self._event(
            kind,
            number=number,
            fence=planned.fence,
            worker=worker_id,
            slots=size,
            reason=planned.reason,
            **placement_detail(
                [(name, len(of)) for name, of in theirs.items()], [row.host for row in everything]
            ),
        )
        return Grant(
            number=number,
            trial_id=planned.trial_id,
            fence=planned.fence,
            slots=tuple((row.id, row.fence + 1) for row in rows),
            devices=tuple(row.device for row in rows),
            others=self._add_parts(worker_id, planned, size, len(rows), theirs),
        )

    def renew(self, worker_id: str, held: Collection[tuple[int, int]]) -> Renewal:
        """Renew the slots that the worker still holds."""
        with self._lock:
            now = self.now()
            if worker_id in self.state.workers:
                live = changed(self.state.workers[worker_id], state="live", lease=now + self.ttl)
                self.state.workers[worker_id] = live
            kept = frozenset(pair for pair in held if self._holds(worker_id, pair))
            for slot_id, _ in kept:
                row = self.state.slots[slot_id]
                self.state.slots[slot_id] = changed(row, lease=now + self.ttl)
            offers = len(self.state.offered_slots(worker_id))
            known = worker_id in self.state.workers
            return Renewal(now=now, kept=kept, offers=offers if known else None)

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
        """Release the slots."""
        with self._lock:
            if not self._owns(worker_id, grant.number, grant.fence):
                return False
            study = self._study
            assert study is not None
            planned = study.trials[grant.number]
            worker = worker_id if stays and planned.mode == "pause" else planned.worker
            self._put(
                planned, owner=None, state=outcome, value=value, failures=failures, worker=worker
            )
            self._release_slots(worker_id, grant.number, grant.slots)
            self._end_segment(study, grant.number, grant.fence, ended, stop)
            self._event(
                outcome, number=grant.number, fence=grant.fence, worker=worker_id, reason=ended
            )
            return True

    def cancel_grant(self, worker_id: str, number: int, fence: int) -> bool:
        """Release a grant whose answer was lost."""
        with self._lock:
            if not self._owns(worker_id, number, fence):
                return False
            study = self._study
            assert study is not None
            planned = study.trials[number]
            held = [
                row
                for row in self.state.slots.values()
                if (row.holder, row.study_id, row.number) == (worker_id, self.study_id, number)
            ]
            slots = tuple((row.id, row.fence) for row in held)
            devices = tuple(row.device for row in held)
            grant = Grant(number, planned.trial_id, fence, slots, devices)
            self._reclaim_parts(number, fence)
            return self.release(
                worker_id,
                grant,
                "paused",
                ended="disowned",
                value=planned.value,
                failures=planned.failures,
            )

    def reap(self) -> int:
        """Free the slots of dead workers."""
        with self._lock:
            now, pool = self.now(), self._pool
            if pool is None:
                return 0
            state = self.state
            expired = [
                row
                for row in state.slots.values()
                if (row.pool == self.pool or row.study_id == self.study_id)
                and row.lease is not None
                and row.lease + state.pools[row.pool].grace < now
            ]
            self._reap(expired)
            self._free_orphans()
            silent = [
                row
                for row in state.workers.values()
                if (row.pool == self.pool or row.study_id == self.study_id)
                and row.state == "live"
                and row.lease + state.pools[row.pool].grace < now
            ]
            for worker in silent:
                self.state.workers[worker.id] = changed(worker, state="lost")
            self._stop_idle_payments({worker.study_id for worker in silent})
            return len(expired)

    def reap_ended(self, names: Collection[str]) -> int:
        """Free the slots of workers that are known to have ended."""
        with self._lock:
            held = [row for row in self.state.slots.values() if row.holder in names]
            self._reap(held)
            for study_id, study in self.state.studies.items():
                planned_rows = [planned for planned in study.unreported.values() if planned.alive]
                self._release_orphans_of(
                    study_id, [planned for planned in planned_rows if planned.owner in names]
                )
            rows = self.state.workers.values()
            gone = [row for row in rows if row.id in names and row.state == "live"]
            for worker in gone:
                self.state.workers[worker.id] = changed(worker, state="lost")
            self._stop_idle_payments({worker.study_id for worker in gone})
            self._release_leadership(names)
            return len(held)

    def _reap(self, rows: Sequence[Slot]) -> None:
        for row in rows:
            freed = self._free(row.id)
            self._event(
                "reap", number=row.number, slot=row.id, fence=freed.fence, worker=row.holder,
                study_id=row.study_id, pool=row.pool,
            )  # fmt: skip
        self._delete_reaped_parts(rows)
        for row in rows:
            for name in list(self.state.offers[row.id]):
                if self.state.workers[name].state == "left":
                    self.state.withdraw(name, [row.id])

    def _release_leadership(self, names: Collection[str]) -> None:
        """End the elected roles of workers."""
        now = self.now()
        for pool in self.state.pools.values():
            if pool.leader in names:
                pool.leader, pool.expires = None, now
        for place in self.state.tenants.values():
            if place.planner in names:
                place.planner, place.expires = None, now
